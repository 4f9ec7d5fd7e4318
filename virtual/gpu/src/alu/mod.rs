//! What instructions compute, as functions of register contents.
//!
//! What is computed is what the PTX ISA says. Where it leaves something open, it is what the code does that ptxas makes of the
//! instruction for sm_90:
//! - Integer division by zero gives all ones, and so does its remainder.
//! - Results that are not numbers are 0x7fff and 0x7fffffff, those of `abs` and `neg` too.
//!
//! Where neither says it, the choice is this:
//! - Of `f64`, the result that is not a number is the first operand that is none, quiet; without one, 0xfff8000000000000.
//! - A result is subnormal, for `.ftz`, if it is so after rounding.
//! - `.sat` makes 0 of -0.
//! - Approximate functions are computed in `f64` and rounded once, which is inside every documented tolerance.

mod bits;
mod compare;
mod convert;
mod float;
mod format;
mod integer;
pub mod matrix;
#[cfg(test)]
mod tests;

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

/// The arithmetic of an instruction with the carry flag: operands and the flag before to the result and the flag after.
/// Operands that the instruction does not have are ignored.
pub type Carry = fn(u64, u64, u64, bool) -> (u64, bool);

/// The function of an instruction, or `None` if it computes nothing of that kind (memory, control, selection by a
/// predicate, the carry flag) or is not known.
///
/// `lop3` with a Boolean operation is the function without it; so are `set` and `setp`.
pub fn function(opcode: &str, modifiers: &[String]) -> Option<Function> {
    let words: Vec<&str> = modifiers.iter().map(String::as_str).collect();
    integer::function(opcode, &words)
        .or_else(|| bits::function(opcode, &words))
        .or_else(|| float::function(opcode, &words))
        .or_else(|| compare::function(opcode, &words))
        .or_else(|| convert::function(opcode, &words))
}

/// The arithmetic of an instruction that reads or writes the carry flag: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`,
/// `madc`. The flag stays as it is where the instruction does not write it.
pub fn carry(opcode: &str, modifiers: &[String]) -> Option<Carry> {
    let words: Vec<&str> = modifiers.iter().map(String::as_str).collect();
    integer::carry(opcode, &words)
}

/// The sum of words of one or two 16-bit floats each, in `f32` and rounded once: `.acc::f32`. `None` for other types.
pub(crate) fn sum_in_f32(type_name: &str) -> Option<fn(&[u64]) -> u64> {
    float::sum_in_f32(type_name)
}

/// The low `width` bits.
#[inline(always)]
fn low(bits: u64, width: u32) -> u64 {
    bits & (u64::MAX >> (64 - width))
}

/// A function of elements, on both elements of `width` bits of a register.
#[inline(always)]
fn both(width: u32, function: impl Fn(u32) -> u64) -> u64 {
    low(function(0), width) | low(function(width), width) << width
}
