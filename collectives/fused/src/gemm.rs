//! A product of matrices by tiles.
//!
//! A block has a tile of 192 rows and 192 columns of the result, and each of its twelve warps 64 rows and 48 columns of that in registers:
//! 96 sums a thread, so that 168 registers are enough and a multiprocessor has room for twelve warps. Both factors go through shared memory,
//! 64 elements of each row at a time, in two stages: while the warps multiply one, the next is on its way from global memory. A machine
//! whose blocks have fewer warps goes through the tile several times.

use core::ops::Range;

use congruent_device::matrix::{A, Accumulator, B, Stored, WholeWarp};
use congruent_device::{Block, Global, Pack, Shared, SharedAll, SharedArray, SharedCells, bf16};

/// Eight numbers, which one access moves.
pub type Eight = Pack<bf16, 8>;

/// Parts of a tile, below each other and beside each other, each a warp's.
const PARTS: [usize; 2] = [3, 4];
const WARPS: usize = PARTS[0] * PARTS[1];
/// Threads of a block.
pub const THREADS: usize = WARPS * 32;
/// Bytes of shared memory of a block.
pub const SHARED: usize = 2 * STAGE * size_of::<Eight>();
/// The same where sums are not rounded, so that the result needs more room than both stages.
pub const SHARED_F32: usize = TILE * TILE_STRIDE * size_of::<f32>();
/// Rows and columns of the result that a block has.
const TILE: usize = 192;
/// Rows of a part.
const PART_ROWS: usize = TILE / PARTS[0];
/// Elements of a row in a stage, and in groups of eight.
const DEPTH: usize = 64;
const GROUPS: usize = DEPTH / 8;
/// From a row to the next in shared memory. Rows are 144 bytes apart, nine times 16: of 8 rows that are read or written at once, 16 bytes
/// each, the places all differ modulo 8, and so do their banks.
const STRIDE: usize = DEPTH + 8;
/// The same for the result: 25 times 16 bytes.
const TILE_STRIDE: usize = TILE + 8;
/// Groups of eight of a stage: the rows of both factors.
const STAGE: usize = 2 * TILE * STRIDE / 8;
const _: () = assert!(TILE * TILE_STRIDE <= 2 * STAGE * 8, "the result takes the place of both stages");
// Of rows that are an odd multiple of 16 bytes apart, eight lie in different banks.
const _: () = assert!(STRIDE % 16 == 8 && TILE_STRIDE % 16 == 8, "no two of eight rows share a bank");

/// The most rows that a tile has.
pub(crate) const ROWS: usize = TILE;

/// How many tiles a result of so many rows and columns has.
#[inline(always)]
pub fn tiles(rows: u32, columns: u32) -> u32 {
    rows.div_ceil(ROWS as u32) * Product::across(columns)
}

/// Where a tile is, of fewer than 2^32 numbers.
#[derive(Clone, Copy)]
pub struct Places {
    /// Where row 0, column 0 of the result would be.
    zero: u32,
    width: u32,
    first: u32,
    len: u32,
}

impl Places {
    /// The same, where the result begins there.
    #[inline(always)]
    pub fn from(self, start: usize) -> Self {
        Self { zero: self.zero.wrapping_add(start as u32), first: self.first + start as u32, ..self }
    }

    /// All of them.
    #[inline(always)]
    pub fn range(self) -> Range<usize> {
        self.first as usize..(self.first + self.len) as usize
    }

    /// That of a number of the result.
    #[inline(always)]
    pub fn of(self, row: usize, column: usize) -> usize {
        self.zero.wrapping_add(row as u32 * self.width + column as u32) as usize
    }
}

/// A product of the rows of two factors, whose tiles blocks deal among themselves. A tile has 32 times `N` columns: as many as there are rows,
/// or fewer where a kernel needs registers for more than sums.
#[derive(Clone, Copy)]
pub struct TiledProduct<'g, const N: usize> {
    a: Global<'g, Eight>,
    b: Global<'g, Eight>,
    /// Rows of either.
    m: u32,
    n: u32,
    /// Groups of eight in a row.
    k: u32,
    /// Which rows of `a`, where it is not each in turn, and groups of eight from one to the next.
    listed: Option<&'g [u32]>,
    pitch: u32,
}

/// One whose tiles are as wide as high, of which a kernel that does nothing else has room for the sums.
pub type Product<'g> = TiledProduct<'g, 6>;

impl<'g, const N: usize> TiledProduct<'g, N> {
    /// Columns of a part, and of a tile.
    const PART_COLUMNS: usize = 8 * N;
    pub(crate) const COLUMNS: usize = PARTS[1] * Self::PART_COLUMNS;

    /// How many tiles so many columns take.
    #[inline(always)]
    pub(crate) const fn across(columns: u32) -> u32 {
        columns.div_ceil(Self::COLUMNS as u32)
    }

    /// Of rows of `k` groups of eight.
    #[inline(always)]
    pub fn new(a: Global<'g, Eight>, b: Global<'g, Eight>, k: u32) -> Self {
        // What is kept through the loop is kept in few registers, and an argument as it is in none.
        let [m, n] = [a, b].map(|rows| (rows.len() / k.max(1) as usize) as u32);
        Self { a, b, m, n, k, listed: None, pitch: k }
    }

    /// Of those rows of `a` that a list names, in its order, which lie `pitch` groups of eight behind each other: so rows are multiplied where
    /// they are.
    #[inline(always)]
    pub fn listed(a: Global<'g, Eight>, pitch: u32, rows: &'g [u32], b: Global<'g, Eight>, k: u32) -> Self {
        Self { m: rows.len() as u32, listed: Some(rows), pitch, ..Self::new(a, b, k) }
    }

    /// Rows of the result.
    #[inline(always)]
    pub fn m(&self) -> usize {
        self.m as usize
    }

    /// Columns of the result.
    #[inline(always)]
    pub fn n(&self) -> usize {
        self.n as usize
    }

    /// How many tiles the result has.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.m.div_ceil(ROWS as u32) * Self::across(self.n)
    }

    /// The tiles that have something of these rows.
    #[inline(always)]
    pub fn tiles_of(&self, rows: &Range<usize>) -> Range<usize> {
        let across = Self::across(self.n) as usize;
        rows.start / ROWS * across..rows.end.div_ceil(ROWS) * across
    }

    /// The first row and column of a tile.
    #[inline(always)]
    fn corner(&self, tile: u32) -> (u32, u32) {
        let across = Self::across(self.n);
        (tile / across * ROWS as u32, tile % across * Self::COLUMNS as u32)
    }

    /// Where a tile is in a result that lies tile by tile, in each its rows behind each other.
    #[inline(always)]
    pub fn places(&self, tile: u32) -> Places {
        let (row, column) = self.corner(tile);
        let (height, width) = ((self.m - row).min(ROWS as u32), (self.n - column).min(Self::COLUMNS as u32));
        let first = row * self.n + height * column;
        Places { zero: first.wrapping_sub(row * width + column), width, first, len: height * width }
    }

    /// The tile that has a number.
    #[inline(always)]
    pub fn tile_of(&self, row: usize, column: usize) -> u32 {
        (row / ROWS * Self::across(self.n) as usize + column / Self::COLUMNS) as u32
    }

    /// Computes a tile, which all threads of a block do together. `begin` gives what stores it, when the sums are there and registers are
    /// free again: that is given the row and the column of each number and itself.
    #[inline(always)]
    pub fn tile<T: Stored, S: Fn(usize, usize, T)>(
        &self,
        block: &Block<'_>,
        shared: &mut Shared<'_, ([Eight],)>,
        tile: u32,
        begin: impl Fn() -> S,
    ) {
        let &Self { a, b, m, n, k, listed, pitch } = self;
        // SAFETY: all threads of a warp go the same way, and none waits for another PE meanwhile.
        let (warps, warp) = (block.warps_of::<THREADS>(), unsafe { block.warp().whole() });
        let (index, (row, column)) = (block.warp_index() % warps, self.corner(tile));
        for pass in 0..WARPS.div_ceil(warps) {
            let part = pass * warps + index;
            let (down, right) = (part % PARTS[0] * PART_ROWS, part / PARTS[0] % PARTS[1] * Self::PART_COLUMNS);
            // One warp goes through those that have something.
            if warps == 1 && (row + down as u32 >= m || column + right as u32 >= n) {
                continue;
            }
            let threads = Threads { first: index * warp.size() + warp.rank(), step: warps * warp.size() };
            // Of those that one warp goes through, a part needs its own.
            let of = |first, rows, all| if warps == 1 { [first, first + rows] } else { [0, all] };
            let rows = [
                Rows { all: a, width: k, listed, pitch, first: row, last: m - 1, of: of(down, PART_ROWS, ROWS) },
                Rows {
                    all: b,
                    width: k,
                    listed: None,
                    pitch: k,
                    first: column,
                    last: n - 1,
                    of: of(right, Self::PART_COLUMNS, Self::COLUMNS),
                },
            ];
            let mut sums = Accumulator::<4, N>::fill(0.0);
            let (all,) = shared.sync(block);
            let [even, _] = stages(all);
            fetch(threads, even, rows, 0);
            // Behind the end of a row there are zeros.
            let mut at = 0;
            while at < k {
                let (all,) = shared.sync(block);
                let [even, odd] = stages(all);
                fetch(threads, odd, rows, at + GROUPS as u32);
                multiply(&mut sums, &warp, even, [down, right]);
                let (all,) = shared.sync(block);
                let [even, odd] = stages(all);
                fetch(threads, even, rows, at + 2 * GROUPS as u32);
                multiply(&mut sums, &warp, odd, [down, right]);
                at += 2 * GROUPS as u32;
            }
            let (all,) = shared.sync(block);
            sums.store(&warp, &result::<T>(all).cells(), down * TILE_STRIDE + right, TILE_STRIDE);
            let (all,) = shared.sync(block);
            let (all, store) = (result::<T>(all).all(), begin());
            for i in warp.strided(PART_ROWS * Self::PART_COLUMNS) {
                let (i, j) = (down + i / Self::PART_COLUMNS, right + i % Self::PART_COLUMNS);
                let (to_row, to_column) = (row + i as u32, column + j as u32);
                if part < WARPS && to_row <= rows[0].last && to_column <= rows[1].last {
                    store(to_row as usize, to_column as usize, all.get(i * TILE_STRIDE + j));
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

/// Rows of a factor, `width` groups of eight each.
#[derive(Clone, Copy)]
struct Rows<'g> {
    all: Global<'g, Eight>,
    width: u32,
    listed: Option<&'g [u32]>,
    pitch: u32,
    first: u32,
    last: u32,
    /// Which of a tile are fetched.
    of: [usize; 2],
}

/// Both stages.
#[inline(always)]
fn stages(all: SharedArray<'_, Eight>) -> [SharedArray<'_, Eight>; 2] {
    let (even, rest) = all.split_at(STAGE);
    [even, rest.split_at(STAGE).0]
}

/// The result, in their place. That there is room for a larger one is not known.
#[inline(always)]
fn result<T: Stored>(all: SharedArray<'_, Eight>) -> SharedArray<'_, T> {
    if size_of::<T>() == size_of::<bf16>() { all.cast() } else { all.cast().split_at(TILE * TILE_STRIDE).0 }
}

/// Begins to copy a stage of both factors, from group `at` of each row on.
#[inline(always)]
fn fetch(threads: Threads, to: SharedArray<'_, Eight>, [a, b]: [Rows<'_>; 2], at: u32) {
    let to = to.cells();
    let mut thread = threads.first;
    while thread < THREADS {
        a.fetch(thread, &to, 0, at);
        b.fetch(thread, &to, TILE, at);
        thread += threads.step;
    }
}

impl Rows<'_> {
    /// Begins to copy. What is behind the last row is not stored: that row stands in for it.
    #[inline(always)]
    fn fetch(self, thread: usize, to: &SharedCells<'_, Eight>, into: usize, at: u32) {
        // Eight neighbours have eight rows, and a thread of each row two groups that are four apart. The remainder is the row; the
        // compiler sees by it that all is inside.
        let (row, group) = ((thread / 32 * 8 + thread % 8) % (THREADS / 4), thread / 8 % 4);
        for j in (0..TILE).step_by(THREADS / 4) {
            if !(self.of[0]..self.of[1]).contains(&(row + j)) {
                continue;
            }
            let from = (self.first + (row + j) as u32).min(self.last);
            // A list is read anew for each stage, from a near cache.
            let from = self.listed.map_or(from, |listed| listed[from as usize]);
            let start = from as usize * self.pitch as usize;
            let from = self.all.slice(start..start + self.width as usize);
            let (to_row, at) = ((into + row + j) * (STRIDE / 8), at + group as u32);
            to.copy_async(to_row + group, from, at as usize);
            to.copy_async(to_row + group + GROUPS / 2, from, (at + GROUPS as u32 / 2) as usize);
        }
    }
}

/// Adds the products of a stage: of a part's rows of either factor, 16 elements of each at a time. It is no loop, which the compiler might keep,
/// with the sums in memory.
#[inline(always)]
fn multiply<const N: usize>(
    sums: &mut Accumulator<4, N>,
    warp: &WholeWarp<'_>,
    stage: SharedArray<'_, Eight>,
    [down, right]: [usize; 2],
) {
    const { assert!(DEPTH == 64 && PART_ROWS == 64) };
    let (stage, [a, b]) = (stage.cast().all(), [down * STRIDE, (TILE + right) * STRIDE]);
    multiply_16(sums, warp, &stage, [a, b]);
    multiply_16(sums, warp, &stage, [a + 16, b + 16]);
    multiply_16(sums, warp, &stage, [a + 32, b + 32]);
    multiply_16(sums, warp, &stage, [a + 48, b + 48]);
}

#[inline(always)]
fn multiply_16<const N: usize>(
    sums: &mut Accumulator<4, N>,
    warp: &WholeWarp<'_>,
    stage: &SharedAll<'_, bf16>,
    [a, b]: [usize; 2],
) {
    let (a, b) = (A::<_, 4>::load(warp, stage, a, STRIDE), B::<_, N>::load_transposed(warp, stage, b, STRIDE));
    sums.mma(warp, &a, &b);
}
