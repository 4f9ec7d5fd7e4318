//! The 8-bit floats: integer and `f32` arithmetic alone, so that every machine gives the same bits.
//!
//! Narrowing does what NVIDIA's `cvt.rn.satfinite` does: round to nearest even, and beyond the largest finite value,
//! infinity included, that value with the sign of what it came from. Both formats narrow every NaN to `0x7f`, as machines
//! disagree on the sign of the NaNs that they make.

use congruent_heap::{Fp8E4M3, Fp8E5M2};

use crate::float16::SmallFloat;
use crate::sealed::Sealed;

/// A format of sign, exponent and mantissa in 8 bits, whose exponent all ones may mean numbers too.
struct Format {
    mantissa: u32,
    bias: u32,
    /// The largest finite value, without sign.
    max: u32,
    /// Infinity, without sign, or what would follow the last NaN where there is none.
    infinity: u32,
}

const E4M3: Format = Format { mantissa: 3, bias: 7, max: 0x7e, infinity: 0x80 };
const E5M2: Format = Format { mantissa: 2, bias: 15, max: 0x7b, infinity: 0x7c };

const F32_MANTISSA: u32 = 23;
const F32_BIAS: u32 = 127;
const F32_SIGN: u32 = 1 << 31;
const F32_INFINITY: u32 = 0x7f80_0000;
const F32_NAN: u32 = 0x7fc0_0000;
const NAN: u8 = 0x7f;

impl Format {
    /// By how many bits mantissas are apart.
    const fn shift(&self) -> u32 {
        F32_MANTISSA - self.mantissa
    }

    /// What the exponents' biases differ by, at the exponent's place of an `f32`.
    const fn rebias(&self) -> u32 {
        (F32_BIAS - self.bias) << F32_MANTISSA
    }

    /// The smallest normal value as the bits of an `f32`.
    const fn normal(&self) -> u32 {
        self.rebias() + (1 << F32_MANTISSA)
    }

    // Both directions select between results instead of branching: a loop over these becomes vector instructions.

    #[inline(always)]
    fn widen(&self, bits: u8) -> f32 {
        let sign = u32::from(bits & 0x80) << 24;
        let magnitude = u32::from(bits & 0x7f);
        let normal = (magnitude << self.shift()) + self.rebias();
        // With the smallest exponent and a leading one the mantissa is exact, and the one is taken away again. No
        // subnormal of f32 occurs, which some machines take for zero.
        let subnormal = f32::from_bits((magnitude << self.shift()) + self.normal()) - f32::from_bits(self.normal());
        let finite = if magnitude < 1 << self.mantissa { subnormal.to_bits() } else { normal };
        let special = if magnitude == self.infinity { F32_INFINITY } else { F32_NAN };
        f32::from_bits(sign | if magnitude > self.max { special } else { finite })
    }

    #[inline(always)]
    fn narrow(&self, value: f32) -> u8 {
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        let magnitude = value.to_bits() & !F32_SIGN;
        let shift = self.shift();
        // Adding just under half of the last place kept, or half where that is odd, carries as ties to even do. A carry
        // out of the mantissa makes the next exponent.
        let rebiased = magnitude.wrapping_sub(self.rebias());
        let half = (1 << (shift - 1)) - 1 + (rebiased >> shift & 1);
        let normal = (rebiased.wrapping_add(half) >> shift).min(self.max);
        // The sum's last place is the smallest subnormal, so the addition rounds to a multiple of it.
        let large = f32::from_bits(self.normal() + (shift << F32_MANTISSA));
        let subnormal = (f32::from_bits(magnitude) + large).to_bits() - large.to_bits();
        let finite = if magnitude < self.normal() { subnormal } else { normal };
        if magnitude > F32_INFINITY { NAN } else { sign | finite as u8 }
    }
}

impl Sealed for Fp8E4M3 {}
impl Sealed for Fp8E5M2 {}

impl SmallFloat for Fp8E4M3 {
    #[inline(always)]
    fn widen(self) -> f32 {
        E4M3.widen(self.0)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(E4M3.narrow(value))
    }
}

impl SmallFloat for Fp8E5M2 {
    #[inline(always)]
    fn widen(self) -> f32 {
        E5M2.widen(self.0)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(E5M2.narrow(value))
    }
}
