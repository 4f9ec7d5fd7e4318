//! Cases on the virtual driver: scenarios in processes of their own, and what came of them.
#![allow(dead_code, reason = "each suite uses its own part")]

pub(crate) mod scenarios;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::processes::{Port, myself, seat};
use crate::virtual_support::{End, ends, on_virtual};
use scenarios::{NPES, PTX, Scenario};

/// Longer than a case may take, on a machine that is busy with other things; most take a tenth of a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// More than that: a PE that only its own deadline lets go has not heard of what happened to the other.
const DEADLINE_MS: &str = "120000";
/// Cases at once.
const AT_ONCE: usize = 6;

/// A case's name, and its processes.
pub(crate) type Case = (String, Vec<Command>);

/// This test binary again, with the scenario's kernels, to run one test.
pub(crate) fn again(test: &str, scenario: Scenario, settings: &str) -> Command {
    let mut command = on_virtual(myself(test), &format!("{},{settings}", scenario.settings));
    command.env("CONGRUENT_PTX", &*PTX).env("CONGRUENT_DEADLINE_MS", DEADLINE_MS);
    command.envs(scenario.environment.iter().copied());
    command
}

/// A job of processes, of which the last one has a virtual driver with these settings.
pub(crate) fn job(test: &str, scenario: Scenario, settings: &str, port: &Port) -> Vec<Command> {
    let settings = |pe| if pe == NPES - 1 { settings } else { "" };
    (0..NPES).map(|pe| seat(again(test, scenario, settings(pe)), port, pe, NPES)).collect()
}

/// What a process of a scenario made of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Right,
    Refused(String),
}

impl Outcome {
    pub(crate) fn is_right(&self) -> bool {
        matches!(self, Self::Right)
    }
}

pub(crate) fn outcome(case: &str, end: &End) -> Outcome {
    assert!(end.succeeded, "{case}: {end:?}");
    assert!(!end.said.contains("panicked at"), "{case}: {end:?}");
    let refused = end.said.lines().find_map(|line| line.strip_prefix("REFUSED "));
    match refused {
        Some(why) => Outcome::Refused(why.to_owned()),
        None if end.said.lines().any(|line| line == "RIGHT") => Outcome::Right,
        None => panic!("{case}: {end:?}"),
    }
}

/// How the processes of some cases end, a few cases at a time.
pub(crate) fn all(cases: Vec<Case>) -> Vec<(String, Vec<End>)> {
    let mut done = Vec::new();
    let mut cases = cases.into_iter().peekable();
    while cases.peek().is_some() {
        let some: Vec<_> = cases.by_ref().take(AT_ONCE).collect();
        let sizes: Vec<_> = some.iter().map(|(case, commands)| (case.clone(), commands.len())).collect();
        let mut ended = ends(some.into_iter().flat_map(|(_, commands)| commands).collect(), PATIENCE).into_iter();
        done.extend(sizes.into_iter().map(|(case, many)| (case, ended.by_ref().take(many).collect())));
    }
    done
}

/// How often a process made a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Until its world was there.
    pub(crate) before: u64,
    pub(crate) all: u64,
}

/// The calls of a scenario, by name.
pub(crate) type Made = BTreeMap<String, Uses>;

/// The calls that a process of a scenario made in which nothing failed.
pub(crate) fn made(end: &End) -> Made {
    assert!(outcome("nothing fails", end).is_right(), "{end:?}");
    let mut made = Made::new();
    for line in end.said.lines() {
        let mut words = line.split(' ');
        let (Some(when @ ("BEFORE" | "CALLS")), Some(name), Some(count)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (uses, count) = (made.entry(name.to_owned()).or_default(), count.parse().unwrap());
        *(if when == "CALLS" { &mut uses.all } else { &mut uses.before }) = count;
    }
    made
}

/// The same of both PEs on threads of one process.
pub(crate) fn made_by_threads(test: &str, scenario: Scenario) -> Made {
    made(&ends(vec![again(test, scenario, "")], PATIENCE)[0])
}

/// The same of one of two processes.
pub(crate) fn made_by_process(test: &str, scenario: Scenario) -> Made {
    let port = Port::reserve();
    made(&ends(job(test, scenario, "", &port), PATIENCE)[NPES as usize - 1])
}
