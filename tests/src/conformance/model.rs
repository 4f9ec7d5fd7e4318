//! The sequential model of the ring's collectives, and numbers to run it on.

use std::ops::Range;

use congruent::collectives::{Number, Op, Share};
use congruent::device::{Fp8E4M3, Fp8E5M2, SmallFloat, Sym};
use congruent_heap::{bf16, f16};

use super::pattern::value;

/// A number to reduce: integers of every size, floats that round at every step and neither overflow nor vanish.
pub(super) trait Sample: Number {
    /// What PE `pe` gives as element `i`.
    fn sample(pe: usize, i: usize) -> Self;

    /// What an operator makes of two values, by arithmetic of the language's own.
    fn apply(op: Op, a: Self, b: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Sample for $type {
            fn sample(pe: usize, i: usize) -> Self {
                value(8, pe, i)
            }

            fn apply(op: Op, a: Self, b: Self) -> Self {
                match op {
                    Op::Sum => a.wrapping_add(b),
                    Op::Prod => a.wrapping_mul(b),
                    Op::Min => std::cmp::min(a, b),
                    Op::Max => std::cmp::max(a, b),
                    _ => unknown(op),
                }
            }
        }
    )*};
}

/// Those of 16 and 8 bits compute in `f32` and round once.
macro_rules! floats {
    ($($type:ty: $from:expr, $widen:expr, $narrow:expr;)*) => {$(
        impl Sample for $type {
            fn sample(pe: usize, i: usize) -> Self {
                // Between -0.75 and 1.25.
                $from(0.25 + f64::from(value::<i32>(8, pe, i)) / f64::from(1u32 << 31))
            }

            fn apply(op: Op, a: Self, b: Self) -> Self {
                let (a, b) = ($widen(a), $widen(b));
                $narrow(match op {
                    Op::Sum => a + b,
                    Op::Prod => a * b,
                    Op::Min => if a < b { a } else { b },
                    Op::Max => if a > b { a } else { b },
                    _ => unknown(op),
                })
            }
        }
    )*};
}

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }
floats! {
    f16: f16::from_f64, f16::to_f32, f16::from_f32;
    bf16: bf16::from_f64, bf16::to_f32, bf16::from_f32;
    f32: |x| x as f32, f32::from, f32::from;
    f64: f64::from, f64::from, f64::from;
    Fp8E4M3: |x| Fp8E4M3::narrow(x as f32), Fp8E4M3::widen, Fp8E4M3::narrow;
    Fp8E5M2: |x| Fp8E5M2::narrow(x as f32), Fp8E5M2::widen, Fp8E5M2::narrow;
}

fn unknown(op: Op) -> ! {
    panic!("this model has no {op}")
}

/// The first `len` samples of a PE.
pub(super) fn samples<T: Sample>(pe: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::sample(pe, i)).collect()
}

/// Chunk `c` of `len` elements that `n` members share.
pub(super) fn chunk<T: bytemuck::Pod>(c: usize, n: usize, len: usize) -> Range<usize> {
    let part = Share::new(c, n).of(Sym::<T>::from_raw(0, len as u64));
    let start = part.offset() as usize / size_of::<T>();
    start..start + part.len()
}

/// What an all-reduce gives: `x[c+1] ∘ x[c+2] ∘ … ∘ x[c]` for an element of chunk `c`, from left to right.
pub(super) fn all_reduced<T: bytemuck::Pod>(
    n: usize,
    len: usize,
    element: impl Fn(usize, usize) -> T,
    op: impl Fn(T, T) -> T,
) -> Vec<T> {
    (0..n).flat_map(|c| reduced(n, c, chunk::<T>(c, n, len), &element, &op)).collect()
}

/// What a reduce-scatter gives member `c`, whose part of `len` elements lies behind those of the members before it.
pub(super) fn part_reduced<T: bytemuck::Pod>(
    n: usize,
    c: usize,
    len: usize,
    element: impl Fn(usize, usize) -> T,
    op: impl Fn(T, T) -> T,
) -> Vec<T> {
    reduced(n, c, c * len..(c + 1) * len, &element, &op)
}

/// `x[c+1] ∘ x[c+2] ∘ … ∘ x[c]` for the elements of a range, from left to right.
fn reduced<T>(
    n: usize,
    c: usize,
    range: Range<usize>,
    element: &impl Fn(usize, usize) -> T,
    op: &impl Fn(T, T) -> T,
) -> Vec<T> {
    let from = |member: usize, i| element(member % n, i);
    range.map(|i| (2..=n).fold(from(c + 1, i), |sum, step| op(sum, from(c + step, i)))).collect()
}
