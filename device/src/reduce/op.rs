//! What a reduction does to the members' values.

use core::marker::PhantomData;

use super::number::AccumulateIn;
use crate::{MultimemReduction, Pod};

/// How values of `T` become one. The named operators are of this kind, from [`Sum`](crate::Sum) to
/// [`MaxLoc`](crate::MaxLoc), and so is every `Fn(T, T) -> T + Copy`.
///
/// An algorithm lifts what each member contributed, combines, and lowers what it must store or send as a `T`; whoever gets
/// such a partial result resumes from it; and where all contributions are in, it finishes.
///
/// An algorithm that needs more than an associative operator says so; all assume that.
pub trait ReduceOp<T: Pod>: Copy {
    /// Whether it is defined for all values, and not only for those that members contribute. To others, a GPU gives no other values.
    #[doc(hidden)]
    const TOTAL: bool = false;
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
    /// The same by `multimem` instructions, with the result of `members` contributions; `None` where there is none for it.
    #[doc(hidden)]
    #[inline(always)]
    fn multimem(self, members: usize) -> Option<MultimemReduction> {
        let _ = members;
        None
    }
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
    /// See [`ReduceOp::TOTAL`].
    #[doc(hidden)]
    const TOTAL: bool = false;
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
/// use congruent_device::{In, ReduceOp, Sum, f16};
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
    const TOTAL: bool = O::TOTAL;
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
