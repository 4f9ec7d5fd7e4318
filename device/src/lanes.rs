//! Threads of one warp see each other's registers: shuffles, ballots and matches, of a warp or of a tile of it.

use crate::arch::{Lane, Shuffle};
use crate::group::lanes_of_warp;
use crate::kept::Own;
use crate::scan;
use crate::{Group, KernelArg, Pod, ReduceOp, Warp};

/// Threads of one warp: a [`Warp`], or a [`Tile`] of it. The names are those of CUDA's cooperative groups.
///
/// Values are plain data of up to 16 bytes. Like every operation of a group, these are called by each of its threads; what a thread
/// gets of one that has left its kernel is unspecified. They order no memory: [`sync`](Group::sync) does.
///
/// How many threads there are is the machine's: on the CPU a warp may be one thread, and the last warp of a block need not be whole.
/// Results are the same everywhere where a kernel deals out its data by [`rank`](Group::rank) and [`size`](Group::size):
///
/// ```
/// use congruent_device::{Group, Lanes, Max, Sum, Sym, kernels};
///
/// kernels! {
///     /// The largest number of each row of `width` numbers, by a warp for each row, and how many rows have a negative one.
///     pub fn row_max(block, ctx, rows: Sym<i32>, width: u64, max: Sym<i32>, negative: Sym<u64>) {
///         let (warp, me) = (block.warp(), ctx.world().me());
///         for row in (block.warp_index()..max.len()).step_by(block.warps()) {
///             let row_of = rows.chunk(row, max.len());
///             let (mut most, mut below) = (i32::MIN, false);
///             for i in warp.strided(width as usize) {
///                 let number = ctx.load(row_of, i);
///                 most = most.max(number);
///                 below |= number < 0;
///             }
///             let (most, below) = (warp.reduce(most, Max), warp.ballot(below) != 0);
///             if warp.leader() {
///                 ctx.store(max, row, most);
///                 ctx.add(negative.at(me), below.into());
///             }
///         }
///     }
/// }
/// ```
pub trait Lanes: Group {
    /// The most threads that there are of it.
    #[doc(hidden)]
    const MOST: u32;
    /// The thread.
    #[doc(hidden)]
    fn lane(&self) -> &Lane<'_>;

    /// The value of the thread with this rank; its own for a thread that asks for a rank that the group does not have. Each thread
    /// may ask for another.
    #[inline(always)]
    #[track_caller]
    fn shfl<T: Pod>(&self, value: T, rank: usize) -> T {
        self.lane().shuffle(Self::MOST, Shuffle::Index, rank, value)
    }

    /// The value of the thread `delta` ranks below; its own for a thread that has none there.
    #[inline(always)]
    #[track_caller]
    fn shfl_up<T: Pod>(&self, value: T, delta: usize) -> T {
        self.lane().shuffle(Self::MOST, Shuffle::Up, delta, value)
    }

    /// The value of the thread `delta` ranks above; its own for a thread that has none there.
    #[inline(always)]
    #[track_caller]
    fn shfl_down<T: Pod>(&self, value: T, delta: usize) -> T {
        self.lane().shuffle(Self::MOST, Shuffle::Down, delta, value)
    }

    /// The value of the thread whose rank differs from this one's in the bits of `mask`; its own for a thread that has none there.
    #[inline(always)]
    #[track_caller]
    fn shfl_xor<T: Pod>(&self, value: T, mask: usize) -> T {
        self.lane().shuffle(Self::MOST, Shuffle::Xor, mask, value)
    }

    /// Which threads gave `true`: bit `i` is that of rank `i`. Bits without a thread are 0.
    #[inline(always)]
    #[track_caller]
    fn ballot(&self, flag: bool) -> u32 {
        self.lane().ballot(Self::MOST, flag)
    }

    /// Which threads gave the same bits as this one: bit `i` is that of rank `i`.
    #[inline(always)]
    #[track_caller]
    fn match_any<T: Pod>(&self, value: T) -> u32 {
        self.lane().match_any(Self::MOST, value)
    }

    /// Whether all threads gave the same bits.
    #[inline(always)]
    #[track_caller]
    fn match_all<T: Pod>(&self, value: T) -> bool {
        self.match_any(value) == u32::MAX >> (32 - self.size() as u32)
    }

    /// True for one thread of the group, whichever: for what one is to do. It waits for nobody.
    #[inline(always)]
    fn elect(&self) -> bool {
        self.leader()
    }
}

impl<'m> Warp<'m> {
    /// The tile of `N` threads that this thread is in: ranks `0..N` are one, the next `N` another, and so on; the last may have fewer.
    /// `N` is a power of two up to 32. Tiles of one warp do not wait for each other.
    ///
    /// ```
    /// use congruent_device::{Group, Lanes, Sum, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Sums of four neighbours each: a thread has one of them, or on a machine with smaller warps several.
    ///     pub fn sums_of_four(block, ctx, numbers: Sym<u32>, sums: Sym<u32>) {
    ///         let tile = block.warp().tiled_partition::<4>();
    ///         let tiles = block.warps() * tile.meta_group_size();
    ///         let first = block.warp_index() * tile.meta_group_size() + tile.meta_group_rank();
    ///         for i in (first..sums.len()).step_by(tiles) {
    ///             let mine = tile.strided(4).fold(0, |sum, j| sum + ctx.load(numbers, 4 * i + j));
    ///             let sum = tile.reduce(mine, Sum);
    ///             if tile.leader() { ctx.store(sums, i, sum); }
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn tiled_partition<const N: usize>(&self) -> Tile<'m, N> {
        const { assert!(N.is_power_of_two() && N <= 32, "a tile has 1, 2, 4, 8, 16 or 32 threads") };
        Tile { lane: *self.as_lane() }
    }
}

impl Lanes for Warp<'_> {
    const MOST: u32 = crate::arch::MOST_LANES;
    #[inline(always)]
    fn lane(&self) -> &Lane<'_> {
        self.as_lane()
    }
}

/// `N` threads of a warp, or fewer where the warp has no more. Made by [`Warp::tiled_partition`].
#[derive(Clone, Copy)]
pub struct Tile<'m, const N: usize> {
    lane: Lane<'m>,
}

impl<'m, const N: usize> Tile<'m, N> {
    /// The tile of `M` threads that this thread is in, as of a warp; `M` is at most `N`.
    #[inline(always)]
    pub fn tiled_partition<const M: usize>(&self) -> Tile<'m, M> {
        const { assert!(M.is_power_of_two() && M <= N, "a tile of a tile is no larger, and a power of two") };
        Tile { lane: self.lane }
    }

    /// Index of this tile in its warp.
    #[inline(always)]
    pub fn meta_group_rank(&self) -> usize {
        in_warp(&self.lane) as usize / N
    }

    /// How many tiles the warp has.
    #[inline(always)]
    pub fn meta_group_size(&self) -> usize {
        (lanes_of_warp(&self.lane) as usize).div_ceil(N)
    }
}

impl<const N: usize> Lanes for Tile<'_, N> {
    const MOST: u32 = N as u32;
    #[inline(always)]
    fn lane(&self) -> &Lane<'_> {
        &self.lane
    }
}

impl<const N: usize> crate::sealed::Sealed for Tile<'_, N> {}

impl<const N: usize> Group for Tile<'_, N> {
    type Kept<T: KernelArg> = Own<T>;
    #[inline(always)]
    fn rank(&self) -> usize {
        in_warp(&self.lane) as usize % N
    }
    #[inline(always)]
    fn size(&self) -> usize {
        tile_of(&self.lane, N as u32).size as usize
    }
    #[inline(always)]
    #[track_caller]
    fn sync(&self) {
        self.lane.tile_sync(N as u32);
    }
    #[inline(always)]
    #[track_caller]
    fn any(&self, flag: bool) -> bool {
        self.lane.tile_sync(N as u32);
        self.ballot(flag) != 0
    }
    #[inline(always)]
    #[track_caller]
    fn broadcast(&self, value: u64) -> u64 {
        self.lane.tile_sync(N as u32);
        self.shfl(value, 0)
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

/// A tile: from which lane of the warp on, and how many.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) size: u32,
}

/// The tile of at most `most` lanes that a lane is in.
#[inline(always)]
pub(crate) fn tile_of(lane: &Lane<'_>, most: u32) -> Span {
    let first = if most == crate::arch::MOST_LANES { 0 } else { in_warp(lane) / most * most };
    Span { first, size: (lanes_of_warp(lane) - first).min(most) }
}

/// The lane's index in its warp.
#[inline(always)]
pub(crate) fn in_warp(lane: &Lane<'_>) -> u32 {
    lane.thread() % lane.warp_size()
}
