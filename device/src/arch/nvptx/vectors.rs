//! How a fold goes through memory: vectors where all operands allow it, words where not.

use congruent_heap::refuse;

use super::words;
use super::{load16, store16};
use crate::arch::{Share, each, opaque};
use crate::operand::{PACKETS, PLAIN};
use crate::reduce::packs::PackOp;
use crate::{Ctx, Operand, Operands};

/// Folds vectors while there are whole ones, all operands are plain, and all are aligned; words where not. False when a wait for packets
/// or lines ended without them; the reason is recorded.
///
/// # Safety
/// Every operand covers `bytes` bytes of mapped symmetric memory.
#[inline(always)]
pub(super) unsafe fn fold<P: PackOp>(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: usize,
    members: u32,
    by: P,
    ctx: &Ctx<'_>,
) -> bool {
    let (mut packets, mut line, mut apart) = (false, 0, 0);
    let mut look = |operand: Operand| match operand.form() {
        PLAIN => apart |= operand.address as usize,
        PACKETS => packets = true,
        bytes => line = bytes,
    };
    for i in each(0..sources::<P>(src)) {
        look(src.get(i));
        if P::ONE {
            break;
        }
    }
    for i in each(0..dst.count()) {
        look(dst.get(i));
    }
    if (apart | bytes) & (by.multiple() - 1) != 0 {
        refuse!("bytes that are folded as a type are aligned for it and end with an element");
    }
    // SAFETY: the caller's contract; each way covers every element once.
    unsafe {
        if packets && line > 0 {
            refuse!("packets and lines are not folded together");
        }
        let mut at = 0;
        if P::VECTORS && !packets && line == 0 && apart.is_multiple_of(16) {
            at = bytes / 16 * 16;
            if P::ONE {
                several::<4, 16>(share, dst, src, at, members, by);
            } else if P::PAIRS {
                several::<2, 8>(share, dst, src, at, members, by);
            } else {
                several::<1, 4>(share, dst, src, at, members, by);
            }
        }
        words::fold(share, dst, src, at, bytes, members, line, by, ctx)
    }
}

/// How many sources there are.
#[inline(always)]
pub(super) fn sources<P: PackOp>(src: &impl Operands) -> usize {
    if P::ONE { 1 } else { src.count() }
}

/// The first `bytes` bytes, `V` vectors of 16 bytes a thread at a time, which are `K` words; all operands plain and aligned.
///
/// Several vectors, and those of several sources on their way, are what hides the latency of memory behind a few warps. What is behind the
/// end is not asked for: one loop for all, as each is the arithmetic of a type.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn several<const V: usize, const K: usize>(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: usize,
    members: u32,
    by: impl PackOp,
) {
    const { assert!(K == 4 * V) };
    let step = share.size * 16;
    let mut at = share.rank * 16;
    while at < bytes {
        let is_inside = |v: usize| v == 0 || at + v * step < bytes;
        // SAFETY: the caller's contract; vectors are loaded and stored where they are inside, as all numbers are multiples of 16.
        unsafe {
            let load = |from: *const u8| {
                let mut words = [0; K];
                for v in 0..V {
                    // Behind the end, the first vector again: what operators make of it is nobody's, and nothing that they refuse.
                    let vector = if is_inside(v) { load16(from.add(v * step)) } else { first(&words) };
                    words[4 * v..4 * v + 4].copy_from_slice(&vector);
                }
                words
            };
            let result = pack(src, at, members, by, load);
            for i in each(0..dst.count()) {
                let to = dst.get(i).start().add(at);
                for v in 0..V {
                    if is_inside(v) {
                        store16(
                            to.add(v * step),
                            [result[4 * v], result[4 * v + 1], result[4 * v + 2], result[4 * v + 3]],
                        );
                    }
                }
            }
        }
        at += V * step;
    }
}

/// The first vector of a pack.
#[inline(always)]
fn first<const K: usize>(words: &[u32; K]) -> [u32; 4] {
    [words[0], words[1], words[2], words[3]]
}

/// The sum of all sources' packs at byte `at`, of which two are on their way at a time.
///
/// # Safety
/// As [`fold`], and `load` may read at `at` of every source.
#[inline(always)]
unsafe fn pack<P: PackOp, const K: usize>(
    src: &impl Operands,
    at: usize,
    members: u32,
    by: P,
    load: impl Fn(*const u8) -> [u32; K],
) -> [u32; K] {
    let count = sources::<P>(src);
    let load = |i| match i < count {
        // SAFETY: the caller's contract.
        true => load(unsafe { src.get(i).start().add(at) }),
        false => [0; K],
    };
    let next = |sums, values, i| match i < count {
        true => by.next(sums, values, i == 0, src.get(i).is_partial()),
        false => sums,
    };
    if P::ONE {
        return by.last(next(by.none(), load(0), 0), members);
    }
    // Of a number that it knows, the compiler would have a loop of its own for the first sources.
    let (mut sums, mut i) = (by.none(), opaque(0) as usize);
    while i < count {
        let (a, b) = (load(i), load(i + 1));
        sums = next(next(sums, a, i), b, i + 1);
        i = opaque(i as u64 + 2) as usize;
    }
    by.last(sums, members)
}

#[cfg(test)]
#[path = "vectors_tests.rs"]
mod tests;
