//! What a test says, and what the model says of it.

use core::fmt;
use core::ops::ControlFlow;

use super::model::Model;
use super::program::Program;
use super::rule::Rule;
use super::search::{Execution, Search};

/// One litmus test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name; of a variant, after the test's that it varies and a slash.
    pub name: String,
    /// The line where it begins, counted from 1.
    pub line: usize,
    /// What it expects.
    pub expected: Verdict,
    /// The clauses that decide, as it says.
    pub clauses: Vec<String>,
    pub(super) program: Program,
}

/// Whether the outcome that a test asks for may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allowed,
    /// It may not.
    Forbidden,
    /// The program has a race of mixed sizes, so the model says nothing.
    Void,
}

/// What the model says of a test.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the outcome may happen.
    pub verdict: Verdict,
    /// How many combinations of reads, fence order and coherence order were looked at that have the outcome's values.
    pub candidates: u64,
    /// An execution with the outcome, or with the race.
    pub witness: Option<Witness>,
    /// The rules without which the verdict would be the other.
    pub rules: Vec<Rule>,
}

/// An execution, for people.
#[derive(Clone, Debug)]
pub struct Witness(String);

/// A thread of a test, for who executes it.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'t> {
    /// Its device; none of the host's.
    pub gpu: Option<u32>,
    /// Its cluster, CTA and warp.
    pub place: [u32; 3],
    /// Its instructions and `assume` lines, without semicolons.
    pub lines: &'t [String],
}

impl Test {
    /// Its threads.
    pub fn threads(&self) -> impl Iterator<Item = Placed<'_>> {
        self.program.threads.iter().zip(&self.program.texts).map(|(thread, lines)| {
            let place = [thread.cluster, thread.cta, thread.warp];
            Placed { gpu: thread.gpu, place, lines }
        })
    }

    /// The outcome that it asks for, as it is written after `exists`.
    pub fn condition(&self) -> &str {
        &self.program.asked
    }

    /// Other names of locations.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.program.aliases.iter().map(|(name, of)| (name.as_str(), of.as_str()))
    }

    /// Multicast addresses and their members.
    pub fn multicasts(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.program.multicasts.iter().map(|(name, members)| (name.as_str(), members.as_slice()))
    }

    /// Whether hardware promises that what one instruction of a warp stores to a line arrives in order, and that vectors of 16
    /// bytes are atomic.
    pub fn promises(&self) -> (bool, bool) {
        (self.program.promises.ordered_lines, self.program.promises.atomic_vectors)
    }

    /// Decides the test. Takes time exponential in its reads and writes; 20 events take a small part of a second.
    pub fn check(&self) -> Outcome {
        let model = Model::new(&self.program, None);
        if let Some(outcome) = mixed_race(&model) {
            return outcome;
        }
        let (witness, candidates) = find(&model, false);
        let verdict = if witness.is_some() { Verdict::Allowed } else { Verdict::Forbidden };
        let without = |rule: Rule| match rule.is_limit() {
            true => {
                let program = self.program.unlimited(rule);
                find(&Model::new(&program, None), rule == Rule::LoadBuffering).0.is_some()
            }
            false => find(&Model::new(&self.program, Some(rule)), false).0.is_some(),
        };
        let decides = |rule: &Rule| rule.is_limit() == witness.is_some() && without(*rule) != witness.is_some();
        let rules = Rule::ALL.into_iter().filter(decides).collect();
        Outcome { verdict, candidates, witness, rules }
    }
}

/// Tests as a table in Markdown: names, verdicts, clauses.
pub fn table(tests: &[Test]) -> String {
    let row = |test: &Test| format!("| `{}` | {} | {} |\n", test.name, test.expected, test.clauses.join(", "));
    let rows: String = tests.iter().map(row).collect();
    format!("| test | outcome | clauses |\n|---|---|---|\n{rows}")
}

/// An execution with the outcome, and how many candidates were looked at.
fn find(model: &Model<'_>, no_buffering: bool) -> (Option<Witness>, u64) {
    let mut search = Search { model, to_condition: true, no_buffering, candidates: 0 };
    let mut witness = None;
    let _ = search.run(&mut |execution| {
        if !execution.satisfies(model.program) {
            return ControlFlow::Continue(());
        }
        witness = Some(Witness(shown(model.program, execution)));
        ControlFlow::Break(())
    });
    (witness, search.candidates)
}

/// The first race of mixed sizes.
fn mixed_race(model: &Model<'_>) -> Option<Outcome> {
    model.partial_overlaps().next()?;
    let mut search = Search { model, to_condition: false, no_buffering: false, candidates: 0 };
    let mut witness = None;
    let _ = search.run(&mut |execution| match model.mixed_race(execution.orders, execution.writes) {
        Some((a, b)) => {
            let pair = format!("{} races with {}", named(model.program, a), named(model.program, b));
            witness = Some(Witness(format!("{}{pair}\n", shown(model.program, execution))));
            ControlFlow::Break(())
        }
        None => ControlFlow::Continue(()),
    });
    let verdict = Verdict::Void;
    witness.map(|shown| Outcome { verdict, candidates: search.candidates, witness: Some(shown), rules: Vec::new() })
}

/// An event by its thread and instruction.
fn named(program: &Program, event: usize) -> String {
    let event = &program.events[event];
    format!("{} `{}`", program.threads[event.thread].name, program.texts[event.thread][event.instruction])
}

/// The instructions in order, with what they read; then the orders that were chosen.
fn shown(program: &Program, execution: &Execution<'_>) -> String {
    let mut lines = Vec::new();
    for (thread, texts) in program.threads.iter().zip(&program.texts) {
        for (instruction, text) in texts.iter().enumerate() {
            let of_it = |event: &usize| {
                let event = &program.events[*event];
                event.instruction == instruction && program.threads[event.thread].name == thread.name
            };
            let reads: Vec<String> = (0..program.events.len())
                .filter(of_it)
                .filter(|&event| program.events[event].access().is_some_and(|access| access.reads))
                .map(|event| read(program, execution, event))
                .collect();
            let comment = if reads.is_empty() { String::new() } else { format!("  # {}", reads.join("; ")) };
            lines.push(format!("{}: {text}{comment}", thread.name));
        }
    }
    let ordered = |(a, b): (usize, usize)| format!("{} before {}", named(program, a), named(program, b));
    lines.extend(execution.coherence.pairs().map(|pair| format!("coherence: {}", ordered(pair))));
    lines.extend(execution.orders.fences.pairs().map(|pair| format!("fence.sc: {}", ordered(pair))));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// What a read has read, and from where.
fn read(program: &Program, execution: &Execution<'_>, event: usize) -> String {
    let mut sources = execution.sources[event].clone();
    sources.dedup();
    let source = |source: &Option<usize>| source.map_or("the start".to_owned(), |write| named(program, write));
    let sources: Vec<String> = sources.iter().map(source).collect();
    format!("reads {} from {}", execution.values.read[event], sources.join(" and "))
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "allowed",
            Self::Forbidden => "forbidden",
            Self::Void => "void",
        })
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
