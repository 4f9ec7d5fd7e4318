//! Aligned instructions, which are barriers of a block and those on matrices, that only some threads of a warp reach.

use std::collections::HashMap;

use super::{Code, Finding, Rule, callee};
use crate::ptx::Instruction;

pub(super) const DIVERGENT_BARRIER: Rule = Rule {
    id: "divergent-barrier",
    why: "an aligned barrier that not all threads of a warp reach together hangs or is undefined",
    help: "let every thread of the block come by it: take what a relaxed load gives by `Group::uniform` before you branch; if the source \
           does, the compiler has copied the barrier: compile with `-Zmir-enable-passes=-JumpThreading` and make barriers from \
           intrinsics, not from inline assembly",
};

pub(super) const DIVERGENT_MATRIX: Rule = Rule {
    id: "divergent-matrix",
    why: "what an aligned instruction does that not all threads of a warp reach together is undefined",
    help: "let every thread of the warp come by it, with zeros where it has nothing to multiply",
};

/// Checks the aligned instructions of a function, and its calls of functions that have some: by name the rule in `aligned`.
pub(super) fn check(code: &Code<'_>, aligned: &HashMap<&str, &'static Rule>, findings: &mut Vec<Finding>) {
    for (index, instruction) in code.body.instructions.iter().enumerate() {
        let called = || callee(instruction).and_then(|name| Some((name, *aligned.get(name)?)));
        let (what, rule) = match (called(), rule_for(instruction)) {
            (Some((name, rule)), _) => (format!("`{name}`, which has an aligned instruction,"), rule),
            (None, Some(rule)) => (format!("`{}`", instruction.full_name()), rule),
            (None, None) => continue,
        };
        let Some(cause) = code.divergence.cause(code.body, &code.graph, index) else { continue };
        let mut finding = rule.at(instruction.span, format!("{what} is reached by some threads of a warp only"));
        if cause != index {
            let branch = code.body.instructions[cause].span;
            finding.related.push((branch, "this branch differs from thread to thread".to_owned()));
        }
        if let Some(source) = code.divergence.source(code.body, &code.graph, cause) {
            let source = code.body.instructions[source].span;
            finding.related.push((source, "because of what this gives".to_owned()));
        }
        findings.push(finding);
    }
}

/// `bar.sync` and `bar.red` are aligned by definition; other barriers, `mma`, `ldmatrix` and their like where they say so.
fn rule_for(instruction: &Instruction) -> Option<&'static Rule> {
    match instruction.opcode.as_str() {
        "bar" => (!instruction.has("warp")).then_some(&DIVERGENT_BARRIER),
        _ if !instruction.has("aligned") => None,
        "barrier" => Some(&DIVERGENT_BARRIER),
        _ => Some(&DIVERGENT_MATRIX),
    }
}

/// The functions that have an aligned instruction, or call one that has, with the rule for it; of several, that for barriers.
pub(super) fn functions<'a>(codes: &[Code<'a>]) -> HashMap<&'a str, &'static Rule> {
    // Of several with one name the first counts.
    let mut own = HashMap::new();
    let mut callers: HashMap<&str, Vec<&'a str>> = HashMap::new();
    for code in codes {
        let name = code.function.name.as_str();
        if own.contains_key(name) {
            continue;
        }
        let rules: Vec<_> = code.body.instructions.iter().filter_map(rule_for).collect();
        own.insert(name, rules);
        for called in code.body.instructions.iter().filter_map(callee) {
            callers.entry(called).or_default().push(name);
        }
    }
    let mut found = HashMap::new();
    for rule in [&DIVERGENT_BARRIER, &DIVERGENT_MATRIX] {
        let mut open: Vec<_> = own.iter().filter(|(_, rules)| rules.contains(&rule)).map(|(name, _)| *name).collect();
        while let Some(name) = open.pop() {
            if !found.contains_key(name) {
                found.insert(name, rule);
                open.extend(callers.get(name).into_iter().flatten());
            }
        }
    }
    found
}
