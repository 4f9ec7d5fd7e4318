//! Packs: as many elements as a few words of registers hold, and the sums of them (NCCL's BytePack).

use core::marker::PhantomData;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::{AccumulateIn, Integer, Number, for_datatype};
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
    /// Whether it takes any values for elements that are not there.
    const TOTAL: bool = true;
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
    #[cfg_attr(
        not(any(test, target_arch = "nvptx64")),
        expect(dead_code, reason = "the folds of CPUs have loops of their own")
    )]
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
    const TOTAL: bool = O::TOTAL;
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

/// The first types of 32 and of 8 bits among those of floats.
const F32: u32 = Datatype::F32 as u32;
const F8: u32 = Datatype::F8E4M3 as u32;

// What `Integers::of` and `Floats::bits` compute with.
const _: () = {
    let mut i = 0;
    while i < Datatype::ALL.len() {
        let one = Datatype::ALL[i];
        assert!(one as usize == i && one.is_integer() == (i < 8));
        assert!(i >= 8 || one.size() == 1 << (i / 2));
        assert!(i < 8 || matches!((one.size(), i as u32), (1, F8..) | (4, F32) | (8, 11) | (2, ..F32)));
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

/// Floats of up to 4 bytes, all those of a word of 8 bytes: one loop for all types, which computes in `f32`. A minimum or maximum stays as
/// many bits as its type has, for it is one of the values, and not all of these come back from an `f32`.
#[derive(Clone, Copy)]
struct Floats {
    reduction: Reduction,
}

impl Floats {
    /// Those of a reduction of floats, if they are not of 8 bytes.
    #[inline(always)]
    fn of(reduction: Reduction) -> Option<Self> {
        (reduction.datatype() != Datatype::F64).then_some(Self { reduction })
    }

    /// The same, of which the compiler does not know that it is: it would have a loop for each type, or keep what it found out about one in
    /// registers.
    #[inline(always)]
    fn again(self) -> Self {
        let [names, scalar] = self.reduction.to_words();
        Self { reduction: Reduction::from_words([opaque(names), scalar]) }
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        let [names, _] = self.reduction.to_words();
        // Compared as numbers: a choice among names would become a table in memory.
        let datatype = names as u32 & 0xff;
        if datatype >= F8 {
            8
        } else if datatype >= F32 {
            32
        } else {
            16
        }
    }

    #[inline(always)]
    fn is_extreme(self) -> bool {
        matches!(self.reduction.op(), Op::Min | Op::Max)
    }

    #[inline(always)]
    fn widen(self, bits: u32) -> f32 {
        match self.reduction.datatype() {
            Datatype::F16 => f16::from_bits(bits as u16).into_acc(),
            Datatype::Bf16 => bf16::from_bits(bits as u16).into_acc(),
            Datatype::F8E4M3 => Fp8E4M3(bits as u8).into_acc(),
            Datatype::F8E5M2 => Fp8E5M2(bits as u8).into_acc(),
            _ => f32::from_bits(bits),
        }
    }

    #[inline(always)]
    fn narrow(self, value: f32) -> u32 {
        match self.reduction.datatype() {
            Datatype::F16 => f16::from_acc(value).to_bits().into(),
            Datatype::Bf16 => bf16::from_acc(value).to_bits().into(),
            Datatype::F8E4M3 => Fp8E4M3::from_acc(value).0.into(),
            Datatype::F8E5M2 => Fp8E5M2::from_acc(value).0.into(),
            _ => value.to_bits(),
        }
    }

    /// Sums, each made anew. They go around: a register has no number that is computed.
    #[inline(always)]
    fn each(self, sums: Words, mut sum: impl FnMut(Self, u32) -> u32) -> Words {
        let ([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h], mut left) = (sums, 64);
        while left > 0 {
            let this = self.again();
            let (new, bits) = (sum(this, a), this.bits());
            (a, b, c, d) = (b, if bits == 32 { new } else { c }, d, if bits == 16 { new } else { e });
            (e, f, g, h) = (f, g, h, new);
            left -= bits;
        }
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn next(self, sums: Words, mut values: u64, first: bool, partial: bool) -> Words {
        self.each(sums, |this, sum| {
            let value = values as u32 & u32::MAX >> (32 - this.bits());
            values >>= this.bits();
            let op = this.reduction.op();
            if this.is_extreme() {
                let (a, b) = (this.widen(sum), this.widen(value));
                return if !first && combine(op, a, b).to_bits() == a.to_bits() { sum } else { value };
            }
            let mut wide = this.widen(value);
            if op == Op::PreMulSum && !partial {
                wide = wide.times(this.widen(this.reduction.scalar()));
            }
            if first { wide } else { combine(op, f32::from_bits(sum), wide) }.to_bits()
        })
    }

    #[inline(always)]
    fn last(self, sums: Words, members: u32) -> u64 {
        let mut word = 0;
        self.each(sums, |this, sum| {
            let op = this.reduction.op();
            let bits = if this.is_extreme() { sum } else { this.narrow(finish(op, f32::from_bits(sum), members)) };
            word = word >> this.bits() | u64::from(bits) << (64 - this.bits());
            sum
        });
        word
    }
}

/// A sum of floats with one more value.
#[inline(always)]
fn combine<T: Number>(op: Op, sum: T, value: T) -> T {
    match op {
        Op::Min => sum.smaller(value),
        Op::Max => sum.larger(value),
        Op::Prod => sum.times(value),
        _ => sum.plus(value),
    }
}

/// What a sum of floats becomes that has the contributions of all `members`, or is not finished where that is 0.
#[inline(always)]
fn finish<T: Number>(op: Op, sum: T, members: u32) -> T {
    if members > 0 && op == Op::Avg { sum.over(members as usize) } else { sum }
}

/// Sums as words: those of 8 bytes, which have up to 8 lanes.
type Words = [u32; 8];

/// The first 8 bytes of words.
#[inline(always)]
fn first_8(words: &[u32]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

/// Words whose first 8 bytes are these.
#[inline(always)]
fn of_8<const K: usize>(word: u64) -> [u32; K] {
    let mut words = [0; K];
    (words[0], words[1]) = (word as u32, (word >> 32) as u32);
    words
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
        let (sum, values) = (first_8(&sums), first_8(&values));
        if let Some(integers) = Integers::of(self) {
            return of_8(integers.next(sum, values, first, partial));
        }
        if let Some(floats) = Floats::of(self) {
            return floats.next(sums, values, first, partial);
        }
        let mut value = f64::from_bits(values);
        if self.op() == Op::PreMulSum && !partial {
            value = value.times(self.scalar());
        }
        of_8(if first { value } else { combine(self.op(), f64::from_bits(sum), value) }.to_bits())
    }

    #[inline(always)]
    fn last<const K: usize>(self, sums: Words, members: u32) -> [u32; K] {
        let sum = first_8(&sums);
        of_8(if let Some(integers) = Integers::of(self) {
            integers.last(sum, members)
        } else if let Some(floats) = Floats::of(self) {
            floats.last(sums, members)
        } else {
            finish(self.op(), f64::from_bits(sum), members).to_bits()
        })
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
