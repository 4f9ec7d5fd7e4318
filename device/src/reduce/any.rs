//! Operators on floats that look at run time what they are. A GPU folds what is not hot with them, one loop for all types: it is as fast where
//! memory decides, and a loop for each type and operator would be ten times as much text as all kernels. A CPU gets one for each.

use super::{AccumulateIn, Number, Op, ReduceOp};

/// Sums and products of floats, and what is made of them.
#[derive(Clone, Copy)]
pub(crate) struct AnyOfFloats<T> {
    pub(crate) op: Op,
    pub(crate) scalar: T,
}

/// Minimum or maximum of floats, which is one of them.
#[derive(Clone, Copy)]
pub(crate) struct AnyExtreme {
    pub(crate) op: Op,
}

macro_rules! any_of {
    ($any:ident $(<$scalar:ident>)?, $bound:ident, $acc:ty, |$self:ident, $value:ident| $lift:expr, |$a:ident, $b:ident| $combine:expr,
        |$sum:ident, $members:ident| $finish:expr) => {
        impl<T: $bound> ReduceOp<T> for $any $(<$scalar>)? {
            type Acc = $acc;
            #[inline(always)]
            fn lift($self, value: T) -> $acc {
                let $value = AccumulateIn::<$acc>::into_acc(value);
                $lift
            }
            #[inline(always)]
            fn resume(self, partial: T) -> $acc {
                AccumulateIn::<$acc>::into_acc(partial)
            }
            #[inline(always)]
            fn combine($self, $a: $acc, $b: $acc) -> $acc {
                $combine
            }
            #[inline(always)]
            fn lower(self, acc: $acc) -> T {
                AccumulateIn::<$acc>::from_acc(acc)
            }
            #[inline(always)]
            fn finish($self, $sum: $acc, $members: usize) -> T {
                AccumulateIn::<$acc>::from_acc($finish)
            }
        }
    };
}

any_of! {
    AnyOfFloats<T>, Number, T::Acc,
    |self, value| if self.op == Op::PreMulSum { value.times(self.scalar.into_acc()) } else { value },
    |a, b| if self.op == Op::Prod { a.times(b) } else { a.plus(b) },
    |sum, members| if self.op == Op::Avg { sum.over(members) } else { sum }
}

any_of! {
    AnyExtreme, Number, T,
    |self, value| value,
    |a, b| if self.op == Op::Min { a.smaller(b) } else { a.larger(b) },
    |sum, _members| sum
}
