//! Granules: as many elements as a few words of registers hold, and the sums of them.

use core::marker::PhantomData;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use crate::arch::anew;
use crate::bulk::{Fold, FoldChoice, FoldJob};
use crate::sealed::Sealed;

/// What a fold needs to know of its elements.
#[derive(Clone, Copy)]
pub(super) struct Element {
    /// What addresses and lengths are multiples of, where their types have not seen to it.
    pub(super) multiple: usize,
    /// Whether a granule may have 32 bytes: of elements of one byte that would be too many sums for the registers.
    pub(super) pairs: bool,
}

/// Folds granules of `K` words.
pub(super) trait Folder: Copy {
    /// What the sums of a granule are held in.
    type Sums: Copy;
    fn element(self) -> Element;
    fn first<const K: usize>(self, values: [u32; K]) -> Self::Sums;
    fn next<const K: usize>(self, sums: Self::Sums, values: [u32; K]) -> Self::Sums;
    fn last<const K: usize>(self, sums: Self::Sums) -> [u32; K];
}

/// The most elements of a granule.
const LANES: usize = 16;

/// A fold whose type is known.
pub(super) struct Typed<'f, T, F> {
    fold: &'f F,
    element: PhantomData<fn() -> T>,
}

impl<'f, T: Pod, F: Fold<T>> Typed<'f, T, F> {
    #[inline(always)]
    pub(super) fn new(fold: &'f F) -> Self {
        Self { fold, element: PhantomData }
    }
}

impl<T, F> Clone for Typed<'_, T, F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, F> Copy for Typed<'_, T, F> {}

impl<T: Pod, F: Fold<T>> Folder for Typed<'_, T, F> {
    type Sums = Sums<F::Acc>;
    #[inline(always)]
    fn element(self) -> Element {
        Element { multiple: 1, pairs: size_of::<T>() > 1 }
    }
    #[inline(always)]
    fn first<const K: usize>(self, values: [u32; K]) -> Self::Sums {
        first::<T, F, K>(self.fold, values)
    }
    #[inline(always)]
    fn next<const K: usize>(self, sums: Self::Sums, values: [u32; K]) -> Self::Sums {
        next::<T, F, K>(self.fold, sums, values)
    }
    #[inline(always)]
    fn last<const K: usize>(self, sums: Self::Sums) -> [u32; K] {
        last::<T, F, K>(self.fold, sums)
    }
}

/// A sum for each lane; of lanes that a granule does not have, anything.
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

#[inline(always)]
fn first<T: Pod, F: Fold<T>, const K: usize>(fold: &F, values: [u32; K]) -> Sums<F::Acc> {
    let mut sums = [fold.first(get::<T, K>(&values, 0)); LANES];
    each_lane!(T, K, |I| sums[I] = fold.first(get::<T, K>(&values, I)));
    sums
}

#[inline(always)]
fn next<T: Pod, F: Fold<T>, const K: usize>(fold: &F, mut sums: Sums<F::Acc>, values: [u32; K]) -> Sums<F::Acc> {
    each_lane!(T, K, |I| sums[I] = fold.next(sums[I], get::<T, K>(&values, I)));
    sums
}

#[inline(always)]
fn last<T: Pod, F: Fold<T>, const K: usize>(fold: &F, sums: Sums<F::Acc>) -> [u32; K] {
    let mut words = [0; K];
    each_lane!(T, K, |I| set::<T, K>(&mut words, I, fold.last(sums[I])));
    words
}

/// A fold that is chosen at run time: whose type is found anew at each granule, as a loop for every type would be ten times
/// the text of all kernels together.
pub(super) struct Chosen<C> {
    words: [u64; 3],
    choice: PhantomData<fn() -> C>,
}

impl<C: FoldChoice> Chosen<C> {
    #[inline(always)]
    pub(super) fn new(choice: C) -> Self {
        Self::encoded(choice.encode())
    }
    #[inline(always)]
    pub(super) fn encoded(words: [u64; 3]) -> Self {
        Self { words, choice: PhantomData }
    }
    #[inline(always)]
    fn run<J: FoldJob>(self, job: J) -> J::Output {
        let [first, second, third] = self.words;
        // If the compiler knew that it is the same for all granules, it would make a loop for every type after all.
        C::decode([if C::IS_SMALL { first } else { anew(first) }, second, third]).run(job)
    }
}

impl<C> Clone for Chosen<C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Chosen<C> {}

impl<C: FoldChoice> Folder for Chosen<C> {
    /// As many words, whatever the sums are held in.
    type Sums = Words;
    #[inline(always)]
    fn element(self) -> Element {
        self.run(TellElement)
    }
    #[inline(always)]
    fn first<const K: usize>(self, values: [u32; K]) -> Words {
        self.run(First(values))
    }
    #[inline(always)]
    fn next<const K: usize>(self, sums: Words, values: [u32; K]) -> Words {
        self.run(Next(sums, values))
    }
    #[inline(always)]
    fn last<const K: usize>(self, sums: Words) -> [u32; K] {
        self.run(Last(sums))
    }
}

type Words = [u32; LANES];

struct TellElement;
struct First<const K: usize>([u32; K]);
struct Next<const K: usize>(Words, [u32; K]);
struct Last<const K: usize>(Words);

impl Sealed for TellElement {}
impl<const K: usize> Sealed for First<K> {}
impl<const K: usize> Sealed for Next<K> {}
impl<const K: usize> Sealed for Last<K> {}

impl FoldJob for TellElement {
    type Output = Element;
    #[inline(always)]
    fn run<T: Pod, F: Fold<T>>(self, _fold: &F) -> Element {
        // If the compiler knew the number, it would put those of all types into a table in memory.
        let size = anew(size_of::<T>() as u64) as usize;
        Element { multiple: size, pairs: size > 1 || F::ONLY_MOVES }
    }
}

/// Whether sums of `k` words fit into [`Words`]; where not, nobody asks for them.
const fn fits<T, A>(k: usize) -> bool {
    k * 4 / size_of::<T>() * size_of::<A>().div_ceil(4) <= LANES
}

impl<const K: usize> FoldJob for First<K> {
    type Output = Words;
    #[inline(always)]
    fn run<T: Pod, F: Fold<T>>(self, fold: &F) -> Words {
        if F::ONLY_MOVES {
            keep(&self.0)
        } else if fits::<T, F::Acc>(K) {
            pack::<T, _, K>(first::<T, F, K>(fold, self.0))
        } else {
            [0; LANES]
        }
    }
}

impl<const K: usize> FoldJob for Next<K> {
    type Output = Words;
    #[inline(always)]
    fn run<T: Pod, F: Fold<T>>(self, fold: &F) -> Words {
        let Self(sums, values) = self;
        if F::ONLY_MOVES || !fits::<T, F::Acc>(K) {
            return sums;
        }
        pack::<T, _, K>(next::<T, F, K>(fold, unpack::<T, _, K>(sums), values))
    }
}

impl<const K: usize> FoldJob for Last<K> {
    type Output = [u32; K];
    #[inline(always)]
    fn run<T: Pod, F: Fold<T>>(self, fold: &F) -> [u32; K] {
        if F::ONLY_MOVES {
            keep(&self.0)
        } else if fits::<T, F::Acc>(K) {
            last::<T, F, K>(fold, unpack::<T, _, K>(self.0))
        } else {
            [0; K]
        }
    }
}

/// The words that both have.
#[inline(always)]
fn keep<const A: usize, const B: usize>(words: &[u32; A]) -> [u32; B] {
    let mut kept = [0; B];
    each_lane!(u32, if A < B { A } else { B }, |I| kept[I] = words[I]);
    kept
}

/// Sums as words, for lanes of `T` in `K` words.
#[inline(always)]
fn pack<T, A: Copy, const K: usize>(sums: Sums<A>) -> Words {
    let mut words = [0; LANES];
    each_lane!(T, K, |I| {
        // SAFETY: of each transmute_copy: the branch's `size_of` makes both types equally large, and what accumulates numbers
        // has no padding.
        unsafe {
            match size_of::<A>() {
                8 => {
                    let bits: u64 = transmute_copy(&sums[I]);
                    words[2 * I % LANES] = bits as u32;
                    words[(2 * I + 1) % LANES] = (bits >> 32) as u32;
                }
                4 => words[I] = transmute_copy(&sums[I]),
                2 => words[I] = transmute_copy::<A, u16>(&sums[I]).into(),
                _ => words[I] = transmute_copy::<A, u8>(&sums[I]).into(),
            }
        }
    });
    words
}

/// What [`pack`] was given, of the lanes that there are.
#[inline(always)]
fn unpack<T, A: Copy, const K: usize>(words: Words) -> Sums<A> {
    let sum = |i: usize| {
        // SAFETY: of each transmute_copy: as in `pack`, whose bytes these are.
        unsafe {
            match size_of::<A>() {
                8 => transmute_copy(&(u64::from(words[2 * i % LANES]) | u64::from(words[(2 * i + 1) % LANES]) << 32)),
                4 => transmute_copy(&words[i]),
                2 => transmute_copy(&(words[i] as u16)),
                _ => transmute_copy(&(words[i] as u8)),
            }
        }
    };
    let mut sums = [sum(0); LANES];
    each_lane!(T, K, |I| sums[I] = sum(I));
    sums
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
#[path = "granules_tests.rs"]
pub(super) mod tests;
