//! Functions that nothing provides, and memory that kernels should not need.

use std::collections::{HashMap, HashSet};

use super::{Code, Finding, Rule, callee};
use crate::ptx::{Module, Space};

pub(super) const UNRESOLVED_FUNCTION: Rule = Rule {
    id: "unresolved-function",
    why: "no one defines this function, so the driver refuses to load the module",
    help: "find what calls it: comparing byte slices calls `memcmp`, for one; compare elements in a loop instead",
};

pub(super) const STACK_FRAME: Rule = Rule {
    id: "stack-frame",
    why: "memory of the thread is global memory in disguise: hundreds of cycles per access, on paths meant to be in registers",
    help: "index arrays with constants only, pass structs by reference to global memory, or move staging to `u128` values",
};

/// What the driver itself provides.
const DRIVER_FUNCTIONS: &[&str] = &["vprintf", "__assertfail"];

/// Checks that every function declared is defined.
pub(super) fn check_unresolved(module: &Module, findings: &mut Vec<Finding>) {
    let defined: HashSet<&str> = module
        .functions
        .iter()
        .filter(|function| function.body.is_some())
        .map(|function| function.name.as_str())
        .collect();
    let mut reported = HashSet::new();
    for function in &module.functions {
        let name = function.name.as_str();
        if !defined.contains(name) && !DRIVER_FUNCTIONS.contains(&name) && reported.insert(name) {
            findings.push(UNRESOLVED_FUNCTION.at(function.span, format!("nothing defines `{name}`")));
        }
    }
}

/// Checks that kernels and what they call keep everything in registers. Functions that never return are panics; what those
/// need does not matter.
pub(super) fn check_stack(codes: &[Code<'_>], findings: &mut Vec<Finding>) {
    let mut open: Vec<&str> =
        codes.iter().filter(|code| code.function.is_entry).map(|code| code.function.name.as_str()).collect();
    let returning = codes.iter().rev().filter(|code| !code.function.never_returns);
    let by_name: HashMap<&str, &Code<'_>> = returning.map(|code| (code.function.name.as_str(), code)).collect();
    let mut reached = HashSet::new();
    while let Some(name) = open.pop() {
        if let Some(code) = by_name.get(name).filter(|_| reached.insert(name)) {
            open.extend(code.body.instructions.iter().filter_map(callee));
            for variable in code.body.variables.iter().filter(|variable| variable.space == Space::Local) {
                let message = format!("`{name}` keeps `{}` in memory", variable.name);
                findings.push(STACK_FRAME.at(variable.span, message));
            }
        }
    }
}
