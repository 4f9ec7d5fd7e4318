//! Numbers to reduce, and what the operators make of them by arithmetic of the language's own.

use congruent::collectives::{Number, Op};
use congruent::device::{Fp8E4M3, Fp8E5M2, SmallFloat};
use congruent_heap::{bf16, f16};

use super::pattern::value;

/// A number to reduce: integers of every size, floats that round at every step and neither overflow nor vanish.
pub(super) trait Sample: Number {
    /// What sums of it are held in: `f32` for floats of 16 and 8 bits.
    type Wide: Copy;

    /// What PE `pe` has as element `i` of a buffer.
    fn sample(buffer: u64, pe: usize, i: usize) -> Self;

    /// The same value, as sums are held.
    fn wide(self) -> Self::Wide;

    /// A sum as an element, rounded once.
    fn rounded(wide: Self::Wide) -> Self;

    /// What an operator makes of two values.
    fn apply(op: Op, a: Self::Wide, b: Self::Wide) -> Self::Wide;

    /// A value times the scalar of a premul-sum.
    fn scaled(wide: Self::Wide, scalar: Self) -> Self::Wide;

    /// A sum of so many members' values divided by their number.
    fn averaged(wide: Self::Wide, members: usize) -> Self::Wide;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Sample for $type {
            type Wide = Self;

            fn sample(buffer: u64, pe: usize, i: usize) -> Self {
                value(buffer, pe, i)
            }

            fn wide(self) -> Self {
                self
            }

            fn rounded(wide: Self) -> Self {
                wide
            }

            fn apply(op: Op, a: Self, b: Self) -> Self {
                match op {
                    Op::Sum | Op::Avg | Op::PreMulSum => a.wrapping_add(b),
                    Op::Prod => a.wrapping_mul(b),
                    Op::Min => std::cmp::min(a, b),
                    Op::Max => std::cmp::max(a, b),
                    Op::And => a & b,
                    Op::Or => a | b,
                    Op::Xor => a ^ b,
                }
            }

            fn scaled(wide: Self, scalar: Self) -> Self {
                wide.wrapping_mul(scalar)
            }

            fn averaged(wide: Self, members: usize) -> Self {
                // No quotient is larger than what it is of.
                (i128::from(wide) / members as i128) as Self
            }
        }
    )*};
}

/// Those of 16 and 8 bits compute in `f32` and round once.
macro_rules! floats {
    ($($type:ty, in $held:ty: $from:expr, $widen:expr, $narrow:expr;)*) => {$(
        impl Sample for $type {
            type Wide = $held;

            fn sample(buffer: u64, pe: usize, i: usize) -> Self {
                // Between -0.75 and 1.25.
                $from(0.25 + f64::from(value::<i32>(buffer, pe, i)) / f64::from(1u32 << 31))
            }

            fn wide(self) -> $held {
                $widen(self)
            }

            fn rounded(wide: $held) -> Self {
                $narrow(wide)
            }

            fn apply(op: Op, a: $held, b: $held) -> $held {
                match op {
                    Op::Sum | Op::Avg | Op::PreMulSum => a + b,
                    Op::Prod => a * b,
                    Op::Min => if a < b { a } else { b },
                    Op::Max => if a > b { a } else { b },
                    Op::And | Op::Or | Op::Xor => panic!("floats have no {op}"),
                }
            }

            fn scaled(wide: $held, scalar: Self) -> $held {
                wide * scalar.wide()
            }

            fn averaged(wide: $held, members: usize) -> $held {
                wide / members as $held
            }
        }
    )*};
}

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }
floats! {
    f16, in f32: f16::from_f64, f16::to_f32, f16::from_f32;
    bf16, in f32: bf16::from_f64, bf16::to_f32, bf16::from_f32;
    f32, in f32: |x| x as f32, f32::from, f32::from;
    f64, in f64: f64::from, f64::from, f64::from;
    Fp8E4M3, in f32: |x| Fp8E4M3::narrow(x as f32), Fp8E4M3::widen, Fp8E4M3::narrow;
    Fp8E5M2, in f32: |x| Fp8E5M2::narrow(x as f32), Fp8E5M2::widen, Fp8E5M2::narrow;
}

/// The first `len` samples of a PE's buffer.
pub(super) fn samples<T: Sample>(buffer: u64, pe: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::sample(buffer, pe, i)).collect()
}
