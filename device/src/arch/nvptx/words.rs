//! Folds 8 bytes at a time: what vectors leave over, and packets and lines, which are awaited.

use congruent_heap::refuse;

use super::vectors::sources;
use super::{Lane, load, load_acquire, load_words, store, store_release, store_words};
use crate::arch::{Share, each};
use crate::operand::{PACKETS, PLAIN, packed_words};
use crate::poll::Polled;
use crate::reduce::packs::PackOp;
use crate::{Ctx, Operand, Operands};

/// Bytes `from..bytes`: plain ones, aligned or not, and packets or lines from the first. Words of [`PackOp::AHEAD`] sources are on their
/// way at a time, and of two where any may be packed: a step has packets or lines of at most two members. False when a wait ended without
/// what it was for; the reason is recorded.
///
/// Of lines of `line` bytes, whose flags are words too, a thread takes two words, one after the other, and neighbouring threads store a line
/// together, by one instruction for the two. That it then arrives as a whole is a property of the hardware, not of the PTX model (MM-8):
/// that protocol is opt-in. Threads that are too few for a line leave it to the first of them, which stores the flag with release.
///
/// # Safety
/// As [`vectors::fold`](super::vectors::fold); operands are plain, or have packets where `line` is 0, and else lines. `from`
/// is a multiple of 8, and 0 where any is packed.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what is folded, and in which form")]
pub(super) unsafe fn fold<P: PackOp, S: Operands>(
    share: Share,
    dst: &impl Operands,
    src: &S,
    from: usize,
    bytes: usize,
    members: u32,
    line: u32,
    by: P,
    ctx: &Ctx<'_>,
) -> bool {
    let is_by_four = const { P::AHEAD == 4 && S::PLAIN };
    let (words, mut turn) = Words::new(share, from, bytes, line);
    let mut before = [0; 2];
    // As many turns for every thread, so that they stay together where lines are stored.
    while turn < words.all {
        let here = words.at(turn, bytes);
        let (mut result, mut missed) = ([0; 2], false);
        // SAFETY: the caller's contract; `here` is inside, packets start at twice the byte where it is, and lines are whole.
        unsafe {
            if here.n > 0 {
                let count = sources::<P>(src);
                let ask = |i: usize| if i < count { ask(&src.get(i), here) } else { [0; 2] };
                // Four variables and no array, which would be in memory.
                let later = |i| if is_by_four { ask(i) } else { [0; 2] };
                let (mut ahead, mut sums) = ((ask(0), ask(1), later(2), later(3)), by.none());
                for i in each(0..count) {
                    let (asked, a, b, c) = ahead;
                    ahead = if is_by_four { (a, b, c, ask(i + 4)) } else { (a, ask(i + 2), b, c) };
                    let Some(values) = take(src, i, here, P::UNIT, asked, ctx) else {
                        missed = true;
                        break;
                    };
                    let values = if P::TOTAL { values } else { filled(values, here.n, by.multiple()) };
                    sums = by.next(sums, values, i == 0, src.get(i).is_partial());
                    if P::ONE {
                        break;
                    }
                }
                result = by.last(sums, members);
            }
            // Threads of a warp meet before they store a line, so none may leave the others there.
            if words.together() {
                missed = Lane::new().warp_any(missed);
            }
            if missed {
                return false;
            }
            for i in each(0..dst.count()) {
                let operand = dst.get(i);
                // Who had nothing to store at the destination before would come to this one first, and its line would go in parts.
                if words.together() && i > 0 {
                    Lane::new().warp_sync();
                }
                match operand.form() {
                    PLAIN if here.n > 0 => store_up_to_8(operand.start().add(here.at), here.n, P::UNIT, result),
                    PLAIN => {}
                    PACKETS => store_packets(operand.start().add(2 * here.at), here.n, result, operand.flag),
                    _ if here.word < words.all && here.word % 2 == 1 => {
                        let last = if here.is_flag { [operand.flag, 0] } else { result };
                        let to = operand.start().add((here.word - 1) as usize * 8);
                        give_pair(to, before, last, words.together());
                    }
                    _ => {}
                }
            }
        }
        before = result;
        turn = words.next(turn);
    }
    true
}

/// The words of 8 bytes that a thread takes, one after the other, of `all`. Words of lines are counted with their flags. A GPU counts in 32
/// bits: registers are what these loops are short of.
struct Words {
    /// Where the first one is.
    from: usize,
    /// What a word is behind the thread's turn.
    base: u32,
    all: u32,
    /// From a word to the next one; of lines, from the second of two.
    stride: u32,
    /// Bytes of a line, or 0.
    line: u32,
}

/// A word, or a flag.
#[derive(Clone, Copy)]
struct Here {
    word: u32,
    /// Where its data is, and how many bytes.
    at: usize,
    n: u32,
    is_flag: bool,
}

impl Words {
    /// Those of bytes `from..bytes`, and the thread's first turn.
    #[inline(always)]
    fn new(Share { rank, size }: Share, from: usize, bytes: usize, line: u32) -> (Self, u32) {
        if bytes - from > MOST_BYTES {
            refuse!("a group folds at most 8 GiB word by word; align operands to 16 bytes, or fold part by part");
        }
        let (rank, size) = (rank as u32, size as u32);
        if line == 0 {
            return (Self { from, base: 0, all: (bytes - from).div_ceil(8) as u32, stride: size, line }, rank);
        }
        let (all, threads_of_line) = (packed_words(bytes, line) as u32, line / 16);
        // As many threads as fill whole lines, so that each line is of threads of one warp in one turn; the others are past the end.
        let threads = if size < threads_of_line { 1 } else { size & !(threads_of_line - 1) };
        let base = if rank < threads { rank * 2 } else { all };
        (Self { from, base, all, stride: threads * 2 - 1, line }, 0)
    }

    /// Whether threads store a line together.
    #[inline(always)]
    fn together(&self) -> bool {
        self.line > 0 && self.stride > 1
    }

    #[inline(always)]
    fn at(&self, turn: u32, bytes: usize) -> Here {
        let word = turn + self.base;
        let (lines, is_flag) = match self.line {
            0 => (0, false),
            line => (lines_before(word, line), word | !(line / 8 - 1) == u32::MAX),
        };
        let at = self.from + (word - lines) as usize * 8;
        let n = if word < self.all && !is_flag && at < bytes { (bytes - at).min(8) as u32 } else { 0 };
        Here { word, at, n, is_flag }
    }

    #[inline(always)]
    fn next(&self, turn: u32) -> u32 {
        turn + if self.line > 0 && turn.is_multiple_of(2) { 1 } else { self.stride }
    }
}

/// The most bytes whose words are counted in 32 bits, of lines of 16 bytes too, of which every other word is a flag.
const MOST_BYTES: usize = 8 << 30;

/// How many lines are in front of a word. A line has a power of two of words: no division, which is a call.
#[inline(always)]
fn lines_before(word: u32, line: u32) -> u32 {
    word >> (line / 8).trailing_zeros()
}

/// Stores two words of a line. Where threads store it `together`, all of them come to one store, those with the flag too: in two
/// arms of a branch, the flag could be stored before the data.
///
/// # Safety
/// As [`fold`]; lines start on a multiple of their size (`Ctx::lines`).
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

/// Asks a source for the words that are `here`, whether or not they have arrived; for nothing where they are not one access, or of a line.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn ask(operand: &Operand, here: Here) -> [u64; 2] {
    // SAFETY: the caller's contract; packets start on a multiple of 16 bytes (`Ctx::packets`), and so does each pair. Where one
    // packet is all there is, the other word is not looked at, and mapped, as pages are multiples of 16 bytes too.
    unsafe {
        let from = operand.start().add(here.at);
        match operand.form() {
            PLAIN if is_word(from, here.n) => [load(from.cast::<u64>()), 0],
            PACKETS => load_words(from.add(here.at)),
            _ => [0; 2],
        }
    }
}

/// The data of source `i`, once it has arrived; none where the wait ended without it, and then the reason is recorded.
///
/// # Safety
/// As [`fold`]; `asked` is what [`ask`] gave, and `unit` what the operator has.
#[inline(always)]
unsafe fn take(
    src: &impl Operands,
    i: usize,
    here: Here,
    unit: usize,
    asked: [u64; 2],
    ctx: &Ctx<'_>,
) -> Option<[u32; 2]> {
    let operand = src.get(i);
    // SAFETY: the caller's contract.
    unsafe {
        let from = operand.start().add(here.at);
        match operand.form() {
            PLAIN if is_word(from, here.n) => Some(low_high(asked[0])),
            PLAIN => Some(load_up_to_8(from, here.n, unit)),
            PACKETS => {
                let (packets, both) = (from.add(here.at).cast::<u64>(), here.n > 4);
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
            _ => {
                // What the line holds, the flag acquires.
                let flag = (lines_before(here.word, operand.form()) as usize + 1) * operand.form() as usize - 8;
                let flag = operand.start().add(flag).cast::<u64>();
                let has_arrived = || load_acquire(flag) as u32 == operand.flag;
                if !has_arrived() && !ctx.packet(|| src.get(i), Polled::new(flag), has_arrived) {
                    return None;
                }
                Some(low_high(load(operand.start().add(here.word as usize * 8).cast::<u64>())))
            }
        }
    }
}

/// Up to 8 bytes as one or two packets, each with its flag in the lower half.
///
/// # Safety
/// There is room for them, aligned to 16 bytes, in mapped symmetric memory.
#[inline(always)]
pub(super) unsafe fn store_packets(to: *mut u8, n: u32, data: [u32; 2], flag: u32) {
    let packet = |data: u32| u64::from(data) << 32 | u64::from(flag);
    // SAFETY: the caller's contract.
    unsafe {
        if n > 4 {
            store_words(to, data.map(packet));
        } else {
            store(to.cast::<u64>(), packet(data[0]));
        }
    }
}

#[inline(always)]
pub(super) const fn low_high(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Whether these bytes are one access.
#[inline(always)]
pub(super) fn is_word(start: *const u8, n: u32) -> bool {
    n == 8 && (start as usize).is_multiple_of(8)
}

/// Whether they are accesses of 4 bytes.
#[inline(always)]
fn is_halves(start: *const u8, n: u32) -> bool {
    (start as usize | n as usize).is_multiple_of(4)
}

/// Up to 8 bytes, aligned or not: `unit`, a constant, divides address and length.
///
/// # Safety
/// The bytes are mapped symmetric memory.
#[inline(always)]
pub(super) unsafe fn load_up_to_8(from: *const u8, n: u32, unit: usize) -> [u32; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(from, n) {
            return low_high(load(from.cast::<u64>()));
        }
        if unit >= 4 || is_halves(from, n) {
            let halves = from.cast::<u32>();
            return [load(halves), if n == 8 { load(halves.add(1)) } else { 0 }];
        }
        let mut value = 0;
        for i in each(0..n as usize / unit) {
            value |= match unit {
                2 => u64::from(load(from.cast::<u16>().add(i))) << (16 * i),
                _ => u64::from(load::<u8>(from.add(i))) << (8 * i),
            };
        }
        low_high(value)
    }
}

/// # Safety
/// As [`load_up_to_8`].
#[inline(always)]
pub(super) unsafe fn store_up_to_8(to: *mut u8, n: u32, unit: usize, [low, high]: [u32; 2]) {
    let value = u64::from(low) | u64::from(high) << 32;
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(to, n) {
            return store(to.cast::<u64>(), value);
        }
        if unit >= 4 || is_halves(to, n) {
            let halves = to.cast::<u32>();
            store(halves, low);
            if n == 8 {
                store(halves.add(1), high);
            }
            return;
        }
        for i in each(0..n as usize / unit) {
            match unit {
                2 => store(to.cast::<u16>().add(i), (value >> (16 * i)) as u16),
                _ => store(to.add(i), (value >> (8 * i)) as u8),
            }
        }
    }
}

/// A word of which `n` bytes are data, and the others the first element again: what operators make of it is nobody's, and nothing
/// that they refuse.
#[inline(always)]
pub(super) fn filled(values: [u32; 2], n: u32, element: usize) -> [u32; 2] {
    if n == 8 {
        return values;
    }
    let word = u64::from(values[0]) | u64::from(values[1]) << 32;
    let first = word & u64::MAX >> (64 - 8 * element);
    low_high((n as usize..8).step_by(element).fold(word, |word, at| word | first << (8 * at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_data_is_the_first_element_again() {
        assert_eq!(filled([0x0403_0201, 0x0807_0605], 8, 1), [0x0403_0201, 0x0807_0605]);
        assert_eq!(filled([0x0403_0201, 0x05], 5, 1), [0x0403_0201, 0x0101_0105]);
        assert_eq!(filled([0x0201, 0], 2, 2), [0x0201_0201, 0x0201_0201]);
        assert_eq!(filled([7, 0], 4, 4), [7, 7]);
    }
}
