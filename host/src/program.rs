//! What the program `congruent` needs of the inside. It is for that program alone and changes without notice.

use congruent_collectives::{Algorithm, Collective, PlanView, Reduction};
use congruent_device::Sym;

use crate::comm::kernels;
use crate::launch::Target;
use crate::launches::Launcher;
use crate::{Grid, LaunchError, Stream, World};

pub use crate::cuda::connections::{VARIABLE as CONNECTIONS, advised as advised_connections, mps_listens};
pub use crate::cuda::{Driver, Functions, Properties};

/// Launches the kernel of a collective that moves data: to, from, root, plan, rounds.
///
/// # Errors
/// As [`World::launch`], and where there is no such kernel.
#[track_caller]
pub fn launch_move(
    (world, stream, grid): (&World, &Stream, Grid),
    collective: Collective,
    algorithm: Algorithm,
    args: (Sym<u8>, Sym<u8>, u32, PlanView, u64),
) -> Result<(), LaunchError> {
    let target = Target { shared: world.shared(), stream, grid, by: Launcher::call() };
    kernels::launch_move(&target, collective, algorithm, args)
}

/// Launches the kernel of a collective that reduces: to, from, operator, root, plan, rounds.
///
/// # Errors
/// As [`launch_move`].
#[track_caller]
pub fn launch_reduction(
    (world, stream, grid): (&World, &Stream, Grid),
    collective: Collective,
    algorithm: Algorithm,
    args: (Sym<u8>, Sym<u8>, Reduction, u32, PlanView, u64),
) -> Result<(), LaunchError> {
    let target = Target { shared: world.shared(), stream, grid, by: Launcher::call() };
    kernels::launch_reduction(&target, collective, algorithm, args)
}
