//! Signals accessed at two widths.

use std::collections::HashMap;

use super::order::{may_be_symmetric, order};
use super::{Code, Finding, Rule};
use crate::flow::{Root, origin};
use crate::ptx::{Instruction, Span};

pub(super) const MIXED_WIDTH_SIGNAL: Rule = Rule {
    id: "mixed-width-signal",
    why: "accesses of different widths to one location race, and a mixed-size race voids every promise of the memory model",
    help: "access each signal at one width everywhere, 8 bytes",
};

/// What has been seen of one location.
struct Location {
    width: u32,
    synchronises: bool,
    first: Span,
}

/// Checks the synchronising accesses of a function. Data may be moved at any width: a location counts once an atomic, an
/// acquire or a release touches it.
pub(super) fn check(code: &Code<'_>, findings: &mut Vec<Finding>) {
    let mut locations: HashMap<(Root, i64), Location> = HashMap::new();
    for instruction in &code.body.instructions {
        if !matches!(instruction.opcode.as_str(), "ld" | "st" | "atom" | "red") || !may_be_symmetric(code, instruction)
        {
            continue;
        }
        let is_update = matches!(instruction.opcode.as_str(), "atom" | "red");
        if order(instruction).is_none() && !is_update {
            continue;
        }
        let (Some((base, offset)), Some(width)) = (instruction.address(), width(instruction)) else { continue };
        let address = origin(&code.definitions, base, offset);
        let synchronises = is_update || instruction.has("acquire") || instruction.has("release");
        let here = Location { width, synchronises, first: instruction.span };
        let seen = locations.entry((address.root, address.offset)).or_insert(here);
        seen.synchronises |= synchronises;
        if seen.width != width && seen.synchronises {
            let message = format!("`{}` accesses {width} bytes of a signal", instruction.full_name());
            let mut finding = MIXED_WIDTH_SIGNAL.at(instruction.span, message);
            finding.related.push((seen.first, format!("elsewhere {} bytes of it are accessed", seen.width)));
            findings.push(finding);
        }
    }
}

/// The width of each element; a vector's elements are accesses of their own.
fn width(instruction: &Instruction) -> Option<u32> {
    let bits: u32 = instruction.modifiers.last()?.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    Some(bits / 8)
}
