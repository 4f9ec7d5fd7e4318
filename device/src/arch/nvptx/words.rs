//! Folds 8 bytes at a time: what is not aligned, what is left over, and packets and lines, which are awaited.

use super::granules::Folder;
use super::{Lane, load, load_acquire, load_words, store, store_release, store_words};
use crate::arch::{End, Ends, Form, Share};
use crate::ends::packed_words;
use crate::poll::{Patience, Polled};

/// Where a thread's word is: its bytes `at..at + n` of the data; with lines word `word`, which is word `place` of a line of
/// `bytes` bytes.
#[derive(Clone, Copy)]
struct Here {
    at: usize,
    n: u32,
    word: usize,
    place: u32,
    bytes: u32,
}

/// 8 bytes of data a thread, of bytes `from..bytes`. Four sources' words are on their way at a time. False when a wait ended
/// without its words; the reason is recorded.
///
/// With lines, whose flags are words too, a thread takes two words, one after the other, and neighbouring threads store a line
/// together, by one instruction for the two. That it then arrives as a whole is a property of the hardware, not of the PTX model (MM-8):
/// that protocol is opt-in. Threads that are too few for a line leave it to the first of them, which stores the flag with release.
///
/// # Safety
/// As [`pieces`](super::pieces::pieces).
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one loop for all forms")]
pub(super) unsafe fn words<'p>(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    from: usize,
    bytes: usize,
    line: u32,
    by: impl Folder,
    patience: &impl Fn() -> Patience<'p>,
) -> bool {
    // Without lines, all is one line without a flag. Words of a line are a power of two: no division, which is a call.
    let (line_words, all) =
        if line > 0 { (line as usize / 8, packed_words(bytes, line)) } else { (1 << 40, (bytes - from).div_ceil(8)) };
    let line_shift = line_words.trailing_zeros();
    // As many threads as fill whole lines, so that each line is of threads of one warp in one turn; the others are past the end.
    let (pair, threads_of_line) = if line > 0 { (2, line_words / 2) } else { (1, 1) };
    let threads = if share.size < threads_of_line { 1 } else { share.size & !(threads_of_line - 1) };
    let base = if share.rank < threads { share.rank * pair } else { all };
    let mut before = [0; 2];
    // As many turns for every thread, so that they stay together where lines are stored.
    let mut turn = 0;
    while turn < all {
        let word = turn + base;
        let (index, place) = (word >> line_shift, word & (line_words - 1));
        let at = from + (word - index) * 8;
        let carries = word < all && place < line_words - 1 && at < bytes;
        let n = if carries { (bytes - at).min(8) as u32 } else { 0 };
        let (mut result, mut missed) = ([0; 2], false);
        // SAFETY: the caller's contract; `at..at + n` is inside, packets start at `2 * at`, and lines are whole.
        unsafe {
            if carries {
                match folded(src, Here { at, n, word, place: place as u32, bytes: line }, by, patience) {
                    None => missed = true,
                    Some(sums) => result = sums,
                }
            }
            // Threads of a warp meet before they store a line, so none may leave the others there.
            if line > 0 && threads > 1 {
                missed = Lane::new().warp_any(missed);
            }
            if missed {
                return false;
            }
            for i in 0..dst.count() {
                let end = dst.end(i);
                // Who had nothing to store at the destination before would come to this one first, and its line would go in parts.
                if line > 0 && threads > 1 && i > 0 {
                    Lane::new().warp_sync();
                }
                match end.form {
                    Form::Plain if carries => store_up_to_8(end.start.add(at), n, result),
                    Form::Packets { flag } if carries => give_packets(&end, at, n, flag, result),
                    Form::Lines { flag, .. } if word < all && word & 1 == 1 => {
                        let last = if place == line_words - 1 { [flag, 0] } else { result };
                        give_pair(end.start.add((word - 1) * 8), before, last, threads > 1);
                    }
                    _ => {}
                }
            }
        }
        before = result;
        turn += if line > 0 && turn & 1 == 0 { 1 } else { threads * pair - (pair - 1) };
    }
    true
}

/// The sum of all sources' words at `here`; none where a wait ended without one, and then the reason is recorded.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn folded<'p>(
    src: &impl Ends,
    here: Here,
    by: impl Folder,
    patience: &impl Fn() -> Patience<'p>,
) -> Option<[u32; 2]> {
    let count = src.count();
    // SAFETY: the caller's contract.
    unsafe {
        let ask = |i: usize| if i < count { ask(&src.end(i), here) } else { [0; 2] };
        let first = ask(0);
        // Four variables and no array, which would be in memory.
        let mut ahead = (ask(1), ask(2), ask(3), ask(4));
        let mut sums = by.first(take(src, 0, here, first, patience)?);
        for i in 1..count {
            let (asked, a, b, c) = ahead;
            ahead = (a, b, c, ask(i + 4));
            sums = by.next(sums, take(src, i, here, asked, patience)?);
        }
        Some(by.last(sums))
    }
}

/// Stores two words of a line. Where threads store it `together`, all of them come to one store, those with the flag too: in two
/// arms of a branch, the flag could be stored before the data.
///
/// # Safety
/// As [`words`]; lines start on a multiple of their size (`End::lines`).
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

/// Asks a source for the words at `here`, whether or not they have arrived; for nothing where they are not one access, and of
/// lines, whose flag must be seen first.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn ask(end: &End, here: Here) -> [u64; 2] {
    // SAFETY: the caller's contract; packets start on a multiple of 16 bytes (`End::packets`), and so does each pair. Where one
    // packet is all there is, the other word is not looked at, and mapped, as pages are multiples of 16 bytes too.
    unsafe {
        match end.form {
            Form::Plain if is_word(end.start.add(here.at), here.n) => [load(end.start.add(here.at).cast::<u64>()), 0],
            Form::Packets { .. } => load_words(end.start.add(2 * here.at)),
            _ => [0; 2],
        }
    }
}

/// The data of source `i`, once it has arrived; none where the wait ended without it, and then the reason is recorded.
///
/// # Safety
/// As [`words`]; `asked` is what [`ask`] gave.
#[inline(always)]
unsafe fn take<'p>(
    src: &impl Ends,
    i: usize,
    here: Here,
    asked: [u64; 2],
    patience: &impl Fn() -> Patience<'p>,
) -> Option<[u32; 2]> {
    let End { start, form, .. } = src.end(i);
    let low_high = |word: u64| [word as u32, (word >> 32) as u32];
    // SAFETY: the caller's contract.
    unsafe {
        let (flag, flags, lined) = match form {
            Form::Plain if is_word(start.add(here.at), here.n) => return Some(low_high(asked[0])),
            Form::Plain => return Some(low_high(load_bytes(start.add(here.at), here.n))),
            Form::Packets { flag } => (flag, start.add(2 * here.at), false),
            Form::Lines { flag, .. } => {
                (flag, start.add((here.word - here.place as usize) * 8 + here.bytes as usize - 8), true)
            }
        };
        let (flags, both) = (flags.cast::<u64>(), !lined && here.n > 4);
        let mut packets = if lined { [load_acquire(flags), 0] } else { asked };
        if packets[0] as u32 != flag || both && packets[1] as u32 != flag {
            // What lines need, the flag acquires.
            let has = |i| load_acquire(flags.add(i)) as u32 == flag;
            if !patience().packet(|| src.end(i), Polled::new(flags), || has(0) && (!both || has(1))) {
                return None;
            }
            if !lined {
                packets = load_words(flags.cast());
            }
        }
        // The word of a line is read after its flag.
        Some(if lined {
            low_high(load(start.add(here.word * 8).cast::<u64>()))
        } else {
            packets.map(|packet| (packet >> 32) as u32)
        })
    }
}

/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn give_packets(end: &End, at: usize, n: u32, flag: u32, data: [u32; 2]) {
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
unsafe fn load_bytes(from: *const u8, n: u32) -> u64 {
    let mut value = 0;
    for i in 0..n {
        // SAFETY: the caller's contract.
        value |= u64::from(unsafe { load::<u8>(from.add(i as usize)) }) << (8 * i);
    }
    value
}

/// # Safety
/// As [`load_bytes`].
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
