//! What a reduction does to two values.

use congruent_device::{Float16, KernelArg, Pod, bf16, f16};

/// Combines two values of `T` into one. [`Sum`], [`Prod`], [`Min`] and [`Max`] are operators, and so is every
/// `Fn(T, T) -> T + Copy`.
///
/// An algorithm that needs more than an associative operator says so; all assume that.
pub trait ReduceOp<T>: Copy {
    /// `a` combined with `b`, in this order.
    fn combine(self, a: T, b: T) -> T;
}

impl<T, F: Fn(T, T) -> T + Copy> ReduceOp<T> for F {
    #[inline(always)]
    fn combine(self, a: T, b: T) -> T {
        self(a, b)
    }
}

/// A number that the named operators know. Integers wrap around; 16-bit floats compute in `f32` and round once.
pub trait Number: Pod + Send + Sync {
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self * other`.
    fn times(self, other: Self) -> Self;
    /// The smaller; of a NaN and a number, the number.
    fn smaller(self, other: Self) -> Self;
    /// The larger; of a NaN and a number, the number.
    fn larger(self, other: Self) -> Self;
}

macro_rules! operators {
    ($($(#[$doc:meta])* $op:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $op;

        impl<T: Number> ReduceOp<T> for $op {
            #[inline(always)]
            fn combine(self, a: T, b: T) -> T {
                a.$method(b)
            }
        }
    )*};
}

operators! {
    /// The sum.
    Sum plus;
    /// The product.
    Prod times;
    /// The minimum.
    Min smaller;
    /// The maximum.
    Max larger;
}

/// One of the named operators, chosen when the kernel runs: what the fixed kernels take.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Sum`].
    Sum = 0,
    /// [`Prod`].
    Prod = 1,
    /// [`Min`].
    Min = 2,
    /// [`Max`].
    Max = 3,
}

impl<T: Number> ReduceOp<T> for Op {
    #[inline(always)]
    fn combine(self, a: T, b: T) -> T {
        match self {
            Self::Sum => a.plus(b),
            Self::Prod => a.times(b),
            Self::Min => a.smaller(b),
            Self::Max => a.larger(b),
        }
    }
}

impl KernelArg for Op {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
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
    )*};
}

macro_rules! floats {
    ($($type:ty: $widen:ident, $narrow:expr;)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $narrow(self.$widen() + other.$widen())
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $narrow(self.$widen() * other.$widen())
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                $narrow(self.$widen().min(other.$widen()))
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                $narrow(self.$widen().max(other.$widen()))
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);
floats! {
    f32: clone, core::convert::identity;
    f64: clone, core::convert::identity;
    f16: widen, Float16::narrow;
    bf16: widen, Float16::narrow;
}
