//! What instructions compute, as functions of register contents.

/// What an instruction computes from its operands, each the low bits of a 64-bit register; the rest is zero. So are the
/// bits of results beyond the width of their type.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    /// Of one operand.
    One(fn(u64) -> u64),
    /// Of two operands.
    Two(fn(u64, u64) -> u64),
    /// Of three operands.
    Three(fn(u64, u64, u64) -> u64),
    /// Of four operands.
    Four(fn(u64, u64, u64, u64) -> u64),
    /// A predicate of one operand: `testp`.
    Test(fn(u64) -> bool),
    /// A predicate of two operands: the comparison of `setp` and `set`, which then combine it or make a number of it.
    Compare(fn(u64, u64) -> bool),
}
