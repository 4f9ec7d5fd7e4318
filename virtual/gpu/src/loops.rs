//! The loops of a function: natural ones, whose parts may lie anywhere in its text.

use std::collections::BTreeMap;

use crate::instruction::{Instruction, Operation};

/// A loop: where it begins, and for each instruction whether it belongs to it.
pub(crate) struct Loop {
    start: usize,
    inside: Vec<bool>,
}

impl Loop {
    pub(crate) fn has(&self, at: usize) -> bool {
        self.inside.get(at).copied().unwrap_or(false)
    }

    /// Its instructions, in the order of the text.
    pub(crate) fn body(&self) -> impl Iterator<Item = usize> {
        (0..self.inside.len()).filter(|&at| self.inside[at])
    }
}

/// The loops that have no other in them.
pub(crate) fn innermost(instructions: &[Instruction]) -> Vec<Loop> {
    let successors: Vec<Vec<usize>> = (0..instructions.len()).map(|at| successors(instructions, at)).collect();
    let mut predecessors = vec![Vec::new(); instructions.len()];
    for (at, after) in successors.iter().enumerate() {
        after.iter().for_each(|&after| predecessors[after].push(at));
    }
    // What nothing comes to is in no loop.
    let all = reached(0, &successors, instructions.len());
    // An edge leads back where all ways to its start pass its end. It goes to a place where ways join, or to the first one.
    let mut back = BTreeMap::<usize, Vec<usize>>::new();
    for (start, before) in predecessors.iter().enumerate().filter(|(at, before)| before.len() > 1 || *at == 0) {
        let around = reached(0, &successors, start);
        let from: Vec<usize> = before.iter().copied().filter(|&at| all[at] && !around[at]).collect();
        if !from.is_empty() {
            back.insert(start, from);
        }
    }
    let body = |(&start, from): (&usize, &Vec<usize>)| {
        let mut inside = vec![false; instructions.len()];
        for &at in from {
            let more = reached(at, &predecessors, start);
            inside.iter_mut().zip(more).for_each(|(inside, more)| *inside |= more);
        }
        inside[start] = true;
        Loop { start, inside }
    };
    let loops: Vec<Loop> = back.iter().map(body).collect();
    let has_inner = |one: &Loop| back.keys().any(|&start| start != one.start && one.has(start));
    let inner: Vec<bool> = loops.iter().map(|one| !has_inner(one)).collect();
    loops.into_iter().zip(inner).filter_map(|(one, is_inner)| is_inner.then_some(one)).collect()
}

/// What is reached from an instruction, itself too, without coming to another.
fn reached(from: usize, next: &[Vec<usize>], without: usize) -> Vec<bool> {
    let mut seen = vec![false; next.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at != without && !core::mem::replace(&mut seen[at], true) {
            open.extend(&next[at]);
        }
    }
    seen
}

/// Where control goes from an instruction.
fn successors(instructions: &[Instruction], at: usize) -> Vec<usize> {
    let Instruction { operation, guard, .. } = &instructions[at];
    let (mut next, ends) = match operation {
        Operation::Branch(target) => (vec![*target], true),
        Operation::BranchTable { targets, .. } => (targets.clone(), true),
        Operation::Return | Operation::Exit | Operation::Trap => (Vec::new(), true),
        _ => (Vec::new(), false),
    };
    if !ends || guard.is_some() {
        next.push(at + 1);
    }
    // A label at the end of a function has nothing behind it.
    next.retain(|&next| next < instructions.len());
    next.sort_unstable();
    next.dedup();
    next
}
