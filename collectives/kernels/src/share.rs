//! Collectives that move data and compute nothing: one kernel for all types, over bytes.

use congruent_collectives::ring;
use congruent_device::{Sym, TeamView, kernels};

kernels! { in crate::PTX;
    /// A team barrier of every block.
    pub fn barrier(block, ctx, team: TeamView) {
        ctx.barrier(block, &ctx.team(team));
    }

    /// Gives every member the buffer of member `root`.
    pub fn broadcast(block, ctx, team: TeamView, buf: Sym<u8>, root: u64, plan: ring::View) {
        ring::broadcast(block, ctx, &ctx.team(team), buf, root as usize, &plan);
    }

    /// Gives every member every member's chunk.
    pub fn all_gather(block, ctx, team: TeamView, buf: Sym<u8>, plan: ring::View) {
        ring::all_gather(block, ctx, &ctx.team(team), buf, &plan);
    }
}
