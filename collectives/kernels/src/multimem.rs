//! Collectives through multicast addresses.

use congruent_collectives::{PlanView, Reduction, multimem};
use congruent_device::{Sym, kernels};

reductions! { in crate::MULTIMEM; (block, ctx, dst, src, op, root, plan)
    /// All-reduce through multicast addresses.
    all_reduce_multimem: multimem::all_reduce(dst, src, op) is ALL_REDUCE;
    /// Reduce-scatter through multicast addresses.
    reduce_scatter_multimem: multimem::reduce_scatter(dst, src, op) is REDUCE_SCATTER;
}

moves! { in crate::MULTIMEM; (block, ctx, dst, src, root, plan)
    /// All-gather through multicast addresses.
    all_gather_multimem: multimem::all_gather(dst, src) is ALL_GATHER;
    /// Broadcast through multicast addresses.
    broadcast_multimem: multimem::broadcast(dst, src, root) is BROADCAST;
}
