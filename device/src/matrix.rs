//! Matrices that a warp multiplies: `f16` or `bf16` times the same, summed in `f32`, as CUDA's `wmma` and `mma.sync` do it.
//!
//! The unit is `D = A * B + C` of 16 times 16 and 16 times 8 elements. A fragment is some of these beside each other, spread over
//! the registers of a warp: [`A<T, M>`](A) is `16 M` rows of 16, [`B<T, N>`](B) is 16 rows of `8 N`, and
//! [`Accumulator<M, N>`](Accumulator) `16 M` rows of `8 N` sums. Which lane has which element is the machine's, and so is how many
//! lanes there are. `M` and `N` are what the registers have room for: on a GPU a thread has `4 M N` sums, `4 M` and `2 N` words.
//!
//! All of it is called by every thread of a warp that is whole ([`Warp::whole`]), with the same arguments, as the operations of a group
//! are; who makes a warp one that is whole promises that ([`Warp::whole`]). None of it orders memory.
//!
//! # Rounding
//! Products are exact, but for what is below the range of `f32`. On the CPU a sum is the accumulator, then products from the first
//! to the last, rounded to nearest after each: the same bits whatever the width. A GPU's order and rounding within 16 products are
//! its own: NVIDIA promises about the precision of `f32`, and no more. Sums whose partial sums are all integers below 2^24 are exact
//! everywhere.
//!
//! ```
//! use congruent_device::matrix::{A, Accumulator, B};
//! use congruent_device::{Relaxed, Slice, bf16, kernels};
//!
//! kernels! {
//!     /// `c` becomes `a * b`: each tile of 32 rows and 16 columns by a warp. `a` has `m` rows of `k`, `b` `k` rows of `n`; `m` is
//!     /// a multiple of 32, and `k` and `n` are of 16.
//!     pub fn multiply(block, ctx, a: Slice<bf16>, b: Slice<bf16>, c: Relaxed<f32>, n: u64, k: u64) {
//!         let (n, k) = (n as usize, k as usize);
//!         // SAFETY: all threads of the block go through the same steps, and none leaves before the end.
//!         let warp = unsafe { block.warp().whole() };
//!         let (m, warps) = (a.len() / k, block.count() * block.warps());
//!         let first = block.index() * block.warps() + block.warp_index();
//!         for tile in (first..m / 32 * (n / 16)).step_by(warps) {
//!             let (row, column) = (tile / (n / 16) * 32, tile % (n / 16) * 16);
//!             let mut sums = Accumulator::<2, 2>::fill(0.0);
//!             for i in (0..k).step_by(16) {
//!                 let left = A::from_slice(&warp, &a[row * k + i..], k);
//!                 let right = B::from_slice(&warp, &b[i * n + column..], n);
//!                 sums.mma(&warp, &left, &right);
//!             }
//!             sums.for_each(&warp, |i, j, sum| c.store((row + i) * n + column + j, sum));
//!         }
//!     }
//! }
//! ```

use core::marker::PhantomData;

use congruent_heap::{bf16, f16, refuse};

use crate::arch::{self, Lane, PartA, PartB, PartC};
use crate::group::{Strided, lanes_of_warp};
use crate::sealed::Sealed;
use crate::shared::{SharedAll, SharedCells};
use crate::{Pod, SmallFloat, Warp};

/// Rows of `A` and of the sums, and columns of `A` and rows of `B`, in one multiplication.
const ROWS: usize = 16;
/// Columns of `B` and of the sums in one multiplication.
const COLUMNS: usize = 8;

/// What is multiplied: `f16` or `bf16`.
pub trait Multiplicand: SmallFloat {
    #[doc(hidden)]
    const IS_BF16: bool;
    #[doc(hidden)]
    fn bits(self) -> u16;
}

impl Multiplicand for bf16 {
    const IS_BF16: bool = true;
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Multiplicand for f16 {
    const IS_BF16: bool = false;
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// What sums are stored as: `f32`, `f16` or `bf16`.
pub trait Stored: Pod + Sealed {
    #[doc(hidden)]
    fn of_sum(sum: f32) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn of_sum(sum: f32) -> Self {
        sum
    }
}

impl Stored for f16 {
    #[inline(always)]
    fn of_sum(sum: f32) -> Self {
        Self::narrow(sum)
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn of_sum(sum: f32) -> Self {
        Self::narrow(sum)
    }
}

/// A warp that has all of its threads, which matrices need. Made by [`Warp::whole`].
#[derive(Clone, Copy)]
pub struct WholeWarp<'m> {
    lane: Lane<'m>,
}

impl<'m> Warp<'m> {
    /// The warp as one that has all of its threads. Those of a block are, whose threads are a multiple of 32.
    ///
    /// # Panics
    /// Where it has fewer: the last warp of a block may. On the CPU at width 1 each warp is whole.
    ///
    /// # Safety
    /// All threads of the warp call each operation of matrices together: no condition that differs between them is around one, and none
    /// has left the kernel before, as one does whose wait has failed. A GPU has these instructions only in a form that is undefined
    /// otherwise (PTX ISA, `.aligned`).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn whole(&self) -> WholeWarp<'m> {
        let lane = *self.as_lane();
        if lanes_of_warp(&lane) < lane.warp_size() {
            refuse!("matrices need whole warps: launch blocks of a multiple of 32 threads");
        }
        WholeWarp { lane }
    }
}

impl WholeWarp<'_> {
    /// This thread's index in the warp.
    #[inline(always)]
    pub fn rank(&self) -> usize {
        arch::in_whole_warp(&self.lane).0
    }

    /// How many threads it has: on a GPU 32, which the compiler knows.
    #[inline(always)]
    pub fn size(&self) -> usize {
        arch::in_whole_warp(&self.lane).1
    }

    /// This thread's part of `0..len`, as [`Group::strided`](crate::Group::strided) of the warp gives it.
    #[inline(always)]
    pub fn strided(&self, len: usize) -> Strided {
        Strided::new(self.rank(), self.size(), len)
    }
}

/// The left factor: `16 M` rows of 16.
#[derive(Clone, Copy)]
pub struct A<T, const M: usize = 1> {
    parts: [PartA; M],
    of: PhantomData<T>,
}

impl<T: Multiplicand, const M: usize> A<T, M> {
    /// What `element` gives for each row and column, which a thread is asked for those that it has.
    #[inline(always)]
    pub fn from_fn(warp: &WholeWarp<'_>, mut element: impl FnMut(usize, usize) -> T) -> Self {
        let mut parts = [PartA::default(); M];
        copies!(m in M => parts[m] = arch::part_a(&warp.lane, |row, column| element(ROWS * m + row, column)));
        Self { parts, of: PhantomData }
    }

    /// From a slice, where a row is `stride` elements behind the one before.
    ///
    /// # Panics
    /// Where they are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn from_slice(warp: &WholeWarp<'_>, from: &[T], stride: usize) -> Self {
        const { assert!(M > 0, "a matrix has rows") };
        check(from.len(), 0, ROWS * M, ROWS, stride);
        // SAFETY: they were all found inside.
        Self::from_fn(warp, |row, column| unsafe { *from.get_unchecked(row * stride + column) })
    }

    /// From shared memory: from element `at` on, where a row is `stride` elements behind the one before. Both are multiples of 8.
    ///
    /// Eight rows are read at once, 16 bytes of each. That takes as long as one access where they are in different banks, which they are
    /// where `stride` is an odd multiple of 8.
    ///
    /// # Panics
    /// Where they are not all inside, or not multiples of 8.
    #[inline(always)]
    #[track_caller]
    pub fn load(warp: &WholeWarp<'_>, from: &SharedAll<'_, T>, at: usize, stride: usize) -> Self {
        const { assert!(M > 0, "a matrix has rows") };
        check_shared(from.len(), at, ROWS * M, ROWS, stride);
        let (lane, start, mut parts) = (&warp.lane, from.start(), [PartA::default(); M]);
        // SAFETY: all threads of a whole warp call it ([`Warp::whole`]).
        unsafe { arch::convergent() };
        // SAFETY: they were found inside, in the right places.
        copies!(m in M => parts[m] = unsafe { arch::load_a::<T>(lane, start, at + ROWS * m * stride, stride, false) });
        Self { parts, of: PhantomData }
    }

    /// As [`load`](A::load), where it lies transposed: 16 rows of `16 M`, each of them a column.
    ///
    /// # Panics
    /// As [`load`](A::load).
    #[inline(always)]
    #[track_caller]
    pub fn load_transposed(warp: &WholeWarp<'_>, from: &SharedAll<'_, T>, at: usize, stride: usize) -> Self {
        check_shared(from.len(), at, ROWS, ROWS * M, stride);
        let (lane, start, mut parts) = (&warp.lane, from.start(), [PartA::default(); M]);
        // SAFETY: all threads of a whole warp call it ([`Warp::whole`]).
        unsafe { arch::convergent() };
        // SAFETY: as above.
        copies!(m in M => parts[m] = unsafe { arch::load_a::<T>(lane, start, at + ROWS * m, stride, true) });
        Self { parts, of: PhantomData }
    }
}

/// The right factor: 16 rows of `8 N`.
#[derive(Clone, Copy)]
pub struct B<T, const N: usize = 1> {
    parts: [PartB; N],
    of: PhantomData<T>,
}

impl<T: Multiplicand, const N: usize> B<T, N> {
    /// What `element` gives for each row and column, which a thread is asked for those that it has.
    #[inline(always)]
    pub fn from_fn(warp: &WholeWarp<'_>, mut element: impl FnMut(usize, usize) -> T) -> Self {
        let mut parts = [PartB::default(); N];
        copies!(n in N => parts[n] = arch::part_b(&warp.lane, |row, column| element(row, COLUMNS * n + column)));
        Self { parts, of: PhantomData }
    }

    /// From a slice, where a row is `stride` elements behind the one before.
    ///
    /// # Panics
    /// Where they are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn from_slice(warp: &WholeWarp<'_>, from: &[T], stride: usize) -> Self {
        check(from.len(), 0, ROWS, COLUMNS * N, stride);
        // SAFETY: they were all found inside.
        Self::from_fn(warp, |row, column| unsafe { *from.get_unchecked(row * stride + column) })
    }

    /// From shared memory, as [`A::load`].
    ///
    /// # Panics
    /// As [`A::load`].
    #[inline(always)]
    #[track_caller]
    pub fn load(warp: &WholeWarp<'_>, from: &SharedAll<'_, T>, at: usize, stride: usize) -> Self {
        check_shared(from.len(), at, ROWS, COLUMNS * N, stride);
        // SAFETY: they were found inside, in the right places.
        unsafe { Self::of_shared(warp, from, at, stride, COLUMNS, false) }
    }

    /// As [`load`](B::load), where it lies transposed: `8 N` rows of 16, each of them a column. Weights of a layer are such rows.
    ///
    /// # Panics
    /// As [`A::load`].
    #[inline(always)]
    #[track_caller]
    pub fn load_transposed(warp: &WholeWarp<'_>, from: &SharedAll<'_, T>, at: usize, stride: usize) -> Self {
        const { assert!(N > 0, "a matrix has columns") };
        check_shared(from.len(), at, COLUMNS * N, ROWS, stride);
        // SAFETY: as above.
        unsafe { Self::of_shared(warp, from, at, stride, COLUMNS * stride, true) }
    }

    /// # Safety
    /// All of it is there, each `next` elements behind the one before.
    #[inline(always)]
    unsafe fn of_shared(
        warp: &WholeWarp<'_>,
        from: &SharedAll<'_, T>,
        at: usize,
        stride: usize,
        next: usize,
        transposed: bool,
    ) -> Self {
        let (lane, start, mut parts) = (&warp.lane, from.start(), [PartB::default(); N]);
        // SAFETY: all threads of a whole warp call it ([`Warp::whole`]).
        unsafe { arch::convergent() };
        // Two by one instruction, and the last one of an odd number by itself.
        // SAFETY: the caller's contract.
        copies!(n in N => unsafe {
            if n % 2 == 0 && n + 1 < N {
                [parts[n], parts[n + 1]] = arch::load_b2::<T>(lane, start, at + n * next, stride, transposed);
            } else if n % 2 == 0 {
                parts[n] = arch::load_b::<T>(lane, start, at + n * next, stride, transposed);
            }
        });
        Self { parts, of: PhantomData }
    }
}

/// Sums: `16 M` rows of `8 N`.
#[derive(Clone, Copy)]
pub struct Accumulator<const M: usize = 1, const N: usize = 1> {
    parts: [[PartC; N]; M],
}

impl<const M: usize, const N: usize> Accumulator<M, N> {
    /// `value` everywhere.
    #[inline(always)]
    pub fn fill(value: f32) -> Self {
        Self { parts: [[arch::fill_c(value); N]; M] }
    }

    /// What `element` gives for each row and column, which a thread is asked for those that it has.
    #[inline(always)]
    pub fn from_fn(warp: &WholeWarp<'_>, mut element: impl FnMut(usize, usize) -> f32) -> Self {
        let mut all = Self::fill(0.0);
        all.visit(warp, |row, column, _| element(row, column));
        all
    }

    /// Adds the product of `a` and `b`: to each element the products of a row and a column, in 16 steps.
    #[inline(always)]
    pub fn mma<T: Multiplicand>(&mut self, warp: &WholeWarp<'_>, a: &A<T, M>, b: &B<T, N>) {
        arch::mma::<T, M, N>(&warp.lane, &mut self.parts, &a.parts, &b.parts);
    }

    /// Each element becomes what `change` makes of it.
    #[inline(always)]
    pub fn map(&mut self, warp: &WholeWarp<'_>, mut change: impl FnMut(f32) -> f32) {
        self.visit(warp, |_, _, sum| change(sum));
    }

    /// Shows `each` the elements that this thread has, each with its row and column: to store them wherever they belong, or only those
    /// that do. All threads of the warp have each element once.
    ///
    /// On a GPU the text of `each` is there for every element that a thread has. For a large accumulator [`store`](Accumulator::store)
    /// first, then go through shared memory by a loop.
    #[inline(always)]
    pub fn for_each(mut self, warp: &WholeWarp<'_>, mut each: impl FnMut(usize, usize, f32)) {
        self.visit(warp, |row, column, sum| {
            each(row, column, sum);
            sum
        });
    }

    /// To shared memory, as `f32`, or rounded to nearest as `f16` or `bf16`: from element `at` on, a row `stride` elements behind the
    /// one before. Both are multiples of 8.
    ///
    /// # Panics
    /// Where they are not all inside, or not multiples of 8.
    #[inline(always)]
    #[track_caller]
    pub fn store<T: Stored>(&self, warp: &WholeWarp<'_>, to: &SharedCells<'_, T>, at: usize, stride: usize) {
        const { assert!(M > 0, "a matrix has rows") };
        check_shared(to.len(), at, ROWS * M, COLUMNS * N, stride);
        copies!(m in M => copies!(n in N => {
            let at = at + ROWS * m * stride + COLUMNS * n;
            // SAFETY: they were found inside, in the right places.
            unsafe { arch::store_c(&warp.lane, to.start(), at, stride, &self.parts[m][n], T::of_sum) };
        }));
    }

    /// Each element that this thread has becomes what `each` makes of it.
    #[inline(always)]
    fn visit(&mut self, warp: &WholeWarp<'_>, mut each: impl FnMut(usize, usize, f32) -> f32) {
        let parts = &mut self.parts;
        copies!(m in M => copies!(n in N => {
            let each = |i, j, sum| each(ROWS * m + i, COLUMNS * n + j, sum);
            parts[m][n] = arch::map_c(&warp.lane, parts[m][n], each);
        }));
    }
}

/// That so many rows and columns from element `at` on are inside.
#[inline(always)]
#[track_caller]
fn check(len: usize, at: usize, rows: usize, columns: usize, stride: usize) {
    let last = (rows - 1).saturating_mul(stride).saturating_add(columns);
    if at > len || last > len - at {
        refuse!("a matrix is not all inside of what it is loaded from or stored to");
    }
}

/// The same, for shared memory.
#[inline(always)]
#[track_caller]
fn check_shared(len: usize, at: usize, rows: usize, columns: usize, stride: usize) {
    if !at.is_multiple_of(8) || !stride.is_multiple_of(8) {
        refuse!("a matrix in shared memory begins at a multiple of 8 elements, and so do its rows");
    }
    check(len, at, rows, columns, stride);
}
