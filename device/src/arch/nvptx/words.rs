//! Folds 8 bytes at a time: what vectors leave over, and packets and lines, which are awaited.

use congruent_heap::refuse;

use super::packs::PackOp;
use super::vectors::pack;
use super::{Lane, load, load_acquire, load_words, store, store_release, store_words};
use crate::arch::Share;
use crate::operand::{PLAIN, packed_words};
use crate::poll::Polled;
use crate::{Ctx, Operand, Operands};

/// Bytes `from..bytes` of plain operands, aligned or not.
///
/// # Safety
/// As [`fold`](super::vectors::fold).
#[inline(always)]
pub(super) unsafe fn plain(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    from: usize,
    bytes: usize,
    members: u32,
    by: impl PackOp,
) {
    let mut at = from + share.rank * 8;
    while at < bytes {
        let n = (bytes - at).min(8) as u32;
        // SAFETY: the caller's contract; `at..at + n` is inside.
        unsafe {
            let result = pack(src, at, members, by, |from| load_up_to_8(from, n));
            for i in 0..dst.count() {
                store_up_to_8(dst.get(i).start().add(at), n, result);
            }
        }
        at += share.size * 8;
    }
}

/// Packets, and what is plain beside them. Four sources' words are on their way at a time. False when a wait ended without its packets;
/// the reason is recorded.
///
/// # Safety
/// As [`fold`](super::vectors::fold); no operand has lines.
#[inline(always)]
pub(super) unsafe fn packets(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: usize,
    members: u32,
    by: impl PackOp,
    ctx: &Ctx<'_>,
) -> bool {
    let mut at = share.rank * 8;
    while at < bytes {
        let n = (bytes - at).min(8) as u32;
        // SAFETY: the caller's contract; `at..at + n` is inside, and packets start at `2 * at`.
        unsafe {
            let count = src.count();
            let ask = |i: usize| if i < count { ask(&src.get(i), at, n) } else { [0; 2] };
            // Four variables and no array, which would be in memory.
            let (mut ahead, mut sums) = ((ask(0), ask(1), ask(2), ask(3)), by.none());
            for i in 0..count {
                let (asked, a, b, c) = ahead;
                ahead = (a, b, c, ask(i + 4));
                let Some(values) = take(src, i, at, n, asked, ctx) else { return false };
                sums = by.next(sums, values, i == 0, src.get(i).is_partial());
            }
            let result = by.last(sums, members);
            for i in 0..dst.count() {
                let operand = dst.get(i);
                match operand.form() {
                    PLAIN => store_up_to_8(operand.start().add(at), n, result),
                    _ => give_packets(&operand, at, n, result),
                }
            }
        }
        at += share.size * 8;
    }
    true
}

/// Lines of `line` bytes, whose flags are words too, and what is plain beside them. False when a wait ended without its lines; the reason
/// is recorded.
///
/// A thread takes two words, one after the other, and neighbouring threads store a line together, by one instruction for the two. That it
/// then arrives as a whole is a property of the hardware, not of the PTX model (MM-8): that protocol is opt-in. Threads that are too few for
/// a line leave it to the first of them, which stores the flag with release.
///
/// # Safety
/// As [`fold`](super::vectors::fold); no operand has packets.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "as `packets`, and the lines")]
pub(super) unsafe fn lines(
    share: Share,
    dst: &impl Operands,
    src: &impl Operands,
    bytes: u32,
    members: u32,
    line: u32,
    by: impl PackOp,
    ctx: &Ctx<'_>,
) -> bool {
    let (line_words, all) = (line / 8, packed_words(bytes as usize, line) as u32);
    // A power of two: no division, which is a call.
    let line_shift = line_words.trailing_zeros();
    // As many threads as fill whole lines, so that each line is of threads of one warp in one turn; the others are past the end.
    let threads_of_line = line_words / 2;
    let (rank, size) = (share.rank as u32, share.size as u32);
    let threads = if size < threads_of_line { 1 } else { size & !(threads_of_line - 1) };
    let base = if rank < threads { rank * 2 } else { all };
    let mut before = [0; 2];
    // As many turns for every thread, so that they stay together where lines are stored.
    let mut turn = 0;
    while turn < all {
        let word = turn + base;
        let (index, place) = (word >> line_shift, word & (line_words - 1));
        let at = (word - index) * 8;
        let carries = word < all && place < line_words - 1 && at < bytes;
        let n = if carries { (bytes - at).min(8) } else { 0 };
        let (mut result, mut missed) = ([0; 2], false);
        // SAFETY: the caller's contract; `at..at + n` is inside, and lines are whole.
        unsafe {
            if carries {
                let here = Here { at, n, word, flag: (index + 1) * line - 8 };
                match folded(src, here, members, by, ctx) {
                    None => missed = true,
                    Some(sums) => result = sums,
                }
            }
            // Threads of a warp meet before they store a line, so none may leave the others there.
            if threads > 1 {
                missed = Lane::new().warp_any(missed);
            }
            if missed {
                return false;
            }
            for i in 0..dst.count() {
                let operand = dst.get(i);
                // Who had nothing to store at the destination before would come to this one first, and its line would go in parts.
                if threads > 1 && i > 0 {
                    Lane::new().warp_sync();
                }
                match operand.form() {
                    PLAIN if carries => store_up_to_8(operand.start().add(at as usize), n, result),
                    PLAIN => {}
                    _ if word < all && word & 1 == 1 => {
                        let last = if place == line_words - 1 { [operand.flag, 0] } else { result };
                        give_pair(operand.start().add((word as usize - 1) * 8), before, last, threads > 1);
                    }
                    _ => {}
                }
            }
        }
        before = result;
        turn += if turn & 1 == 0 { 1 } else { threads * 2 - 1 };
    }
    true
}

/// Where a thread's word of a line is: bytes `at..at + n` of the data, word `word` of the lines, whose flag is at byte `flag`.
#[derive(Clone, Copy)]
struct Here {
    at: u32,
    n: u32,
    word: u32,
    flag: u32,
}

/// The sum of all sources' words at `here`; none where a wait ended without one, and then the reason is recorded.
///
/// # Safety
/// As [`lines`].
#[inline(always)]
unsafe fn folded(src: &impl Operands, here: Here, members: u32, by: impl PackOp, ctx: &Ctx<'_>) -> Option<[u32; 2]> {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = by.none();
        for i in 0..src.count() {
            sums = by.next(sums, take_line(src, i, here, ctx)?, i == 0, src.get(i).is_partial());
        }
        Some(by.last(sums, members))
    }
}

/// The data of source `i` at `here`, once its line has arrived; none where the wait ended without it, and then the reason is recorded.
///
/// # Safety
/// As [`lines`].
#[inline(always)]
unsafe fn take_line(src: &impl Operands, i: usize, here: Here, ctx: &Ctx<'_>) -> Option<[u32; 2]> {
    let operand = src.get(i);
    // SAFETY: the caller's contract.
    unsafe {
        if operand.is_plain() {
            return Some(load_up_to_8(operand.start().add(here.at as usize), here.n));
        }
        // What the line holds, the flag acquires.
        let flag = operand.start().add(here.flag as usize).cast::<u64>();
        let has_arrived = || load_acquire(flag) as u32 == operand.flag;
        if !has_arrived() && !ctx.packet(|| src.get(i), Polled::new(flag), has_arrived) {
            return None;
        }
        Some(low_high(load(operand.start().add(here.word as usize * 8).cast::<u64>())))
    }
}

/// Stores two words of a line. Where threads store it `together`, all of them come to one store, those with the flag too: in two
/// arms of a branch, the flag could be stored before the data.
///
/// # Safety
/// As [`lines`]; lines start on a multiple of their size (`Ctx::lines`).
#[inline(always)]
unsafe fn give_pair(to: *mut u8, first: [u32; 2], second: [u32; 2], together: bool) {
    let [first, second] = [first, second].map(|[low, high]| u64::from(low) | u64::from(high) << 32);
    // SAFETY: the caller's contract.
    unsafe {
        if together {
            store_words(to, [first, second]);
        } else {
            store(to.cast::<u64>(), first);
            store_release(to.cast::<u64>().add(1), second);
        }
    }
}

/// Asks a source for the words of bytes `at..at + n`, whether or not they have arrived; for nothing where they are not one access.
///
/// # Safety
/// As [`packets`].
#[inline(always)]
unsafe fn ask(operand: &Operand, at: usize, n: u32) -> [u64; 2] {
    // SAFETY: the caller's contract; packets start on a multiple of 16 bytes (`Ctx::packets`), and so does each pair. Where one
    // packet is all there is, the other word is not looked at, and mapped, as pages are multiples of 16 bytes too.
    unsafe {
        match operand.form() {
            PLAIN if is_word(operand.start().add(at), n) => [load(operand.start().add(at).cast::<u64>()), 0],
            PLAIN => [0; 2],
            _ => load_words(operand.start().add(2 * at)),
        }
    }
}

/// The data of source `i`, once it has arrived; none where the wait ended without it, and then the reason is recorded.
///
/// # Safety
/// As [`packets`]; `asked` is what [`ask`] gave.
#[inline(always)]
unsafe fn take(src: &impl Operands, i: usize, at: usize, n: u32, asked: [u64; 2], ctx: &Ctx<'_>) -> Option<[u32; 2]> {
    let operand = src.get(i);
    let start = operand.start();
    // SAFETY: the caller's contract.
    unsafe {
        if operand.is_plain() {
            let from = start.add(at);
            return Some(if is_word(from, n) { low_high(asked[0]) } else { load_up_to_8(from, n) });
        }
        let (packets, both) = (start.add(2 * at).cast::<u64>(), n > 4);
        let mut words = asked;
        let has_arrived =
            |words: [u64; 2]| words[0] as u32 == operand.flag && (!both || words[1] as u32 == operand.flag);
        if !has_arrived(words) {
            let arrives = || {
                words = load_words(packets.cast());
                has_arrived(words)
            };
            if !ctx.packet(|| src.get(i), Polled::new(packets), arrives) {
                return None;
            }
        }
        Some(words.map(|packet| (packet >> 32) as u32))
    }
}

/// # Safety
/// As [`packets`].
#[inline(always)]
unsafe fn give_packets(operand: &Operand, at: usize, n: u32, data: [u32; 2]) {
    let packet = |data: u32| u64::from(data) << 32 | u64::from(operand.flag);
    // SAFETY: the caller's contract.
    unsafe {
        let words = operand.start().add(2 * at);
        if n > 4 {
            store_words(words, data.map(packet));
        } else {
            store(words.cast::<u64>(), packet(data[0]));
        }
    }
}

#[inline(always)]
fn low_high(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Whether these bytes of plain memory are one access.
#[inline(always)]
fn is_word(start: *const u8, n: u32) -> bool {
    n == 8 && (start as usize).is_multiple_of(8)
}

/// Up to 8 bytes of plain memory, aligned or not.
///
/// # Safety
/// The bytes are mapped global memory.
#[inline(always)]
unsafe fn load_up_to_8(from: *const u8, n: u32) -> [u32; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(from, n) {
            return low_high(load(from.cast::<u64>()));
        }
        let mut value = 0;
        for i in 0..n {
            value |= u64::from(load::<u8>(from.add(i as usize))) << (8 * i);
        }
        low_high(value)
    }
}

/// # Safety
/// As [`load_up_to_8`].
#[inline(always)]
unsafe fn store_up_to_8(to: *mut u8, n: u32, [low, high]: [u32; 2]) {
    let value = u64::from(low) | u64::from(high) << 32;
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(to, n) {
            store(to.cast::<u64>(), value);
        } else {
            for i in 0..n {
                store(to.add(i as usize), (value >> (8 * i)) as u8);
            }
        }
    }
}

/// The bytes of lines, which are few enough for 32 bits.
#[inline(always)]
pub(super) fn few(bytes: usize) -> u32 {
    if bytes >= 1 << 31 {
        refuse!("lines carry less than 2 GiB");
    }
    bytes as u32
}
