//! A product of matrices by tiles.
//!
//! A block has a tile of 128 rows and 128 columns of the result, and each of its four warps a quarter of that in registers. Both
//! factors go through shared memory, 32 elements of each row at a time, in two stages: while the warps multiply one, the next is on its
//! way from global memory. A machine whose blocks have fewer warps goes through the tile several times.

use congruent_device::matrix::{A, Accumulator, B, WholeWarp};
use congruent_device::{Global, Pack, Relaxed, SharedAll, SharedArray, SharedCells, Slice, bf16, kernels};

/// Eight numbers, which one access moves.
pub type Eight = Pack<bf16, 8>;

/// Threads of a block.
pub const THREADS: usize = 128;
/// Rows and columns of the result that a block has.
const TILE: usize = 128;
/// Rows and columns of a quarter, which is a warp's.
const PART: usize = TILE / 2;
/// Elements of a row in a stage.
const DEPTH: usize = 32;
/// From a row to the next in shared memory. Rows are 80 bytes apart, five times 16: of 8 rows that are read or written at once, 16 bytes
/// each, the places are multiples of five modulo 8, which all differ, and so do their banks.
const STRIDE: usize = DEPTH + 8;
/// The same for a quarter of the result: 9 times 16 bytes.
const PART_STRIDE: usize = PART + 8;
/// Groups of eight of a stage: the rows of both factors.
const STAGE: usize = 2 * TILE * STRIDE / 8;

kernels! { in crate::PTX;
    /// `c` becomes `a` times `b` transposed: element `i, j` is the product of row `i` of `a` and row `j` of `b`, as a layer's weights
    /// are rows. A row has `k` groups of eight: where there are fewer numbers, zeros follow. Sums are `f32`, and
    /// rounded at the end. Blocks of [`THREADS`] threads, as many as you like.
    pub fn gemm(
        block, ctx, a: Slice<Eight>, b: Slice<Eight>, c: Relaxed<bf16>, k: u64;
        shared: ([Eight; STAGE], [Eight; STAGE])
    ) launch_bounds(128, 2) {
        // SAFETY: all threads of a warp go the same way, and none waits for another PE.
        let (warps, warp) = (block.warps_of::<THREADS>(), unsafe { block.warp().whole() });
        let (index, k) = (block.warp_index() % warps, (k as usize).max(1));
        let (m, n) = (a.len() / k, b.len() / k);
        // SAFETY: a launch is lent both to be read, which lasts until it is over.
        let (a, b, across) = unsafe { (Global::of(a), Global::of(b), n.div_ceil(TILE)) };
        for tile in (block.index()..m.div_ceil(TILE) * across).step_by(block.count()) {
            let (row, column) = (tile / across * TILE, tile % across * TILE);
            for pass in 0..4_usize.div_ceil(warps) {
                let quarter = pass * warps + index;
                let (down, right) = (quarter % 2 * PART, quarter / 2 % 2 * PART);
                let threads = Threads { first: index * warp.size() + warp.rank(), step: warps * warp.size() };
                let rows = [
                    Rows { all: a, k, first: row, last: m - 1 },
                    Rows { all: b, k, first: column, last: n - 1 },
                ];
                let mut sums = Accumulator::<4, 8>::fill(0.0);
                let (even, _) = shared.sync(block);
                fetch(threads, even, rows, 0);
                // Behind the end of a row there are zeros.
                let mut at = 0;
                while at < k {
                    let (even, odd) = shared.sync(block);
                    fetch(threads, odd, rows, at + DEPTH / 8);
                    multiply(&mut sums, &warp, even, [down, right]);
                    let (even, odd) = shared.sync(block);
                    at += 2 * DEPTH / 8;
                    fetch(threads, even, rows, at);
                    multiply(&mut sums, &warp, odd, [down, right]);
                }
                let (even, odd) = shared.sync(block);
                let half = if right == 0 { even } else { odd };
                sums.store(&warp, &half.cast::<bf16>().cells(), down * PART_STRIDE, PART_STRIDE);
                let (even, odd) = shared.sync(block);
                let half = if right == 0 { even } else { odd }.cast::<bf16>().all();
                for i in warp.strided(PART * PART) {
                    let (i, j) = (i / PART, i % PART);
                    let (to_row, to_column) = (row + down + i, column + right + j);
                    if quarter < 4 && to_row < m && to_column < n {
                        c.store(to_row * n + to_column, half.get((down + i) * PART_STRIDE + j));
                    }
                }
            }
        }
    }
}

/// A block's threads.
#[derive(Clone, Copy)]
struct Threads {
    first: usize,
    step: usize,
}

/// Rows of a factor, `k` groups of eight each.
#[derive(Clone, Copy)]
struct Rows<'g> {
    all: Global<'g, Eight>,
    k: usize,
    first: usize,
    last: usize,
}

/// Begins to copy 32 elements of each row of both factors, from group `at` on.
#[inline(always)]
fn fetch(threads: Threads, to: SharedArray<'_, Eight>, [a, b]: [Rows<'_>; 2], at: usize) {
    let to = to.cells();
    for thread in (threads.first..THREADS).step_by(threads.step) {
        a.fetch(thread, &to, 0, at);
        b.fetch(thread, &to, TILE, at);
    }
}

impl Rows<'_> {
    /// Begins to copy. What is behind the last row is not stored: that row stands in for it.
    #[inline(always)]
    fn fetch(self, thread: usize, to: &SharedCells<'_, Eight>, into: usize, at: usize) {
        // Eight neighbours have eight rows.
        let (row, group) = (thread / 32 * 8 + thread % 8, thread / 8 % 4);
        for j in (0..TILE).step_by(THREADS / 4) {
            let start = (self.first + row + j).min(self.last) * self.k;
            let from = self.all.slice(start..start + self.k);
            to.copy_async((into + row + j) * (STRIDE / 8) + group, from, at + group);
        }
    }
}

/// Adds the products of a stage: of 64 rows of either factor, 16 elements of each at a time. It is no loop, which the compiler might keep,
/// with the sums in memory.
#[inline(always)]
fn multiply(
    sums: &mut Accumulator<4, 8>,
    warp: &WholeWarp<'_>,
    stage: SharedArray<'_, Eight>,
    [down, right]: [usize; 2],
) {
    const { assert!(DEPTH == 32) };
    let stage = stage.cast().all();
    multiply_16(sums, warp, &stage, [down * STRIDE, (TILE + right) * STRIDE]);
    multiply_16(sums, warp, &stage, [down * STRIDE + 16, (TILE + right) * STRIDE + 16]);
}

#[inline(always)]
fn multiply_16(sums: &mut Accumulator<4, 8>, warp: &WholeWarp<'_>, stage: &SharedAll<'_, bf16>, [a, b]: [usize; 2]) {
    let (a, b) = (A::<_, 4>::load(warp, stage, a, STRIDE), B::<_, 8>::load_transposed(warp, stage, b, STRIDE));
    sums.mma(warp, &a, &b);
}
