//! Who takes part in an operation: one [`Thread`], a [`Warp`], or the whole [`Block`].
//!
//! Groups are values that a kernel is given, so a function that holds only a `Warp` cannot sync the `Block`. A group
//! operation is called by every thread of the group, with the same arguments.

use crate::arch::{self, Lane, Share};
use crate::kept::{Kept, Own};
use crate::sealed::Sealed;
use crate::{Pod, ReduceOp, scan};
use congruent_heap::KernelArg;

#[cfg(target_arch = "nvptx64")]
use crate::kept::Shared as InBlock;
#[cfg(not(target_arch = "nvptx64"))]
use Own as InBlock;

/// Threads that act together.
pub trait Group: Sealed + Copy {
    /// Whether it is the whole block.
    const IS_BLOCK: bool = false;
    /// What keeps a value that all of its threads have.
    #[doc(hidden)]
    type Kept<T: KernelArg>: Kept<T>;
    /// This thread's index in the group.
    fn rank(&self) -> usize;
    /// How many threads the group has. Never assume a number: on the CPU a block may be one thread.
    fn size(&self) -> usize;
    /// Waits for every thread of the group, and orders their memory accesses before it with those after it.
    #[track_caller]
    fn sync(&self);
    /// Waits for every thread of the group, and tells whether any of them gave `true`.
    #[track_caller]
    fn any(&self, flag: bool) -> bool;
    /// Waits for every thread of the group, and gives each the leader's value.
    #[track_caller]
    fn broadcast(&self, value: u64) -> u64;

    /// The same value for all threads of a warp, or of a smaller group: what the first of them gives. Orders nothing, and where the
    /// group is a block, its warps may get different ones.
    ///
    /// The threads of a warp come by a block's barriers together, so what decides that must be the same for them. What relaxed loads
    /// give may differ as far as the hardware and the linter know (`divergent-barrier`), though nobody stores there meanwhile.
    ///
    /// ```
    /// use congruent_device::{Group, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Doubles each number as often as the host wrote there before the launch.
    ///     pub fn double(block, ctx, rounds: Sym<u64>, numbers: Sym<u64>) {
    ///         for _ in 0..block.uniform(ctx.load(rounds, 0)) {
    ///             for i in block.strided(numbers.len()) {
    ///                 ctx.store(numbers, i, 2 * ctx.load(numbers, i));
    ///             }
    ///             block.sync();
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    fn uniform(&self, value: u64) -> u64 {
        self.broadcast(value)
    }

    /// Waits for every thread of the group, and tells whether all of them gave `true`.
    #[inline(always)]
    #[track_caller]
    fn all(&self, flag: bool) -> bool {
        !self.any(!flag)
    }

    /// What all threads of the group give, combined: each gets the same bits.
    ///
    /// The operator is associative and commutative, as the named ones are; partial results are held in its
    /// [`Acc`](ReduceOp::Acc), of at most 16 bytes. In which order they are combined depends on how many threads there are: where an
    /// operator rounds, as the sum of floats does, machines with other warps give other last bits. Threads that have no value give
    /// one that changes nothing.
    ///
    /// ```
    /// use congruent_device::{Group, Sum, Sym, kernels};
    ///
    /// kernels! {
    ///     /// The sum of this PE's numbers.
    ///     pub fn sum_up(block, ctx, numbers: Sym<u64>, sum: Sym<u64>) {
    ///         let mine = block.strided(numbers.len()).fold(0, |sum, i| sum + ctx.load(numbers, i));
    ///         let all = block.reduce(mine, Sum);
    ///         if block.leader() { ctx.store(sum, 0, all); }
    ///     }
    /// }
    /// ```
    #[track_caller]
    fn reduce<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T;

    /// What the threads up to this one give, combined in the order of their ranks. As [`reduce`](Group::reduce), but that the
    /// operator need not be commutative, and that [`Avg`](crate::Avg) divides nothing.
    #[track_caller]
    fn inclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T;

    /// `initial`, combined with what the threads below this one give in the order of their ranks: as
    /// [`inclusive_scan`](Group::inclusive_scan), without this thread's own value.
    ///
    /// ```
    /// use congruent_device::{Group, Sum, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Where each row begins, from how long the rows are.
    ///     pub fn row_offsets(block, ctx, lengths: Sym<u64>, offsets: Sym<u64>) {
    ///         let mut total = 0;
    ///         // Every thread takes part in every round, whether it has a row or not.
    ///         for first in (0..lengths.len()).step_by(block.size()) {
    ///             let row = first + block.rank();
    ///             let length = if row < lengths.len() { ctx.load(lengths, row) } else { 0 };
    ///             let offset = block.exclusive_scan(length, total, Sum);
    ///             if row < lengths.len() { ctx.store(offsets, row, offset); }
    ///             total += block.reduce(length, Sum);
    ///         }
    ///     }
    /// }
    /// ```
    #[track_caller]
    fn exclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, initial: T, op: O) -> T;

    /// Whether this is the group's first thread.
    #[inline(always)]
    fn leader(&self) -> bool {
        self.rank() == 0
    }

    /// This thread's part of `0..len`: every `size`-th index from `rank` on.
    #[inline(always)]
    fn strided(&self, len: usize) -> Strided {
        Strided::new(self.rank(), self.size(), len)
    }
}

/// Indices: what [`Group::strided`] gives.
#[derive(Clone, Debug)]
pub struct Strided {
    next: usize,
    step: usize,
    len: usize,
}

impl Strided {
    /// Every `step`-th index below `len` from `next` on.
    #[inline(always)]
    pub(crate) const fn new(next: usize, step: usize, len: usize) -> Self {
        Self { next, step, len }
    }
}

impl Iterator for Strided {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let index = self.next;
        if index >= self.len {
            return None;
        }
        self.next = index + self.step;
        Some(index)
    }
}

/// All threads of a block. A kernel is given its block.
#[derive(Clone, Copy)]
pub struct Block<'m> {
    lane: Lane<'m>,
}

/// The threads of a block that the hardware runs together; the last of a block may have fewer than the others. Made by
/// [`Block::warp`].
#[derive(Clone, Copy)]
pub struct Warp<'m> {
    lane: Lane<'m>,
}

/// One thread on its own: `&Thread` as the group of an operation that each thread does by itself.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

impl<'m> Block<'m> {
    /// The block that this lane is in. For machines; a kernel is given its block.
    ///
    /// # Safety
    /// This thread is that lane.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn new(lane: Lane<'m>) -> Self {
        Self { lane }
    }

    #[inline(always)]
    pub(crate) fn as_lane(&self) -> &Lane<'m> {
        &self.lane
    }

    /// The warp that this thread is in.
    #[inline(always)]
    pub fn warp(&self) -> Warp<'m> {
        Warp { lane: self.lane }
    }

    /// Index of this warp in the block.
    #[inline(always)]
    pub fn warp_index(&self) -> usize {
        (self.lane.thread() / self.lane.warp_size()) as usize
    }

    /// How many warps the block has.
    #[inline(always)]
    pub fn warps(&self) -> usize {
        self.lane.threads().div_ceil(self.lane.warp_size()) as usize
    }

    /// How many warps a block of `N` threads has, for a kernel that is launched with so many: on a GPU `N / 32`, which the compiler knows.
    ///
    /// # Panics
    /// On a GPU, where the block has another number of threads.
    #[inline(always)]
    #[track_caller]
    pub fn warps_of<const N: usize>(&self) -> usize {
        arch::warps_of::<N>(&self.lane)
    }

    /// Index of this block in the launch.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.lane.block() as usize
    }

    /// How many blocks the launch has.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.lane.blocks() as usize
    }

    /// Where this block is in a grid of two, three or more dimensions, of which the first varies fastest, as `blockIdx.x` does in CUDA.
    /// Blocks behind the grid's last one are in further planes of the last dimension. A launch counts its blocks in one row, as long as
    /// any grid is (`Grid::tiled`).
    ///
    /// ```
    /// use congruent_device::{Group, Relaxed, kernels};
    ///
    /// kernels! {
    ///     /// Element `i, j` of `rows` of `columns` becomes `i * j`: tiles of 16 by 16, a block for each.
    ///     pub fn table(block, ctx, to: Relaxed<u32>, rows: u64, columns: u64) {
    ///         let (rows, columns) = (rows as usize, columns as usize);
    ///         let [across, down] = block.index_in([columns.div_ceil(16), rows.div_ceil(16)]);
    ///         for place in block.strided(16 * 16) {
    ///             let (i, j) = (down * 16 + place / 16, across * 16 + place % 16);
    ///             if i < rows && j < columns {
    ///                 to.store(i * columns + j, (i * j) as u32);
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn index_in<const D: usize>(&self, grid: [usize; D]) -> [usize; D] {
        let (mut rest, mut place) = (self.index(), [0; D]);
        for (d, size) in grid.into_iter().enumerate() {
            if d + 1 == D {
                place[d] = rest;
            } else {
                (place[d], rest) = (rest % size.max(1), rest / size.max(1));
            }
        }
        place
    }
}

impl<'m> Warp<'m> {
    #[inline(always)]
    pub(crate) fn as_lane(&self) -> &Lane<'m> {
        &self.lane
    }
}

impl Sealed for Block<'_> {}
impl Sealed for Warp<'_> {}
impl Sealed for Thread {}

impl Group for Block<'_> {
    type Kept<T: KernelArg> = InBlock<T>;
    const IS_BLOCK: bool = true;
    #[inline(always)]
    fn rank(&self) -> usize {
        self.lane.thread() as usize
    }
    #[inline(always)]
    fn size(&self) -> usize {
        self.lane.threads() as usize
    }
    #[inline(always)]
    fn sync(&self) {
        self.lane.block_sync();
    }
    #[inline(always)]
    fn any(&self, flag: bool) -> bool {
        self.lane.block_any(flag)
    }
    #[inline(always)]
    fn broadcast(&self, value: u64) -> u64 {
        self.lane.block_broadcast(value)
    }
    #[inline(always)]
    fn uniform(&self, value: u64) -> u64 {
        self.lane.warp_uniform(value)
    }
    #[inline(always)]
    #[track_caller]
    fn reduce<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        scan::reduce_block(self, value, op)
    }
    #[inline(always)]
    #[track_caller]
    fn inclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        scan::inclusive_block(self, value, op)
    }
    #[inline(always)]
    #[track_caller]
    fn exclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, initial: T, op: O) -> T {
        scan::exclusive_block(self, value, initial, op)
    }
}

impl Group for Warp<'_> {
    type Kept<T: KernelArg> = Own<T>;
    #[inline(always)]
    fn rank(&self) -> usize {
        (self.lane.thread() % self.lane.warp_size()) as usize
    }
    #[inline(always)]
    fn size(&self) -> usize {
        lanes_of_warp(&self.lane) as usize
    }
    #[inline(always)]
    fn sync(&self) {
        self.lane.warp_sync();
    }
    #[inline(always)]
    fn any(&self, flag: bool) -> bool {
        self.lane.warp_any(flag)
    }
    #[inline(always)]
    fn broadcast(&self, value: u64) -> u64 {
        self.lane.warp_broadcast(value)
    }
    #[inline(always)]
    #[track_caller]
    fn reduce<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        scan::reduce(self, value, op)
    }
    #[inline(always)]
    #[track_caller]
    fn inclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        op.lower(scan::inclusive(self, op.lift(value), op))
    }
    #[inline(always)]
    #[track_caller]
    fn exclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, initial: T, op: O) -> T {
        scan::exclusive(self, value, initial, op)
    }
}

impl Group for Thread {
    type Kept<T: KernelArg> = Own<T>;
    #[inline(always)]
    fn rank(&self) -> usize {
        0
    }
    #[inline(always)]
    fn size(&self) -> usize {
        1
    }
    #[inline(always)]
    fn sync(&self) {}
    #[inline(always)]
    fn any(&self, flag: bool) -> bool {
        flag
    }
    #[inline(always)]
    fn broadcast(&self, value: u64) -> u64 {
        value
    }
    #[inline(always)]
    #[track_caller]
    fn reduce<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        op.finish(op.lift(value), 1)
    }
    #[inline(always)]
    #[track_caller]
    fn inclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, op: O) -> T {
        op.lower(op.lift(value))
    }
    #[inline(always)]
    #[track_caller]
    fn exclusive_scan<T: Pod, O: ReduceOp<T, Acc: Pod>>(&self, value: T, initial: T, op: O) -> T {
        {
            let _not_below_itself = value;
            op.lower(op.resume(initial))
        }
    }
}

/// How many threads this thread's warp has: a block need not fill its last one.
#[inline(always)]
pub(crate) fn lanes_of_warp(lane: &Lane<'_>) -> u32 {
    let (whole, thread) = (lane.warp_size(), lane.thread());
    (lane.threads() - thread / whole * whole).min(whole)
}

/// What part of a bulk operation this thread of the group does.
#[inline(always)]
#[track_caller]
pub(crate) fn share(group: &impl Group) -> Share {
    Share { rank: arch::opaque(group.rank() as u64) as usize, size: arch::opaque(group.size() as u64) as usize }
}
