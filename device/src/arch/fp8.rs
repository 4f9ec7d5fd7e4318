//! The 8-bit floats by integer and `f32` arithmetic, of machines without instructions for them.

/// A format of sign, exponent and mantissa in 8 bits, whose exponent all ones may mean numbers too.
pub(crate) struct Format {
    mantissa: u32,
    bias: u32,
    /// The largest finite value, without sign.
    max: u32,
    /// Infinity, without sign, or what would follow the last NaN where there is none.
    infinity: u32,
}

pub(crate) const E4M3: Format = Format { mantissa: 3, bias: 7, max: 0x7e, infinity: 0x80 };
pub(crate) const E5M2: Format = Format { mantissa: 2, bias: 15, max: 0x7b, infinity: 0x7c };

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
    pub(crate) fn widen(&self, bits: u8) -> f32 {
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
    pub(crate) fn narrow(&self, value: f32) -> u8 {
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
