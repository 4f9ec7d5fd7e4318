//! Folds 8 bytes at a time: what is not aligned, what is left over, and packets and lines, which are awaited.

use core::arch::asm;

use super::granules::Folder;
use super::{Lane, load, load_acquire, store, store_release};
use crate::arch::{End, Ends, Form, Share};
use crate::ends::packed_words;
use crate::poll::{Patience, Stop};

/// What was waited for and did not come.
pub(super) struct Missed {
    pub(super) source: usize,
    pub(super) stop: Stop,
}

/// Where a thread's word is: its bytes `at..at + n` of the data, and word `place` of the line that starts at byte `line`, if
/// lines have `bytes` bytes.
#[derive(Clone, Copy)]
struct Here {
    at: usize,
    n: usize,
    line: usize,
    place: usize,
    bytes: usize,
}

/// 8 bytes of data a thread, of bytes `from..bytes`. Four sources' words are on their way at a time.
///
/// With lines, whose flags are words too, neighbouring threads store a line together. That it then arrives as a whole is a
/// property of the hardware, not of the PTX model (MM-8): that protocol is opt-in.
///
/// # Safety
/// As [`fold`](super::fold).
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one loop for all forms")]
pub(super) unsafe fn words(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    from: usize,
    bytes: usize,
    line: usize,
    by: impl Folder,
    patience: Patience<'_>,
) -> Result<(), Missed> {
    // Without lines, all is one line without a flag. Words of a line are a power of two: no division, which is a call.
    let (line_words, all) =
        if line > 0 { (line / 8, packed_words(bytes, line as u32)) } else { (1 << 40, (bytes - from).div_ceil(8)) };
    let line_shift = line_words.trailing_zeros();
    // As many turns for every thread, so that they stay together where lines are stored.
    let mut turn = 0;
    while turn < all {
        let word = turn + share.rank;
        let (index, place) = (word >> line_shift, word & (line_words - 1));
        let at = from + (word - index) * 8;
        let carries = word < all && place < line_words - 1 && at < bytes;
        let n = if carries { (bytes - at).min(8) } else { 0 };
        let mut result = [0; 2];
        // SAFETY: the caller's contract; `at..at + n` is inside, packets start at `2 * at`, and lines are whole.
        unsafe {
            if carries {
                let here = Here { at, n, line: index * line, place, bytes: line };
                let count = src.count();
                let ask = |i: usize| if i < count { ask(&src.end(i), here) } else { [0; 2] };
                let first = ask(0);
                // Four variables and no array, which would be in memory.
                let mut ahead = (ask(1), ask(2), ask(3), ask(4));
                let missed = |source| move |stop| Missed { source, stop };
                let mut sums = by.first(take(&src.end(0), here, first, patience).map_err(missed(0))?);
                for i in 1..count {
                    let (asked, a, b, c) = ahead;
                    ahead = (a, b, c, ask(i + 4));
                    sums = by.next(sums, take(&src.end(i), here, asked, patience).map_err(missed(i))?);
                }
                result = by.last(sums);
            }
            if line > 0 && share.size > 1 {
                Lane::new().warp_sync();
            }
            for i in 0..dst.count() {
                let end = dst.end(i);
                match end.form {
                    Form::Plain if carries => store_up_to_8(end.start.add(at), n, result),
                    Form::Packets { flag } if carries => give_packets(&end, at, n, flag, result),
                    Form::Lines { flag, .. } if word < all => {
                        let here = end.start.add(word * 8).cast::<u64>();
                        if place < line_words - 1 {
                            store(here, u64::from(result[0]) | u64::from(result[1]) << 32);
                        } else if share.size > 1 {
                            store(here, u64::from(flag));
                        } else {
                            store_release(here, u64::from(flag));
                        }
                    }
                    _ => {}
                }
            }
        }
        turn += share.size;
    }
    Ok(())
}

/// Asks a source for the words at `here`, whether or not they have arrived; of lines, whose flag must be seen first, for
/// nothing.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn ask(end: &End, here: Here) -> [u64; 2] {
    // SAFETY: the caller's contract. Where one packet is all there is, the other word is memory of the same queue, which is not
    // looked at.
    unsafe {
        match end.form {
            Form::Plain => [load_up_to_8(end.start.add(here.at), here.n), 0],
            Form::Packets { .. } => load_words(end.start.add(2 * here.at)),
            Form::Lines { .. } => [0; 2],
        }
    }
}

/// The data, once it has arrived.
///
/// # Safety
/// As [`words`]; `asked` is what [`ask`] gave.
#[inline(always)]
unsafe fn take(end: &End, here: Here, asked: [u64; 2], patience: Patience<'_>) -> Result<[u32; 2], Stop> {
    let low_high = |word: u64| [word as u32, (word >> 32) as u32];
    // SAFETY: the caller's contract.
    unsafe {
        match end.form {
            Form::Plain => Ok(low_high(asked[0])),
            Form::Packets { flag } => {
                let (words, both) = (end.start.add(2 * here.at).cast::<u64>(), here.n > 4);
                let mut packets = asked;
                if !(packets[0] as u32 == flag && (!both || packets[1] as u32 == flag)) {
                    await_flag(words, both, flag, patience)?;
                    packets = load_words(words.cast());
                }
                Ok(packets.map(|packet| (packet >> 32) as u32))
            }
            Form::Lines { flag, .. } => {
                let line = end.start.add(here.line);
                let last = line.add(here.bytes - 8).cast::<u64>();
                if load_acquire(last) != u64::from(flag) {
                    await_flag(last, false, flag, patience)?;
                }
                // Read after the flag.
                Ok(low_high(load(line.add(here.place * 8).cast::<u64>())))
            }
        }
    }
}

/// Waits until `word`, and with `both` the next one, carries the flag; acquires, which is what lines need.
///
/// # Safety
/// The words are mapped symmetric memory, aligned.
#[inline(always)]
unsafe fn await_flag(word: *mut u64, both: bool, flag: u32, patience: Patience<'_>) -> Result<(), Stop> {
    // SAFETY: the caller's contract.
    let has = |i| unsafe { load_acquire(word.add(i)) } as u32 == flag;
    patience.waiter.poll(word, patience.budget_ns, || has(0) && (!both || has(1)))
}

/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn give_packets(end: &End, at: usize, n: usize, flag: u32, data: [u32; 2]) {
    let packet = |data: u32| u64::from(data) << 32 | u64::from(flag);
    // SAFETY: the caller's contract.
    unsafe {
        let words = end.start.add(2 * at);
        if n > 4 {
            store_words(words, data.map(packet));
        } else {
            store(words.cast::<u64>(), packet(data[0]));
        }
    }
}

/// Two words in one access. Each is a relaxed access of 64 bits of its own in the PTX model, which does not tear.
#[inline(always)]
unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    let (a, b): (u64, u64);
    on_global!("ld.relaxed.sys.global.v2.b64 {{{a}, {b}}}, [g];", pointer, a = out(reg64) a, b = out(reg64) b);
    [a, b]
}

#[inline(always)]
unsafe fn store_words(pointer: *mut u8, [a, b]: [u64; 2]) {
    on_global!("st.relaxed.sys.global.v2.b64 [g], {{{a}, {b}}};", pointer, a = in(reg64) a, b = in(reg64) b);
}

/// Up to 8 bytes of plain memory, aligned or not.
///
/// # Safety
/// The bytes are mapped global memory.
#[inline(always)]
unsafe fn load_up_to_8(from: *const u8, n: usize) -> u64 {
    // SAFETY: the caller's contract.
    unsafe {
        if n == 8 && (from as usize).is_multiple_of(8) {
            load(from.cast::<u64>())
        } else {
            let mut value = 0;
            for i in 0..n {
                value |= u64::from(load::<u8>(from.add(i))) << (8 * i);
            }
            value
        }
    }
}

/// # Safety
/// As [`load_up_to_8`].
#[inline(always)]
unsafe fn store_up_to_8(to: *mut u8, n: usize, [low, high]: [u32; 2]) {
    let value = u64::from(low) | u64::from(high) << 32;
    // SAFETY: the caller's contract.
    unsafe {
        if n == 8 && (to as usize).is_multiple_of(8) {
            store(to.cast::<u64>(), value);
        } else {
            for i in 0..n {
                store(to.add(i), (value >> (8 * i)) as u8);
            }
        }
    }
}
