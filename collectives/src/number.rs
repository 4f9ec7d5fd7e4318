//! What the named operators compute with: numbers, and what their sums are held in.

use congruent_device::{Fp8E4M3, Fp8E5M2, Pod, SmallFloat, bf16, f16};

/// A number that the named operators know.
///
/// Integers wrap around. Floats round to nearest, ties to even; those of 16 and 8 bits compute in `f32` and round once,
/// those of 8 bits to at most their largest finite value.
pub trait Number: Pod + Send + Sync + AccumulateIn<<Self as Number>::Acc> {
    /// What sums and products are held in, unless the operator is told otherwise: `f32` for floats of 16 and 8 bits, the
    /// type itself for all others.
    type Acc: Number;
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
    ($($type:ty: $divide:ty;)*) => {$(
        impl Number for $type {
            type Acc = Self;
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
    ($($type:ty: $acc:ty, $float:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $type {
            type Acc = $acc;
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
    i8: i32;
    i16: i32;
    i32: i32;
    i64: i64;
    u8: u32;
    u16: u32;
    u32: u32;
    u64: u64;
}

floats! {
    f32: f32, f32, core::convert::identity, core::convert::identity;
    f64: f64, f64, core::convert::identity, core::convert::identity;
    f16: f32, f32, SmallFloat::widen, SmallFloat::narrow;
    bf16: f32, f32, SmallFloat::widen, SmallFloat::narrow;
    Fp8E4M3: f32, f32, SmallFloat::widen, SmallFloat::narrow;
    Fp8E5M2: f32, f32, SmallFloat::widen, SmallFloat::narrow;
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
