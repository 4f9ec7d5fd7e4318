//! The exponential and the logarithm, which `core` lacks: one code for every machine, and in registers alone.
//!
//! (`libm` has both, but its exponential keeps a table on the stack, which `congruent verify` does not let pass in a kernel.)

use core::f32::consts::{LN_2, LOG2_E, SQRT_2};

/// `ln 2` in two parts, the first of them short enough for an exact product with a small integer.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e` to the power of `x`, for `x` up to 0; within 2e-7 of it, relative.
pub(crate) fn exp(x: f32) -> f32 {
    // Below this the result is less than the smallest normal number.
    let x = x.max(-87.0);
    // x = n ln 2 + rest, with |rest| at most half of ln 2.
    let n = (x * LOG2_E - 0.5) as i32;
    let rest = x - n as f32 * LN_2_HIGH - n as f32 * LN_2_LOW;
    let mut sum = 1.0;
    for k in [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        sum = 1.0 + rest / k * sum;
    }
    sum * f32::from_bits(((127 + n) as u32) << 23)
}

/// The natural logarithm of a normal number, at least 1; within 2e-7 of it, relative.
pub(crate) fn ln(x: f32) -> f32 {
    // x = m 2^n, with m between the roots of 1/2 and 2.
    let mut n = (x.to_bits() >> 23) as i32 - 127;
    let mut m = f32::from_bits(x.to_bits() & 0x007f_ffff | 0x3f80_0000);
    if m > SQRT_2 {
        (n, m) = (n + 1, m / 2.0);
    }
    // ln m = 2 artanh ((m - 1) / (m + 1))
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for k in [9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = 1.0 / k + square * sum;
    }
    n as f32 * LN_2 + 2.0 * s * sum
}
