#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
use congruent_device::{Group, Sym, kernels};

kernels! {
    /// Moves numbers on, each time by one PE.
    pub fn shift(block, ctx, numbers: Sym<u32>, inbox: Sym<u32>, times: u32) {
        let team = ctx.world();
        for _ in 0..times {
            for i in block.strided(numbers.len()) {
                ctx.put_value(inbox.at(team.next()).elem(i), ctx.load(numbers, i));
            }
            // SAFETY: what came is not written again before the barrier.
            let came = unsafe { ctx.settled(inbox) };
            for i in block.strided(came.len()) {
                ctx.store(numbers, i, came[i]);
            }
            ctx.barrier(block, &team);
        }
    }

    /// The same, with the barrier that it lacks.
    pub fn shift_in_order(block, ctx, numbers: Sym<u32>, inbox: Sym<u32>, times: u32) {
        let team = ctx.world();
        for _ in 0..times {
            for i in block.strided(numbers.len()) {
                ctx.put_value(inbox.at(team.next()).elem(i), ctx.load(numbers, i));
            }
            ctx.barrier(block, &team);
            // SAFETY: all has come, and is not written again before the next barrier.
            let came = unsafe { ctx.settled(inbox) };
            for i in block.strided(came.len()) {
                ctx.store(numbers, i, came[i]);
            }
            ctx.barrier(block, &team);
        }
    }
}
