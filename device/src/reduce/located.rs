//! Where the minimum or the maximum is.

use core::cmp::Ordering;

use super::op::ReduceOp;
use crate::{Locatable, Pod, ValueAt};

/// The smallest value and its place, of [`ValueAt`]s. Of equal values, the one with the smallest index; -0.0 and 0.0 are
/// equal. A NaN counts as larger than every number, so that it is the result only where all are NaN.
#[derive(Clone, Copy, Debug)]
pub struct MinLoc;

/// The largest value and its place, of [`ValueAt`]s. Of equal values, the one with the smallest index; -0.0 and 0.0 are
/// equal. A NaN counts as smaller than every number, so that it is the result only where all are NaN.
#[derive(Clone, Copy, Debug)]
pub struct MaxLoc;

/// `a`, unless `b` is the better one: its value compares to `a`'s as `better` says, or `a`'s is a NaN, or neither is
/// better and its index is smaller.
#[inline(always)]
fn choose<T: Locatable>(a: ValueAt<T>, b: ValueAt<T>, better: Ordering) -> ValueAt<T> {
    let take = match b.value.partial_cmp(&a.value) {
        Some(Ordering::Equal) => b.at < a.at,
        Some(order) => order == better,
        None => match (is_nan(a.value), is_nan(b.value)) {
            (true, true) => b.at < a.at,
            (a_is, _) => a_is,
        },
    };
    if take { b } else { a }
}

/// Whether a value is unlike itself.
#[inline(always)]
fn is_nan<T: PartialOrd>(value: T) -> bool {
    value.partial_cmp(&value).is_none()
}

macro_rules! operators {
    ($($op:ident: $better:ident;)*) => {$(
        impl<T: Locatable> ReduceOp<ValueAt<T>> for $op
        where
            ValueAt<T>: Pod,
        {
            type Acc = ValueAt<T>;
            #[inline(always)]
            fn lift(self, value: ValueAt<T>) -> ValueAt<T> {
                value
            }
            #[inline(always)]
            fn resume(self, partial: ValueAt<T>) -> ValueAt<T> {
                partial
            }
            #[inline(always)]
            fn combine(self, a: ValueAt<T>, b: ValueAt<T>) -> ValueAt<T> {
                choose(a, b, Ordering::$better)
            }
            #[inline(always)]
            fn lower(self, acc: ValueAt<T>) -> ValueAt<T> {
                acc
            }
            #[inline(always)]
            fn finish(self, acc: ValueAt<T>, _members: usize) -> ValueAt<T> {
                acc
            }
        }
    )*};
}

operators! {
    MinLoc: Less;
    MaxLoc: Greater;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::vec::Vec;

    fn at<T: Locatable>(value: T, at: T::Index) -> ValueAt<T> {
        ValueAt { value, at }
    }

    /// Both orders must give the same.
    fn both<T: Locatable + core::fmt::Debug>(
        op: impl ReduceOp<ValueAt<T>, Acc = ValueAt<T>>,
        a: ValueAt<T>,
        b: ValueAt<T>,
    ) -> ValueAt<T>
    where
        ValueAt<T>: Pod,
    {
        let result = op.combine(a, b);
        // As text, which tells zeroes apart and NaNs not.
        assert_eq!(format!("{result:?}"), format!("{:?}", op.combine(b, a)), "{a:?} and {b:?}");
        result
    }

    #[test]
    fn the_better_value_wins_whatever_its_index() {
        assert_eq!(both(MinLoc, at(3i32, 0), at(-4, 9)), at(-4, 9));
        assert_eq!(both(MaxLoc, at(3u64, 5), at(4, 1)), at(4, 1));
        assert_eq!(both(MinLoc, at(f64::NEG_INFINITY, 7), at(1.0, 2)), at(f64::NEG_INFINITY, 7));
    }

    #[test]
    fn of_equal_values_the_smaller_index_wins() {
        assert_eq!(both(MinLoc, at(-1i64, 6), at(-1, 2)).at, 2);
        assert_eq!(both(MaxLoc, at(u32::MAX, 6), at(u32::MAX, 2)).at, 2);
        let zero = both(MaxLoc, at(0.0f32, 6), at(-0.0, 2));
        assert!(zero.at == 2 && zero.value.is_sign_negative(), "{zero:?}");
    }

    #[test]
    fn a_number_beats_a_nan_and_nans_go_by_their_index() {
        for number in [f32::NEG_INFINITY, 0.0, f32::INFINITY] {
            assert_eq!(both(MinLoc, at(f32::NAN, 0), at(number, 9)), at(number, 9));
            assert_eq!(both(MaxLoc, at(f32::NAN, 0), at(number, 9)), at(number, 9));
        }
        assert_eq!(both(MinLoc, at(f64::NAN, 4), at(f64::NAN, 3)).at, 3);
        assert_eq!(both(MaxLoc, at(f64::NAN, 4), at(-f64::NAN, 3)).at, 3);
    }

    proptest! {
        /// Few values, so that ties and NaNs are common; an index belongs to one value.
        #[test]
        fn any_order_finds_the_first_of_the_best(
            values in proptest::collection::vec(prop_oneof![Just(f32::NAN), (-2i8..2).prop_map(f32::from)], 1..12),
            rotate in 0usize..12,
        ) {
            let mut pairs: Vec<_> = values.iter().zip(0..).map(|(&value, i)| at(value, i)).collect();
            let numbers = || values.iter().copied().filter(|value| !value.is_nan());
            let place = |best: Option<f32>| match best {
                Some(best) => values.iter().position(|&value| value == best),
                None => Some(0),
            };
            let min = place(numbers().reduce(f32::min));
            let max = place(numbers().reduce(f32::max));
            let n = pairs.len();
            pairs.rotate_left(rotate % n);
            let fold = |op: &dyn Fn(ValueAt<f32>, ValueAt<f32>) -> ValueAt<f32>| pairs.iter().copied().reduce(op);
            prop_assert_eq!(fold(&|a, b| MinLoc.combine(a, b)).map(|pair| pair.at as usize), min);
            prop_assert_eq!(fold(&|a, b| MaxLoc.combine(a, b)).map(|pair| pair.at as usize), max);
        }
    }
}
