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

use core::fmt;

/// Lanes of a warp.
pub const LANES: usize = 32;

/// One value for each lane.
pub type Values = [u64; LANES];

/// What an instruction computes from its operands, each the low bits of a 64-bit register; the rest is zero. So are the
/// bits of results beyond the width of their type.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    /// Of one operand.
    One(&'static dyn Compute<1>),
    /// Of two operands.
    Two(&'static dyn Compute<2>),
    /// Of three operands.
    Three(&'static dyn Compute<3>),
    /// Of four operands.
    Four(&'static dyn Compute<4>),
    /// A predicate of one operand: `testp`.
    Test(&'static dyn Decide<1>),
    /// A predicate of two operands: the comparison of `setp` and `set`, which then combine it or make a number of it.
    Compare(&'static dyn Decide<2>),
}

/// A function of operands, in one lane or in all: a call for each lane would cost more than most functions do.
pub trait Compute<const N: usize>: Sync {
    /// Of one lane's operands.
    fn lane(&self, operands: [u64; N]) -> u64;

    /// Of each lane's operands.
    fn lanes(&self, operands: [&Values; N]) -> Values;
}

/// A predicate of operands, in one lane or in all.
pub trait Decide<const N: usize>: Sync {
    /// Whether it holds for one lane's operands.
    fn lane(&self, operands: [u64; N]) -> bool;

    /// A bit for each lane, whether it holds for the lane's operands.
    fn lanes(&self, operands: [&Values; N]) -> u32;
}

impl<const N: usize> fmt::Debug for dyn Compute<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a function of {N}")
    }
}

impl<const N: usize> fmt::Debug for dyn Decide<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a predicate of {N}")
    }
}

macro_rules! arities {
    ($($make:ident: $trait:ident<$count:literal> as $kind:ident, ($($operand:ident),*) -> $result:ident of $all:ty, $by:expr;)*) => {$(
        impl<F: Fn($(arities!(@ $operand)),*) -> $result + Sync> $trait<$count> for F {
            fn lane(&self, [$($operand),*]: [u64; $count]) -> $result {
                self($($operand),*)
            }

            fn lanes(&self, [$($operand),*]: [&Values; $count]) -> $all {
                $by(|lane: usize| self($($operand[lane]),*))
            }
        }

        /// A function that has no state, which takes no room.
        pub(crate) fn $make<F: Fn($(arities!(@ $operand)),*) -> $result + Sync + 'static>(function: F) -> Function {
            const { assert!(size_of::<F>() == 0) };
            Function::$kind(Box::leak(Box::new(function)))
        }
    )*};
    (@ $operand:ident) => { u64 };
}

arities! {
    one: Compute<1> as One, (a) -> u64 of Values, core::array::from_fn;
    two: Compute<2> as Two, (a, b) -> u64 of Values, core::array::from_fn;
    three: Compute<3> as Three, (a, b, c) -> u64 of Values, core::array::from_fn;
    four: Compute<4> as Four, (a, b, c, d) -> u64 of Values, core::array::from_fn;
    test: Decide<1> as Test, (a) -> bool of u32, bits_of;
    compare: Decide<2> as Compare, (a, b) -> bool of u32, bits_of;
}

/// A bit for each lane.
fn bits_of(holds: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).fold(0, |bits, lane| bits | u32::from(holds(lane)) << lane)
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
