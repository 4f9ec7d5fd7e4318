//! An all-gather and a product in one: the rows of each PE are multiplied as soon as they are there.
//!
//! A block sends its part of this PE's rows to every other PE, and computes tiles while they are on their way: first of this PE's rows, then
//! of those of the PE before, and so on, each as soon as all blocks there have sent their parts. The PE before sends here first, so nobody is
//! sent to by all at once (Wang et al., "Overlap Communication with Dependent Computation via Decomposition", 2023; by tiles in one kernel:
//! Chang et al., "FLUX", 2024).

use congruent_device::matrix::Stored;
use congruent_device::{Block, Ctx, Global, Shared, Signal, Sym, kernel_arg, refuse};

use crate::gemm::{Eight, Product};

kernel_arg! {
    /// Rows that all PEs give each other.
    pub struct Rows {
        /// Those of all PEs, in the order of the PEs, as many of each; each PE fills its own part, and the call the others.
        pub all: Sym<Eight>,
        /// How far each block of each PE is: a signal for each block of a launch, for each PE.
        pub sent: Sym<Signal>,
        /// How many products there have been with these rows, this one included.
        pub turn: u64,
        /// Whether the call sends and awaits rows, and whether it multiplies: to measure either alone.
        pub gathers: u32,
        /// The same.
        pub multiplies: u32,
    }
}

/// Gives each number of the rows of all PEs times the rows of `weights`, with the row and the column where it is, to what `begin` gives: that
/// stores it, with a bias or an activation as it likes. `begin` is called when a tile is computed and registers are free again. Sums are
/// `f32`, and rounded at the end. A row has `k` groups of eight: where there are fewer numbers, zeros follow. There are fewer than 2^32
/// numbers in the result.
///
/// Blocks have [`THREADS`](crate::gemm::THREADS) threads and [`SHARED`](crate::gemm::SHARED) bytes of shared memory, or
/// [`SHARED_F32`](crate::gemm::SHARED_F32) where `T` is `f32`.
///
/// ```
/// use congruent_device::{Relaxed, Slice, SmallFloat, bf16, kernels};
/// use congruent_fused::gather_gemm::{Rows, gather_gemm};
/// use congruent_fused::gemm::Eight;
///
/// kernels! {
///     /// The first half of a layer: what is negative becomes 0.
///     pub fn relu_of_all(
///         block, ctx, rows: Rows, weights: Slice<Eight>, bias: Slice<bf16>, y: Relaxed<bf16>, k: u32;
///         shared: ([Eight],)
///     ) launch_bounds(384, 1) {
///         // SAFETY: the program has the rows for launches of this kernel alone, with a turn more each time, in as many blocks on each PE,
///         // and writes its own part between them.
///         unsafe {
///             gather_gemm(block, ctx, shared, rows, weights, k, || |row, column, sum: f32| {
///                 let sum = (sum + bias[column].widen()).max(0.0);
///                 y.store(row * bias.len() + column, bf16::narrow(sum));
///             });
///         }
///     }
/// }
/// ```
///
/// # Collective
/// Over all PEs, each with as many rows, and by all blocks of a launch, of which there are as many on each PE. Each PE sends its rows to
/// `n-1` others.
///
/// # Ordering
/// What a PE stored to its rows before the launch is multiplied everywhere: a signal comes behind the rows (MM-2), and is awaited before they
/// are read (MM-3). On return what this block has sent has arrived. Rows of other PEs stay until the next call.
///
/// # Panics
/// Where the rows of a PE are no whole number of `k` groups, `sent` has not a signal for each block of each PE, or there is too little shared
/// memory.
///
/// # Safety
/// From the first launch that calls it with these rows on, nobody else writes to `all` and `sent`, but that a PE stores its own part between
/// its launches. `turn` is one more at each call that gathers.
#[inline(always)]
#[track_caller]
pub unsafe fn gather_gemm<T: Stored, S: Fn(usize, usize, T)>(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    shared: &mut Shared<'_, ([Eight],)>,
    rows: Rows,
    weights: &[Eight],
    k: u32,
    begin: impl Fn() -> S,
) {
    if k == 0 || !rows.all.len().is_multiple_of(ctx.npes() * k as usize) {
        refuse!("each PE has as many rows as any other one, of k groups of eight");
    }
    if rows.sent.len() != ctx.npes() * block.count() {
        refuse!("gather_gemm has a signal for each block of each PE");
    }
    // What a proxy sends is waited for at the end alone.
    ctx.nonblocking(block, |nb| {
        // In the order in which they are awaited: who is first with one PE is last with another.
        if rows.gathers != 0 {
            let (team, blocks) = (ctx.world(), block.count());
            let (me, n) = (team.me().index(), team.size());
            // A PE that has begun has done with the rows of the launch before.
            ctx.sync(block, &team);
            let part = rows.all.chunk(me, n).chunk(block.index(), blocks);
            let sent = rows.sent.elem(me * blocks + block.index());
            for i in 1..n {
                let to = team.rank((me + i) % n);
                nb.put_signal(part.at(to), part, sent.at(to).set(rows.turn));
            }
        }
        let (me, n) = (ctx.world().me().index(), ctx.world().size());
        // SAFETY: the weights are borrowed for longer than a tile, which ends in a phase of its own. Nobody writes rows before the next call,
        // as the caller vouches, and that begins with a meeting of all PEs.
        let product =
            |from| unsafe { Product::new(Global::of(ctx.settled(rows.all.chunk(from, n))), Global::of(weights), k) };
        // Tiles of all PEs' rows are dealt in turn. Few numbers live through a product, which takes most of the registers.
        let tiles = product(me).tiles();
        let mut at = block.index() as u32;
        while at < tiles * n as u32 {
            let (before, me) = (at / tiles, me as u32);
            let from = if before > me { me + n as u32 - before } else { me - before } as usize;
            if rows.gathers != 0 && before > 0 {
                ctx.wait_all(block, rows.sent.chunk(from, n), rows.turn);
            }
            if rows.multiplies != 0 {
                let product = product(from);
                let first = from * product.m();
                product.tile(block, shared, at % tiles, || {
                    let store = begin();
                    move |row, column, sum| store(first + row, column, sum)
                });
            }
            at += block.count() as u32;
        }
    });
}
