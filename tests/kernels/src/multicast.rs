//! Multicast in kernels of a user's own.

use congruent_collectives::norm::{self, NormRows, Quantized, rows_of_block};
use congruent_collectives::{PlanView, Sum, multimem};
use congruent_device::{Fp8E4M3, Group, Slice, Sym, TeamView, bf16, f16, kernels};

use crate::Crew;

kernels! {
    /// Sums with an operator that is known when the kernel is compiled.
    pub fn sum_halves(block, ctx, dst: Sym<f16>, src: Sym<f16>, plan: PlanView) {
        multimem::all_reduce(&mut plan.enter(block, ctx), dst, src, Sum);
    }

    /// Whether the team has multicast; if so, every member stores its `src` in its chunk of everybody's `dst`.
    pub fn store_to_all(block, ctx, team: TeamView<Crew>, dst: Sym<u32>, src: Sym<u32>, has: Sym<u64>) {
        let team = ctx.team(team);
        let all = team.multicast(dst.chunk(team.me().index(), team.size()));
        if block.leader() {
            ctx.store(has, 0, u64::from(all.is_some()));
        }
        if let Some(all) = all {
            ctx.put_multicast(block, all, src);
            ctx.barrier(block, &team);
        }
    }

    /// As `norm_f32`, through multicast addresses.
    pub fn multimem_norm<T in [f32, bf16]>(
        block, ctx, plan: PlanView, dst: Sym<T>, src: Sym<T>, residual: Sym<T>, weights: Slice<T>, epsilon: f32, given: Slice<T>,
        seen: Sym<T>,
    ) {
        let len = weights.len();
        let mine = rows_of_block(given.len() / len, block.index(), block.count());
        let (first, whole) = (mine.start * len, mine.len() * len);
        let mut coll = plan.enter(block, ctx);
        for i in block.strided(whole) {
            ctx.store(src, first + i, given[first + i]);
        }
        norm::multimem(&mut coll, NormRows { dst, src, residual, weights, epsilon });
        for i in block.strided(whole) {
            ctx.store(seen, first + i, ctx.load(dst, first + (i + 1) % whole));
        }
    }

    /// As `norm_quantized`, through multicast addresses.
    pub fn multimem_norm_quantized(
        block, ctx, plan: PlanView, numbers: Sym<Fp8E4M3>, scales: Sym<f32>, src: Sym<bf16>, residual: Sym<bf16>,
        weights: Slice<bf16>, group: u64,
    ) {
        let dst = Quantized { numbers, scales, group: group as usize };
        norm::multimem(&mut plan.enter(block, ctx), NormRows { dst, src, residual, weights, epsilon: 0.5 });
    }
}
