//! Through multicast addresses: the switch combines what members load and replicates what they store (NVLink SHARP, NCCL's NVLS).
//!
//! Each byte of a source travels once, to the switch, and each byte of a result once from it, whatever the team's size. A team
//! has multicast where its machine has it (`Team::multicast`); [`Op::multimem`](crate::Op::multimem) says what it reduces.
//!
//! **The order of summation is the switch's**, and so is how it rounds: sums of floats may differ in their last bits from
//! those of other algorithms, and from call to call. All members get the same bits. Integers are exact. Machines that emulate
//! multicast combine in rank order, with one rounding at the end.
//!
//! The switch works on words of 4 bytes, or 8 where elements have 8. Where a buffer does not start or end with one, the elements at its
//! ends are loaded from and stored to each member, and all elements where destination and source lie differently within words.

use congruent_device::{Apart, Group, Keep, Multicast, MultimemReduction, Pod, Reducer, Sym, refuse};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::session::Coll;
use crate::{Algorithm, Collective, Protocol, check};

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`: member `c` reduces
/// chunk `c` and stores it to all.
///
/// # Collective
/// Over the team; `dst` may be `src`. Each member gives its source to the switch once and gets the result once.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten (MM-9).
///
/// # Panics
/// Where the team has no multicast or the switch does not reduce this; and where the lengths differ, the buffers overlap without
/// being the same.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::same(dst, src);
    let how = reduction(coll, op);
    let _call = coll.begin(Operation::AllReduceMultimem, src.bytes());
    if !src.is_empty() {
        let (to, from) = (coll.chunk(dst, coll.me()), coll.chunk(src, coll.me()));
        let whole = Words::of(to, from, how.number().word());
        coll.barrier();
        {
            let _step = coll.step("reduce and give", (0, 1), coll.me(), from.bytes());
            if whole.count > 0 {
                let (to, from) = (everywhere(coll, whole.in_range(to)), everywhere(coll, whole.in_range(from)));
                coll.ctx().start_all_reduce_multicast(coll.group(), to, from, how);
            }
            whole.around(coll.group(), to, from, |to, from| {
                coll.start_fold(from.bytes(), Apart(coll.of_all(to)), Apart(coll.of_all(from)), op, coll.n());
            });
        }
        coll.barrier();
    }
}

/// Combines the members' `src` element by element with `op`, and gives member `i` part `i` of the result in `dst`: `src` is
/// `n` times as long as `dst`.
///
/// # Collective
/// Over the team; `dst` may be part `me` of `src`. Each member gives its source to the switch once and gets its part.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths do not fit or the buffers overlap otherwise, and as [`all_reduce`].
#[inline(always)]
#[track_caller]
pub fn reduce_scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::part_of(src, dst, coll.n(), coll.me());
    let how = reduction(coll, op);
    let _call = coll.begin(Operation::ReduceScatterMultimem, src.bytes());
    if !dst.is_empty() {
        let (to, from) = (coll.mine(dst), coll.mine(coll.part(src, coll.me())));
        coll.barrier();
        {
            let _step = coll.step("reduce", (0, 1), coll.me(), from.bytes());
            reduce(coll, to, from, op, how);
        }
        coll.barrier();
    }
}

/// Gives every member every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`.
///
/// # Collective
/// Over the team; `src` may be part `me` of `dst`. Each member gives its source to the switch once.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the team has no multicast, where the lengths do not fit or the buffers overlap otherwise, and where the plan is for
/// another team or fewer blocks.
#[inline(always)]
#[track_caller]
pub fn all_gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    check::part_of(dst, src, coll.n(), coll.me());
    must_have(coll);
    let _call = coll.begin(Operation::AllGatherMultimem, dst.bytes());
    if !src.is_empty() {
        let (to, from) = (coll.mine(coll.part(dst, coll.me())), coll.mine(src));
        coll.barrier();
        {
            let _step = coll.step("give", (0, 1), coll.me(), from.bytes());
            give(coll, to.cast(), from.cast());
        }
        coll.barrier();
    }
}

/// Gives every member the `src` of member `root` in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `src` is read. The root gives it to the switch once.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where `root` is no member or the team has no multicast, and where the lengths differ, the buffers overlap without being the
/// same.
#[inline(always)]
#[track_caller]
pub fn broadcast<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, root: usize) {
    check::same(dst, src);
    check::root(root, coll.n());
    must_have(coll);
    let _call = coll.begin(Operation::BroadcastMultimem, src.bytes());
    if !src.is_empty() {
        coll.barrier();
        if coll.me() == root {
            let (to, from) = (coll.mine(dst), coll.mine(src));
            let _step = coll.step("give", (0, 1), coll.me(), from.bytes());
            give(coll, to.cast(), from.cast());
        }
        coll.barrier();
    }
}

/// Combines every member's `src` in this member's `dst`, which may be its own `src`.
#[inline(always)]
#[track_caller]
pub(crate) fn reduce<T: Pod, B: Group>(
    coll: &Coll<'_, B>,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl Reducer<T>,
    how: MultimemReduction,
) {
    let whole = Words::of(dst, src, how.number().word());
    if whole.count > 0 {
        let src = everywhere(coll, whole.in_range(src));
        coll.ctx().start_reduce_multicast(coll.group(), whole.in_range(dst), src, how);
    }
    whole.around(coll.group(), dst, src, |dst, src| {
        coll.start_fold(src.bytes(), Apart(coll.only(dst)), Apart(coll.of_all(src)), op, coll.n());
    });
}

/// Stores this member's `src` in every member's `dst`.
#[inline(always)]
#[track_caller]
pub(crate) fn give<B: Group>(coll: &Coll<'_, B>, dst: Sym<u8>, src: Sym<u8>) {
    let whole = Words::of(dst, src, 4);
    if whole.count > 0 {
        coll.ctx().start_put_multicast(coll.group(), everywhere(coll, whole.in_range(dst)), whole.in_range(src));
    }
    whole.around(coll.group(), dst, src, |dst, src| {
        coll.start_fold(src.bytes(), Apart(coll.of_all(dst)), Apart(coll.only(src)), Keep, 0);
    });
}

/// What the switch does for an operator.
#[inline(always)]
#[track_caller]
pub(crate) fn reduction<T: Pod, B: Group>(coll: &Coll<'_, B>, op: impl Reducer<T>) -> MultimemReduction {
    must_have(coll);
    match op.multimem(coll.n()) {
        Some(how) => how,
        None => refuse!("the switch does not reduce this; take another algorithm"),
    }
}

#[inline(always)]
#[track_caller]
fn must_have<B: Group>(coll: &Coll<'_, B>) {
    let _there_is = everywhere(coll, Sym::<u8>::empty());
}

#[inline(always)]
#[track_caller]
fn everywhere<'c, T: Pod, B: Group>(coll: &Coll<'c, B>, sym: Sym<T>) -> Multicast<'c, T> {
    match coll.team().multicast(sym) {
        Some(multicast) => multicast,
        None => refuse!("the team has no multicast; take another algorithm"),
    }
}

/// Which elements of two ranges of one length are whole words for links in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    start: usize,
    count: usize,
}

impl Words {
    #[inline(always)]
    fn of<T: Pod>(dst: Sym<T>, src: Sym<T>, word: usize) -> Self {
        let (to, from, bytes) = (dst.offset() as usize, src.offset() as usize, dst.bytes());
        if !to.abs_diff(from).is_multiple_of(word) {
            return Self { start: 0, count: 0 };
        }
        let head = (to.next_multiple_of(word) - to).min(bytes);
        Self { start: head / size_of::<T>(), count: (bytes - head) / word * word / size_of::<T>() }
    }

    /// These elements.
    #[inline(always)]
    #[track_caller]
    fn in_range<T: Pod>(self, range: Sym<T>) -> Sym<T> {
        range.slice(self.start..self.start + self.count)
    }

    /// Folds, by `each`, the elements before and after, where there are any. The group has met since it last folded.
    #[inline(always)]
    #[track_caller]
    fn around<T: Pod>(self, group: &impl Group, dst: Sym<T>, src: Sym<T>, each: impl Fn(Sym<T>, Sym<T>)) {
        let (mut from, mut to) = (0, self.start);
        // One call in a loop: on a GPU, what it calls is inlined.
        for end in 0..2 {
            if from < to {
                // The operands of a block's fold lie where those of the one before do.
                if end == 1 && self.start > 0 {
                    group.sync();
                }
                each(dst.slice(from..to), src.slice(from..to));
            }
            (from, to) = (self.start + self.count, dst.len());
        }
    }
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| Work::between_barriers(call, call.bytes));

/// [`reduce_scatter`].
pub static REDUCE_SCATTER: Descriptor = described(Collective::ReduceScatter, parts);

/// [`all_gather`].
pub static ALL_GATHER: Descriptor = described(Collective::AllGather, parts);

/// [`broadcast`].
pub static BROADCAST: Descriptor = described(Collective::Broadcast, |call| {
    // In each barrier the others wait for the root only.
    Work { posts: call.n - 2.0, ..Work::between_barriers(call, call.bytes) }
});

const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    let usual = Descriptor::new(collective, Algorithm::MULTIMEM, &[Protocol::Simple], work);
    Descriptor { multicast: true, ..usual.direct_only() }
}

fn parts(call: &Sizes) -> Work {
    Work::between_barriers(call, call.others)
}

#[cfg(test)]
mod tests {
    use congruent_device::Thread;

    use super::*;

    fn of<T: Pod>(to: u64, from: u64, len: u64, word: usize) -> (usize, usize) {
        let Words { start, count } = Words::of(Sym::<T>::from_raw(to, len), Sym::<T>::from_raw(from, len), word);
        (start, count)
    }

    #[test]
    fn whole_words_are_found_between_the_ends() {
        assert_eq!(of::<u8>(256, 512, 10, 4), (0, 8));
        assert_eq!(of::<u8>(257, 513, 10, 4), (3, 4));
        assert_eq!(of::<u8>(257, 513, 2, 4), (2, 0));
        assert_eq!(of::<u8>(264, 512, 24, 8), (0, 24));
        assert_eq!(of::<u16>(258, 514, 4, 4), (1, 2));
        assert_eq!(of::<f32>(260, 516, 3, 4), (0, 3));
    }

    #[test]
    fn ranges_that_lie_differently_have_none() {
        assert_eq!(of::<u8>(257, 512, 64, 4), (0, 0));
        assert_eq!(of::<u16>(256, 514, 64, 4), (0, 0));
        assert_eq!(of::<u8>(256, 260, 64, 4), (0, 64));
        assert_eq!(of::<u8>(256, 260, 64, 8), (0, 0));
    }

    #[test]
    fn what_is_around_them_is_all_the_rest() {
        let seen = |to: u64, from: u64, len: u64| {
            let (dst, src) = (Sym::<u8>::from_raw(to, len), Sym::<u8>::from_raw(from, len));
            let seen = core::cell::RefCell::new(std::vec::Vec::new());
            Words::of(dst, src, 4).around(&Thread, dst, src, |a, b| {
                seen.borrow_mut().push((a.offset() - to, b.offset() - from, a.len()))
            });
            seen.into_inner()
        };
        assert_eq!(seen(257, 513, 10), [(0, 0, 3), (7, 7, 3)]);
        assert_eq!(seen(256, 512, 8), []);
        assert_eq!(seen(256, 512, 9), [(8, 8, 1)]);
        assert_eq!(seen(257, 512, 9), [(0, 0, 9)]);
    }
}
