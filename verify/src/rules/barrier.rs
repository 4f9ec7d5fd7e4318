//! Block barriers that only some threads of a warp reach.

use super::{Code, Finding, Rule, callee};
use crate::ptx::Instruction;

pub(super) const DIVERGENT_BARRIER: Rule = Rule {
    id: "divergent-barrier",
    why: "an aligned barrier that not all threads of a warp reach together hangs or is undefined",
    help: "let every thread of the block come by it; if the source does, the compiler has copied the barrier: compile with \
           `-Zmir-enable-passes=-JumpThreading` and make barriers from intrinsics, not from inline assembly",
};

/// Checks the barriers of a function, and its calls of functions with barriers.
pub(super) fn check(code: &Code<'_>, all: &[Code<'_>], findings: &mut Vec<Finding>) {
    for (index, instruction) in code.body.instructions.iter().enumerate() {
        let called = || callee(instruction).filter(|name| synchronises(all, name));
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

/// Whether the function `name`, or one that it calls, has an aligned barrier.
fn synchronises(all: &[Code<'_>], name: &str) -> bool {
    let mut seen = Vec::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let code = all.iter().find(|code| code.function.name == name);
        for instruction in code.iter().flat_map(|code| &code.body.instructions) {
            if is_aligned_barrier(instruction) {
                return true;
            }
            open.extend(callee(instruction));
        }
    }
    false
}
