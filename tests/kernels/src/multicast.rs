//! Multicast in kernels of a user's own.

use congruent_collectives::{PlanView, Sum, multimem};
use congruent_device::{Group, Sym, TeamView, f16, kernels};

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
}
