//! Arithmetic that has instructions.

use std::primitive::{f32, f64};

#[inline(always)]
pub(crate) fn fma32(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline(always)]
pub(crate) fn fma64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

#[inline(always)]
pub(crate) fn sqrt32(x: f32) -> f32 {
    x.sqrt()
}

#[inline(always)]
pub(crate) fn sqrt64(x: f64) -> f64 {
    x.sqrt()
}

/// `a * b + c`, as the machine does it soonest: processors that this is not compiled for have no fused one.
#[inline(always)]
pub(crate) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

/// The nearest number from `low` to `high`; NaN stays.
#[inline(always)]
pub(crate) fn between(low: f32, x: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

/// There are no approximations: these are precise.
pub(crate) mod approx {
    pub(crate) use crate::math::{cos, exp2, log2, sin, tanh};

    pub(crate) use super::sqrt32 as sqrt;

    #[inline(always)]
    pub(crate) fn rsqrt(x: f32) -> f32 {
        crate::math::rsqrt(x)
    }

    #[inline(always)]
    pub(crate) fn recip(x: f32) -> f32 {
        1.0 / x
    }
}
