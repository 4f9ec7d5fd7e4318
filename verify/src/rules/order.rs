//! Rules about one instruction's order and scope.

use super::{Code, Finding, Rule};
use crate::flow::origin;
use crate::ptx::{Instruction, Space};

pub(super) const UNQUALIFIED_ATOMIC: Rule = Rule {
    id: "unqualified-atomic",
    why: "without qualifiers it is `.relaxed.gpu`: neither atomic towards other GPUs nor ordered with anything",
    help: "spell order and scope, as in `atom.acq_rel.sys`; in Rust call congruent-device instead of `core::sync::atomic`, \
           whose read-modify-writes lose both on this target",
};

pub(super) const NARROW_SCOPE: Rule = Rule {
    id: "narrow-scope",
    why: "a scope below `.sys` is not morally strong with the accesses of other GPUs, which may then see old data",
    help: "use `.sys` for everything that another PE may touch",
};

pub(super) const NON_COHERENT_LOAD: Rule = Rule {
    id: "non-coherent-load",
    why: "non-coherent loads are outside the memory model and may never see what a peer has stored",
    help: "load through a raw pointer or congruent-device; rustc makes these of kernel parameters of type `&T`",
};

pub(super) const VOLATILE_ACCESS: Rule = Rule {
    id: "volatile-access",
    why: "`.volatile` orders nothing for other threads, and its meaning across GPUs is not spelt out",
    help: "use `.relaxed.sys`, or `.acquire.sys` and `.release.sys` to synchronise",
};

pub(super) const DEFAULT_SCOPE_FENCE: Rule = Rule {
    id: "default-scope-fence",
    why: "a fence that does not reach `.sys` orders nothing for other GPUs",
    help: "write `fence.acq_rel.sys`, or `fence.sc.sys` where a store must be seen before a later load",
};

/// Checks one instruction.
pub(super) fn check(code: &Code<'_>, instruction: &Instruction, findings: &mut Vec<Finding>) {
    let name = instruction.full_name();
    let mut broken = |rule: &'static Rule, message: String| findings.push(rule.at(instruction.span, message));
    match instruction.opcode.as_str() {
        "membar" if instruction.has("gl") || instruction.has("cta") => {
            broken(&DEFAULT_SCOPE_FENCE, format!("`{name}` orders for one GPU only"));
        }
        "fence" if !instruction.has("proxy") => match any_scope(instruction) {
            None if !instruction.has("mbarrier_init") => {
                broken(&DEFAULT_SCOPE_FENCE, format!("`{name}` names no scope"));
            }
            Some(scope) if scope != "sys" && !is_about_shared(instruction) => {
                broken(&NARROW_SCOPE, format!("`{name}` orders within `.{scope}` only"));
            }
            _ => {}
        },
        "atom" | "red" | "ld" | "ldu" | "st" | "multimem" if may_be_symmetric(code, instruction) => {
            let is_update = matches!(instruction.opcode.as_str(), "atom" | "red")
                || (instruction.opcode == "multimem" && instruction.has("red"));
            if is_update && (order(instruction).is_none() || any_scope(instruction).is_none()) {
                broken(&UNQUALIFIED_ATOMIC, format!("`{name}` names no {}", missing(instruction)));
            }
            if let Some(scope) = scope(instruction) {
                broken(&NARROW_SCOPE, format!("`{name}` reaches `.{scope}` only"));
            }
            if instruction.has("nc") || instruction.opcode == "ldu" {
                broken(&NON_COHERENT_LOAD, format!("`{name}` reads through a cache that nothing keeps coherent"));
            }
            if instruction.has("volatile") {
                broken(&VOLATILE_ACCESS, format!("`{name}` is volatile"));
            }
        }
        _ => {}
    }
}

/// Whether the access may be to memory that other PEs see: everything not known to be the block's or the thread's own.
pub(super) fn may_be_symmetric(code: &Code<'_>, instruction: &Instruction) -> bool {
    let own = |space| matches!(space, Space::Shared | Space::Local | Space::Param | Space::Const);
    let spaces = ["shared", "local", "param", "const"];
    let says_own =
        instruction.modifiers.iter().any(|modifier| spaces.contains(&modifier.split("::").next().unwrap_or_default()));
    let traced = || {
        let (base, offset) = instruction.address()?;
        origin(&code.definitions, base, offset).space
    };
    !says_own && !traced().is_some_and(own)
}

/// The order that the instruction names.
pub(super) fn order(instruction: &Instruction) -> Option<&'static str> {
    ["relaxed", "acquire", "release", "acq_rel", "sc"].into_iter().find(|order| instruction.has(order))
}

/// A scope below the system's.
fn scope(instruction: &Instruction) -> Option<&'static str> {
    any_scope(instruction).filter(|scope| *scope != "sys")
}

fn any_scope(instruction: &Instruction) -> Option<&'static str> {
    ["cta", "cluster", "gpu", "sys"].into_iter().find(|scope| instruction.has(scope))
}

/// Fences that are by their kind about barriers in shared memory.
fn is_about_shared(fence: &Instruction) -> bool {
    fence.has("mbarrier_init") || fence.modifiers.iter().any(|modifier| modifier.starts_with("sync_restrict::"))
}

fn missing(instruction: &Instruction) -> &'static str {
    match (order(instruction), any_scope(instruction)) {
        (None, None) => "order and no scope",
        (None, _) => "order",
        _ => "scope",
    }
}
