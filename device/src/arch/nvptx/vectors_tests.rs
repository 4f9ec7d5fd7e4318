//! Folds through memory in every form, against a fold of one element after the other.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use congruent_heap::abi::{self, Abort, Cause, Control, FaultState, NO_PE};

use super::super::STORES;
use super::*;
use crate::Note;
use crate::arch::cpu;
use crate::operand::packed_words;
use crate::reduce::packs::Move;
use crate::reduce::packs::tests::{
    AnyMaxOfBytes, AnyMeanOfBfloats, AnySumOfLong, Case, MaxOfBytes, MeanOfFloats, Moves, SumInDoubles, SumOfHalves,
    SumOfWhatIsThere, XorOfLong,
};

const FLAG: u32 = 77;
/// What memory holds that nobody has written.
const UNTOUCHED: u8 = 0xa5;

/// In what form an end lies: plain at so many bytes behind a multiple of 16, or packed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain(usize),
    Packets,
    Lines(usize),
}

impl Kind {
    /// Where each byte of data is; then where the flags are, and how many bytes they have.
    fn places(self, bytes: usize) -> (Vec<usize>, Vec<usize>, usize) {
        match self {
            Self::Plain(start) => ((start..start + bytes).collect(), vec![], 0),
            Self::Packets => {
                let data = (0..bytes).map(|i| i / 4 * 8 + 4 + i % 4).collect();
                (data, (0..bytes.div_ceil(4)).map(|i| i * 8).collect(), 4)
            }
            Self::Lines(line) => {
                let data = (0..bytes).map(|i| i / (line - 8) * line + i % (line - 8)).collect();
                (data, (0..bytes.div_ceil(line - 8)).map(|i| i * line + line - 8).collect(), 8)
            }
        }
    }

    /// How many bytes of memory may be written, from where.
    fn extent(self, bytes: usize) -> (usize, usize) {
        match self {
            Self::Plain(start) => (start, bytes),
            Self::Packets => (0, packed_words(bytes, PACKETS) * 8),
            Self::Lines(line) => (0, packed_words(bytes, line as u32) * 8),
        }
    }
}

/// Memory of an end, with some around it.
struct Memory {
    kind: Kind,
    words: Vec<u128>,
}

impl Memory {
    fn new(kind: Kind, bytes: usize) -> Self {
        let (start, extent) = kind.extent(bytes);
        Self { kind, words: vec![u128::from_ne_bytes([UNTOUCHED; 16]); (start + extent).div_ceil(16) + 2] }
    }

    /// With data in it, and flags where it is packed.
    fn with(kind: Kind, data: &[u8]) -> Self {
        let mut memory = Self::new(kind, data.len());
        let (places, flags, width) = kind.places(data.len());
        let raw: &mut [u8] = bytemuck::cast_slice_mut(&mut memory.words);
        for at in flags {
            raw[at..at + width].copy_from_slice(&u64::from(FLAG).to_le_bytes()[..width]);
        }
        for (at, &byte) in places.into_iter().zip(data) {
            raw[at] = byte;
        }
        memory
    }

    fn operand(&mut self, bytes: usize) -> Operand {
        let form = match self.kind {
            Kind::Plain(_) => PLAIN,
            Kind::Packets => PACKETS,
            Kind::Lines(bytes) => bytes as u32,
        };
        let start = self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.kind.extent(0).0);
        let address = start.expose_provenance() as u64;
        Operand { address, bytes, offset: 0, pe: 0, sender: NO_PE, form, flag: FLAG }
    }

    /// The data, once flags and what is around it have been looked at.
    fn check(&self, bytes: usize, what: &str) -> Vec<u8> {
        let raw: &[u8] = bytemuck::cast_slice(&self.words);
        let (places, flags, width) = self.kind.places(bytes);
        for at in flags {
            assert_eq!(raw[at..at + width], u64::from(FLAG).to_le_bytes()[..width], "flag at {at}: {what}");
        }
        let (start, extent) = self.kind.extent(bytes);
        let mut around = raw[..start].iter().chain(&raw[start + extent..]);
        assert!(around.all(|&byte| byte == UNTOUCHED), "written outside: {what}");
        places.into_iter().map(|at| raw[at]).collect()
    }
}

struct List(Vec<Operand>);

impl Operands for List {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn get(&self, i: usize) -> Operand {
        self.0[i]
    }
}

/// A machine of one thread, for which bytes arrive each time that it waits.
#[derive(Default)]
struct Late {
    due: RefCell<Vec<(*mut u8, Vec<u8>)>>,
    clock: Cell<u64>,
}

/// Runs with a context whose waits take 1000 ns at most, and leave their faults here.
fn with_context<R>(machine: &Late, control: &mut Control, run: impl FnOnce(&Ctx<'_>) -> R) -> R {
    // SAFETY: it has no bytes.
    let room = unsafe { cpu::Room::new(core::ptr::dangling_mut(), 0, 0) };
    let lane =
        cpu::Lane { machine, thread: 0, threads: 1, warp: 1, block: 0, blocks: 1, spins: 0, watched: false, room };
    // SAFETY: zero is a value of each of its numbers.
    let nothing: abi::Context = unsafe { core::mem::zeroed() };
    let control = core::ptr::from_mut(control).expose_provenance() as u64;
    // SAFETY: of all that it tells of, folds look at the control block only, which lives as long as this.
    run(&unsafe { Ctx::new(abi::Context { control, deadline_ns: 1000, npes: 1, launch: 1, ..nothing }, lane) })
}

fn no_control() -> Box<Control> {
    // SAFETY: zero is a value of each of its numbers.
    Box::new(unsafe { core::mem::zeroed() })
}

/// Small floats and small integers alike.
fn data(source: usize, bytes: usize) -> Vec<u8> {
    let float = |i: usize| (1.5 * (1 + source) as f32 - 0.25 * (i % 23) as f32).to_le_bytes();
    (0..bytes).map(|b| float(b / 4)[b % 4]).collect()
}

/// Folds by `threads` threads, one after the other, and compares.
fn compare<C: Case>(dst: &[Kind], src: &[Kind], bytes: usize, threads: usize, in_place: bool) {
    let what = std::format!("{}, {dst:?} = {src:?}, {bytes} bytes, {threads} threads, in place: {in_place}", C::NAME);
    let values: Vec<_> = (0..src.len()).map(|i| data(i, bytes)).collect();
    let mut sources: Vec<_> = src.iter().zip(&values).map(|(&kind, data)| Memory::with(kind, data)).collect();
    let mut results: Vec<_> = dst.iter().map(|&kind| Memory::new(kind, bytes)).collect();
    let from = List(sources.iter_mut().map(|source| source.operand(bytes)).collect());
    let mut to = List(results.iter_mut().map(|result| result.operand(bytes)).collect());
    if in_place {
        to.0[0] = from.0[0];
    }
    let members = src.len() as u32;
    for rank in 0..threads {
        let share = Share { rank, size: threads };
        with_context(&Late::default(), &mut no_control(), |ctx| {
            // SAFETY: the operands are memory of this test, with room for so many bytes in their form.
            assert!(unsafe { fold(share, &to, &from, bytes, members, C::by(), ctx) }, "{what}");
        });
    }
    let expected = C::expected(&values, members);
    if in_place {
        results[0] = sources.swap_remove(0);
    }
    for result in &results {
        assert_eq!(result.check(bytes, &what), expected, "{what}");
    }
}

macro_rules! each_case {
    ($function:ident) => {
        $function::<MaxOfBytes>();
        $function::<SumOfHalves>();
        $function::<MeanOfFloats>();
        $function::<SumInDoubles>();
        $function::<XorOfLong>();
        $function::<Moves>();
        $function::<AnyMaxOfBytes>();
        $function::<AnyMeanOfBfloats>();
        $function::<AnySumOfLong>();
    };
}

/// Lengths around words, vectors, pairs of vectors and lines, for elements of up to 8 bytes.
const LENGTHS: [usize; 12] = [0, 8, 16, 24, 56, 64, 120, 128, 136, 248, 1000, 2064];

#[test]
fn every_form_is_folded_as_elements_are() {
    fn check<C: Case>() {
        let plain = Kind::Plain(0);
        for packed in [plain, Kind::Packets, Kind::Lines(16), Kind::Lines(64), Kind::Lines(128)] {
            for bytes in LENGTHS {
                for threads in [1, 3, 12, 32] {
                    compare::<C>(&[packed], &[plain], bytes, threads, false);
                    compare::<C>(&[plain], &[packed, plain], bytes, threads, false);
                    compare::<C>(&[plain, packed], &[packed, plain], bytes, threads, false);
                    let many = [plain, packed, packed, plain, packed, packed, plain];
                    compare::<C>(&[plain, packed], &many, bytes, threads, false);
                }
            }
        }
    }
    each_case!(check);
}

/// What is behind the end of vectors is no element. No number of these few is 0.
#[test]
fn operators_are_given_what_was_sent_and_nothing_else() {
    for packed in [Kind::Plain(0), Kind::Packets, Kind::Lines(64)] {
        for bytes in [4, 8, 12, 16, 20, 24] {
            compare::<SumOfWhatIsThere>(&[packed], &[packed; 3], bytes, 3, false);
        }
    }
}

#[test]
fn operands_that_are_not_aligned_and_lengths_that_fill_no_word() {
    fn check<C: Case>() {
        let element = C::ELEMENT;
        for count in [1, 2, 3, 5, 7, 9, 17, 33, 61, 250] {
            let bytes = count * element;
            for threads in [1, 7, 32] {
                let (near, far) = (Kind::Plain(element), Kind::Plain(16 - element));
                compare::<C>(&[near], &[far], bytes, threads, false);
                compare::<C>(&[far, Kind::Plain(0)], &[near, Kind::Plain(8), Kind::Plain(0)], bytes, threads, false);
                compare::<C>(&[near], &[Kind::Packets, far], bytes, threads, false);
                compare::<C>(&[Kind::Packets], &[near, Kind::Packets], bytes, threads, false);
                compare::<C>(&[Kind::Lines(32), near], &[near, Kind::Lines(32)], bytes, threads, false);
            }
        }
    }
    each_case!(check);
}

#[test]
fn the_first_source_may_be_a_destination() {
    fn check<C: Case>() {
        let plain = Kind::Plain(0);
        for bytes in LENGTHS {
            for (other, threads) in [(plain, 32), (Kind::Packets, 3), (Kind::Lines(128), 32)] {
                compare::<C>(&[plain, other], &[plain, other, plain], bytes, threads, true);
            }
        }
    }
    each_case!(check);
}

/// The stores of each of `threads` threads to lines: which byte, and how many.
fn stores(line: usize, bytes: usize, threads: usize) -> Vec<Vec<(usize, usize)>> {
    let (mut source, mut result) =
        (Memory::with(Kind::Plain(0), &data(0, bytes)), Memory::new(Kind::Lines(line), bytes));
    let (from, to) = (List(vec![source.operand(bytes)]), List(vec![result.operand(bytes)]));
    let start = to.0[0].address as usize;
    let each = (0..threads).map(|rank| {
        STORES.take();
        with_context(&Late::default(), &mut no_control(), |ctx| {
            // SAFETY: the operands are memory of this test, with room for so many bytes in their form.
            assert!(unsafe { fold(Share { rank, size: threads }, &to, &from, bytes, 0, Move::<true>, ctx) });
        });
        STORES.take().into_iter().map(|(at, width)| (at - start, width)).collect()
    });
    each.collect()
}

#[test]
fn neighbours_store_a_line_by_one_store_of_each() {
    for (line, threads) in [(16, 2), (32, 2), (32, 7), (64, 4), (64, 48), (128, 8), (128, 12), (128, 32), (128, 33)] {
        let (bytes, of_line) = (1000, line / 16);
        let stores = stores(line, bytes, threads);
        for rank in 0..threads {
            assert!(
                stores[rank].iter().all(|&(at, width)| width == 16 && at % line == rank % of_line * 16),
                "{line}, {threads}"
            );
            // Turn by turn its neighbours are in the same line; so they are in one warp, too.
            let lines = |rank: usize| stores[rank].iter().map(|(at, _)| at / line).collect::<Vec<_>>();
            assert_eq!(lines(rank), lines(rank / of_line * of_line), "{line}, {threads}");
        }
        let mut all: Vec<_> = stores.concat().into_iter().map(|(at, _)| at).collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq((0..packed_words(bytes, line as u32) * 8).step_by(16)), "{line}, {threads}");
    }
}

#[test]
fn fewer_threads_than_a_line_has_leave_it_to_one() {
    for (line, threads) in [(16, 1), (64, 3), (128, 1), (128, 7)] {
        let stores = stores(line, 1000, threads);
        assert!(stores[1..].iter().all(Vec::is_empty), "{line}, {threads}");
        // Ascending, so that each flag comes behind its data.
        assert!(stores[0].iter().copied().eq((0..packed_words(1000, line as u32)).map(|word| (word * 8, 8))));
    }
}

#[test]
#[should_panic(expected = "aligned for it")]
fn operands_are_aligned_for_elements() {
    compare::<AnySumOfLong>(&[Kind::Plain(0)], &[Kind::Plain(4)], 64, 1, false);
}

impl cpu::Machine for Late {
    unsafe fn pause(&self, _lane: u32, _turn: u32, _word: *const u32, _seen: u32) {
        if let Some((to, bytes)) = self.due.borrow_mut().pop() {
            // SAFETY: it is memory of a test that nothing else accesses meanwhile.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
    }
    fn now_ns(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }
    fn block_any(&self, _lane: u32, flag: bool, _at: cpu::At) -> bool {
        flag
    }
    fn warp_any(&self, _lane: u32, flag: bool, _at: cpu::At) -> bool {
        flag
    }
    fn block_broadcast(&self, _lane: u32, value: u64, _at: cpu::At) -> u64 {
        value
    }
    fn warp_broadcast(&self, _lane: u32, value: u64, _at: cpu::At) -> u64 {
        value
    }
    fn gather(&self, _lane: u32, _all: Range<u32>, word: u128, _at: cpu::At, see: &mut dyn FnMut(&[Option<u128>])) {
        see(&[Some(word)]);
    }
    fn pass(&self, _lane: u32) {}
    unsafe fn wake(&self, _word: *const u32) {}
    fn exit(&self) -> ! {
        panic!("a fold gives back control")
    }
    fn note(&self, _note: Note) {}
}

/// Folds from `kind` whose packets or lines `missing` are those of an earlier message; those that are `due` arrive while it is
/// waited for them. Gives what arrived where it belongs, or nothing and the fault record.
fn fold_late(kind: Kind, missing: &[usize], due: &[usize]) -> Result<Vec<u8>, Cause> {
    let bytes = 72;
    let grain = if let Kind::Lines(line) = kind { line } else { 8 };
    let mut source = Memory::with(kind, &data(0, bytes));
    let mut result = Memory::new(Kind::Plain(0), bytes);
    let raw: &mut [u8] = bytemuck::cast_slice_mut(&mut source.words);
    let arrived = raw.to_vec();
    let start = raw.as_mut_ptr();
    for &at in missing {
        raw[at * grain..][..grain].fill(UNTOUCHED);
    }
    let arrivals = due.iter().map(|&at| (start.wrapping_add(at * grain), arrived[at * grain..][..grain].to_vec()));
    let machine = Late { due: RefCell::new(arrivals.collect()), clock: Cell::new(0) };
    let mut control = no_control();
    let from = List(vec![Operand { offset: 4096, sender: 3, ..source.operand(bytes) }]);
    let to = List(vec![result.operand(bytes)]);
    let folded = with_context(&machine, &mut control, |ctx| {
        // SAFETY: the operands are memory of this test, with room for so many bytes in their form.
        unsafe { fold(Share { rank: 0, size: 1 }, &to, &from, bytes, 0, Move::<true>, ctx) }
    });
    assert!(machine.due.borrow().is_empty(), "all that is due is waited for");
    if folded {
        return Ok(result.check(bytes, "late"));
    }
    assert_eq!((control.abort, control.fault_state), (Abort::Fault as u32, FaultState::Told as u32));
    assert_eq!(control.fault.launch, 1);
    Err(control.fault.cause().unwrap())
}

#[test]
fn what_arrives_late_is_awaited() {
    for packet in 0..18 {
        assert_eq!(fold_late(Kind::Packets, &[packet], &[packet]), Ok(data(0, 72)), "{packet}");
    }
    // The last of these arrives first.
    assert_eq!(fold_late(Kind::Packets, &[4, 5, 9], &[9, 4, 5]), Ok(data(0, 72)));
    for line in 0..3 {
        assert_eq!(fold_late(Kind::Lines(32), &[line], &[line]), Ok(data(0, 72)), "{line}");
    }
}

#[test]
fn what_never_arrives_leaves_a_record() {
    for (kind, missing) in [(Kind::Packets, 16), (Kind::Lines(32), 1)] {
        let fault = fold_late(kind, &[missing], &[]).unwrap_err();
        let Cause::Timeout { offset, peer, expected, seen, waited_ns } = fault else { panic!("{kind:?}: {fault:?}") };
        assert_eq!((offset, peer, expected), (4096, 3, FLAG.into()), "{kind:?}");
        assert_eq!(seen, u32::from_ne_bytes([UNTOUCHED; 4]).into(), "{kind:?}: the flag, without data");
        assert!(waited_ns >= 1000, "{kind:?}: {waited_ns}");
    }
}
