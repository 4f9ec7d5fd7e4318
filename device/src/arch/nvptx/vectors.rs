//! How a fold goes through memory: vectors where all operands allow it, words where not.

use congruent_heap::refuse;

use super::words;
use super::{load16, store16};
use crate::arch::{Share, each};
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
            let lone = if P::PAIRS { pairs(share, dst, src, at, members, by) } else { share.rank * 16 };
            vectors(share, lone, dst, src, at, members, by);
        }
        words::fold(share, dst, src, at, bytes, members, line, by, ctx)
    }
}

/// How many sources there are.
#[inline(always)]
pub(super) fn sources<P: PackOp>(src: &impl Operands) -> usize {
    if P::ONE { 1 } else { src.count() }
}

/// Two vectors of 16 bytes a thread at a time, of the first `bytes`; all operands plain and aligned. Gives where the thread's
/// first vector is that has no second one.
///
/// Two vectors, and as many of the next source on their way, are what hides the latency of memory behind a few warps.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn pairs(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: usize,
    members: u32,
    by: impl PackOp,
) -> usize {
    let (mut at, step) = (share.rank * 16, share.size * 16);
    while at + step < bytes {
        // SAFETY: the caller's contract, and `at + step + 16 <= bytes`, as all are multiples of 16.
        unsafe {
            let load = |from: *const u8| {
                let ([a, b, c, d], [e, f, g, h]) = (load16(from), load16(from.add(step)));
                [a, b, c, d, e, f, g, h]
            };
            let [a, b, c, d, e, f, g, h] = pack(src, at, members, by, load);
            for i in each(0..dst.count()) {
                let to = dst.get(i).start().add(at);
                store16(to, [a, b, c, d]);
                store16(to.add(step), [e, f, g, h]);
            }
        }
        at += 2 * step;
    }
    at
}

/// One vector of 16 bytes a thread at a time, from byte `at` of the first `bytes`; all operands plain and aligned.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn vectors(
    share: Share,
    mut at: usize,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: usize,
    members: u32,
    by: impl PackOp,
) {
    while at < bytes {
        // SAFETY: the caller's contract, and `at + 16 <= bytes`, as both are multiples of 16.
        unsafe {
            let result = pack(src, at, members, by, |from| load16(from));
            for i in each(0..dst.count()) {
                store16(dst.get(i).start().add(at), result);
            }
        }
        at += share.size * 16;
    }
}

/// The sum of all sources' packs at byte `at`; each is asked for before the one before it is summed up.
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
    // SAFETY: the caller's contract.
    let load = |i| load(unsafe { src.get(i).start().add(at) });
    let count = sources::<P>(src);
    let mut ahead = load(0);
    let mut sums = by.next(by.none(), ahead, true, src.get(0).is_partial());
    if count > 1 {
        ahead = load(1);
    }
    for i in each(1..count) {
        let values = ahead;
        if i + 1 < count {
            ahead = load(i + 1);
        }
        sums = by.next(sums, values, false, src.get(i).is_partial());
    }
    by.last(sums, members)
}

#[cfg(test)]
#[path = "vectors_tests.rs"]
mod tests;
