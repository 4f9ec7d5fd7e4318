//! What a reduction does to the members' values.

use core::marker::PhantomData;

use congruent_device::{KernelArg, Pod};

use crate::Datatype;
use crate::names::names;
use crate::number::{AccumulateIn, Integer, Number};

/// How values of `T` become one. [`Sum`], [`Prod`], [`Min`], [`Max`], [`Avg`], [`PreMulSum`], [`BitAnd`], [`BitOr`],
/// [`BitXor`], [`MinLoc`](crate::MinLoc) and [`MaxLoc`](crate::MaxLoc) are operators, and so is every
/// `Fn(T, T) -> T + Copy`.
///
/// An algorithm lifts what each member contributed, combines, and lowers what it must store or send as a `T`; whoever gets
/// such a partial result resumes from it; and where all contributions are in, it finishes.
///
/// An algorithm that needs more than an associative operator says so; all assume that.
pub trait ReduceOp<T: Pod>: Copy {
    /// What partial results are held in.
    type Acc: Copy;
    /// A value as a member contributed it.
    fn lift(self, value: T) -> Self::Acc;
    /// A partial result that travelled or was stored as a `T`.
    fn resume(self, partial: T) -> Self::Acc;
    /// `a` combined with `b`, in this order.
    fn combine(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// A partial result as a `T`, rounded once.
    fn lower(self, acc: Self::Acc) -> T;
    /// The result of `members` contributions, rounded once.
    fn finish(self, acc: Self::Acc, members: usize) -> T;
}

impl<T: Pod, F: Fn(T, T) -> T + Copy> ReduceOp<T> for F {
    type Acc = T;
    #[inline(always)]
    fn lift(self, value: T) -> T {
        value
    }
    #[inline(always)]
    fn resume(self, partial: T) -> T {
        partial
    }
    #[inline(always)]
    fn combine(self, a: T, b: T) -> T {
        self(a, b)
    }
    #[inline(always)]
    fn lower(self, acc: T) -> T {
        acc
    }
    #[inline(always)]
    fn finish(self, acc: T, _members: usize) -> T {
        acc
    }
}

/// An operator as it works on accumulators of type `A`: what [`In`] makes an operator on any `T` that may be
/// [held in](AccumulateIn) an `A`. Every `Fn(A, A) -> A + Copy` is one.
pub trait Arithmetic<A>: Copy {
    /// What a contribution becomes.
    #[inline(always)]
    fn prepare(self, value: A) -> A {
        value
    }
    /// `a` combined with `b`, in this order.
    fn apply(self, a: A, b: A) -> A;
    /// What the combination of `members` contributions becomes.
    #[inline(always)]
    fn conclude(self, acc: A, members: usize) -> A {
        let _ = members;
        acc
    }
}

impl<A, F: Fn(A, A) -> A + Copy> Arithmetic<A> for F {
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        self(a, b)
    }
}

/// The operator `O`, with partial results held in `A` while they stay where they are.
///
/// ```
/// use congruent_collectives::{In, ReduceOp, Sum};
/// use congruent_device::f16;
///
/// fn reduce(op: impl ReduceOp<f16>) { /* ... */ }
///
/// reduce(Sum);                                       // in f32
/// reduce(Sum.accumulate_in::<f16>());                // in f16
/// reduce(In::<f64, _>::new(|a: f64, b: f64| a + b)); // one's own, in f64
/// ```
#[derive(Clone, Copy, Debug)]
pub struct In<A, O> {
    op: O,
    acc: PhantomData<A>,
}

impl<A, O: Arithmetic<A>> In<A, O> {
    /// `op`, with partial results held in `A`.
    pub const fn new(op: O) -> Self {
        Self { op, acc: PhantomData }
    }
}

impl<T: Pod + AccumulateIn<A>, A: Copy, O: Arithmetic<A>> ReduceOp<T> for In<A, O> {
    type Acc = A;
    #[inline(always)]
    fn lift(self, value: T) -> A {
        self.op.prepare(value.into_acc())
    }
    #[inline(always)]
    fn resume(self, partial: T) -> A {
        partial.into_acc()
    }
    #[inline(always)]
    fn combine(self, a: A, b: A) -> A {
        self.op.apply(a, b)
    }
    #[inline(always)]
    fn lower(self, acc: A) -> T {
        T::from_acc(acc)
    }
    #[inline(always)]
    fn finish(self, acc: A, members: usize) -> T {
        T::from_acc(self.op.conclude(acc, members))
    }
}

/// The sum.
#[derive(Clone, Copy, Debug)]
pub struct Sum;

/// The product.
#[derive(Clone, Copy, Debug)]
pub struct Prod;

/// The sum divided by the number of members. Integers wrap around in the sum and truncate toward zero in the quotient;
/// [held in](Self::accumulate_in) a wider type, they do not wrap. Floats are divided where the sum is held, and rounded
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Avg;

/// The sum of each contribution times a scalar, which is of the elements' type or of the type that sums are held in. The
/// product is computed and kept where the sum is held: of 16- and 8-bit floats, in `f32`.
#[derive(Clone, Copy, Debug)]
pub struct PreMulSum<S>(pub S);

/// The minimum. Of a NaN and a number it is the number, and -0.0 is less than 0.0. The result is one of the contributions,
/// bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct Min;

/// The maximum. Of a NaN and a number it is the number, and 0.0 is more than -0.0. The result is one of the contributions,
/// bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct Max;

/// The bits that all have. Of integers only.
#[derive(Clone, Copy, Debug)]
pub struct BitAnd;

/// The bits that any has. Of integers only.
#[derive(Clone, Copy, Debug)]
pub struct BitOr;

/// The bits that an odd number has. Of integers only.
#[derive(Clone, Copy, Debug)]
pub struct BitXor;

impl<A: Number> Arithmetic<A> for Sum {
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.plus(b)
    }
}

impl<A: Number> Arithmetic<A> for Prod {
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.times(b)
    }
}

impl<A: Number> Arithmetic<A> for Avg {
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.plus(b)
    }
    #[inline(always)]
    fn conclude(self, acc: A, members: usize) -> A {
        acc.over(members)
    }
}

impl<A: Number, S: AccumulateIn<A>> Arithmetic<A> for PreMulSum<S> {
    #[inline(always)]
    fn prepare(self, value: A) -> A {
        value.times(self.0.into_acc())
    }
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.plus(b)
    }
}

/// Operators that round or overflow, and may therefore be held in another type than the default.
macro_rules! accumulating {
    ($($op:ty $(where $scalar:ident)?;)*) => {$(
        impl $(<$scalar: Copy>)? $op {
            /// The same operator, with partial results held in `A`.
            pub const fn accumulate_in<A: Number>(self) -> In<A, Self> where Self: Arithmetic<A> {
                In::new(self)
            }
        }

        impl<T: Number, $($scalar: AccumulateIn<T::Acc>)?> ReduceOp<T> for $op {
            type Acc = T::Acc;
            #[inline(always)]
            fn lift(self, value: T) -> T::Acc {
                In::<T::Acc, _>::new(self).lift(value)
            }
            #[inline(always)]
            fn resume(self, partial: T) -> T::Acc {
                In::<T::Acc, _>::new(self).resume(partial)
            }
            #[inline(always)]
            fn combine(self, a: T::Acc, b: T::Acc) -> T::Acc {
                self.apply(a, b)
            }
            #[inline(always)]
            fn lower(self, acc: T::Acc) -> T {
                In::<T::Acc, _>::new(self).lower(acc)
            }
            #[inline(always)]
            fn finish(self, acc: T::Acc, members: usize) -> T {
                In::<T::Acc, _>::new(self).finish(acc, members)
            }
        }
    )*};
}

accumulating! {
    Sum;
    Prod;
    Avg;
    PreMulSum<S> where S;
}

/// Operators whose result needs no more bits than their operands have.
macro_rules! exact {
    ($($op:ident: $bound:ident, $method:ident;)*) => {$(
        impl<T: $bound> ReduceOp<T> for $op {
            type Acc = T;
            #[inline(always)]
            fn lift(self, value: T) -> T {
                value
            }
            #[inline(always)]
            fn resume(self, partial: T) -> T {
                partial
            }
            #[inline(always)]
            fn combine(self, a: T, b: T) -> T {
                a.$method(b)
            }
            #[inline(always)]
            fn lower(self, acc: T) -> T {
                acc
            }
            #[inline(always)]
            fn finish(self, acc: T, _members: usize) -> T {
                acc
            }
        }
    )*};
}

exact! {
    Min: Number, smaller;
    Max: Number, larger;
    BitAnd: Integer, and;
    BitOr: Integer, or;
    BitXor: Integer, xor;
}

names! {
    /// One of the named operators, chosen when the kernel runs: what the fixed kernels take.
    Op {
        /// [`Sum`](struct@Sum).
        Sum = "sum",
        /// [`Prod`](struct@Prod).
        Prod = "prod",
        /// [`Min`](struct@Min).
        Min = "min",
        /// [`Max`](struct@Max).
        Max = "max",
        /// [`Avg`](struct@Avg).
        Avg = "avg",
        /// [`PreMulSum`](struct@PreMulSum).
        PreMulSum = "premul-sum",
        /// [`BitAnd`].
        And = "and",
        /// [`BitOr`].
        Or = "or",
        /// [`BitXor`].
        Xor = "xor",
    }
}

impl Op {
    /// Whether there is such an operator on elements of this type: the bitwise ones work on integers only.
    pub const fn supports(self, datatype: Datatype) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max | Self::Avg | Self::PreMulSum => true,
            Self::And | Self::Or | Self::Xor => datatype.is_integer(),
        }
    }
}

impl KernelArg for Op {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

impl<T: Number> ReduceOp<T> for Op {
    type Acc = T::Acc;
    #[inline(always)]
    fn lift(self, value: T) -> T::Acc {
        value.into_acc()
    }
    #[inline(always)]
    fn resume(self, partial: T) -> T::Acc {
        partial.into_acc()
    }
    #[inline(always)]
    fn combine(self, a: T::Acc, b: T::Acc) -> T::Acc {
        match self {
            Self::Sum | Self::Avg => a.plus(b),
            Self::Prod => a.times(b),
            Self::Min => a.smaller(b),
            Self::Max => a.larger(b),
            Self::PreMulSum | Self::And | Self::Or | Self::Xor => {
                panic!("premul-sum, and, or and xor are no operators of these kernels")
            }
        }
    }
    #[inline(always)]
    fn lower(self, acc: T::Acc) -> T {
        T::from_acc(acc)
    }
    #[inline(always)]
    fn finish(self, acc: T::Acc, members: usize) -> T {
        T::from_acc(if self == Self::Avg { acc.over(members) } else { acc })
    }
}
