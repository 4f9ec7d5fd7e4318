//! Programs with one thing that orders accesses taken away: what looks for missing order has to find it.

#![allow(clippy::disallowed_types, reason = "counts what is executed")]

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::instruction::{BarrierResult, Operation, Scope, Slot, Source, Strength, Together};
use crate::loops::{Loop, innermost};
use crate::program::{Code, Program};

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
    /// A wait: the loop that polls ends at once, by a branch that can leave it, or a call that does nothing else is left out and
    /// says that what it waits for has come.
    Wait,
    /// An access without an order, as a whole: a load leaves in its register what was there.
    Access,
    /// The same, of a load that finds zero, as in memory that nobody has written yet.
    Value,
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
            Self::Access => "no access",
            Self::Value => "no value",
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
    /// The lines of the source that it comes from, where they are known.
    pub source: Option<String>,
    code: usize,
    at: usize,
    /// Of a branch of a loop that polls, whether the loop ends where it is taken.
    ends_if_taken: bool,
}

impl Program {
    /// All that can be taken away, in the order of the text.
    pub fn mutants(&self) -> Vec<Mutant> {
        let mut mutants = Vec::new();
        let texts = |code: &Arc<Code>| code.instructions.iter().map(|one| self.text_of(one)).collect::<Vec<_>>();
        let texts: Vec<Vec<String>> = self.codes.iter().map(texts).collect();
        let exits: Vec<_> = self.codes.iter().zip(&texts).map(|(code, texts)| exits_of_waits(code, texts)).collect();
        let stores = |code: &Code| code.instructions.iter().any(|one| matches!(one.operation, Operation::Store { .. }));
        let only_waits = |code: usize| !exits[code].is_empty() && !stores(&self.codes[code]);
        for (index, code) in self.codes.iter().enumerate() {
            let kernels = self.kernels_with(index);
            for (at, instruction) in code.instructions.iter().enumerate() {
                let mut losses = losses(&instruction.operation);
                let waits = match &instruction.operation {
                    Operation::Call { function: Source::Function(called), results, .. } => {
                        results.len() == 1 && only_waits(*called)
                    }
                    _ => exits[index].contains_key(&at),
                };
                losses.extend(waits.then_some(Loss::Wait));
                if losses.is_empty() {
                    continue;
                }
                let (line, text, source) = self.place(instruction);
                mutants.extend(losses.into_iter().map(|loss| Mutant {
                    loss,
                    function: code.name.clone(),
                    kernels: kernels.clone(),
                    line,
                    instruction: text.clone(),
                    source: source.clone(),
                    code: index,
                    at,
                    ends_if_taken: exits[index].get(&at).copied().unwrap_or(false),
                }));
            }
        }
        mutants
    }

    /// The program with that taken away.
    pub fn mutated(&self, mutant: &Mutant) -> Arc<Self> {
        let mut program = self.clone();
        let instruction = &mut Arc::make_mut(&mut program.codes[mutant.code]).instructions[mutant.at];
        match (mutant.loss, &mut instruction.operation) {
            (Loss::Wait, Operation::Branch(_)) if mutant.ends_if_taken => instruction.guard = None,
            (Loss::Wait, operation @ Operation::Branch(_)) => *operation = Operation::Nothing,
            (Loss::Wait, Operation::Call { results, .. }) => {
                let [Slot { offset, bytes: unit }] = results[..] else { return Arc::new(program) };
                instruction.operation = Operation::StoreParam { offset, unit, from: vec![Source::Immediate(1)] };
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
            (Loss::Value, Operation::Load { to, .. }) => {
                let to = core::mem::take(to);
                instruction.operation = Operation::Unpack { to, from: Source::Immediate(0), bits: 0 };
            }
            (_, operation) => *operation = Operation::Nothing,
        }
        Arc::new(program)
    }

    /// The program, which from now on remembers what of it is run.
    pub fn traced(&self) -> Arc<Self> {
        let reached = (0..self.instructions()).map(|_| AtomicBool::new(false)).collect();
        let mut program = self.clone();
        program.reached = Some(reached);
        Arc::new(program)
    }

    /// Whether a [`traced`](Self::traced) program has come to the place of a mutant.
    pub fn has_reached(&self, mutant: &Mutant) -> bool {
        let number = self.codes[mutant.code].first as usize + mutant.at;
        self.reached.as_ref().is_some_and(|reached| reached[number].load(Ordering::Relaxed))
    }
}

impl Mutant {
    /// Where the scope of an access without an order is taken away, which need not be missed: the same without the access.
    pub fn without_access(&self) -> impl Iterator<Item = Self> {
        let is_scope = matches!(self.loss, Loss::System | Loss::Device);
        let accesses: [(&str, &[Loss]); 4] = [
            ("ld.relaxed", &[Loss::Access, Loss::Value]),
            ("st.relaxed", &[Loss::Access]),
            ("atom.relaxed", &[Loss::Access]),
            ("red.relaxed", &[Loss::Access]),
        ];
        let losses = accesses.iter().find(|(access, _)| is_scope && self.instruction.starts_with(access));
        losses.map_or(&[][..], |(_, losses)| losses).iter().map(|&loss| Self { loss, ..self.clone() })
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

/// The branches that end loops which poll, each with whether the loop ends where it is taken: those that depend on a strong load in
/// the innermost loop around it; `texts` are the instructions as they are written.
fn exits_of_waits(code: &Code, texts: &[String]) -> BTreeMap<usize, bool> {
    let polls = |at: usize| match &code.instructions[at].operation {
        Operation::Load { access, .. } | Operation::Atomic { access, .. } => access.strength.is_strong(),
        _ => false,
    };
    let mut exits = BTreeMap::new();
    for one in innermost(&code.instructions).iter().filter(|one| one.body().any(polls)) {
        let seen = seen_by_polls(one, polls, texts);
        for at in one.body().filter(|&at| guard(&texts[at]).is_some_and(|guard| seen.contains(guard))) {
            if let Operation::Branch(target) = code.instructions[at].operation {
                let leaves = [at + 1, target].map(|next| !one.has(next));
                if leaves[0] != leaves[1] {
                    exits.insert(at, leaves[1]);
                }
            }
        }
    }
    exits
}

/// The names of what depends on polls in a loop.
fn seen_by_polls<'t>(one: &Loop, polls: impl Fn(usize) -> bool, texts: &'t [String]) -> BTreeSet<&'t str> {
    let mut seen = BTreeSet::new();
    loop {
        let before = seen.len();
        for at in one.body() {
            let (to, from) = operands(&texts[at]);
            if polls(at) || names(from).any(|name| seen.contains(name)) {
                seen.extend(names(to));
            }
        }
        if seen.len() == before {
            return seen;
        }
    }
}

/// The predicate in front of an instruction.
fn guard(text: &str) -> Option<&str> {
    text.strip_prefix('@').and_then(|rest| names(rest).next())
}

/// The first operand of an instruction, which is its result if it has one, and the others.
fn operands(text: &str) -> (&str, &str) {
    let text = text.strip_prefix('@').and_then(|rest| rest.split_once(' ')).map_or(text, |(_, rest)| rest);
    let all = text.split_once(' ').map_or("", |(_, operands)| operands);
    let end = match all.starts_with('{') {
        true => all.find('}'),
        false => all.find(','),
    };
    all.split_at(end.unwrap_or(all.len()))
}

/// Registers and variables in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || ['%', '_', '$'].contains(&letter);
    text.split(move |letter| !is_part(letter)).filter(|word| word.starts_with(|letter: char| !letter.is_ascii_digit()))
}
