//! A user's own work and an all-reduce.

use congruent_collectives::{PlanView, Sum, ring};
use congruent_device::{Group, Sym, kernels};

kernels! { in crate::PTX;
    /// Doubles this PE's numbers, then sums them over all PEs.
    pub fn scale_and_sum(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        for i in block.strided(numbers.len()) {
            ctx.store(numbers, i, ctx.load(numbers, i) * 2.0);
        }
        block.sync();
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
    }
}
