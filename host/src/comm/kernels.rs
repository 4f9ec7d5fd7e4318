//! Which fixed kernel does what.

use congruent_collectives::{Algorithm, Collective, PlanView, Reduction};
use congruent_device::Sym;
use congruent_kernels as kernels;

use crate::LaunchError;
use crate::launch::Target;

/// Arguments of the kernels that move data.
pub(crate) type Moves = (Sym<u8>, Sym<u8>, u32, PlanView, u64);

/// Arguments of the kernels that reduce.
pub(crate) type Reduces = (Sym<u8>, Sym<u8>, Reduction, u32, PlanView, u64);

/// Launches the kernel of a collective that moves data.
pub(crate) fn launch_move(
    target: &Target<'_>,
    collective: Collective,
    algorithm: Algorithm,
    args: Moves,
) -> Result<(), LaunchError> {
    match (collective, algorithm) {
        (Collective::Broadcast, Algorithm::Ring) => target.launch(kernels::broadcast_ring, args),
        (Collective::Broadcast, Algorithm::Direct) => target.launch(kernels::broadcast_direct, args),
        (Collective::Broadcast, Algorithm::Tree) => target.launch(kernels::broadcast_tree, args),
        (Collective::Broadcast, Algorithm::Multimem) => target.launch(kernels::broadcast_multimem, args),
        (Collective::Scatter, Algorithm::Direct) => target.launch(kernels::scatter_direct, args),
        (Collective::Gather, Algorithm::Direct) => target.launch(kernels::gather_direct, args),
        (Collective::AllGather, Algorithm::Ring) => target.launch(kernels::all_gather_ring, args),
        (Collective::AllGather, Algorithm::OneShot) => target.launch(kernels::all_gather_one_shot, args),
        (Collective::AllGather, Algorithm::Direct) => target.launch(kernels::all_gather_direct, args),
        (Collective::AllGather, Algorithm::Recursive) => target.launch(kernels::all_gather_recursive, args),
        (Collective::AllGather, Algorithm::Multimem) => target.launch(kernels::all_gather_multimem, args),
        (Collective::AllToAll, Algorithm::OneShot) => target.launch(kernels::all_to_all_one_shot, args),
        (Collective::AllToAll, Algorithm::Direct) => target.launch(kernels::all_to_all_direct, args),
        (Collective::AllToAll, Algorithm::Bruck) => target.launch(kernels::all_to_all_bruck, args),
        _ => Err(LaunchError::NoSuchKernel { collective, algorithm }),
    }
}

/// Launches the kernel of a collective that reduces.
pub(crate) fn launch_reduction(
    target: &Target<'_>,
    collective: Collective,
    algorithm: Algorithm,
    args: Reduces,
) -> Result<(), LaunchError> {
    match (collective, algorithm) {
        (Collective::AllReduce, Algorithm::Ring) => target.launch(kernels::all_reduce_ring, args),
        (Collective::AllReduce, Algorithm::OneShot) => target.launch(kernels::all_reduce_one_shot, args),
        (Collective::AllReduce, Algorithm::Direct) => target.launch(kernels::all_reduce_direct, args),
        (Collective::AllReduce, Algorithm::Tree) => target.launch(kernels::all_reduce_tree, args),
        (Collective::AllReduce, Algorithm::Recursive) => target.launch(kernels::all_reduce_recursive, args),
        (Collective::AllReduce, Algorithm::Multimem) => target.launch(kernels::all_reduce_multimem, args),
        (Collective::ReduceScatter, Algorithm::Ring) => target.launch(kernels::reduce_scatter_ring, args),
        (Collective::ReduceScatter, Algorithm::OneShot) => target.launch(kernels::reduce_scatter_one_shot, args),
        (Collective::ReduceScatter, Algorithm::Direct) => target.launch(kernels::reduce_scatter_direct, args),
        (Collective::ReduceScatter, Algorithm::Recursive) => target.launch(kernels::reduce_scatter_recursive, args),
        (Collective::ReduceScatter, Algorithm::Multimem) => target.launch(kernels::reduce_scatter_multimem, args),
        (Collective::Reduce, Algorithm::Ring) => target.launch(kernels::reduce_ring, args),
        (Collective::Reduce, Algorithm::Direct) => target.launch(kernels::reduce_direct, args),
        (Collective::Reduce, Algorithm::Tree) => target.launch(kernels::reduce_tree, args),
        _ => Err(LaunchError::NoSuchKernel { collective, algorithm }),
    }
}
