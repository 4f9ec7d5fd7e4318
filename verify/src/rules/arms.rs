//! One place that is stored in two arms of a branch.

use std::collections::HashMap;

use super::order::may_be_symmetric;
use super::{Code, Finding, Rule};
use crate::flow::{Root, origin};
use crate::ptx::Instruction;

pub(super) const STORE_IN_TWO_ARMS: Rule = Rule {
    id: "store-in-two-arms",
    why: "threads of a warp that store a line together do it by one instruction; in two arms of a branch, one part is stored before \
          the other, in no given order, and who sees the flag may take data that is not there",
    help: "choose the value, and store it once behind the branch",
};

/// Checks the relaxed stores of 8 bytes and more to places of each thread's own. A store with release has its order, and narrower
/// ones are no words of lines.
pub(super) fn check(code: &Code<'_>, findings: &mut Vec<Finding>) {
    let mut stores: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, instruction) in code.body.instructions.iter().enumerate() {
        if let Some(place) = place(code, instruction) {
            stores.entry((place, instruction.full_name())).or_default().push(index);
        }
    }
    // What each arm reaches is searched once for all pairs of stores, and only where there is one.
    let mut arms = None;
    for indices in stores.into_values() {
        for (later, &second) in indices.iter().enumerate() {
            let mut forks = |first| {
                let arms = arms.get_or_insert_with(|| arms_of_uneven_branches(code));
                forks(arms, code.graph.block_of(first), code.graph.block_of(second))
            };
            let Some(&first) = indices[..later].iter().find(|&&first| forks(first)) else { continue };
            let name = code.body.instructions[second].full_name();
            let message = format!("`{name}` stores where another arm of a branch does");
            let mut finding = STORE_IN_TWO_ARMS.at(code.body.instructions[second].span, message);
            finding.related.push((code.body.instructions[first].span, "the store of the other arm".to_owned()));
            findings.push(finding);
        }
    }
}

/// Where a store goes that this is about.
fn place(code: &Code<'_>, store: &Instruction) -> Option<(Root, i64)> {
    let wide = || ["b64", "u64", "s64", "f64", "b128", "v2", "v4", "v8"].iter().any(|width| store.has(width));
    if store.opcode != "st" || !store.has("relaxed") || !wide() || !may_be_symmetric(code, store) {
        return None;
    }
    let (base, offset) = store.address()?;
    let address = origin(&code.definitions, base, offset);
    let varies = matches!(address.root, Root::Register(register) if code.divergence.varies(register));
    varies.then_some((address.root, address.offset))
}

/// For each branch that differs from thread to thread, for each of its arms: the blocks that it reaches.
fn arms_of_uneven_branches(code: &Code<'_>) -> Vec<Vec<Vec<bool>>> {
    let last = |block| &code.body.instructions[code.graph.instructions(block).end - 1];
    let uneven = (0..code.graph.len()).filter(|&block| code.divergence.decides_unevenly(last(block)));
    uneven.map(|block| code.graph.successors(block).map(|arm| reached(code, arm, block)).collect()).collect()
}

/// Whether some branch has one arm with the first block only, and another with the second.
fn forks(branches: &[Vec<Vec<bool>>], first: usize, second: usize) -> bool {
    first != second
        && branches.iter().any(|arms| {
            let has_only = |here: usize, there: usize| arms.iter().any(|arm| arm[here] && !arm[there]);
            has_only(first, second) && has_only(second, first)
        })
}

/// Which blocks can be reached from `start` without coming by `fork` again.
fn reached(code: &Code<'_>, start: usize, fork: usize) -> Vec<bool> {
    let mut seen = vec![false; code.graph.len()];
    let mut open = vec![start];
    while let Some(block) = open.pop() {
        if block != fork && !core::mem::replace(&mut seen[block], true) {
            open.extend(code.graph.successors(block));
        }
    }
    seen
}
