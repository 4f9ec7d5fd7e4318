//! Collectives that move data and compute nothing.

use congruent_collectives::{PlanView, bruck, direct, one_shot, recursive, ring, tree};
use congruent_device::{Sym, TeamView, kernels};

kernels! { in crate::PTX;
    /// A team barrier of every block.
    pub fn barrier(block, ctx, team: TeamView, rounds: u64) {
        let team = ctx.team(team);
        for _ in 0..rounds {
            ctx.barrier(block, &team);
        }
    }
}

moves! { in crate::PTX; (block, ctx, dst, src, root, plan)
    /// All-gather along the ring.
    all_gather_ring: ring::all_gather(dst, src) is ALL_GATHER;
    /// All-gather in one exchange.
    all_gather_one_shot: one_shot::all_gather(dst, src) is ALL_GATHER;
    /// All-gather by puts to all.
    all_gather_direct: direct::all_gather(dst, src) is ALL_GATHER;
    /// All-gather by dissemination.
    all_gather_recursive: recursive::all_gather(dst, src) is ALL_GATHER;
    /// All-to-all in one exchange.
    all_to_all_one_shot: one_shot::all_to_all(dst, src) is ALL_TO_ALL;
    /// All-to-all by puts to all.
    all_to_all_direct: direct::all_to_all(dst, src) is ALL_TO_ALL;
    /// All-to-all in a logarithm of the team's size in steps.
    all_to_all_bruck: bruck::all_to_all(dst, src) is ALL_TO_ALL;
    /// Broadcast along the ring.
    broadcast_ring: ring::broadcast(dst, src, root) is BROADCAST;
    /// Broadcast that each member fetches.
    broadcast_direct: direct::broadcast(dst, src, root) is BROADCAST;
    /// Broadcast down a binary tree.
    broadcast_tree: tree::broadcast(dst, src, root) is BROADCAST;
    /// Scatter that each member fetches.
    scatter_direct: direct::scatter(dst, src, root) is SCATTER;
    /// Gather that each member puts.
    gather_direct: direct::gather(dst, src, root) is GATHER;
}
