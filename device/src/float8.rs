//! The 8-bit floats. Every machine gives the same bits, whether it has instructions for them or computes them; but for those of a NaN,
//! of which a wider one is some NaN.
//!
//! Narrowing does what NVIDIA's `cvt.rn.satfinite` does: round to nearest even, and beyond the largest finite value,
//! infinity included, that value with the sign of what it came from. Both formats narrow every NaN to `0x7f`, as machines
//! disagree on the sign of the NaNs that they make.

use congruent_heap::{Fp8E4M3, Fp8E5M2};

use crate::arch::{E4M3, E5M2};
use crate::float16::SmallFloat;
use crate::sealed::Sealed;

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A format as its definition has it, in `f64`.
    struct Definition {
        mantissa: u32,
        bias: i32,
        max: u8,
        infinity: Option<u8>,
        widen: fn(u8) -> f32,
        narrow: fn(f32) -> u8,
        second_opinion: fn(f32) -> u8,
    }

    const DEFINITIONS: [Definition; 2] = [
        Definition {
            mantissa: 3,
            bias: 7,
            max: 0x7e,
            infinity: None,
            widen: |bits| Fp8E4M3(bits).widen(),
            narrow: |value| Fp8E4M3::narrow(value).0,
            second_opinion: |value| float8::F8E4M3::from_f32(value).to_bits(),
        },
        Definition {
            mantissa: 2,
            bias: 15,
            max: 0x7b,
            infinity: Some(0x7c),
            widen: |bits| Fp8E5M2(bits).widen(),
            narrow: |value| Fp8E5M2::narrow(value).0,
            second_opinion: |value| float8::F8E5M2::from_f32(value).to_bits(),
        },
    ];

    impl Definition {
        /// The value of finite bits without sign.
        fn value(&self, bits: u8) -> f64 {
            let one = 1 << self.mantissa;
            let (exponent, mantissa) = (i32::from(bits >> self.mantissa), f64::from(bits % one) / f64::from(one));
            let two = |power: i32| f64::from_bits(((1023 + power) as u64) << 52);
            if exponent == 0 { mantissa * two(1 - self.bias) } else { (1.0 + mantissa) * two(exponent - self.bias) }
        }

        /// The nearest by trying all; of two, the one with even bits.
        fn nearest(&self, value: f32) -> u8 {
            if value.is_nan() {
                return 0x7f;
            }
            let (sign, magnitude) = (u8::from(value.is_sign_negative()) << 7, f64::from(value.abs()));
            if magnitude >= self.value(self.max) {
                return sign | self.max;
            }
            let distance = |bits: u8| (self.value(bits) - magnitude).abs();
            let closer = |best: u8, bits: u8| match distance(bits).total_cmp(&distance(best)) {
                core::cmp::Ordering::Less => bits,
                core::cmp::Ordering::Equal if bits.is_multiple_of(2) => bits,
                _ => best,
            };
            sign | (1..=self.max).fold(0, closer)
        }

        fn check(&self, value: f32) {
            for value in [value, -value] {
                let (bits, nearest) = ((self.narrow)(value), self.nearest(value));
                assert_eq!(bits, nearest, "{value:e} became {bits:#x}, and the nearest is {nearest:#x}");
                if !value.is_nan() {
                    let other = (self.second_opinion)(value);
                    assert_eq!(bits, other, "{value:e} became {bits:#x}, and {other:#x} in the crate float8");
                }
            }
        }
    }

    #[test]
    fn every_pattern_has_its_value_and_narrows_to_itself() {
        for format in &DEFINITIONS {
            for bits in 0..=0x7f {
                for (bits, sign) in [(bits, 1.0), (bits | 0x80, -1.0)] {
                    let (value, magnitude) = ((format.widen)(bits), bits & 0x7f);
                    if magnitude <= format.max {
                        let expected = sign * format.value(magnitude);
                        assert_eq!(f64::from(value).to_bits(), expected.to_bits(), "{bits:#x}");
                        assert_eq!((format.narrow)(value), bits);
                    } else if Some(magnitude) == format.infinity {
                        assert_eq!(f64::from(value), sign * f64::INFINITY, "{bits:#x}");
                        assert_eq!((format.narrow)(value), format.max | (bits & 0x80));
                    } else {
                        assert!(value.is_nan(), "{bits:#x} became {value}");
                        assert_eq!((format.narrow)(value), 0x7f);
                    }
                }
            }
        }
    }

    #[test]
    fn around_every_value_and_every_middle_the_nearest_is_found() {
        for format in &DEFINITIONS {
            for bits in 0..=format.max {
                // All of these have few bits, so that they are f32.
                let value = format.value(bits) as f32;
                let next = if bits < format.max { format.value(bits + 1) as f32 } else { value + value / 8.0 };
                let middle = (value + next) / 2.0;
                for near in [value, middle, next] {
                    for value in
                        [near, near.next_up(), near.next_up().next_up(), near.next_down(), near.next_down().next_down()]
                    {
                        format.check(value);
                    }
                }
            }
        }
    }

    #[test]
    fn all_over_f32_the_nearest_is_found() {
        for format in &DEFINITIONS {
            for bits in (0..=u32::MAX >> 1).step_by(20_011) {
                format.check(f32::from_bits(bits));
            }
        }
    }

    #[test]
    fn what_is_no_number_or_too_large_or_too_small() {
        for format in &DEFINITIONS {
            for nan in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff] {
                assert_eq!((format.narrow)(f32::from_bits(nan)), 0x7f, "{nan:#x}");
            }
            for large in [f32::INFINITY, f32::MAX, 57344.0 * 1.125, 1e30] {
                assert_eq!(((format.narrow)(large), (format.narrow)(-large)), (format.max, format.max | 0x80));
            }
            for small in [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1e-9] {
                assert_eq!(((format.narrow)(small), (format.narrow)(-small)), (0, 0x80), "{small:e}");
            }
        }
        // Half of the smallest subnormal ties to zero, and a hair more does not.
        let half = f32::from_bits((127 - 10) << 23);
        assert_eq!((Fp8E4M3::narrow(half).0, Fp8E4M3::narrow(half.next_up()).0), (0, 1));
        assert_eq!((Fp8E4M3(0x7e).widen(), Fp8E5M2(0x7b).widen()), (448.0, 57344.0));
    }
}
