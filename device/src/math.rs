//! Elementary functions of `f32`, and of `f64` where the machine has them.
//!
//! They are this library's own, of multiplications and additions without a branch: on a CPU loops over them become vector
//! instructions, and on a GPU there is no library of mathematics to link. What stands in [`approx`] is a GPU's own instruction.
//!
//! Errors are in units in the last place of the result, at most, for every argument; tests measure them over all of `f32` in
//! steps. On the CPU machine a product that is added to is rounded in between, on a GPU it is not ([`fma`] never is): results may
//! differ by these errors. [`multiply_add`] is the program's own such product.
//!
//! | | error in ulp | exact |
//! |---|---|---|
//! | [`sqrt`], [`fma`] | 0.5 | as IEEE 754 says |
//! | [`exp`], [`exp2`] | 1.5 | `exp2` of whole numbers |
//! | [`ln`], [`log2`] | 1.5 | `log2` of powers of two |
//! | [`rsqrt`], [`sin`], [`cos`], [`tanh`] | 2 | |
//! | [`sigmoid`] | 3 | |
//! | [`powi`] | the power and 1 more, without its sign, of less than 4096 | |
//!
//! ```
//! use congruent_device::{Group, Max, Sum, Sym, kernels, math};
//!
//! kernels! {
//!     /// The softmax of each row.
//!     pub fn softmax(block, ctx, rows: Sym<f32>, count: u64) {
//!         for row in (block.index()..count as usize).step_by(block.count()) {
//!             let row = rows.chunk(row, count as usize);
//!             let most = block.strided(row.len()).fold(f32::NEG_INFINITY, |most, i| most.max(ctx.load(row, i)));
//!             let most = block.reduce(most, Max);
//!             let sum = block.strided(row.len()).fold(0.0, |sum, i| sum + math::exp(ctx.load(row, i) - most));
//!             let scale = 1.0 / block.reduce(sum, Sum);
//!             for i in block.strided(row.len()) {
//!                 ctx.store(row, i, math::exp(ctx.load(row, i) - most) * scale);
//!             }
//!         }
//!     }
//! }
//! ```

use core::f32::consts;

use crate::Number;
use crate::arch::{self, multiply_add as ma};
use crate::sealed::Sealed;

/// Added to a small number and taken away again, it leaves the nearest whole number: its last place is 1. The low bits of the sum are
/// that number and 254, which is twice an exponent's bias.
const WHOLE: f32 = 12_582_912.0 + 254.0;
/// ln 2 in two parts, of which the product of the first with a whole number of 9 bits is exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// The polynomials are those of Cephes (Moshier), from the highest power down.
///
/// (e^r - 1 - r) / r^2.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
/// (2^r - 1) / r.
const EXP2: [f32; 6] = [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_4e-2, 0.240_226_48, consts::LN_2];
/// (ln(1 + f) - f + f^2 / 2) / f^3.
const LN: [f32; 9] = [
    7.037_683_6e-2,
    -0.115_146_1,
    0.116_769_984,
    -0.124_201_41,
    0.142_493_23,
    -0.166_680_57,
    0.200_007_14,
    -0.249_999_94,
    0.333_333_3,
];
/// (tanh a - a) / a^3, of a^2.
const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_8];
/// (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4, of r^2.
const SIN: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -0.166_666_55];
const COS: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];

/// `f32` and `f64`.
pub trait Real: Number + Sealed {
    #[doc(hidden)]
    const ONE: Self;
    #[doc(hidden)]
    fn root(self) -> Self;
    #[doc(hidden)]
    fn times_plus(self, b: Self, c: Self) -> Self;
    #[doc(hidden)]
    fn under(self, dividend: Self) -> Self;
}

macro_rules! real {
    ($($type:ty: $root:ident, $times_plus:ident;)*) => {$(
        impl Real for $type {
            const ONE: Self = 1.0;
            #[inline(always)]
            fn root(self) -> Self {
                arch::$root(self)
            }
            #[inline(always)]
            fn times_plus(self, b: Self, c: Self) -> Self {
                arch::$times_plus(self, b, c)
            }
            #[inline(always)]
            fn under(self, dividend: Self) -> Self {
                dividend / self
            }
        }
    )*};
}
real! {
    f32: sqrt32, fma32;
    f64: sqrt64, fma64;
}

/// The square root, rounded once.
///
/// ```
/// assert_eq!(congruent_device::math::sqrt(2.25), 1.5);
/// ```
#[inline(always)]
pub fn sqrt<T: Real>(x: T) -> T {
    x.root()
}

/// `a * b + c`, rounded once.
///
/// ```
/// assert_eq!(congruent_device::math::fma(3.0, 4.0, 0.5), 12.5);
/// ```
#[inline(always)]
pub fn fma<T: Real>(a: T, b: T, c: T) -> T {
    a.times_plus(b, c)
}

/// `a * b + c`, as the machine does it soonest: by one instruction, rounded once, where what is compiled for has one, as GPUs have; else by
/// two.
///
/// ```
/// assert_eq!(congruent_device::math::multiply_add(3.0, 4.0, 0.5), 12.5);
/// ```
#[inline(always)]
pub fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    ma(a, b, c)
}

/// One divided by the square root.
///
/// ```
/// assert_eq!(congruent_device::math::rsqrt(16.0), 0.25);
/// ```
#[inline(always)]
pub fn rsqrt<T: Real>(x: T) -> T {
    x.root().under(T::ONE)
}

/// `x` times itself, `n` times in all; one divided by that for a negative `n`. Each product is rounded.
///
/// The relative error is at most `abs(n) + 1` times 2^-24 for `f32` and an `abs(n)` of less than 2^12, and 2^-53 for `f64` and one of
/// less than 2^26, where neither `x` to the power of `abs(n)` nor the result is subnormal, infinite or zero: a power is a product of
/// two lower ones, and has their roundings and one more. The first one has none, so that the `n`-th has `n - 1`, and one more where a
/// negative `n` divides.
///
/// ```
/// assert_eq!(congruent_device::math::powi(0.5, -3), 8.0);
/// ```
#[inline(always)]
pub fn powi<T: Real>(x: T, n: i32) -> T {
    let (mut power, mut square, mut left) = (T::ONE, x, n.unsigned_abs());
    while left > 0 {
        if left & 1 == 1 {
            power = power.times(square);
        }
        square = square.times(square);
        left >>= 1;
    }
    if n < 0 { power.under(T::ONE) } else { power }
}

/// e to the power of `x`.
///
/// ```
/// use congruent_device::math;
///
/// assert_eq!(math::exp(0.0), 1.0);
/// assert_eq!(math::exp(f32::NEG_INFINITY), 0.0);
/// ```
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these everything is infinite or zero. A NaN is less than nothing, and stays.
    let x = arch::between(-104.0, x, 89.0);
    let whole = ma(x, consts::LOG2_E, WHOLE);
    let n = whole - WHOLE;
    let r = ma(n, -LN2[1], ma(n, -LN2[0], x));
    // e^r between -ln 2 / 2 and ln 2 / 2.
    let p = polynomial(r, &EXP);
    scale(ma(p * r, r, r) + 1.0, whole)
}

/// Two to the power of `x`.
///
/// ```
/// assert_eq!(congruent_device::math::exp2(-3.0), 0.125);
/// ```
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = arch::between(-151.0, x, 129.0);
    let whole = x + WHOLE;
    let r = x - (whole - WHOLE);
    scale(ma(polynomial(r, &EXP2), r, 1.0), whole)
}

/// `x` times two to the power of what is in the low bits of `whole`, from -151 to 129: in two steps, so that the result is rounded once
/// where it is subnormal.
#[inline(always)]
fn scale(x: f32, whole: f32) -> f32 {
    let biased = whole.to_bits();
    let half = biased >> 1 << 23;
    x * f32::from_bits(half) * f32::from_bits((biased << 23).wrapping_sub(half))
}

/// The natural logarithm; NaN of what is negative.
///
/// ```
/// use congruent_device::math;
///
/// assert_eq!(math::ln(1.0), 0.0);
/// assert_eq!(math::ln(0.0), f32::NEG_INFINITY);
/// ```
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (f, e) = split(x);
    let z = f * f;
    let y = ma(polynomial(f, &LN) * f, z, e * LN2[1]);
    let y = f + ma(z, -0.5, y);
    of_logarithm(x, ma(e, LN2[0], y))
}

/// The logarithm to base two; NaN of what is negative.
///
/// ```
/// assert_eq!(congruent_device::math::log2(0.125), -3.0);
/// ```
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    /// log2 e, without its one.
    const REST: f32 = 0.442_695_04;
    let (f, e) = split(x);
    let z = f * f;
    let y = ma(z, -0.5, polynomial(f, &LN) * f * z);
    of_logarithm(x, ma(f, REST, y * REST) + y + f + e)
}

/// `x` as `(1 + f) * 2^e`, with `1 + f` from the root of a half to that of two.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    const ROOT_OF_HALF: u32 = 0x3f35_04f3;
    // Subnormal numbers are made normal.
    let small = x < f32::MIN_POSITIVE;
    let bits = if small { x * 33_554_432.0 } else { x }.to_bits();
    let e = (bits.wrapping_sub(ROOT_OF_HALF) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((e << 23) as u32)) - 1.0;
    (f, (e - if small { 25 } else { 0 }) as f32)
}

/// The logarithm of `x` where it is not the number that was computed.
#[inline(always)]
fn of_logarithm(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// The hyperbolic tangent.
///
/// ```
/// assert_eq!(congruent_device::math::tanh(20.0), 1.0);
/// ```
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = magnitude(x);
    let z = a * a;
    let near = ma(polynomial(z, &TANH) * z, a, a);
    let far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    f32::from_bits((if a < 0.625 { near } else { far }).to_bits() | x.to_bits() & SIGN)
}

/// One divided by one plus e to the power of `-x`: the logistic function.
///
/// ```
/// assert_eq!(congruent_device::math::sigmoid(0.0), 0.5);
/// ```
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-magnitude(x));
    let one = if x < 0.0 { e } else { 1.0 };
    // What is no number stays: its `e` is none.
    one / (1.0 + e)
}

/// The sine of an angle in radians, of any size.
///
/// ```
/// assert_eq!(congruent_device::math::sin(0.0), 0.0);
/// ```
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (r, quarter) = angle(magnitude(x));
    let y = of_quarter(r, quarter);
    // The sine of the negative is the negative.
    f32::from_bits(y.to_bits() ^ (x.to_bits() & SIGN))
}

/// The cosine of an angle in radians, of any size.
///
/// ```
/// assert_eq!(congruent_device::math::cos(0.0), 1.0);
/// ```
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (r, quarter) = angle(magnitude(x));
    of_quarter(r, quarter.wrapping_add(1))
}

/// The sine of `quarter` quarters of a turn and `r` more.
#[inline(always)]
fn of_quarter(r: f32, quarter: u32) -> f32 {
    let z = r * r;
    let sin = ma(polynomial(z, &SIN) * z, r, r);
    let cos = ma(polynomial(z, &COS) * z, z, ma(z, -0.5, 1.0));
    let y = if quarter & 1 == 0 { sin } else { cos };
    f32::from_bits(y.to_bits() ^ quarter << 30 & SIGN)
}

/// An angle that is not negative as one from -π/4 to π/4 and a number of quarters of a turn. In `f64`: what is left of a large angle
/// needs the bits.
#[inline(always)]
fn angle(x: f32) -> (f32, u32) {
    /// As for `f32`.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    /// π/2 in two parts, of which the product of the first with a whole number of 28 bits is exact.
    const QUARTER: [f64; 2] = [1.570_796_310_901_641_8, 1.589_325_477_352_819_7e-8];
    if x >= 134_217_728.0 {
        return large_angle(x);
    }
    let wide = f64::from(x);
    let whole = wide * core::f64::consts::FRAC_2_PI + WHOLE;
    let n = whole - WHOLE;
    ((wide - n * QUARTER[0] - n * QUARTER[1]) as f32, whole.to_bits() as u32)
}

/// The same of 2^27 and more: by as many bits of 2/π as matter (Payne and Hanek, 1983). What is no finite number gives none.
#[cold]
#[inline(always)]
fn large_angle(x: f32) -> (f32, u32) {
    /// 2/π behind its point.
    const FRACTION: [u64; 4] =
        [0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];
    // Selects, as a table would be in memory.
    let at = |j: u32| match j {
        0 => FRACTION[0],
        1 => FRACTION[1],
        2 => FRACTION[2],
        _ => FRACTION[3],
    };
    let word = |first: u32| {
        let (j, by) = (first / 64, first % 64);
        // In two steps, as nothing is to be shifted by 64.
        at(j) << by | (at(j + 1) >> 1) >> (63 - by)
    };
    // x is a mantissa of 24 bits times 2^shift, with a shift from 4 on. The bits of 2/π up to two above that make whole turns.
    let bits = x.to_bits();
    let (mantissa, first) = (u64::from(bits & 0x7f_ffff | 0x80_0000), (bits >> 23).saturating_sub(152));
    // Quarters are the highest two bits; whole turns fall off.
    let product = mantissa.wrapping_mul(word(first)).wrapping_add((mantissa * (word(first + 64) >> 32)) >> 32);
    let quarter = product.wrapping_add(1 << 61) >> 62;
    let rest = product.wrapping_sub(quarter << 62) as i64;
    let r = rest as f64 * (core::f64::consts::FRAC_PI_2 / 4_611_686_018_427_387_904.0);
    // Zero times what is no finite number is none.
    (r as f32 + 0.0 * x, quarter as u32)
}

/// The sign of an `f32`.
const SIGN: u32 = 1 << 31;

#[inline(always)]
fn magnitude(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & !SIGN)
}

/// A polynomial, its coefficients from that of the highest power down.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: &[f32; N]) -> f32 {
    let mut y = coefficients[0];
    let mut i = 1;
    while i < N {
        y = ma(y, x, coefficients[i]);
        i += 1;
    }
    y
}

/// A GPU's own instructions: fast, and less exact. On the CPU machine they are the precise functions.
///
/// Errors are those that the PTX ISA states.
///
/// ```
/// use congruent_device::math;
///
/// let (x, y) = (math::approx::exp(1.5), math::exp(1.5));
/// assert!((x - y).abs() < 1e-6 * y);
/// ```
pub mod approx {
    use crate::arch;
    use core::f32::consts;

    /// Two to the power of `x`: relative error 2^-22.
    #[inline(always)]
    pub fn exp2(x: f32) -> f32 {
        arch::approx::exp2(x)
    }

    /// e to the power of `x`: relative error 2^-21 between -1 and 1, and more in proportion to `x` beyond.
    #[inline(always)]
    pub fn exp(x: f32) -> f32 {
        arch::approx::exp2(x * consts::LOG2_E)
    }

    /// The logarithm to base two: absolute error 2^-22 between a half and two, relative error 2^-22 elsewhere.
    #[inline(always)]
    pub fn log2(x: f32) -> f32 {
        arch::approx::log2(x)
    }

    /// The natural logarithm: as [`log2`], and a rounding.
    #[inline(always)]
    pub fn ln(x: f32) -> f32 {
        arch::approx::log2(x) * consts::LN_2
    }

    /// The square root: relative error 2^-23.
    #[inline(always)]
    pub fn sqrt(x: f32) -> f32 {
        arch::approx::sqrt(x)
    }

    /// One divided by the square root: relative error 2^-22.
    #[inline(always)]
    pub fn rsqrt(x: f32) -> f32 {
        arch::approx::rsqrt(x)
    }

    /// One divided by `x`: 1 ulp.
    #[inline(always)]
    pub fn recip(x: f32) -> f32 {
        arch::approx::recip(x)
    }

    /// The hyperbolic tangent: relative error 2^-10.
    #[inline(always)]
    pub fn tanh(x: f32) -> f32 {
        arch::approx::tanh(x)
    }

    /// The logistic function, of [`tanh`]: absolute error 2^-11.
    #[inline(always)]
    pub fn sigmoid(x: f32) -> f32 {
        0.5 * tanh(0.5 * x) + 0.5
    }

    /// The sine: absolute error 2^-20 between -π and π, and more beyond.
    #[inline(always)]
    pub fn sin(x: f32) -> f32 {
        arch::approx::sin(x)
    }

    /// The cosine: as [`sin`].
    #[inline(always)]
    pub fn cos(x: f32) -> f32 {
        arch::approx::cos(x)
    }
}
