//! The control-flow graph of a function and its post-dominators.

use core::ops::Range;
use std::collections::HashSet;

use crate::ptx::{Body, Instruction, Operand};

/// Basic blocks, numbered in the order of the text; [`Graph::exit`] stands for having returned.
pub(crate) struct Graph {
    blocks: Vec<Block>,
    block_of: Vec<usize>,
    /// The immediate post-dominator of each block, where it has one.
    post_dominators: Vec<Option<usize>>,
    distances: Vec<usize>,
}

struct Block {
    instructions: Range<usize>,
    successors: Vec<usize>,
    /// Every way on ends in a trap: threads that go here are not waited for, since the whole launch fails.
    doomed: bool,
}

impl Graph {
    /// The graph of `body`; calls of functions in `never_return` end a path.
    pub(crate) fn new(body: &Body, never_return: &HashSet<&str>) -> Self {
        let mut graph =
            Self { blocks: Vec::new(), block_of: Vec::new(), post_dominators: Vec::new(), distances: Vec::new() };
        graph.split(&body.instructions, never_return);
        graph.connect(&body.instructions, never_return);
        graph.find_doomed(&body.instructions, never_return);
        graph.find_post_dominators();
        graph
    }

    /// The number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The block that stands for having returned.
    fn exit(&self) -> usize {
        self.blocks.len()
    }

    /// The block that an instruction is in.
    pub(crate) fn block_of(&self, instruction: usize) -> usize {
        self.block_of[instruction]
    }

    /// The instructions of a block.
    pub(crate) fn instructions(&self, block: usize) -> Range<usize> {
        self.blocks[block].instructions.clone()
    }

    /// The last instruction of a block.
    pub(super) fn last(&self, block: usize) -> usize {
        self.blocks[block].instructions.end - 1
    }

    /// The blocks that may follow a block; the exit is not among them.
    pub(crate) fn successors(&self, block: usize) -> impl Iterator<Item = usize> {
        self.blocks[block].successors.iter().copied().filter(|&successor| successor != self.exit())
    }

    /// Whether a block is followed by the exit.
    pub(crate) fn leaves(&self, block: usize) -> bool {
        self.blocks[block].successors.contains(&self.exit())
    }

    /// The ways on from the end of `block` whose ends are not all traps; one of them may be [`Self::exit`].
    pub(super) fn ways(&self, block: usize) -> impl Iterator<Item = usize> {
        let is_live = |next: &usize| self.blocks.get(*next).is_none_or(|block| !block.doomed);
        self.blocks[block].successors.iter().copied().filter(is_live)
    }

    /// Where all ways on from the end of `block` meet again: a block, or [`Self::exit`].
    pub(super) fn meeting(&self, block: usize) -> usize {
        self.post_dominators[block].unwrap_or(self.exit())
    }

    /// How many meeting places lie between `block` and the exit, which has 0.
    pub(super) fn distance(&self, block: usize) -> usize {
        self.distances[block]
    }

    /// The blocks before each block, as far as `ways` gives the ways on from one; the exit is the last.
    pub(crate) fn reversed<I: Iterator<Item = usize>>(&self, ways: impl Fn(usize) -> I) -> Vec<Vec<usize>> {
        let mut predecessors = vec![Vec::new(); self.blocks.len() + 1];
        for block in 0..self.blocks.len() {
            ways(block).for_each(|next| predecessors[next].push(block));
        }
        predecessors
    }

    fn split(&mut self, instructions: &[Instruction], never_return: &HashSet<&str>) {
        let mut ends: Vec<bool> =
            instructions.iter().map(|instruction| ends_block(instruction, never_return)).collect();
        // A block ends in front of every label and at the end of the text.
        let in_front = instructions.iter().flat_map(targets).filter_map(|target| target.checked_sub(1));
        for last in in_front.chain(instructions.len().checked_sub(1)) {
            ends[last] = true;
        }
        let mut start = 0;
        for (index, _) in ends.iter().enumerate().filter(|(_, ends)| **ends) {
            self.block_of.extend((start..=index).map(|_| self.blocks.len()));
            self.blocks.push(Block { instructions: start..index + 1, successors: Vec::new(), doomed: false });
            start = index + 1;
        }
    }

    fn connect(&mut self, instructions: &[Instruction], never_return: &HashSet<&str>) {
        let exit = self.exit();
        for block in 0..self.blocks.len() {
            let Range { end, .. } = self.blocks[block].instructions;
            let last = &instructions[end - 1];
            let block_at = |instruction: usize| self.block_of.get(instruction).copied().unwrap_or(exit);
            let mut successors: Vec<usize> = targets(last).map(block_at).collect();
            let goes_on = last.guard.is_some() || !ends_block(last, never_return);
            if goes_on {
                successors.push(block_at(end));
            }
            if matches!(last.opcode.as_str(), "ret" | "exit") {
                successors.push(exit);
            }
            successors.sort_unstable();
            successors.dedup();
            self.blocks[block].successors = successors;
        }
    }

    /// The least solution: a loop without an end is not doomed.
    fn find_doomed(&mut self, instructions: &[Instruction], never_return: &HashSet<&str>) {
        let predecessors = self.reversed(|block| self.blocks[block].successors.iter().copied());
        let mut ways: Vec<usize> = self.blocks.iter().map(|block| block.successors.len()).collect();
        let fails = |block: &Block| {
            let last = &instructions[block.instructions.end - 1];
            last.guard.is_none() && is_fatal(last, never_return)
        };
        let mut open: Vec<usize> = (0..self.blocks.len()).filter(|&block| fails(&self.blocks[block])).collect();
        while let Some(block) = open.pop() {
            if core::mem::replace(&mut self.blocks[block].doomed, true) {
                continue;
            }
            for &before in &predecessors[block] {
                ways[before] -= 1;
                if ways[before] == 0 {
                    open.push(before);
                }
            }
        }
    }

    /// Cooper, Harvey and Kennedy's algorithm on the reversed graph.
    fn find_post_dominators(&mut self) {
        let exit = self.exit();
        let mut predecessors = self.reversed(|block| self.ways(block));
        let mut order = Order::new(exit + 1);
        order.seen[exit] = true;
        for &block in &predecessors[exit] {
            order.reach(&predecessors, block);
        }
        // A loop without an end never reaches the exit; its last block is taken to.
        for stuck in (0..exit).rev() {
            if !self.blocks[stuck].doomed && !order.seen[stuck] {
                predecessors[exit].push(stuck);
                order.reach(&predecessors, stuck);
            }
        }
        let order = order.finish(exit);
        let mut rank = vec![usize::MAX; exit + 1];
        for (position, &block) in order.iter().enumerate() {
            rank[block] = position;
        }
        let mut ways = vec![Vec::new(); exit + 1];
        for (next, predecessors) in predecessors.iter().enumerate() {
            predecessors.iter().for_each(|&block| ways[block].push(next));
        }
        let mut dominators = vec![None; exit + 1];
        dominators[exit] = Some(exit);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().skip(1) {
                let known = ways[block].iter().copied().filter(|&next| dominators[next].is_some());
                let meeting = known.reduce(|left, right| meet(&dominators, &rank, left, right));
                if dominators[block] != meeting {
                    dominators[block] = meeting;
                    changed = true;
                }
            }
        }
        self.distances = vec![0; exit + 1];
        for &block in order.iter().skip(1) {
            self.distances[block] = dominators[block].map_or(0, |meeting| self.distances[meeting] + 1);
        }
        self.post_dominators = dominators;
    }
}

/// The nearest block that is on both chains of dominators.
fn meet(dominators: &[Option<usize>], rank: &[usize], mut left: usize, mut right: usize) -> usize {
    while left != right {
        let deeper = if rank[left] > rank[right] { &mut left } else { &mut right };
        match dominators[*deeper] {
            Some(next) => *deeper = next,
            None => return left,
        }
    }
    left
}

/// The blocks that reach the exit, each after at least one of those that follow it, read backwards.
struct Order {
    seen: Vec<bool>,
    backwards: Vec<usize>,
}

impl Order {
    fn new(blocks: usize) -> Self {
        Self { seen: vec![false; blocks], backwards: Vec::new() }
    }

    /// Adds `start` and what reaches it.
    fn reach(&mut self, predecessors: &[Vec<usize>], start: usize) {
        if core::mem::replace(&mut self.seen[start], true) {
            return;
        }
        let mut stack = vec![(start, 0)];
        while let Some((block, done)) = stack.pop() {
            match predecessors[block].get(done) {
                Some(&next) => {
                    stack.push((block, done + 1));
                    if !core::mem::replace(&mut self.seen[next], true) {
                        stack.push((next, 0));
                    }
                }
                None => self.backwards.push(block),
            }
        }
    }

    /// The order, with `exit` first.
    fn finish(mut self, exit: usize) -> Vec<usize> {
        self.backwards.push(exit);
        self.backwards.reverse();
        self.backwards
    }
}

fn targets(instruction: &Instruction) -> impl Iterator<Item = usize> {
    let is_branch = matches!(instruction.opcode.as_str(), "bra" | "brx");
    instruction
        .operands
        .iter()
        .filter(move |_| is_branch)
        .flat_map(|operand| match operand {
            Operand::Label(target) => core::slice::from_ref(target),
            Operand::Targets(targets) => targets,
            _ => &[],
        })
        .copied()
}

fn ends_block(instruction: &Instruction, never_return: &HashSet<&str>) -> bool {
    matches!(instruction.opcode.as_str(), "bra" | "brx" | "ret" | "exit") || is_fatal(instruction, never_return)
}

fn is_fatal(instruction: &Instruction, never_return: &HashSet<&str>) -> bool {
    let calls_fatal = || {
        let mut names = instruction.operands.iter().filter_map(|operand| match operand {
            Operand::Symbol(name, _) => Some(name.as_str()),
            _ => None,
        });
        instruction.opcode == "call" && names.any(|name| never_return.contains(name))
    };
    instruction.opcode == "trap" || calls_fatal()
}
