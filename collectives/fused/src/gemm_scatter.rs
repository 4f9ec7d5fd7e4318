//! A product and a reduce-scatter in one, and an all-gather behind them where every PE needs all sums: what is summed is on its way while the
//! next is multiplied.
//!
//! A block computes tiles of the next PE's rows, then of the one behind it, and so on, of its own at last, and sends each tile while it computes
//! the next (Wang et al., "Overlap Communication with Dependent Computation via Decomposition", 2023; by tiles in one kernel: Chang et al.,
//! "FLUX", 2024). Tiles are not added where they arrive: each PE has a slot for every other one, and a sum is in the order of the PEs, in
//! `f32`, and rounded at the end, so that it has the same bits whoever computes what.

use congruent_collectives::norm::rows_of_block;
use congruent_device::{Block, Ctx, Global, Group, Shared, Signal, Sym, bf16, kernel_arg, opaque, refuse};

use crate::gemm::{Eight, Product, tiles};

kernel_arg! {
    /// Products that all PEs have a part of, and their sums. Each PE sums as many rows as the others.
    pub struct Sums {
        /// In three parts, each of a slot for each PE, tile by tile: what this PE has computed for others, and two banks of what each PE has
        /// computed for this one: [`partials`](Sums::partials) numbers, fewer than 2^32.
        pub partials: Sym<f32>,
        /// Of each tile of this PE's rows, the turn that is here of each PE: [`arrived`](Sums::arrived) signals.
        pub arrived: Sym<Signal>,
        /// The sums, rounded: the rows of all PEs, of which each computes its own.
        pub y: Sym<bf16>,
        /// For each block of a launch, the turn whose sums are here of each PE.
        pub given: Sym<Signal>,
        /// How many products there have been with these sums, this one included.
        pub turn: u64,
        /// How many rows each PE has the sums of.
        pub rows: u32,
        /// Whether the call multiplies, and whether it sends and sums: to measure either alone.
        pub multiplies: u32,
        /// The same.
        pub scatters: u32,
        /// Whether all PEs are given all sums.
        pub gathers: u32,
    }
}

impl Sums {
    /// How many numbers `partials` has, for so many rows of each PE.
    #[inline(always)]
    pub const fn partials(npes: usize, rows: usize, columns: usize) -> usize {
        3 * npes * rows * columns
    }

    /// How many signals `arrived` has.
    #[inline(always)]
    pub fn arrived(npes: usize, rows: usize, columns: usize) -> usize {
        npes * tiles(rows as u32, columns as u32) as usize
    }
}

/// Each PE's rows of `y` become what `round` makes of the row, the column and the sum over all PEs of `x` times the rows of `weights`: a
/// rounded number, with a bias or an activation as you like. `x` has rows for all PEs, of which each PE has other columns, and so have the
/// weights. A row of both has `k` groups of eight: where there are fewer numbers, zeros follow. Rows are numbered as those of all PEs.
///
/// Blocks have [`THREADS`](crate::gemm::THREADS) threads and [`SHARED_F32`](crate::gemm::SHARED_F32) bytes of shared memory.
///
/// ```
/// use congruent_device::{Slice, SmallFloat, bf16, kernels};
/// use congruent_fused::gemm::Eight;
/// use congruent_fused::gemm_scatter::{Sums, gemm_scatter};
///
/// kernels! {
///     /// The second half of a layer, with a bias that is added once.
///     pub fn sums_and_bias(
///         block, ctx, sums: Sums, x: Slice<Eight>, weights: Slice<Eight>, bias: Slice<bf16>, k: u32;
///         shared: ([Eight],)
///     ) launch_bounds(384, 1) {
///         let round = |_, column: usize, sum| bf16::narrow(sum + bias[column].widen());
///         // SAFETY: the program has the sums for launches of this kernel alone, with a turn more each time, in as many blocks on each PE.
///         unsafe { gemm_scatter(block, ctx, shared, sums, [x, weights], k, round) };
///     }
/// }
/// ```
///
/// # Collective
/// Over all PEs, and by all blocks of a launch, of which there are as many on each PE. Each PE sends `n-1` times its rows of sums in `f32`,
/// and where all are given all sums its rounded rows to `n-1` others.
///
/// # Ordering
/// A tile comes with its signal (MM-2), which is awaited before it is summed (MM-3). On return the sums of this block's
/// [rows](rows_of_block) are there, and where all are given all sums those of the same block of every PE. `x` and `weights` are this launch's;
/// nobody reads `y` of another PE.
///
/// # Panics
/// Where `x` has not as many rows for each PE as are summed, a length is not what [`Sums`] says, or there is too little shared memory.
///
/// # Safety
/// From the first launch that calls it with these sums on, nobody else writes to `partials` and `arrived`. `turn` is one more at each call that
/// scatters.
#[inline(always)]
#[track_caller]
pub unsafe fn gemm_scatter(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    shared: &mut Shared<'_, ([Eight],)>,
    sums: Sums,
    [x, weights]: [&[Eight]; 2],
    k: u32,
    round: impl Fn(usize, usize, f32) -> bf16,
) {
    let team = ctx.world();
    // What a proxy sends is waited for at the end alone.
    ctx.nonblocking(block, |nb| {
        let (me, n) = (team.me().index(), team.size());
        sums.check(block, n, [x, weights], k);
        // Few numbers live through a product, which takes most of the registers: what follows from these is computed anew behind it.
        let product = |of: usize| {
            let k = opaque(k.into()) as u32;
            let each = sums.rows as usize * k as usize;
            // SAFETY: both are borrowed for longer than a tile, which ends in a phase of its own.
            unsafe { Product::new(Global::of(&x[of * each..(of + 1) * each]), Global::of(weights), k) }
        };
        let tile_of = |at: u32| {
            let (tiles, me) = (product(me).tiles(), opaque(me as u64) as usize);
            let to = me + 1 + (at / tiles) as usize;
            (if to < n { to } else { to - n }, at % tiles)
        };
        // This PE puts into the bank of the launch before the last one. In the last one it has awaited what each PE sent, which that PE
        // did behind the launch that summed what is in this bank (MM-2, MM-3). So nobody waits for room.
        let bank = || 1 + (opaque(sums.turn) % 2) as usize;
        // Where a tile for a PE is in a slot.
        let places = |to, tile, slot: usize| {
            let product = product(to);
            product.places(tile).from(slot * product.m() * product.n())
        };
        let mut at = block.index() as u32;
        while at < product(me).tiles() * n as u32 {
            if sums.multiplies != 0 {
                let (to, tile) = tile_of(at);
                product(to).tile(block, shared, tile, || {
                    let (to, tile) = tile_of(at);
                    let places = places(to, tile, if to == me { bank() * n + me } else { to });
                    move |row, column, sum| ctx.store(sums.partials, places.of(row, column), sum)
                });
            }
            if sums.scatters != 0 {
                let (to, tile) = tile_of(at);
                let rank = team.rank(to);
                let arrived = sums.arrived.elem(tile as usize * n + me).at(rank).set(sums.turn);
                if to == me {
                    ctx.notify(block, arrived);
                } else {
                    // What other threads have computed is sent, too.
                    block.sync();
                    let slots = [to, bank() * n + me];
                    let [here, there] = slots.map(|slot| sums.partials.slice(places(to, tile, slot).range()));
                    nb.put_signal(there.at(rank), here, arrived);
                }
            }
            at += block.count() as u32;
        }
        if sums.scatters == 0 {
            return;
        }
        let product = product(me);
        let (rows, columns) = (rows_of_block(product.m(), block.index(), block.count()), product.n());
        let awaited = product.tiles_of(&rows);
        // With these signals come the tiles (MM-3).
        ctx.wait_all(block, sums.arrived.slice(awaited.start * n..awaited.end * n), sums.turn);
        let (len, slots) = (product.m() * columns, bank() * n);
        let mine = sums.y.chunk(me, n).slice(rows.start * columns..rows.end * columns);
        // SAFETY: it was awaited, with the tile that has it (MM-3). It is written again in the launch after the next, as said above, and by
        // nobody else, as the caller vouches.
        let value = |of| unsafe { ctx.settled(of)[0] };
        for (i, row) in rows.enumerate() {
            for column in block.strided(columns) {
                let place = product.places(product.tile_of(row, column)).of(row, column);
                let sum = (0..n).fold(0.0, |sum, from| sum + value(sums.partials.elem((slots + from) * len + place)));
                ctx.store(mine, i * columns + column, round(me * product.m() + row, column, sum));
            }
        }
        if sums.gathers != 0 {
            block.sync();
            let given = sums.given.chunk(block.index(), block.count());
            // Every PE has begun this launch, as its products are here: so nobody reads the sums of the one before.
            for i in 1..n {
                let to = team.rank((me + i) % n);
                nb.put_signal(mine.at(to), mine, given.elem(me).at(to).set(sums.turn));
            }
            for i in 1..n {
                let from = (me + n - i) % n;
                ctx.wait_at_least(block, given.elem(from).from_rank(team.rank(from)), sums.turn);
            }
        }
    });
}

impl Sums {
    /// Refuses lengths that do not fit each other.
    #[inline(always)]
    #[track_caller]
    fn check(&self, block: &Block<'_>, n: usize, [x, weights]: [&[Eight]; 2], k: u32) {
        // Nothing that follows from these is kept in a register for later.
        let [n, rows, k] = [n as u64, self.rows.into(), k.into()].map(|value| opaque(value) as usize);
        if k == 0 || !weights.len().is_multiple_of(k) || x.len() != n * rows * k {
            refuse!("rows and weights have k groups of eight, and each PE has rows for all PEs, as many for each");
        }
        let columns = weights.len() / k;
        if self.partials.len() != Self::partials(n, rows, columns) || self.y.len() != n * rows * columns {
            refuse!("gemm_scatter has partial products and sums of as many numbers as Sums says");
        }
        if self.arrived.len() != Self::arrived(n, rows, columns) || self.given.len() != n * block.count() {
            refuse!("gemm_scatter has signals for each tile of each PE, and for each block of each PE");
        }
    }
}
