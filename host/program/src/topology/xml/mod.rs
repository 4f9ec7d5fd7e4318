//! The file format of NCCL's `NCCL_TOPO_FILE` and `NCCL_TOPO_DUMP_FILE`, version 1.
//!
//! What is unknown is left out: NCCL fills in what a file lacks of the devices that it uses. Beside NCCL's own elements
//! and attributes ours has what [`Topology`](super::Topology) knows more (`cache`, `cores`, `memory`, names and states);
//! NCCL passes over what it does not know, and so do we.

mod document;
mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;

/// The only version there is.
const VERSION: &str = "1";

/// The family of an x86 processor as NCCL computes it from `cpuid`: the base family, and 16 times the extension.
///
/// The kernel adds the two, as the vendors' manuals say. Both are the same up to family 15; NCCL's are read by all its
/// versions, the kernel's only by new ones.
fn family_for_nccl(family: u32) -> u32 {
    if (16..=EXTENDED).contains(&family) { 15 + ((family - 15) << 4) } else { family }
}

/// The other way round, for either kind of number: no processor has a family between the two.
fn family_from_nccl(family: u32) -> u32 {
    let extension = family.wrapping_sub(15);
    if family >= 15 + (1 << 4) && extension.is_multiple_of(16) { 15 + (extension >> 4) } else { family }
}

/// The greatest that `cpuid` can say.
const EXTENDED: u32 = 15 + 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use crate::topology::fake::Fake;

    #[test]
    fn what_is_written_reads_back_the_same() {
        for fake in [Fake::dgx(), Fake::empty()] {
            let topology = Topology::detect(&fake.sysfs());
            let text = write(&topology).unwrap();
            assert_eq!(read(&text).unwrap(), topology, "{text}");
        }
        let here = Topology::here();
        assert_eq!(read(&write(&here).unwrap()).unwrap(), here);
    }

    #[test]
    fn families_are_nccls_and_come_back() {
        for (family, nccl) in [(6, 6), (15, 15), (0x17, 0x8f), (0x19, 0xaf), (0x1a, 0xbf)] {
            assert_eq!(
                (family_for_nccl(family), family_from_nccl(nccl), family_from_nccl(family)),
                (nccl, family, family)
            );
        }
    }
}
