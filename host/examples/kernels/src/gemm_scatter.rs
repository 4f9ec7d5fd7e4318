//! A product and a reduce-scatter in one kernel, and an all-gather behind them where every PE needs all sums: what is summed is on its way
//! while the next is multiplied.

use congruent_collectives::norm::rows_of_block;
use congruent_device::{Global, Group, Signal, Slice, SmallFloat, Sym, bf16, kernel_arg, kernels, opaque};
use congruent_fused::gemm::{Eight, Product};

kernel_arg! {
    /// Products that all PEs have a part of, and their sums. Each PE sums as many rows as the others.
    pub struct Sums {
        /// In three parts, each of a slot for each PE, tile by tile: what this PE has computed for others, and two banks of what each PE has
        /// computed for this one. They have fewer than 2^32 numbers.
        pub partials: Sym<f32>,
        /// Of each tile of this PE's rows, the turn that is here of each PE.
        pub arrived: Sym<Signal>,
        /// The sums, rounded: the rows of all PEs, of which each computes its own.
        pub y: Sym<bf16>,
        /// For each block of a launch, the turn whose sums are here of each PE.
        pub given: Sym<Signal>,
        /// How many products there have been with these sums, this one included.
        pub turn: u64,
        /// How many rows each PE has the sums of.
        pub rows: u32,
        /// Whether the kernel multiplies, and whether it sends and sums: to measure either alone.
        pub multiplies: u32,
        /// The same.
        pub scatters: u32,
        /// Whether all PEs are given all sums.
        pub gathers: u32,
    }
}

kernels! { in crate::PTX;
    /// Each PE's rows of `y` become those of `x` times the rows of `weights`, as in [`gemm`](crate::gemm::gemm), summed over all PEs: `x` has
    /// rows for all PEs, of which each PE has other columns. A block computes tiles of the next PE's rows, then of the one behind it, and so
    /// on, of its own at last, and sends each tile while it computes the next. A sum is in the order of the PEs, in `f32`, and rounded at the
    /// end, so that it has the same bits whoever computes what. Blocks of [`THREADS`](congruent_fused::gemm::THREADS) threads with
    /// [`SHARED_F32`](congruent_fused::gemm::SHARED_F32) bytes of shared memory, as many on each PE.
    pub fn gemm_scatter(
        block, ctx, sums: Sums, x: Slice<Eight>, weights: Slice<Eight>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let team = ctx.world();
        // What a proxy sends is waited for at the end alone.
        ctx.nonblocking(block, |nb| {
            let (me, n) = (team.me().index(), team.size());
            // Few numbers live through a product, which takes most of the registers: what follows from these is computed anew behind it.
            let product = |of: usize| {
                let k = opaque(k.into()) as u32;
                let each = sums.rows as usize * k as usize;
                // SAFETY: a launch is lent both to be read, which lasts until it is over.
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
            // SAFETY: it was awaited, with the tile that has it (MM-3). It is written again in the launch after the next, as said above.
            let value = |of| unsafe { ctx.settled(of)[0] };
            for (i, row) in rows.enumerate() {
                for column in block.strided(columns) {
                    let place = product.places(product.tile_of(row, column)).of(row, column);
                    let sum = (0..n).fold(0.0, |sum, from| sum + value(sums.partials.elem((slots + from) * len + place)));
                    ctx.store(mine, i * columns + column, bf16::narrow(sum));
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
}
