//! Where an address comes from: its state space, and the register or variable it is an offset from.

use super::definitions::Definitions;
use crate::ptx::{Operand, RegisterId, Space};

/// What is known about an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    /// What it is an offset from.
    pub(crate) root: Root,
    /// The offset in bytes.
    pub(crate) offset: i64,
    /// The state space, where the code says it.
    pub(crate) space: Option<Space>,
}

/// What an address is an offset from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// A value that is not traced further.
    Register(RegisterId),
    /// A variable, or the kernel parameter that holds the address.
    Symbol(String),
    /// A number.
    Absolute,
}

/// Longer chains of copies and additions do not occur in one address.
const LONGEST_CHAIN: usize = 64;

/// Traces `base + offset` back through copies, conversions and constant additions.
pub(crate) fn origin(definitions: &Definitions<'_>, base: &Operand, offset: i64) -> Origin {
    let mut origin = Origin { root: Root::Absolute, offset, space: None };
    let mut operand = base;
    for _ in 0..LONGEST_CHAIN {
        let register = match operand {
            Operand::Register(register) => *register,
            Operand::Symbol(name, offset) => {
                origin.root = Root::Symbol(name.clone());
                origin.offset = origin.offset.wrapping_add(*offset);
                origin.space = origin.space.or_else(|| definitions.space(name));
                return origin;
            }
            _ => return origin,
        };
        origin.root = Root::Register(register);
        let Some(definition) = definitions.only(register) else {
            return origin;
        };
        match (definition.opcode.as_str(), definition.operands.as_slice()) {
            ("mov", [_, source]) => operand = source,
            ("cvta", [_, source]) => {
                origin.space = origin.space.or_else(|| named_space(&definition.modifiers));
                operand = source;
            }
            ("add", [_, source, Operand::Integer(bits)]) => {
                origin.offset = origin.offset.wrapping_add(bits.cast_signed());
                operand = source;
            }
            // Two loads of one kernel parameter give the same address.
            ("ld", [_, Operand::Address(parameter, 0)]) if definition.has("param") => {
                if let Operand::Symbol(name, 0) = parameter.as_ref() {
                    origin.root = Root::Symbol(name.clone());
                }
                return origin;
            }
            // A dynamic index stays within the variable it starts from.
            ("add", [_, Operand::Register(left), Operand::Register(right)]) => {
                let side = |register| origin_space(definitions, register);
                origin.space = origin.space.or_else(|| side(*left)).or_else(|| side(*right));
                return origin;
            }
            _ => return origin,
        }
    }
    origin
}

/// The space of a register one step further, without following more than one sum.
fn origin_space(definitions: &Definitions<'_>, register: RegisterId) -> Option<Space> {
    let definition = definitions.only(register)?;
    match (definition.opcode.as_str(), definition.operands.as_slice()) {
        ("mov", [_, Operand::Symbol(name, _)]) => definitions.space(name),
        ("cvta", _) => named_space(&definition.modifiers),
        _ => None,
    }
}

/// The state space that an instruction names.
pub(crate) fn named_space(modifiers: &[String]) -> Option<Space> {
    modifiers.iter().find_map(|modifier| match modifier.split("::").next() {
        Some("shared") => Some(Space::Shared),
        Some("local") => Some(Space::Local),
        Some("param") => Some(Space::Param),
        Some("const") => Some(Space::Const),
        Some("global") => Some(Space::Global),
        _ => None,
    })
}
