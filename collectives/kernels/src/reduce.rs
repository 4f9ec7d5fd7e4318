//! Reductions.

use congruent_collectives::{PlanView, Reduction, direct, one_shot, recursive, ring, tree};
use congruent_device::{Sym, kernels};

reductions! { in crate::PTX; (block, ctx, dst, src, op, root, plan)
    /// All-reduce along the ring.
    all_reduce_ring: ring::all_reduce(dst, src, op) is ALL_REDUCE;
    /// All-reduce in one exchange.
    all_reduce_one_shot: one_shot::all_reduce(dst, src, op) is ALL_REDUCE;
    /// All-reduce by a direct reduce-scatter and a direct all-gather.
    all_reduce_direct: direct::all_reduce(dst, src, op) is ALL_REDUCE;
    /// All-reduce up and down two binary trees.
    all_reduce_tree: tree::all_reduce(dst, src, op) is ALL_REDUCE;
    /// All-reduce by recursive doubling, or halving and doubling.
    all_reduce_recursive: recursive::all_reduce(dst, src, op) is ALL_REDUCE;
    /// Reduce-scatter along the ring.
    reduce_scatter_ring: ring::reduce_scatter(dst, src, op) is REDUCE_SCATTER;
    /// Reduce-scatter in one exchange.
    reduce_scatter_one_shot: one_shot::reduce_scatter(dst, src, op) is REDUCE_SCATTER;
    /// Reduce-scatter, each member reading what it needs.
    reduce_scatter_direct: direct::reduce_scatter(dst, src, op) is REDUCE_SCATTER;
    /// Reduce-scatter by recursive halving.
    reduce_scatter_recursive: recursive::reduce_scatter(dst, src, op) is REDUCE_SCATTER;
    /// Reduce along the ring.
    reduce_ring: ring::reduce(dst, src, op, root) is REDUCE;
    /// Reduce, each member combining a part for the root.
    reduce_direct: direct::reduce(dst, src, op, root) is REDUCE;
    /// Reduce up a binary tree.
    reduce_tree: tree::reduce(dst, src, op, root) is REDUCE;
}
