//! What the named operators compute with: numbers, and what their sums are held in.

use crate::{Fp8E4M3, Fp8E5M2, MultimemType, Pod, SmallFloat, bf16, f16};

/// A number that the named operators know.
///
/// Integers wrap around. Floats round to nearest, ties to even; those of 16 and 8 bits compute in `f32` and round once,
/// those of 8 bits to at most their largest finite value.
pub trait Number: Pod + Send + Sync + AccumulateIn<<Self as Number>::Acc> {
    /// What sums and products are held in, unless the operator is told otherwise: `f32` for floats of 16 and 8 bits, the
    /// type itself for all others.
    type Acc: Number;
    /// Its type in `multimem` instructions, where they have it.
    #[doc(hidden)]
    const MULTIMEM: Option<MultimemType>;
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self * other`.
    fn times(self, other: Self) -> Self;
    /// `self` divided by a number of members, at least 1. Integers truncate toward zero.
    fn over(self, members: usize) -> Self;
    /// The smaller of the two, bit for bit; of a NaN and a number, the number; -0.0 is smaller than 0.0.
    fn smaller(self, other: Self) -> Self;
    /// The larger of the two, bit for bit; of a NaN and a number, the number; 0.0 is larger than -0.0.
    fn larger(self, other: Self) -> Self;
}

/// An integer: what the bitwise operators work on.
pub trait Integer: Number<Acc = Self> {
    /// `self & other`.
    fn and(self, other: Self) -> Self;
    /// `self | other`.
    fn or(self, other: Self) -> Self;
    /// `self ^ other`.
    fn xor(self, other: Self) -> Self;
}

/// A value whose sums may be held in an `A`. Every type may be held in itself and in the wider ones of its kind.
pub trait AccumulateIn<A>: Copy {
    /// The same value.
    fn into_acc(self) -> A;
    /// The nearest value, rounded once; of an integer, its low bits.
    fn from_acc(acc: A) -> Self;
}

impl<T: Copy> AccumulateIn<T> for T {
    #[inline(always)]
    fn into_acc(self) -> T {
        self
    }
    #[inline(always)]
    fn from_acc(acc: T) -> Self {
        acc
    }
}

/// `$divide` is what members are counted in: wide enough for any team, and no wider than it need be, as division is slow.
macro_rules! integers {
    ($($type:ty: $divide:ty, $multimem:expr;)*) => {$(
        impl Number for $type {
            type Acc = Self;
            const MULTIMEM: Option<MultimemType> = $multimem;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, members: usize) -> Self {
                // A divisor that is visibly positive needs no check for zero and for overflow in the loop.
                (<$divide>::from(self) / (members as $divide).max(1)) as Self
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }

        impl Integer for $type {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty: $acc:ty, $float:ty, $multimem:expr, $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $type {
            type Acc = $acc;
            const MULTIMEM: Option<MultimemType> = $multimem;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }
            #[inline(always)]
            fn over(self, members: usize) -> Self {
                $narrow($widen(self) / members as $float)
            }
            // Not `min` and `max` of the language, which leave open which zero they give. No branches: a loop over these
            // becomes vector instructions.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let (a, b): ($float, $float) = ($widen(self), $widen(other));
                if (a < b) | b.is_nan() | ((a == b) & a.is_sign_negative()) { self } else { other }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let (a, b): ($float, $float) = ($widen(self), $widen(other));
                if (a > b) | b.is_nan() | ((a == b) & a.is_sign_positive()) { self } else { other }
            }
        }
    )*};
}

macro_rules! wider {
    ($($type:ty { $($acc:ty: $widen:expr, $narrow:expr;)* })*) => {$($(
        impl AccumulateIn<$acc> for $type {
            #[inline(always)]
            fn into_acc(self) -> $acc {
                $widen(self)
            }
            #[inline(always)]
            fn from_acc(acc: $acc) -> Self {
                $narrow(acc)
            }
        }
    )*)*};
}

macro_rules! wider_integers {
    ($($type:ty: $($acc:ty)*;)*) => {$(
        wider! { $type { $($acc: <$acc>::from, |acc| acc as Self;)* } }
    )*};
}

macro_rules! wider_floats {
    ($($type:ty)*) => {
        wider! {$(
            $type {
                f32: SmallFloat::widen, SmallFloat::narrow;
                f64: |small: Self| f64::from(small.widen()), |acc| SmallFloat::narrow(round_to_odd(acc));
            }
        )*}
    };
}

/// The `f32` that a later rounding to fewer bits cannot tell from `value`: where `value` is not an `f32`, the neighbour
/// with an odd mantissa. Rounding to nearest twice could go wrong at the middle between two values.
#[inline(always)]
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    let away = back.abs() > value.abs();
    if (back == value) | value.is_nan() { near } else { f32::from_bits((near.to_bits() - u32::from(away)) | 1) }
}

integers! {
    i8: i32, None;
    i16: i32, None;
    i32: i32, Some(MultimemType::I32);
    i64: i64, Some(MultimemType::I64);
    u8: u32, None;
    u16: u32, None;
    u32: u32, Some(MultimemType::U32);
    u64: u64, Some(MultimemType::U64);
}

floats! {
    f32: f32, f32, Some(MultimemType::F32), core::convert::identity, core::convert::identity;
    f64: f64, f64, Some(MultimemType::F64), core::convert::identity, core::convert::identity;
    f16: f32, f32, Some(MultimemType::F16), SmallFloat::widen, SmallFloat::narrow;
    bf16: f32, f32, Some(MultimemType::Bf16), SmallFloat::widen, SmallFloat::narrow;
    Fp8E4M3: f32, f32, None, SmallFloat::widen, SmallFloat::narrow;
    Fp8E5M2: f32, f32, None, SmallFloat::widen, SmallFloat::narrow;
}

wider_integers! {
    i8: i16 i32 i64;
    i16: i32 i64;
    i32: i64;
    u8: u16 u32 u64;
    u16: u32 u64;
    u32: u64;
}

wider_floats! { f16 bf16 Fp8E4M3 Fp8E5M2 }

wider! {
    f32 { f64: f64::from, |acc| acc as Self; }
    Fp8E4M3 { f16: |small: Self| f16::narrow(small.widen()), |acc: f16| Self::narrow(acc.widen()); }
    Fp8E5M2 { f16: |small: Self| f16::narrow(small.widen()), |acc: f16| Self::narrow(acc.widen()); }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// That `value` becomes the `f16` that is nearest, or even where two are. All that is computed here is exact in `f64`.
    fn check_f16(value: f64) {
        let near = f16::from_acc(value);
        let magnitude = i32::from(near.to_bits() & 0x7fff);
        let place = if near.is_sign_negative() { -magnitude } else { magnitude };
        let at = |place: i32| f64::from(place.signum()) * f16::from_bits(place.unsigned_abs() as u16).to_f64();
        let (low, high) = ((at(place - 1) + at(place)) / 2.0, (at(place) + at(place + 1)) / 2.0);
        let nearest = if place % 2 == 0 { low <= value && value <= high } else { low < value && value < high };
        assert!(nearest, "{value:e} became {near:e}, which is nearest from {low:e} to {high:e}");
    }

    #[test]
    fn f64_rounds_once_to_16_bits() {
        // Rounded to f32 first, this is the middle between 1 and the next f16, which ties to 1.
        let above_middle = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
        assert_eq!(f16::from_acc(above_middle as f32).to_f64(), 1.0);
        assert_eq!(f16::from_acc(above_middle).to_f64(), 1.0 + f64::powi(2.0, -10));
        let below_middle = 1.0 + 3.0 * f64::powi(2.0, -8) - f64::powi(2.0, -50);
        assert_eq!(bf16::from_acc(below_middle as f32).to_f64(), 1.0 + f64::powi(2.0, -6));
        assert_eq!(bf16::from_acc(below_middle).to_f64(), 1.0 + f64::powi(2.0, -7));
        // What f32 has no value for.
        assert_eq!(f16::from_acc(1e300).to_f64(), f64::INFINITY);
        assert_eq!(bf16::from_acc(f64::NEG_INFINITY).to_f64(), f64::NEG_INFINITY);
        assert_eq!(Fp8E4M3::from_acc(-1e300).widen(), -448.0);
        assert_eq!(bf16::from_acc(1e-300).to_bits(), 0);
        assert_eq!(f16::from_acc(-1e-300).to_bits(), 0x8000);
        assert!(f16::from_acc(f64::NAN).is_nan() && bf16::from_acc(-f64::NAN).is_nan());
    }

    #[test]
    fn minimum_and_maximum_of_nans_and_zeroes() {
        fn bits<T: Number>(values: [T; 2], show: impl Fn(T) -> u64) -> [u64; 2] {
            let [a, b] = values;
            let (min, max) = (show(a.smaller(b)), show(a.larger(b)));
            assert_eq!([min, max], [show(b.smaller(a)), show(b.larger(a))], "the order of operands matters");
            [min, max]
        }
        macro_rules! check {
            ($type:ty, $make:expr, $show:expr) => {
                let make: fn(f32) -> $type = $make;
                let show: fn($type) -> u64 = $show;
                assert_eq!(bits([make(0.0), make(-0.0)], show), [show(make(-0.0)), show(make(0.0))]);
                for number in [-2.0, 0.0, 1.0] {
                    assert_eq!(bits([make(f32::NAN), make(number)], show), [show(make(number)); 2]);
                }
                assert_eq!(bits([make(-2.0), make(1.0)], show), [show(make(-2.0)), show(make(1.0))]);
                assert_eq!(bits([make(f32::NAN); 2], show), [show(make(f32::NAN)); 2]);
            };
        }
        check!(f32, |x| x, |x| x.to_bits().into());
        check!(f64, f64::from, f64::to_bits);
        check!(f16, SmallFloat::narrow, |x| x.to_bits().into());
        check!(bf16, SmallFloat::narrow, |x| x.to_bits().into());
        check!(Fp8E4M3, SmallFloat::narrow, |x| x.0.into());
        check!(Fp8E5M2, SmallFloat::narrow, |x| x.0.into());
    }

    #[test]
    fn integers_divide_toward_zero_by_any_team() {
        assert_eq!([i8::MIN.over(1), i8::MIN.over(200), (-7i8).over(2), 7i8.over(2)], [-128, 0, -3, 3]);
        assert_eq!([u8::MAX.over(256), u8::MAX.over(2)], [0, 127]);
        assert_eq!([i16::MIN.over(100_000), i16::MIN.over(3)], [0, -10922]);
        assert_eq!([i32::MIN.over(3), i32::MAX.over(3)], [-715_827_882, 715_827_882]);
        assert_eq!([u64::MAX.over(2), u64::MAX.over(1)], [u64::MAX / 2, u64::MAX]);
        assert_eq!([i64::MIN.over(1), i64::MIN.over(64)], [i64::MIN, -(1 << 57)]);
    }

    proptest! {
        #[test]
        fn f64_becomes_the_nearest_f16(bits in 0u16..0x7bff, apart in -40i32..8, negative: bool, up: bool) {
            // Around the middle between two neighbours, at all distances that could matter.
            let (a, b) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let offset = (b - a) * f64::powi(2.0, apart - 9) * if up { 1.0 } else { -1.0 };
            let value = (a + b) / 2.0 + offset;
            check_f16(if negative { -value } else { value });
        }

        #[test]
        fn a_wider_type_holds_the_same_value(bits: u16, byte: u8) {
            prop_assert_eq!(i8::from_acc(AccumulateIn::<i64>::into_acc(byte as i8)), byte as i8);
            prop_assert_eq!(AccumulateIn::<i64>::into_acc(bits as i16), i64::from(bits as i16));
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            prop_assume!(!half.is_nan() && !brain.is_nan());
            prop_assert_eq!(f16::from_acc(AccumulateIn::<f64>::into_acc(half)).to_bits(), bits);
            prop_assert_eq!(bf16::from_acc(AccumulateIn::<f64>::into_acc(brain)).to_bits(), bits);
            let small = Fp8E4M3(byte);
            prop_assume!(!small.widen().is_nan());
            prop_assert_eq!(Fp8E4M3::from_acc(AccumulateIn::<f16>::into_acc(small)), small);
        }
    }
}
