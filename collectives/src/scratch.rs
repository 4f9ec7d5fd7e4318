//! Scratch of a block's own, for algorithms that hold parts of other members on the way.

use congruent_device::{Group, Pod, Sym, refuse};

use crate::plan::Layout;
use crate::session::Coll;

/// Slots of the queue from this member to itself that are scratch; the first is where proxied sends are staged.
pub(crate) const SLOTS: usize = Layout::DEPTH as usize - 1;

/// Scratch of this member's block: three slots of the plan, in one.
#[inline(always)]
#[track_caller]
pub(crate) fn whole<B: Group>(coll: &Coll<'_, B>) -> Sym<u8> {
    let plan = &coll.plan;
    let start = (plan.slot(coll.memory, coll.me(), 1).offset() - plan.scratch.offset()) as usize;
    plan.scratch.slice(start..start + SLOTS * plan.slot_bytes as usize)
}

/// How many elements each of `count` ranges has where they share `bytes` bytes: whole vectors, or at least whole elements of
/// whatever type the bytes are of.
///
/// # Panics
/// Where there is no room for one element.
#[inline(always)]
#[track_caller]
pub(crate) fn each<T: Pod>(bytes: usize, count: usize) -> usize {
    let bytes = bytes / count;
    let whole = if bytes >= 128 { bytes / 128 * 128 } else { bytes / 8 * 8 };
    if whole < size_of::<T>() {
        refuse!("the plan's buffer is too small for elements of this size; give its layout a larger one");
    }
    whole / size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn ranges_share_the_bytes_in_whole_vectors() {
        for bytes in [512usize, 1536, 4096, 49_152] {
            for count in 1..=64 {
                let elements = each::<u8>(bytes, count);
                assert!(elements * count <= bytes && elements.is_multiple_of(8));
                assert!(elements < 128 || elements.is_multiple_of(128));
                assert_eq!(each::<u64>(bytes, count), elements / 8);
            }
        }
    }

    #[test]
    #[should_panic = "too small"]
    fn an_element_must_fit() {
        each::<[u64; 8]>(512, 16);
    }
}
