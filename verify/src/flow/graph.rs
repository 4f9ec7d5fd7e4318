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
        let mut graph = Self { blocks: Vec::new(), block_of: Vec::new(), post_dominators: Vec::new() };
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

    /// The blocks that may follow a block; the exit is not among them.
    pub(crate) fn successors(&self, block: usize) -> impl Iterator<Item = usize> {
        self.blocks[block].successors.iter().copied().filter(|&successor| successor != self.exit())
    }

    /// Whether a block is followed by the exit.
    pub(crate) fn leaves(&self, block: usize) -> bool {
        self.blocks[block].successors.contains(&self.exit())
    }

    /// The blocks on which the branch at the end of `block` decides: those between it and where its ways meet again.
    pub(crate) fn region(&self, block: usize) -> Vec<usize> {
        let ways: Vec<usize> = self.live_successors(block).collect();
        if ways.len() < 2 {
            return Vec::new();
        }
        let meeting = self.post_dominators[block];
        let mut seen = vec![false; self.blocks.len() + 1];
        let mut region = Vec::new();
        let mut open = ways;
        while let Some(next) = open.pop() {
            if next == self.exit() || Some(next) == meeting || core::mem::replace(&mut seen[next], true) {
                continue;
            }
            region.push(next);
            open.extend(self.live_successors(next));
        }
        region
    }

    /// Whether `block` can be reached from itself without leaving `region`.
    pub(crate) fn loops_within(&self, block: usize, region: &[usize]) -> bool {
        let mut seen = vec![false; self.blocks.len()];
        let mut open: Vec<usize> = self.successors(block).collect();
        while let Some(next) = open.pop() {
            if next == block {
                return true;
            }
            if region.contains(&next) && !core::mem::replace(&mut seen[next], true) {
                open.extend(self.successors(next));
            }
        }
        false
    }

    fn live_successors(&self, block: usize) -> impl Iterator<Item = usize> {
        let is_live = |next: &usize| self.blocks.get(*next).is_none_or(|block| !block.doomed);
        self.blocks[block].successors.iter().copied().filter(is_live)
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
        loop {
            let mut changed = false;
            for block in (0..self.blocks.len()).filter(|&block| !self.blocks[block].doomed).collect::<Vec<_>>() {
                let last = &instructions[self.blocks[block].instructions.end - 1];
                let fails = last.guard.is_none() && is_fatal(last, never_return);
                let successors = &self.blocks[block].successors;
                let all_doomed = !successors.is_empty() && self.live_successors(block).next().is_none();
                if fails || all_doomed {
                    self.blocks[block].doomed = true;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Cooper, Harvey and Kennedy's algorithm on the reversed graph.
    fn find_post_dominators(&mut self) {
        let exit = self.exit();
        let mut predecessors = vec![Vec::new(); exit + 1];
        for block in 0..exit {
            for next in self.live_successors(block) {
                predecessors[next].push(block);
            }
        }
        // A loop without an end never reaches the exit; its last block is taken to.
        let mut order = reverse_order(&predecessors, exit);
        while let Some(stuck) = (0..exit).rev().find(|block| !self.blocks[*block].doomed && !order.contains(block)) {
            predecessors[exit].push(stuck);
            order = reverse_order(&predecessors, exit);
        }
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

/// The blocks that reach `exit`, each after at least one of those that follow it, `exit` first.
fn reverse_order(predecessors: &[Vec<usize>], exit: usize) -> Vec<usize> {
    let mut seen = vec![false; predecessors.len()];
    let mut order = Vec::new();
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((block, done)) = stack.pop() {
        match predecessors[block].get(done) {
            Some(&next) => {
                stack.push((block, done + 1));
                if !core::mem::replace(&mut seen[next], true) {
                    stack.push((next, 0));
                }
            }
            None => order.push(block),
        }
    }
    order.reverse();
    order
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::parse;

    fn graph(text: &str) -> Graph {
        let ptx = format!(".func stop() .noreturn;\n.entry k() {{ .reg .pred %p<9>;\n{text}\n}}");
        let module = parse(&ptx).expect("PTX");
        let body = module.functions[1].body.as_ref().expect("a body");
        Graph::new(body, &HashSet::from(["stop"]))
    }

    #[test]
    fn an_if_decides_on_its_arms_alone() {
        let graph = graph("@%p1 bra A; trap; bra B; A: bar.sync 0; B: ret;");
        assert_eq!(graph.len(), 5);
        assert!(graph.region(0).is_empty(), "one way is doomed, so there is nothing to decide");
        let graph = self::graph("@%p1 bra A; bar.sync 1; bra B; A: bar.sync 0; B: ret;");
        let mut region = graph.region(0);
        region.sort_unstable();
        assert_eq!(region, [1, 2]);
    }

    #[test]
    fn a_loops_end_decides_on_the_whole_loop() {
        let graph = graph("A: bar.sync 0; @%p1 bra A; bar.sync 1; ret;");
        assert_eq!(graph.region(0), [0]);
        assert!(graph.loops_within(0, &[0]));
    }

    #[test]
    fn an_early_return_decides_on_all_that_follows() {
        assert_eq!(graph("@%p1 ret; bar.sync 0; ret;").region(0), [1]);
    }

    #[test]
    fn calls_that_never_return_are_doomed() {
        assert!(graph("@%p1 bra A; bar.sync 0; ret; A: call.uni stop, ();").region(0).is_empty());
    }

    #[test]
    fn a_loop_without_an_end_still_has_regions() {
        assert_eq!(graph("A: @%p1 bra B; bar.sync 0; B: bra A;").region(0), [1]);
    }
}
