//! An all-gather and a product in one kernel: the rows of each PE are multiplied as soon as they are there.

use congruent_device::{Global, Relaxed, Signal, Slice, Sym, bf16, kernel_arg, kernels};

use congruent_fused::gemm::{Eight, Product};

kernel_arg! {
    /// Rows that all PEs give each other.
    pub struct Rows {
        /// Those of all PEs, in the order of the PEs; each fills its own part, and the kernel the others.
        pub all: Sym<Eight>,
        /// How far each block of each PE is: a signal for each block of a launch, for each PE.
        pub sent: Sym<Signal>,
        /// How many products there have been with these rows, this one included.
        pub turn: u64,
        /// Whether the kernel sends and awaits rows, and whether it multiplies: to measure either alone.
        pub gathers: u32,
        /// The same.
        pub multiplies: u32,
    }
}

kernels! { in crate::PTX;
    /// `y` becomes the rows of all PEs times the rows of `weights`, as in [`gemm`](crate::gemm::gemm). A block sends its part of this PE's
    /// rows to every other PE, and computes tiles while they are on their way: first of this PE's rows, then of those of the PE before, and
    /// so on, each as soon as all blocks there have sent their parts.
    pub fn gather_gemm(
        block, ctx, rows: Rows, weights: Slice<Eight>, y: Relaxed<bf16>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
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
            // SAFETY: the weights are lent to be read. Nobody writes rows before the next launch, which begins with a meeting of all PEs.
            let product = |from| unsafe {
                Product::new(Global::of(ctx.settled(rows.all.chunk(from, n))), Global::of(weights), k)
            };
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
                    let first = (from * product.m() * product.n()) as u32;
                    product.tile(block, shared, at % tiles, || |row, column, sum| {
                        y.store((first + row as u32 * product.n() as u32 + column as u32) as usize, sum);
                    });
                }
                at += block.count() as u32;
            }
        });
    }
}
