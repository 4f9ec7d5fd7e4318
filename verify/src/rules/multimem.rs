//! Multicast accesses and the fence between addresses.

use super::{Code, Finding, Rule};
use crate::ptx::Instruction;

pub(super) const MULTIMEM_WITHOUT_FENCE: Rule = Rule {
    id: "multimem-without-alias-fence",
    why: "a multicast address is another address of the same memory: without `fence.proxy.alias` on the way, what was stored \
          through one may not be seen through the other",
    help: "put `fence.proxy.alias` before `multimem.ld_reduce` and `multimem.red`, and before or after `multimem.st`",
};

/// Checks that every way by a multicast access has the fence.
pub(super) fn check(code: &Code<'_>, findings: &mut Vec<Finding>) {
    let is_multimem = |instruction: &Instruction| instruction.opcode == "multimem";
    if !code.body.instructions.iter().any(is_multimem) {
        return;
    }
    let blocks = code.graph.len();
    let fenced: Vec<bool> =
        (0..blocks).map(|block| code.body.instructions[code.graph.instructions(block)].iter().any(is_fence)).collect();
    let unfenced_at_start = unfenced_at_start(code, &fenced);
    let unfenced_after_end = unfenced_after_end(code, &fenced);
    for block in 0..blocks {
        let instructions = &code.body.instructions[code.graph.instructions(block)];
        for (index, instruction) in instructions.iter().enumerate().filter(|(_, instruction)| is_multimem(instruction))
        {
            let before = unfenced_at_start[block] && !instructions[..index].iter().any(is_fence);
            let after = unfenced_after_end[block] && !instructions[index..].iter().any(is_fence);
            if before && (after || !instruction.has("st")) {
                let message = format!("`{}` can be reached without `fence.proxy.alias`", instruction.full_name());
                findings.push(MULTIMEM_WITHOUT_FENCE.at(instruction.span, message));
            }
        }
    }
}

fn is_fence(instruction: &Instruction) -> bool {
    instruction.has("proxy") && instruction.has("alias")
}

/// For each block whether some way from the function's start to it has no fence.
fn unfenced_at_start(code: &Code<'_>, fenced: &[bool]) -> Vec<bool> {
    let mut unfenced = vec![false; fenced.len()];
    let mut open = vec![0];
    while let Some(block) = open.pop() {
        if !core::mem::replace(&mut unfenced[block], true) && !fenced[block] {
            open.extend(code.graph.successors(block));
        }
    }
    unfenced
}

/// For each block whether some way from its end to the function's end has no fence.
fn unfenced_after_end(code: &Code<'_>, fenced: &[bool]) -> Vec<bool> {
    let before = code.graph.reversed(|block| code.graph.successors(block));
    let mut unfenced = vec![false; fenced.len()];
    let mut open: Vec<usize> = (0..fenced.len()).filter(|&block| code.graph.leaves(block)).collect();
    while let Some(block) = open.pop() {
        if !core::mem::replace(&mut unfenced[block], true) && !fenced[block] {
            open.extend(&before[block]);
        }
    }
    unfenced
}
