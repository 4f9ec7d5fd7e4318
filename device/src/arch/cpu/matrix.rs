//! Matrices spread over a warp: a lane has every so many-th row of `A` and of the sums, and all of `B`.

use core::iter::StepBy;
use core::ops::Range;

use congruent_heap::Pod;

use super::{Lane, SharedAt, shared_load, shared_store};
use crate::matrix::Multiplicand;

/// 16 times 16 elements of `A`, of which a lane has its rows.
pub(crate) type PartA = [[f32; 16]; 16];
/// 16 times 8 elements of `B`.
pub(crate) type PartB = [[f32; 8]; 16];
/// 16 times 8 sums, of which a lane has its rows.
pub(crate) type PartC = [[f32; 8]; 16];

/// The lane's index in its warp, and how many there are.
#[inline(always)]
pub(crate) fn in_whole_warp(lane: &Lane<'_>) -> (usize, usize) {
    ((lane.thread % lane.warp) as usize, lane.warp as usize)
}

/// How many warps a block has, which was to have `N` threads.
#[inline(always)]
pub(crate) fn warps_of<const N: usize>(lane: &Lane<'_>) -> usize {
    lane.threads.div_ceil(lane.warp) as usize
}

/// Nothing: lanes of a CPU take turns.
///
/// # Safety
/// As a GPU's.
#[inline(always)]
pub(crate) unsafe fn convergent() {}

/// The rows that a lane has.
#[inline(always)]
fn rows(lane: &Lane<'_>) -> StepBy<Range<usize>> {
    let (rank, size) = in_whole_warp(lane);
    (rank..16).step_by(size)
}

/// `c += a * b`: to each sum one product after the other, each rounded.
#[inline(always)]
#[expect(clippy::extra_unused_type_parameters, reason = "a GPU has an instruction for each type")]
pub(crate) fn mma<T: Multiplicand, const M: usize, const N: usize>(
    lane: &Lane<'_>,
    c: &mut [[PartC; N]; M],
    a: &[PartA; M],
    b: &[PartB; N],
) {
    for (c, a) in c.iter_mut().zip(a) {
        for (c, b) in c.iter_mut().zip(b) {
            for row in rows(lane) {
                let mut sums = c[row];
                for (a, b) in a[row].iter().zip(b) {
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum += a * b;
                    }
                }
                c[row] = sums;
            }
        }
    }
}

/// `A` of what there is in each row and column.
#[inline(always)]
pub(crate) fn part_a<T: Multiplicand>(lane: &Lane<'_>, mut element: impl FnMut(usize, usize) -> T) -> PartA {
    let mut part = [[0.0; 16]; 16];
    for row in rows(lane) {
        part[row] = core::array::from_fn(|column| element(row, column).widen());
    }
    part
}

/// `B` of what there is in each row and column.
#[inline(always)]
pub(crate) fn part_b<T: Multiplicand>(_lane: &Lane<'_>, mut element: impl FnMut(usize, usize) -> T) -> PartB {
    core::array::from_fn(|row| core::array::from_fn(|column| element(row, column).widen()))
}

/// `value` everywhere.
#[inline(always)]
pub(crate) fn fill_c(value: f32) -> PartC {
    [[value; 8]; 16]
}

/// What `each` makes of the lane's sums, of which it is told row and column.
#[inline(always)]
pub(crate) fn map_c(lane: &Lane<'_>, mut c: PartC, mut each: impl FnMut(usize, usize, f32) -> f32) -> PartC {
    for row in rows(lane) {
        for (column, sum) in c[row].iter_mut().enumerate() {
            *sum = each(row, column, *sum);
        }
    }
    c
}

/// Stores the lane's sums as what `of` makes of them.
///
/// # Safety
/// There are 16 rows of 8 elements from element `at` on, `stride` apart.
#[inline(always)]
pub(crate) unsafe fn store_c<T: Pod>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    c: &PartC,
    of: impl Fn(f32) -> T,
) {
    for row in rows(lane) {
        for (column, sum) in c[row].iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { shared_store(start, at + row * stride + column, of(*sum)) };
        }
    }
}

/// Element of a matrix in shared memory.
///
/// # Safety
/// It is there.
#[inline(always)]
unsafe fn element<T: Multiplicand>(
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
    [i, j]: [usize; 2],
) -> T {
    let (row, column) = if transposed { (j, i) } else { (i, j) };
    // SAFETY: the caller's contract.
    unsafe { shared_load(start, at + row * stride + column) }
}

/// `A` from shared memory, where each row is `stride` elements behind the one before; of its transposed one, where it lies so.
///
/// # Safety
/// There are 16 rows of 16 elements from element `at` on.
#[inline(always)]
pub(crate) unsafe fn load_a<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> PartA {
    // SAFETY: the caller's contract.
    part_a(lane, |row, column| unsafe { element::<T>(start, at, stride, transposed, [row, column]) })
}

/// Two `B` beside each other; see [`load_a`].
///
/// # Safety
/// As for [`load_a`].
#[inline(always)]
pub(crate) unsafe fn load_b2<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> [PartB; 2] {
    let beside = at + if transposed { 8 * stride } else { 8 };
    // SAFETY: the caller's contract.
    unsafe { [at, beside].map(|at| load_b::<T>(lane, start, at, stride, transposed)) }
}

/// One `B`; see [`load_a`].
///
/// # Safety
/// There are 16 rows of 8 elements, or where it lies transposed, 8 rows of 16.
#[inline(always)]
pub(crate) unsafe fn load_b<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> PartB {
    // SAFETY: the caller's contract.
    part_b(lane, |row, column| unsafe { element::<T>(start, at, stride, transposed, [row, column]) })
}
