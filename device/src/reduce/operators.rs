//! The named operators.

use super::names::Op;
use super::number::{AccumulateIn, Integer, Number};
use super::op::{Arithmetic, In, ReduceOp};
use crate::MultimemReduction;

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
    const TOTAL: bool = true;
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.plus(b)
    }
}

impl<A: Number> Arithmetic<A> for Prod {
    const TOTAL: bool = true;
    #[inline(always)]
    fn apply(self, a: A, b: A) -> A {
        a.times(b)
    }
}

impl<A: Number> Arithmetic<A> for Avg {
    const TOTAL: bool = true;
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
    const TOTAL: bool = true;
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
    ($($op:ty $(where $scalar:ident)?: $name:ident;)*) => {$(
        impl $(<$scalar: Copy>)? $op {
            /// The same operator, with partial results held in `A`.
            pub const fn accumulate_in<A: Number>(self) -> In<A, Self> where Self: Arithmetic<A> {
                In::new(self)
            }
        }

        impl<T: Number, $($scalar: AccumulateIn<T::Acc>)?> ReduceOp<T> for $op {
            const TOTAL: bool = true;
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
            #[inline(always)]
            fn multimem(self, members: usize) -> Option<MultimemReduction> {
                Op::$name.multimem_of(T::MULTIMEM?, members)
            }
        }
    )*};
}

accumulating! {
    Sum: Sum;
    Prod: Prod;
    Avg: Avg;
    PreMulSum<S> where S: PreMulSum;
}

/// Operators whose result needs no more bits than their operands have.
macro_rules! exact {
    ($($op:ident: $bound:ident, $method:ident, $name:ident;)*) => {$(
        impl<T: $bound> ReduceOp<T> for $op {
            const TOTAL: bool = true;
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
            #[inline(always)]
            fn multimem(self, members: usize) -> Option<MultimemReduction> {
                Op::$name.multimem_of(T::MULTIMEM?, members)
            }
        }
    )*};
}

exact! {
    Min: Number, smaller, Min;
    Max: Number, larger, Max;
    BitAnd: Integer, and, And;
    BitOr: Integer, or, Or;
    BitXor: Integer, xor, Xor;
}

#[cfg(test)]
mod tests {
    use super::super::names::Datatype;
    use super::*;
    use crate::{Fp8E4M3, Fp8E5M2, Pod, SmallFloat, bf16, f16};
    use proptest::prelude::*;

    /// What members with these values get where no partial result is stored on the way.
    fn reduced<T: Pod>(op: impl ReduceOp<T>, values: &[T]) -> T {
        let sum = values.iter().map(|&value| op.lift(value)).reduce(|a, b| op.combine(a, b));
        op.finish(sum.expect("at least one value"), values.len())
    }

    /// The same where every partial result is stored as a `T`.
    fn stored<T: Pod>(op: impl ReduceOp<T>, values: &[T]) -> T {
        let first = op.lower(op.lift(values[0]));
        let sum = values[1..].iter().fold(first, |sum, &value| op.lower(op.combine(op.resume(sum), op.lift(value))));
        op.finish(op.resume(sum), values.len())
    }

    fn half(value: f64) -> f16 {
        f16::from_acc(value)
    }

    #[test]
    fn integers_wrap_unless_held_in_a_wider_type() {
        assert_eq!(reduced(Sum, &[100i8, 100]), -56);
        assert_eq!(reduced(Prod, &[1u32 << 31, 6]), 0);
        assert_eq!(reduced(Avg, &[100i8, 100]), -28);
        assert_eq!(reduced(Avg.accumulate_in::<i32>(), &[100i8, 100]), 100);
        assert_eq!(reduced(Avg.accumulate_in::<u64>(), &[u32::MAX; 3]), u32::MAX);
        // What is stored on the way wraps all the same.
        assert_eq!(stored(Avg.accumulate_in::<i32>(), &[100i8, 100]), -28);
    }

    #[test]
    fn averages_of_integers_truncate_toward_zero() {
        assert_eq!(reduced(Avg, &[-3i32, -4]), -3);
        assert_eq!(reduced(Avg, &[3i32, 4]), 3);
        assert_eq!(reduced(Avg, &[1i64, -2, 0]), 0);
        assert_eq!(reduced(Avg, &[7u8]), 7);
    }

    #[test]
    fn small_floats_accumulate_in_f32_unless_told_otherwise() {
        let ones = [f16::ONE; 4096];
        assert_eq!(reduced(Sum, &ones).to_f32(), 4096.0);
        assert_eq!(reduced(Sum.accumulate_in::<f16>(), &ones).to_f32(), 2048.0);
        assert_eq!(stored(Sum, &ones).to_f32(), 2048.0);
        assert_eq!(reduced(Avg.accumulate_in::<f16>(), &ones).to_f32(), 0.5);
        assert_eq!(reduced(Sum, &[bf16::ONE; 1024]).to_f32(), 1024.0);
        assert_eq!(reduced(Sum.accumulate_in::<bf16>(), &[bf16::ONE; 1024]).to_f32(), 256.0);
        let eights = [Fp8E4M3::narrow(1.0); 64];
        assert_eq!(reduced(Sum, &eights).widen(), 64.0);
        assert_eq!(reduced(Sum.accumulate_in::<f16>(), &eights).widen(), 64.0);
        assert_eq!(reduced(Sum.accumulate_in::<Fp8E4M3>(), &eights).widen(), 16.0);
    }

    #[test]
    fn f32_in_f64_keeps_what_f32_loses() {
        let values = [1e8f32, 1.0, -1e8];
        assert_eq!(reduced(Sum, &values), 0.0);
        assert_eq!(reduced(Sum.accumulate_in::<f64>(), &values), 1.0);
        assert_eq!(reduced(In::<f64, _>::new(|a: f64, b: f64| a + b), &values), 1.0);
    }

    #[test]
    fn an_average_of_floats_divides_before_it_rounds() {
        // The sum is more than the largest f16.
        assert_eq!(reduced(Avg, &[f16::MAX; 3]), f16::MAX);
        assert!(stored(Avg, &[f16::MAX; 3]).is_infinite());
        assert_eq!(reduced(Avg, &[0.1f32, 0.2, 0.4]), (0.1f32 + 0.2 + 0.4) / 3.0);
        assert_eq!(reduced(Avg, &[Fp8E5M2::narrow(57344.0); 5]).widen(), 57344.0);
    }

    #[test]
    fn premul_multiplies_each_contribution_once() {
        assert_eq!(reduced(PreMulSum(3i32), &[1, 10, 100]), 333);
        assert_eq!(stored(PreMulSum(3i32), &[1, 10, 100]), 333);
        assert_eq!(reduced(PreMulSum(0.5f32), &[3.0f32]), 1.5);
        // A scalar that no f16 is, for f16 in f32.
        assert_eq!(reduced(PreMulSum(1.0f32 / 4096.0 + 1.0), &[half(2048.0), half(2048.0)]).to_f32(), 4096.0);
        assert_eq!(reduced(PreMulSum(1e-9f32), &[half(60000.0); 4]), half(2.4e-4f32.into()));
    }

    #[test]
    fn products_of_premul_are_not_rounded_before_the_sum() {
        // The square of 1 + 2^-10 has a bit that no f16 of its size has, and the second contribution takes the rest away.
        let scalar = half(1.0 + f64::powi(2.0, -10));
        let values = [scalar, -f16::ONE];
        assert_eq!(reduced(PreMulSum(scalar), &values).to_f64(), f64::powi(2.0, -10) + f64::powi(2.0, -20));
        let in_f16 = PreMulSum(scalar).accumulate_in::<f16>();
        assert_eq!(reduced(in_f16, &values).to_f64(), f64::powi(2.0, -10));
    }

    #[test]
    fn minimum_and_maximum_are_contributions_bit_for_bit() {
        let infinity = Fp8E5M2(0x7c);
        assert_eq!(reduced(Max, &[Fp8E5M2::narrow(1.0), infinity]), infinity);
        assert_eq!(reduced(Sum, &[infinity]).widen(), 57344.0);
        assert_eq!(reduced(Min, &[u64::MAX, u64::MAX - 1]), u64::MAX - 1);
        assert_eq!(reduced(Max, &[i64::MIN, -1]), -1);
        assert_eq!(reduced(Min, &[f16::NAN, f16::ONE, f16::INFINITY]), f16::ONE);
    }

    #[test]
    fn bitwise_operators_take_the_bits_as_they_are() {
        assert_eq!(reduced(BitAnd, &[0b1100u8, 0b1010]), 0b1000);
        assert_eq!(reduced(BitOr, &[0b1100i64, 0b1010]), 0b1110);
        assert_eq!(reduced(BitXor, &[-1i16, 0b1010, 1]), !0b1011);
    }

    #[test]
    fn a_closure_is_an_operator_on_its_own_type() {
        let last = |_: i32, b: i32| b;
        assert_eq!(reduced(last, &[4, 5, 6]), 6);
        assert_eq!(stored(last, &[4, 5, 6]), 6);
    }

    #[test]
    fn operators_are_known_by_their_names() {
        let names: std::vec::Vec<_> = Op::ALL.iter().map(|op| op.name()).collect();
        assert_eq!(names, ["sum", "prod", "min", "max", "avg", "premul-sum", "and", "or", "xor"]);
        for &op in Op::ALL {
            assert_eq!(Op::named(op.name()), Some(op));
        }
        assert_eq!(Op::named("PreMulSum"), Some(Op::PreMulSum));
        assert_eq!(Op::named("median"), None);
    }

    #[test]
    fn only_integers_have_bits_to_combine() {
        for &datatype in Datatype::ALL {
            let supported: std::vec::Vec<_> = Op::ALL.iter().filter(|op| op.supports(datatype)).collect();
            assert_eq!(supported.len(), if datatype.is_integer() { 9 } else { 6 }, "{datatype}: {supported:?}");
            assert_eq!(Op::Xor.supports(datatype), datatype.is_integer());
        }
    }

    macro_rules! associative {
        ($($test:ident: $type:ty;)*) => {
            proptest! {$(
                #[test]
                fn $test(a: $type, b: $type, c: $type) {
                    fn check<O: ReduceOp<$type, Acc = $type>>(op: O, [a, b, c]: [$type; 3]) -> Result<(), TestCaseError> {
                        prop_assert_eq!(op.combine(op.combine(a, b), c), op.combine(a, op.combine(b, c)));
                        prop_assert_eq!(op.combine(a, b), op.combine(b, a));
                        prop_assert_eq!(stored(op, &[a, b, c]), reduced(op, &[a, b, c]));
                        Ok(())
                    }
                    let values = [a, b, c];
                    check(Sum, values)?;
                    check(Prod, values)?;
                    check(Avg, values)?;
                    check(PreMulSum(a), values)?;
                    check(Min, values)?;
                    check(Max, values)?;
                    check(BitAnd, values)?;
                    check(BitOr, values)?;
                    check(BitXor, values)?;
                }
            )*}
        };
    }

    associative! {
        i8_is_associative: i8;
        u8_is_associative: u8;
        i16_is_associative: i16;
        u16_is_associative: u16;
        i32_is_associative: i32;
        u32_is_associative: u32;
        i64_is_associative: i64;
        u64_is_associative: u64;
    }

    proptest! {
        /// Against arithmetic in `i128`, which no sum or product of these leaves.
        #[test]
        fn integers_are_exact_modulo_their_size(values in proptest::collection::vec(any::<i32>(), 1..4), scalar: i32) {
            let wide = || values.iter().map(|&value| i128::from(value));
            let sum = wide().sum::<i128>() as i32;
            prop_assert_eq!(reduced(Sum, &values), sum);
            prop_assert_eq!(reduced(Prod, &values), wide().product::<i128>() as i32);
            prop_assert_eq!(reduced(Avg, &values), sum / values.len() as i32);
            prop_assert_eq!(reduced(PreMulSum(scalar), &values), (wide().sum::<i128>() * i128::from(scalar)) as i32);
            let average = wide().sum::<i128>() / values.len() as i128;
            prop_assert_eq!(i128::from(reduced(Avg.accumulate_in::<i64>(), &values)), average);
        }

        /// Two `f16` are summed, multiplied and averaged as if without bounds and rounded once.
        #[test]
        fn two_halves_round_once(a in -2000i16..2000, b in -2000i16..2000, scalar in -63i16..63) {
            let [x, y, s] = [a, b, scalar].map(|value| half(f64::from(value) / 64.0));
            let (fx, fy, fs) = (x.to_f64(), y.to_f64(), s.to_f64());
            prop_assert_eq!(reduced(Sum, &[x, y]), half(fx + fy));
            prop_assert_eq!(reduced(Prod, &[x, y]), half(fx * fy));
            prop_assert_eq!(reduced(Avg, &[x, y]), half((fx + fy) / 2.0));
            prop_assert_eq!(reduced(PreMulSum(s), &[x, y]), half(fx * fs + fy * fs));
        }
    }
}
