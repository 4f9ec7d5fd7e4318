//! Packs against a fold of one element after the other.

use std::vec::Vec;

use super::*;
use crate::{Avg, BitOr, BitXor, Datatype, HasDatatype, In, Max, Min, PreMulSum, Prod, Sum, bf16, f16};

/// A fold of packs, and what it should give.
pub(crate) trait Case {
    type By: PackOp;
    const NAME: &'static str;
    /// Bytes of an element.
    const ELEMENT: usize;
    fn by() -> Self::By;
    fn expected(sources: &[Vec<u8>], members: u32) -> Vec<u8>;
}

/// Folds element by element.
fn plainly<T: Pod, O: ReduceOp<T>>(op: O, sources: &[Vec<u8>], members: u32) -> Vec<u8> {
    let element = |source: &Vec<u8>, at| bytemuck::pod_read_unaligned::<T>(&source[at..at + size_of::<T>()]);
    let mut result = Vec::new();
    for at in (0..sources[0].len()).step_by(size_of::<T>()) {
        let first = op.lift(element(&sources[0], at));
        let sum = sources[1..].iter().fold(first, |sum, source| op.combine(sum, op.lift(element(source, at))));
        let value = if members > 0 { op.finish(sum, members as usize) } else { op.lower(sum) };
        result.extend_from_slice(bytemuck::bytes_of(&value));
    }
    result
}

macro_rules! cases {
    ($($name:ident: $type:ty, $by:ty = $make:expr, $op:expr;)*) => {$(
        pub(crate) struct $name;
        impl Case for $name {
            type By = $by;
            const NAME: &'static str = stringify!($name);
            const ELEMENT: usize = size_of::<$type>();
            fn by() -> $by {
                $make
            }
            fn expected(sources: &[Vec<u8>], members: u32) -> Vec<u8> {
                plainly::<$type, _>($op, sources, members)
            }
        }
    )*};
}

/// Any type and operator that a host chooses.
fn chosen<T: HasDatatype>(op: Op) -> Reduction {
    Reduction::new::<T>(op, None).expect("there is such an operator")
}

cases! {
    MaxOfBytes: u8, Typed<u8, Max> = Typed::new(Max), Max;
    SumOfHalves: f16, Typed<f16, Sum> = Typed::new(Sum), Sum;
    MeanOfFloats: f32, Typed<f32, Avg> = Typed::new(Avg), Avg;
    SumInDoubles: f32, Typed<f32, In<f64, Sum>> = Typed::new(Sum.accumulate_in::<f64>()), Sum.accumulate_in::<f64>();
    SumOfWhatIsThere: u32, Typed<u32, fn(u32, u32) -> u32> = Typed::new(of_what_is_there), of_what_is_there;
    XorOfLong: u64, Typed<u64, BitXor> = Typed::new(BitXor), BitXor;
    Moves: u8, Move<true> = Move, |first: u8, _| first;
    AnyMaxOfBytes: u8, Reduction = chosen::<u8>(Op::Max), Max;
    AnyMeanOfBfloats: bf16, Reduction = chosen::<bf16>(Op::Avg), Avg;
    AnySumOfHalves: f16, Reduction = chosen::<f16>(Op::Sum), Sum;
    AnyMinOfHalves: f16, Reduction = chosen::<f16>(Op::Min), Min;
    AnyProductOfFloats: f32, Reduction = chosen::<f32>(Op::Prod), Prod;
    AnyMaxOfFloats: f32, Reduction = chosen::<f32>(Op::Max), Max;
    AnyMeanOfDoubles: f64, Reduction = chosen::<f64>(Op::Avg), Avg;
    AnyMinOfDoubles: f64, Reduction = chosen::<f64>(Op::Min), Min;
    AnyMultipleOfDoubles: f64, Reduction = Reduction::new::<f64>(Op::PreMulSum, Some(0.3)).expect("it is one"), PreMulSum(0.3_f64);
    AnyMultipleOfBfloats: bf16, Reduction = Reduction::new::<bf16>(Op::PreMulSum, Some(bf16::from_f32(-0.3))).expect("it is one"),
        PreMulSum(bf16::from_f32(-0.3));
    AnySumOfE4M3: Fp8E4M3, Reduction = chosen::<Fp8E4M3>(Op::Sum), Sum;
    AnyMeanOfE5M2: Fp8E5M2, Reduction = chosen::<Fp8E5M2>(Op::Avg), Avg;
    AnyMaxOfE5M2: Fp8E5M2, Reduction = chosen::<Fp8E5M2>(Op::Max), Max;
    AnySumOfLong: i64, Reduction = chosen::<i64>(Op::Sum), Sum;
    AnyMeanOfSignedBytes: i8, Reduction = chosen::<i8>(Op::Avg), Avg;
    AnyMeanOfBytes: u8, Reduction = chosen::<u8>(Op::Avg), Avg;
    AnyMinOfShorts: i16, Reduction = chosen::<i16>(Op::Min), Min;
    AnyMaxOfUnsignedShorts: u16, Reduction = chosen::<u16>(Op::Max), Max;
    AnyProductOfInts: i32, Reduction = chosen::<i32>(Op::Prod), Prod;
    AnyMinOfUnsignedInts: u32, Reduction = chosen::<u32>(Op::Min), Min;
    AnyMultipleOfShorts: i16, Reduction = Reduction::new::<i16>(Op::PreMulSum, Some(-3)).expect("it is one"), PreMulSum(-3_i16);
    AnyMeanOfLong: i64, Reduction = chosen::<i64>(Op::Avg), Avg;
    AnyOrOfUnsignedLong: u64, Reduction = chosen::<u64>(Op::Or), BitOr;
}

/// A sum of numbers that are not 0.
fn of_what_is_there(a: u32, b: u32) -> u32 {
    assert!(a != 0 && b != 0, "an operand that nobody sent");
    a.wrapping_add(b) | 1
}

fn words<const K: usize>(source: &[u8]) -> [u32; K] {
    core::array::from_fn(|i| u32::from_le_bytes(source[4 * i..4 * i + 4].try_into().expect("four bytes")))
}

fn fold<const K: usize>(by: impl PackOp, sources: &[Vec<u8>], members: u32) -> Vec<u8> {
    let mut sums = by.none();
    for (i, source) in sources.iter().enumerate() {
        sums = by.next(sums, words::<K>(source), i == 0, false);
    }
    by.last::<K>(sums, members).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Small floats and small integers alike.
fn sources(bytes: usize) -> Vec<Vec<u8>> {
    let float = |i: usize, j: usize| (1.5 * (1 + i) as f32 - 0.25 * j as f32).to_le_bytes();
    (0..3).map(|i| (0..bytes).map(|b| float(i, b / 4)[b % 4]).collect()).collect()
}

fn check<C: Case>() {
    for members in [0, 3] {
        let expected = |bytes| C::expected(&sources(bytes), members);
        assert_eq!(fold::<2>(C::by(), &sources(8), members), expected(8), "{} of {members}", C::NAME);
        if C::By::VECTORS {
            assert_eq!(fold::<4>(C::by(), &sources(16), members), expected(16), "{} of {members}", C::NAME);
        }
        if C::By::PAIRS {
            assert_eq!(fold::<8>(C::by(), &sources(32), members), expected(32), "{} of {members}", C::NAME);
        }
    }
}

#[test]
fn packs_of_every_size_are_folded_as_elements_are() {
    check::<MaxOfBytes>();
    check::<SumOfHalves>();
    check::<MeanOfFloats>();
    check::<SumInDoubles>();
    check::<XorOfLong>();
    check::<Moves>();
    check::<AnyMaxOfBytes>();
    check::<AnyMeanOfBfloats>();
    check::<AnySumOfHalves>();
    check::<AnyMinOfHalves>();
    check::<AnyProductOfFloats>();
    check::<AnyMaxOfFloats>();
    check::<AnyMeanOfDoubles>();
    check::<AnyMinOfDoubles>();
    check::<AnyMultipleOfDoubles>();
    check::<AnyMultipleOfBfloats>();
    check::<AnySumOfE4M3>();
    check::<AnyMeanOfE5M2>();
    check::<AnyMaxOfE5M2>();
    check::<AnySumOfLong>();
    check::<AnyMeanOfSignedBytes>();
    check::<AnyMeanOfBytes>();
    check::<AnyMinOfShorts>();
    check::<AnyMaxOfUnsignedShorts>();
    check::<AnyProductOfInts>();
    check::<AnyMinOfUnsignedInts>();
    check::<AnyMultipleOfShorts>();
    check::<AnyMeanOfLong>();
    check::<AnyOrOfUnsignedLong>();
}

/// E5M2 has infinities, and no wider float is narrowed to one.
#[test]
fn extremes_of_floats_are_one_of_them_bit_for_bit() {
    for op in [Op::Min, Op::Max] {
        for a in 0..=u8::MAX {
            for b in [0, 0x80, 0x3c, 0xbd, 0x7b, 0x7c, 0xfc, 0x7e, 0xff] {
                let (one, other) = (Fp8E5M2(a), Fp8E5M2(b));
                let extreme = if op == Op::Min { one.smaller(other) } else { one.larger(other) };
                let found = fold::<2>(chosen::<Fp8E5M2>(op), &[[a; 8].to_vec(), [b; 8].to_vec()], 0);
                assert_eq!(found, [extreme.0; 8], "{op:?} of {a:#x} and {b:#x}");
            }
        }
    }
}

#[test]
fn a_reduction_is_what_it_was_in_words() {
    for &datatype in Datatype::ALL {
        for &op in Op::ALL {
            let words = [datatype as u64 | (op as u64) << 8, 0x1234_5678_9abc_def0];
            let reduction = Reduction::from_words(words);
            assert_eq!((reduction.datatype(), reduction.op(), reduction.to_words()), (datatype, op, words));
        }
    }
}
