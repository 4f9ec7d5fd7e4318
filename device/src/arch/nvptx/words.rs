//! Folds 8 bytes at a time: what vectors leave over, and packets and lines, which are awaited.

use super::vectors::sources;
use super::{Lane, load, load_acquire, load_words, store, store_release, store_words};
use crate::access::{is_word, load_up_to_8, low_high, store_packets, store_up_to_8};
use crate::arch::{Share, each};
use crate::operand::{PACKETS, PLAIN, packed_words};
use crate::poll::Polled;
use crate::reduce::packs::PackOp;
use crate::{Ctx, Operand, Operands};

/// Bytes `from..bytes`: plain ones, aligned or not, and packets or lines from the first. Words of [`PackOp::AHEAD`] sources are on their
/// way at a time, and of two where any may be packed: a step has packets or lines of at most two members. False when a wait ended without what it was for; the reason is recorded.
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
                        let to = operand.start().add((here.word - 1) * 8);
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

/// The words of 8 bytes that a thread takes, one after the other, of `all`. Words of lines are counted with their flags.
struct Words {
    /// What a word is behind the thread's turn.
    base: usize,
    all: usize,
    /// From a word to the next one; of lines, from the second of two.
    stride: usize,
    /// Bytes of a line, or 0.
    line: u32,
}

/// A word, or a flag.
#[derive(Clone, Copy)]
struct Here {
    word: usize,
    /// Where its data is, and how many bytes.
    at: usize,
    n: u32,
    is_flag: bool,
}

impl Words {
    /// Those of bytes `from..bytes`, and the thread's first turn.
    #[inline(always)]
    fn new(Share { rank, size }: Share, from: usize, bytes: usize, line: u32) -> (Self, usize) {
        if line == 0 {
            return (Self { base: 0, all: bytes.div_ceil(8), stride: size, line }, from / 8 + rank);
        }
        let (all, threads_of_line) = (packed_words(bytes, line), line as usize / 16);
        // As many threads as fill whole lines, so that each line is of threads of one warp in one turn; the others are past the end.
        let threads = if size < threads_of_line { 1 } else { size & !(threads_of_line - 1) };
        (Self { base: if rank < threads { rank * 2 } else { all }, all, stride: threads * 2 - 1, line }, 0)
    }

    /// Whether threads store a line together.
    #[inline(always)]
    fn together(&self) -> bool {
        self.line > 0 && self.stride > 1
    }

    #[inline(always)]
    fn at(&self, turn: usize, bytes: usize) -> Here {
        let word = turn + self.base;
        let (lines, is_flag) = match self.line {
            0 => (0, false),
            line => (lines_before(word, line), word | !(line as usize / 8 - 1) == usize::MAX),
        };
        let at = (word - lines) * 8;
        let n = if word < self.all && !is_flag && at < bytes { (bytes - at).min(8) as u32 } else { 0 };
        Here { word, at, n, is_flag }
    }

    #[inline(always)]
    fn next(&self, turn: usize) -> usize {
        turn + if self.line > 0 && turn.is_multiple_of(2) { 1 } else { self.stride }
    }
}

/// How many lines are in front of a word. A line has a power of two of words: no division, which is a call.
#[inline(always)]
fn lines_before(word: usize, line: u32) -> usize {
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
                let flag = (lines_before(here.word, operand.form()) + 1) * operand.form() as usize - 8;
                let flag = operand.start().add(flag).cast::<u64>();
                let has_arrived = || load_acquire(flag) as u32 == operand.flag;
                if !has_arrived() && !ctx.packet(|| src.get(i), Polled::new(flag), has_arrived) {
                    return None;
                }
                Some(low_high(load(operand.start().add(here.word * 8).cast::<u64>())))
            }
        }
    }
}
