//! How a fold goes through memory: vectors where all ends allow it, words where not.

use congruent_heap::refuse;

use super::granules::Folder;
use super::words::words;
use super::{load16, store16};
use crate::arch::{End, Ends, Form, Share};
use crate::poll::Patience;

/// Folds vectors while there are whole ones, all ends are plain, and all are aligned; words where not.
///
/// # Safety
/// Every end covers `bytes` bytes of mapped symmetric memory.
#[inline(always)]
pub(super) unsafe fn pieces<'p>(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    bytes: usize,
    by: impl Folder,
    patience: &impl Fn() -> Patience<'p>,
) -> bool {
    let (mut packets, mut line, mut apart) = (false, 0, 0);
    let mut look = |end: End| match end.form {
        Form::Plain => apart |= end.start as usize,
        Form::Packets { .. } => packets = true,
        Form::Lines { bytes, .. } => line = bytes,
    };
    for i in 0..src.count() {
        look(src.end(i));
    }
    for i in 0..dst.count() {
        look(dst.end(i));
    }
    let element = by.element();
    if (apart | bytes) & (element.multiple - 1) != 0 {
        refuse!("bytes that are folded as a type are aligned for it and end with an element");
    }
    // SAFETY: the caller's contract; each way covers every element once.
    unsafe {
        let mut at = 0;
        if !packets && line == 0 && apart.is_multiple_of(16) {
            at = bytes / 16 * 16;
            let lone = if element.pairs { pairs(share, dst, src, at, by) } else { share.rank * 16 };
            vectors(share, lone, dst, src, at, by);
        }
        words(share, dst, src, at, bytes, line, by, patience)
    }
}

/// Two vectors of 16 bytes a thread at a time, of the first `bytes`; all ends plain and aligned. Gives where the thread's
/// first vector is that has no second one.
///
/// Two vectors, and as many of the next source on their way, are what hides the latency of memory behind a few warps.
///
/// # Safety
/// As [`pieces`].
#[inline(always)]
unsafe fn pairs(share: Share, dst: &impl Ends, src: &impl Ends, bytes: usize, by: impl Folder) -> usize {
    let (mut at, step) = (share.rank * 16, share.size * 16);
    while at + step < bytes {
        // SAFETY: the caller's contract, and `at + step + 16 <= bytes`, as all are multiples of 16.
        unsafe {
            let load = |from: *const u8| {
                let ([a, b, c, d], [e, f, g, h]) = (load16(from), load16(from.add(step)));
                [a, b, c, d, e, f, g, h]
            };
            let [a, b, c, d, e, f, g, h] = granule(src, at, by, load);
            for i in 0..dst.count() {
                let to = dst.end(i).start.add(at);
                store16(to, [a, b, c, d]);
                store16(to.add(step), [e, f, g, h]);
            }
        }
        at += 2 * step;
    }
    at
}

/// One vector of 16 bytes a thread at a time, from byte `at` of the first `bytes`; all ends plain and aligned.
///
/// # Safety
/// As [`pieces`].
#[inline(always)]
unsafe fn vectors(share: Share, mut at: usize, dst: &impl Ends, src: &impl Ends, bytes: usize, by: impl Folder) {
    while at < bytes {
        // SAFETY: the caller's contract, and `at + 16 <= bytes`, as both are multiples of 16.
        unsafe {
            let result = granule(src, at, by, |from| load16(from));
            for i in 0..dst.count() {
                store16(dst.end(i).start.add(at), result);
            }
        }
        at += share.size * 16;
    }
}

/// The sum of all sources' granules at byte `at`; each is asked for before the one before it is summed up.
///
/// # Safety
/// As [`pieces`], and `load` may read at `at` of every source.
#[inline(always)]
unsafe fn granule<const K: usize>(
    src: &impl Ends,
    at: usize,
    by: impl Folder,
    load: impl Fn(*const u8) -> [u32; K],
) -> [u32; K] {
    // SAFETY: the caller's contract.
    let load = |i| load(unsafe { src.end(i).start.add(at) });
    let count = src.count();
    let mut ahead = load(0);
    let mut sums = by.first(ahead);
    if count > 1 {
        ahead = load(1);
    }
    for i in 1..count {
        let values = ahead;
        if i + 1 < count {
            ahead = load(i + 1);
        }
        sums = by.next(sums, values);
    }
    by.last(sums)
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
