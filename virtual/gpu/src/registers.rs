//! Which registers of a function can have one place. PTX has a register for nearly every value that there ever is: thousands, of
//! which a few dozen hold something at one time. A frame with a place for each fits no cache.
//!
//! What a register has to hold is a matter of each lane's own way through the code (its liveness), wherever the other lanes of its
//! warp are. From the first to the last instruction at which a register holds something it has a place for itself: linear scan,
//! Poletto and Sarkar 1999, without spilling.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use congruent_verify::ptx::{Body, Instruction, Operand};

/// Numbers below a bound that is known.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(bound: usize) -> Self {
        Self(vec![0; bound.div_ceil(64)])
    }

    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        let bits = |(index, &word): (usize, &u64)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| 64 * index + bit)
        };
        self.0.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(bits)
    }
}

/// Instructions that are executed one after the other.
struct Block {
    from: usize,
    to: usize,
    /// Blocks that may follow.
    next: Vec<usize>,
    /// Registers that are read before they are written, and that are written first.
    reads: Set,
    writes: Set,
    /// Registers that hold something at its start and at its end.
    before: Set,
    after: Set,
}

/// Gives each register that `takes_part` a place; no two have the same while both hold something. Also gives how many places
/// there are. Registers that nothing uses have the first one.
pub(crate) fn places(body: &Body, takes_part: impl Fn(usize) -> bool) -> (Vec<usize>, usize) {
    let mut intervals: Vec<(usize, usize, usize)> = intervals(body)
        .into_iter()
        .enumerate()
        .filter(|(register, _)| takes_part(*register))
        .filter_map(|(register, interval)| interval.map(|(from, to)| (from, to, register)))
        .collect();
    intervals.sort_unstable();
    let (mut places, mut count) = (vec![0; body.registers.len()], 0);
    let (mut taken, mut free) = (BinaryHeap::new(), BinaryHeap::new());
    for (from, to, register) in intervals {
        while let Some(&Reverse((end, place))) = taken.peek()
            && end < from
        {
            taken.pop();
            free.push(Reverse(place));
        }
        let place = free.pop().map_or_else(
            || {
                count += 1;
                count - 1
            },
            |Reverse(place)| place,
        );
        taken.push(Reverse((to, place)));
        places[register] = place;
    }
    (places, count)
}

/// From which instruction to which each register may hold something.
fn intervals(body: &Body) -> Vec<Option<(usize, usize)>> {
    let mut intervals: Vec<Option<(usize, usize)>> = vec![None; body.registers.len()];
    let mut stretch = |register: usize, at: usize| {
        let (from, to) = intervals[register].get_or_insert((at, at));
        (*from, *to) = (at.min(*from), at.max(*to));
    };
    for (at, instruction) in body.instructions.iter().enumerate() {
        let all = instruction.written().into_iter().chain(instruction.read());
        all.for_each(|register| stretch(register.index(), at));
    }
    for block in live(body) {
        block.before.numbers().for_each(|register| stretch(register, block.from));
        block.after.numbers().for_each(|register| stretch(register, block.to - 1));
    }
    intervals
}

/// The blocks of a body, with what holds something at their ends.
fn live(body: &Body) -> Vec<Block> {
    let mut blocks = blocks(body);
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..blocks.len()).rev() {
            let mut after = Set::new(body.registers.len());
            for &next in &blocks[index].next {
                after.0.iter_mut().zip(&blocks[next].before.0).for_each(|(own, next)| *own |= next);
            }
            let Block { reads, writes, .. } = &blocks[index];
            let mut before = reads.clone();
            let passed = after.0.iter().zip(&writes.0).map(|(after, writes)| after & !writes);
            before.0.iter_mut().zip(passed).for_each(|(own, passed)| *own |= passed);
            changed |= before != blocks[index].before;
            (blocks[index].before, blocks[index].after) = (before, after);
        }
    }
    blocks
}

fn blocks(body: &Body) -> Vec<Block> {
    let instructions = &body.instructions;
    let mut starts: BTreeSet<usize> = [0, instructions.len()].into();
    for (at, instruction) in instructions.iter().enumerate().filter(|(_, instruction)| ends_block(instruction)) {
        starts.insert(at + 1);
        starts.extend(targets(instruction));
    }
    let starts: Vec<usize> = starts.into_iter().collect();
    let block_at = |at: &usize| starts.binary_search(at).ok().filter(|&block| block + 1 < starts.len());
    let block = |bounds: &[usize]| {
        let (from, to) = (bounds[0], bounds[1]);
        let last = &instructions[to - 1];
        let goes_on = last.guard.is_some() || !ends_block(last);
        let next = targets(last).chain(goes_on.then_some(to)).filter_map(|at| block_at(&at)).collect();
        let set = || Set::new(body.registers.len());
        let mut block = Block { from, to, next, reads: set(), writes: set(), before: set(), after: set() };
        for instruction in &instructions[from..to] {
            for register in instruction.read().into_iter().filter(|register| !block.writes.contains(register.index())) {
                block.reads.insert(register.index());
            }
            // What is written under a condition may stay as it was.
            for register in instruction.written().into_iter().filter(|_| instruction.guard.is_none()) {
                block.writes.insert(register.index());
            }
        }
        block
    };
    starts.windows(2).map(block).collect()
}

/// Whether what follows in the text need not be what is executed next.
fn ends_block(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap")
}

fn targets(instruction: &Instruction) -> impl Iterator<Item = usize> {
    let of = |operand: &Operand| match operand {
        Operand::Label(target) => vec![*target],
        Operand::Targets(targets) => targets.clone(),
        _ => Vec::new(),
    };
    instruction.operands.iter().flat_map(of)
}
