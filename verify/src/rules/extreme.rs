//! Minima and maxima of 16 bits that ptxas 13.0 gets wrong.

use super::{Code, Finding, Rule};
use crate::ptx::{Instruction, Operand};

pub(super) const NARROW_MINIMUM: Rule = Rule {
    id: "narrow-minimum",
    why: "of a minimum or maximum of 16 bits that is compared for equality with one of its operands, ptxas 13.0 makes for sm_90 and later \
          an instruction on two halves whose two predicates are one, so it tells of the empty half; drivers for CUDA 13.0 have that ptxas",
    help: "compute in 32 bits, or clear the bits that make the value too large",
};

/// Checks the comparisons of a function.
pub(super) fn check(code: &Code<'_>, findings: &mut Vec<Finding>) {
    for compare in &code.body.instructions {
        if compare.opcode != "setp" || !compare.has("eq") {
            continue;
        }
        let [.., a, b] = compare.operands.as_slice() else { continue };
        let Some(extreme) = extreme(code, a, b).or_else(|| extreme(code, b, a)) else { continue };
        let message =
            format!("`{}` asks whether an operand of `{}` is its result", compare.full_name(), extreme.full_name());
        let mut finding = NARROW_MINIMUM.at(compare.span, message);
        finding.related.push((extreme.span, "the result comes from here".into()));
        findings.push(finding);
    }
}

/// The minimum or maximum of 16 bits whose result is one of these, and the other one of its operands.
fn extreme<'a>(code: &Code<'a>, result: &Operand, operand: &Operand) -> Option<&'a Instruction> {
    let &Operand::Register(register) = result else { return None };
    let from = code.definitions.only(register)?;
    let is_narrow = ["u16", "s16"].iter().any(|narrow| from.has(narrow));
    let has_it = from.operands.iter().skip(1).any(|own| own == operand);
    (matches!(from.opcode.as_str(), "min" | "max") && is_narrow && has_it).then_some(from)
}
