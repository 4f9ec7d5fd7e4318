//! The sequential model of the ring's collectives, and numbers to run it on.

use std::ops::Range;

use congruent::collectives::{Number, Share};
use congruent::device::Sym;
use congruent_heap::{bf16, f16};

use super::pattern::value;

/// A number to reduce: integers of every size, floats that round at every step and neither overflow nor vanish.
pub(super) trait Sample: Number {
    /// What PE `pe` gives as element `i`.
    fn sample(pe: usize, i: usize) -> Self;
}

macro_rules! samples {
    ($($type:ty: $sample:expr;)*) => {$(
        impl Sample for $type {
            fn sample(pe: usize, i: usize) -> Self {
                $sample(pe, i)
            }
        }
    )*};
}

/// Between -0.75 and 1.25.
fn fraction(pe: usize, i: usize) -> f64 {
    0.25 + f64::from(value::<i32>(8, pe, i)) / f64::from(1u32 << 31)
}

samples! {
    i8: |pe, i| value(8, pe, i);
    u8: |pe, i| value(8, pe, i);
    i16: |pe, i| value(8, pe, i);
    u16: |pe, i| value(8, pe, i);
    i32: |pe, i| value(8, pe, i);
    u32: |pe, i| value(8, pe, i);
    i64: |pe, i| value(8, pe, i);
    u64: |pe, i| value(8, pe, i);
    f16: |pe, i| f16::from_f64(fraction(pe, i));
    bf16: |pe, i| bf16::from_f64(fraction(pe, i));
    f32: |pe, i| fraction(pe, i) as f32;
    f64: fraction;
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
    let mut result = Vec::with_capacity(len);
    for c in 0..n {
        for i in chunk::<T>(c, n, len) {
            let first = element((c + 1) % n, i);
            result.push((2..=n).fold(first, |sum, step| op(sum, element((c + step) % n, i))));
        }
    }
    result
}
