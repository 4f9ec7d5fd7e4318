//! Packs: as many elements as a few words of registers hold, and the sums of them (NCCL's BytePack).

use core::marker::PhantomData;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::any::{AnyExtreme, AnyOfFloats};
use super::{Integer, Number, for_datatype};
use crate::arch::opaque;
use crate::{Datatype, Fp8E4M3, Fp8E5M2, Op, ReduceOp, Reduction, bf16, f16};

/// What folds packs of `K` words.
#[cfg_attr(
    not(any(test, target_arch = "nvptx64")),
    expect(dead_code, reason = "the folds of CPUs have loops of their own")
)]
pub(crate) trait PackOp: Copy {
    /// Whether it folds vectors of 16 bytes, and not words of 8 only.
    const VECTORS: bool = true;
    /// Whether there is one source.
    const ONE: bool = false;
    /// Whether a pack may have 32 bytes: of elements of one byte that would be too many sums for the registers.
    const PAIRS: bool;
    /// How many sources are asked for words before the first of them is waited for: 2 or 4.
    const AHEAD: usize = 4;
    /// What divides all addresses and lengths of plain operands, whatever [`multiple`](Self::multiple) is found to be.
    const UNIT: usize = 1;
    /// What the sums of a pack are held in.
    type Sums: Copy;
    /// Bytes of an element, of which addresses and lengths are multiples.
    fn multiple(self) -> usize;
    /// The sums of no source.
    fn none(self) -> Self::Sums;
    /// The sums with one more source, which is the first one or not, and a partial result or not. One function for the first one and the
    /// others, because it has the arithmetic of every type.
    fn next<const K: usize>(self, sums: Self::Sums, values: [u32; K], first: bool, partial: bool) -> Self::Sums;
    /// The result, finished where it has the contributions of all `members`, which is not 0 then.
    fn last<const K: usize>(self, sums: Self::Sums, members: u32) -> [u32; K];
}

/// The most elements of a pack.
const LANES: usize = 16;

/// A sum for each lane; of lanes that a pack does not have, anything.
type Sums<A> = [A; LANES];

/// Does something for each lane of `K` words. The lane is a constant, so that nothing leaves the registers.
macro_rules! each_lane {
    ($t:ty, $k:expr, |$lane:ident| $body:expr) => {
        each_lane!(@ $t, $k, $lane, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $t:ty, $k:expr, $lane:ident, $body:expr, $($i:literal)*) => {$({
        const $lane: usize = $i;
        if $lane < $k * 4 / size_of::<$t>() {
            $body;
        }
    })*};
}

/// An operator on elements whose type is known.
pub(crate) struct Typed<T, O> {
    op: O,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, O: ReduceOp<T>> Typed<T, O> {
    #[inline(always)]
    pub(crate) fn new(op: O) -> Self {
        Self { op, element: PhantomData }
    }

    #[inline(always)]
    fn value(self, value: T, partial: bool) -> O::Acc {
        if partial { self.op.resume(value) } else { self.op.lift(value) }
    }
}

impl<T, O: Copy> Clone for Typed<T, O> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, O: Copy> Copy for Typed<T, O> {}

impl<T: Pod, O: ReduceOp<T>> PackOp for Typed<T, O> {
    const PAIRS: bool = size_of::<T>() > 1;
    const UNIT: usize = size_of::<T>();
    type Sums = Sums<O::Acc>;

    #[inline(always)]
    fn multiple(self) -> usize {
        size_of::<T>()
    }

    #[inline(always)]
    fn none(self) -> Self::Sums {
        // SAFETY: any bytes are a valid Pod.
        let zero: T = unsafe { core::mem::zeroed() };
        [self.op.resume(zero); LANES]
    }

    #[inline(always)]
    fn next<const K: usize>(self, mut sums: Self::Sums, values: [u32; K], first: bool, partial: bool) -> Self::Sums {
        each_lane!(T, K, |I| {
            let value = self.value(get::<T, K>(&values, I), partial);
            sums[I] = if first { value } else { self.op.combine(sums[I], value) };
        });
        sums
    }

    #[inline(always)]
    fn last<const K: usize>(self, sums: Self::Sums, members: u32) -> [u32; K] {
        let mut words = [0; K];
        if members > 0 {
            each_lane!(T, K, |I| set::<T, K>(&mut words, I, self.op.finish(sums[I], members as usize)));
        } else {
            each_lane!(T, K, |I| set::<T, K>(&mut words, I, self.op.lower(sums[I])));
        }
        words
    }
}

/// Bytes of one source, as they are.
#[derive(Clone, Copy)]
pub(crate) struct Move<const VECTORS: bool>;

impl<const VECTORS: bool> PackOp for Move<VECTORS> {
    const VECTORS: bool = VECTORS;
    const ONE: bool = true;
    // Of parts that are stored one by one, two on their way are as many registers as these loops have.
    const AHEAD: usize = 2;
    const PAIRS: bool = true;
    type Sums = Sums<u32>;

    #[inline(always)]
    fn multiple(self) -> usize {
        1
    }

    #[inline(always)]
    fn none(self) -> Sums<u32> {
        [0; LANES]
    }

    #[inline(always)]
    fn next<const K: usize>(self, mut sums: Sums<u32>, values: [u32; K], first: bool, _partial: bool) -> Sums<u32> {
        if first {
            each_lane!(u32, K, |I| sums[I] = values[I]);
        }
        sums
    }

    #[inline(always)]
    fn last<const K: usize>(self, sums: Sums<u32>, _members: u32) -> [u32; K] {
        let mut words = [0; K];
        each_lane!(u32, K, |I| words[I] = sums[I]);
        words
    }
}

/// Integers, all those of a word of 8 bytes: one loop for all types. An integer of fewer bits is one of 64 whose upper bits are those of
/// its sign, so that operators need not know how many it has.
#[derive(Clone, Copy)]
struct Integers {
    op: Op,
    bits: u32,
    is_signed: bool,
    scalar: u64,
}

// What `Integers::of` computes with.
const _: () = {
    let mut i = 0;
    while i < Datatype::ALL.len() {
        let one = Datatype::ALL[i];
        assert!(one as usize == i && one.is_integer() == (i < 8));
        assert!(i >= 8 || one.size() == 1 << (i / 2));
        assert!(i >= 8 || matches!(one, Datatype::I8 | Datatype::I16 | Datatype::I32 | Datatype::I64) == (i % 2 == 0));
        i += 1;
    }
};

impl Integers {
    /// Those of a reduction, if it is of integers.
    #[inline(always)]
    fn of(reduction: Reduction) -> Option<Self> {
        let [names, scalar] = reduction.to_words();
        // A number that the compiler knew would choose among loops for each type.
        let datatype = opaque(names) as u32 & 0xff;
        let (bits, is_signed) = (8 << (datatype / 2 % 4), datatype.is_multiple_of(2));
        let integers = Self { op: reduction.op(), bits, is_signed, scalar };
        (datatype < 8).then_some(Self { scalar: integers.get(scalar, 0), ..integers })
    }

    #[inline(always)]
    fn get(self, word: u64, at: u32) -> u64 {
        let (top, down) = (word << (64 - self.bits - at), 64 - self.bits);
        if self.is_signed { (top as i64 >> down) as u64 } else { top >> down }
    }

    /// A word of such integers, each from where it is.
    #[inline(always)]
    fn each(self, integer: impl Fn(u32) -> u64) -> u64 {
        let (mut word, mut at) = (0, 0);
        while at < 64 {
            word |= (integer(at) & u64::MAX >> (64 - self.bits)) << at;
            at += self.bits;
        }
        word
    }

    #[inline(always)]
    fn next(self, sums: u64, values: u64, first: bool, partial: bool) -> u64 {
        self.each(|at| {
            let value = self.get(values, at);
            let value = if self.op == Op::PreMulSum && !partial { value.times(self.scalar) } else { value };
            let sum = self.get(sums, at);
            match self.op {
                _ if first => value,
                Op::Min if self.is_signed => (sum as i64).smaller(value as i64) as u64,
                Op::Max if self.is_signed => (sum as i64).larger(value as i64) as u64,
                Op::Min => sum.smaller(value),
                Op::Max => sum.larger(value),
                Op::Prod => sum.times(value),
                Op::And => sum.and(value),
                Op::Or => sum.or(value),
                Op::Xor => sum.xor(value),
                Op::Sum | Op::Avg | Op::PreMulSum => sum.plus(value),
            }
        })
    }

    #[inline(always)]
    fn last(self, sums: u64, members: u32) -> u64 {
        if members == 0 || self.op != Op::Avg {
            return sums;
        }
        let members = members as usize;
        self.each(|at| match self.get(sums, at) {
            sum if self.is_signed => (sum as i64).over(members) as u64,
            sum => sum.over(members),
        })
    }
}

/// What the operator of a [`Reduction`] of floats does, as the operator of its type that looks at run time what it is. The type is found
/// again at each pack: if the compiler knew that it is the same for all, it would make a loop for every type after all.
macro_rules! of_floats {
    ($reduction:expr, |$typed:ident| $do:expr) => {{
        let [names, scalar] = $reduction.to_words();
        let reduction = Reduction::from_words([opaque(names), scalar]);
        let op = reduction.op();
        macro_rules! of {
            ($F:ty) => {
                if let Op::Min | Op::Max = op {
                    let $typed = Typed::<$F, _>::new(AnyExtreme { op });
                    $do
                } else {
                    let $typed = Typed::<$F, _>::new(AnyOfFloats { op, scalar: reduction.scalar::<$F>() });
                    $do
                }
            };
        }
        match reduction.datatype() {
            Datatype::F16 => of!(f16),
            Datatype::Bf16 => of!(bf16),
            Datatype::F64 => of!(f64),
            Datatype::F8E4M3 => of!(Fp8E4M3),
            Datatype::F8E5M2 => of!(Fp8E5M2),
            // What is no integer and none of those.
            _ => of!(f32),
        }
    }};
}

/// Sums as words, whatever they are held in: of 8 bytes, which have up to 8 lanes.
type Words = [u32; 8];

/// The first 8 bytes of words.
#[inline(always)]
fn first_8(words: &[u32]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

impl PackOp for Reduction {
    const VECTORS: bool = false;
    const PAIRS: bool = false;
    // Registers are taken by what does not know its type.
    const AHEAD: usize = 2;
    type Sums = Words;

    #[inline(always)]
    fn multiple(self) -> usize {
        // If the compiler knew the number, it would put those of all types into a table in memory.
        for_datatype!(self.datatype(), I => opaque(size_of::<I>() as u64) as usize, F => opaque(size_of::<F>() as u64) as usize)
    }

    #[inline(always)]
    fn none(self) -> Words {
        [0; 8]
    }

    #[inline(always)]
    fn next<const K: usize>(self, sums: Words, values: [u32; K], first: bool, partial: bool) -> Words {
        if let Some(integers) = Integers::of(self) {
            let sums = integers.next(first_8(&sums), first_8(&values), first, partial);
            return [sums as u32, (sums >> 32) as u32, 0, 0, 0, 0, 0, 0];
        }
        of_floats!(self, |typed| typed.pack(typed.next::<K>(typed.unpack(sums), values, first, partial)))
    }

    #[inline(always)]
    fn last<const K: usize>(self, sums: Words, members: u32) -> [u32; K] {
        if let Some(integers) = Integers::of(self) {
            let result = integers.last(first_8(&sums), members);
            let mut words = [0; K];
            (words[0], words[1]) = (result as u32, (result >> 32) as u32);
            return words;
        }
        of_floats!(self, |typed| typed.last::<K>(typed.unpack(sums), members))
    }
}

impl<T: Pod, O: ReduceOp<T>> Typed<T, O> {
    /// Sums of the lanes of 8 bytes as words.
    #[inline(always)]
    fn pack(self, sums: Sums<O::Acc>) -> Words {
        let mut words = [0; 8];
        each_lane!(T, 2, |I| {
            // SAFETY: of each transmute_copy: the branch's `size_of` makes both types equally large, and what accumulates numbers
            // has no padding.
            unsafe {
                match size_of::<O::Acc>() {
                    8 => {
                        let bits: u64 = transmute_copy(&sums[I]);
                        words[2 * I % 8] = bits as u32;
                        words[(2 * I + 1) % 8] = (bits >> 32) as u32;
                    }
                    4 => words[I % 8] = transmute_copy(&sums[I]),
                    2 => words[I % 8] = transmute_copy::<O::Acc, u16>(&sums[I]).into(),
                    _ => words[I % 8] = transmute_copy::<O::Acc, u8>(&sums[I]).into(),
                }
            }
        });
        words
    }

    /// What [`pack`](Self::pack) was given, of the lanes that there are.
    #[inline(always)]
    fn unpack(self, words: Words) -> Sums<O::Acc> {
        let sum = |i: usize| {
            // SAFETY: of each transmute_copy: as in `pack`, whose bytes these are.
            unsafe {
                match size_of::<O::Acc>() {
                    8 => transmute_copy(&(u64::from(words[2 * i % 8]) | u64::from(words[(2 * i + 1) % 8]) << 32)),
                    4 => transmute_copy(&words[i % 8]),
                    2 => transmute_copy(&(words[i % 8] as u16)),
                    _ => transmute_copy(&(words[i % 8] as u8)),
                }
            }
        };
        let mut sums = [sum(0); LANES];
        each_lane!(T, 2, |I| sums[I] = sum(I));
        sums
    }
}

/// Element `i` of registers. `i` is a constant wherever it is called, so that nothing leaves the registers.
#[inline(always)]
fn get<T: Pod, const K: usize>(words: &[u32; K], i: usize) -> T {
    // SAFETY: of each transmute_copy: the branch's `size_of` makes both types equally large, and any bytes are valid.
    unsafe {
        match size_of::<T>() {
            8 => transmute_copy(&(u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32)),
            4 => transmute_copy(&words[i]),
            2 => transmute_copy(&((words[i / 2] >> (16 * (i % 2))) as u16)),
            _ => transmute_copy(&((words[i / 4] >> (8 * (i % 4))) as u8)),
        }
    }
}

#[inline(always)]
fn set<T: Pod, const K: usize>(words: &mut [u32; K], i: usize, value: T) {
    // SAFETY: of each transmute_copy: as above.
    unsafe {
        match size_of::<T>() {
            8 => {
                let bits: u64 = transmute_copy(&value);
                words[2 * i] = bits as u32;
                words[2 * i + 1] = (bits >> 32) as u32;
            }
            4 => words[i] = transmute_copy(&value),
            2 => words[i / 2] |= u32::from(transmute_copy::<T, u16>(&value)) << (16 * (i % 2)),
            _ => words[i / 4] |= u32::from(transmute_copy::<T, u8>(&value)) << (8 * (i % 4)),
        }
    }
}

#[cfg(test)]
#[path = "packs_tests.rs"]
pub(crate) mod tests;
