//! Block barriers that only some threads of a warp reach.

use std::collections::{HashMap, HashSet};

use super::{Code, Finding, Rule, callee};
use crate::ptx::Instruction;

pub(super) const DIVERGENT_BARRIER: Rule = Rule {
    id: "divergent-barrier",
    why: "an aligned barrier that not all threads of a warp reach together hangs or is undefined",
    help: "let every thread of the block come by it; if the source does, the compiler has copied the barrier: compile with \
           `-Zmir-enable-passes=-JumpThreading` and make barriers from intrinsics, not from inline assembly",
};

/// Checks the barriers of a function, and its calls of functions with barriers, whose names are in `synchronising`.
pub(super) fn check(code: &Code<'_>, synchronising: &HashSet<&str>, findings: &mut Vec<Finding>) {
    for (index, instruction) in code.body.instructions.iter().enumerate() {
        let called = || callee(instruction).filter(|name| synchronising.contains(name));
        let what = match called() {
            Some(name) => format!("`{name}`, which has an aligned barrier,"),
            None if is_aligned_barrier(instruction) => format!("`{}`", instruction.full_name()),
            None => continue,
        };
        let Some(cause) = code.divergence.cause(code.body, &code.graph, index) else { continue };
        let mut finding =
            DIVERGENT_BARRIER.at(instruction.span, format!("{what} is reached by some threads of a warp only"));
        if cause != index {
            let branch = code.body.instructions[cause].span;
            finding.related = Some((branch, "this branch differs from thread to thread".to_owned()));
        }
        findings.push(finding);
    }
}

/// `bar.sync` and `bar.red` are aligned by definition, `barrier` where it says so.
fn is_aligned_barrier(instruction: &Instruction) -> bool {
    match instruction.opcode.as_str() {
        "bar" => !instruction.has("warp"),
        "barrier" => instruction.has("aligned"),
        _ => false,
    }
}

/// The functions that have an aligned barrier, or call one that has.
pub(super) fn synchronising<'a>(codes: &[Code<'a>]) -> HashSet<&'a str> {
    // Of several with one name the first counts.
    let mut names = HashSet::new();
    let first = codes.iter().filter(|code| names.insert(code.function.name.as_str()));
    let mut callers: HashMap<&str, Vec<&'a str>> = HashMap::new();
    let mut open = Vec::new();
    for code in first {
        let name = code.function.name.as_str();
        if code.body.instructions.iter().any(is_aligned_barrier) {
            open.push(name);
        }
        for called in code.body.instructions.iter().filter_map(callee) {
            callers.entry(called).or_default().push(name);
        }
    }
    let mut found = HashSet::new();
    while let Some(name) = open.pop() {
        if found.insert(name) {
            open.extend(callers.get(name).into_iter().flatten());
        }
    }
    found
}
