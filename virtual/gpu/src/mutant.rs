//! Programs with one thing that orders accesses taken away: what looks for missing order has to find it.

use core::fmt;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::program::{BarrierResult, Code, Operation, Program, Scope, Strength, Together};

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A fence.
    Fence,
    /// The sequential consistency of a fence, which still acquires and releases.
    Consistency,
    /// A fence of aliases.
    AliasFence,
    /// The order of a load, a store or an atomic, which stays relaxed.
    Order,
    /// All of a scope but the own device.
    System,
    /// All of a scope but the own block.
    Device,
    /// A barrier of the block.
    Barrier,
    /// A barrier of the warp.
    WarpSync,
    /// A wait: the loop that polls ends at once, by the branch that leaves it.
    Wait,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fence => "no fence",
            Self::Consistency => "no sequential consistency",
            Self::AliasFence => "no fence of aliases",
            Self::Order => "relaxed",
            Self::System => "scope of the device",
            Self::Device => "scope of the block",
            Self::Barrier => "no barrier",
            Self::WarpSync => "no barrier of the warp",
            Self::Wait => "no wait",
        })
    }
}

/// One instruction with something taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What.
    pub loss: Loss,
    /// The function that has the instruction.
    pub function: String,
    /// The kernels that may come to it.
    pub kernels: Vec<String>,
    /// Its line in the PTX, counted from 1.
    pub line: usize,
    /// The instruction, as it is written.
    pub instruction: String,
    code: usize,
    at: usize,
}

impl Program {
    /// All that can be taken away, in the order of the text.
    pub fn mutants(&self) -> Vec<Mutant> {
        let mut mutants = Vec::new();
        for (index, code) in self.codes.iter().enumerate() {
            let kernels = self.kernels_with(index);
            let exits = exits_of_waits(code);
            for (at, instruction) in code.instructions.iter().enumerate() {
                let mut losses = losses(&instruction.operation);
                losses.extend(exits.contains(&at).then_some(Loss::Wait));
                if losses.is_empty() {
                    continue;
                }
                let (line, text, _) = self.place(instruction);
                mutants.extend(losses.into_iter().map(|loss| Mutant {
                    loss,
                    function: code.name.clone(),
                    kernels: kernels.clone(),
                    line,
                    instruction: text.clone(),
                    code: index,
                    at,
                }));
            }
        }
        mutants
    }

    /// The program with that taken away.
    pub fn mutated(&self, mutant: &Mutant) -> Arc<Self> {
        let mut program = self.clone();
        let instruction = &mut program.codes[mutant.code].instructions[mutant.at];
        match (mutant.loss, &mut instruction.operation) {
            (Loss::Wait, Operation::Branch(target)) => {
                // A branch back is not taken; one out of the loop always is.
                if *target <= mutant.at {
                    instruction.operation = Operation::Nothing;
                } else {
                    instruction.guard = None;
                }
            }
            (Loss::Consistency, Operation::Fence { is_consistent, .. }) => *is_consistent = false,
            (Loss::System | Loss::Device, operation) => {
                let scope = if mutant.loss == Loss::System { Scope::Device } else { Scope::Block };
                strength_of(operation).into_iter().for_each(|strength| *strength = strength.within(scope));
            }
            (Loss::Order, operation) => {
                strength_of(operation).into_iter().for_each(|strength| *strength = strength.relaxed());
            }
            (Loss::Barrier, Operation::Barrier { result, value, .. }) => {
                instruction.operation = match *result {
                    BarrierResult::And(to) | BarrierResult::Or(to) => {
                        Operation::Predicate { to, first: *value, second: None }
                    }
                    BarrierResult::None | BarrierResult::Count(_) => Operation::Nothing,
                };
            }
            (_, operation) => *operation = Operation::Nothing,
        }
        Arc::new(program)
    }

    /// The program with a trap in that place: whether it is ever come to.
    pub fn trapped(&self, mutant: &Mutant) -> Arc<Self> {
        let mut program = self.clone();
        let instruction = &mut program.codes[mutant.code].instructions[mutant.at];
        (instruction.guard, instruction.operation) = (None, Operation::Trap);
        Arc::new(program)
    }
}

fn losses(operation: &Operation) -> Vec<Loss> {
    let narrower = |strength: &Strength| match strength.scope() {
        Some(Scope::System) => vec![Loss::System],
        Some(Scope::Device) => vec![Loss::Device],
        Some(Scope::Block) | None => Vec::new(),
    };
    match operation {
        Operation::Fence { strength, is_consistent } => {
            let mut losses = vec![Loss::Fence];
            losses.extend(is_consistent.then_some(Loss::Consistency));
            losses.extend(narrower(strength));
            losses
        }
        Operation::FenceAlias => vec![Loss::AliasFence],
        Operation::Load { access, .. } | Operation::Store { access, .. } | Operation::Atomic { access, .. } => {
            let mut losses = narrower(&access.strength);
            losses.extend((access.strength != access.strength.relaxed()).then_some(Loss::Order));
            losses
        }
        Operation::Barrier { .. } => vec![Loss::Barrier],
        Operation::Together { what: Together::Sync, .. } => vec![Loss::WarpSync],
        _ => Vec::new(),
    }
}

fn strength_of(operation: &mut Operation) -> Option<&mut Strength> {
    match operation {
        Operation::Fence { strength, .. } => Some(strength),
        Operation::Load { access, .. } | Operation::Store { access, .. } | Operation::Atomic { access, .. } => {
            Some(&mut access.strength)
        }
        _ => None,
    }
}

/// The branches that end loops which poll: those out of the loop, and the one back.
fn exits_of_waits(code: &Code) -> BTreeSet<usize> {
    let polls = |at: &usize| match &code.instructions[*at].operation {
        Operation::Load { access, .. } | Operation::Atomic { access, .. } => access.strength.is_strong(),
        _ => false,
    };
    let polls: Vec<usize> = (0..code.instructions.len()).filter(polls).collect();
    let branches: Vec<(usize, usize, bool)> = code
        .instructions
        .iter()
        .enumerate()
        .filter_map(|(at, instruction)| match instruction.operation {
            Operation::Branch(target) => Some((at, target, instruction.guard.is_some())),
            _ => None,
        })
        .collect();
    let mut exits = BTreeSet::new();
    for &(back, start, is_guarded) in branches.iter().filter(|(at, target, _)| target <= at) {
        // The innermost loop around a poll.
        let inside = |at: usize| (start..=back).contains(&at);
        let is_inner = |&&(other, to, _): &&(usize, usize, bool)| to <= other && inside(to) && inside(other);
        let is_innermost = branches.iter().filter(is_inner).count() == 1;
        if !is_innermost || !polls.iter().any(|&poll| inside(poll)) {
            continue;
        }
        exits.extend(is_guarded.then_some(back));
        let leaves = branches.iter().filter(|&&(at, target, guarded)| inside(at) && !inside(target) && guarded);
        exits.extend(leaves.map(|&(at, ..)| at));
    }
    exits
}
