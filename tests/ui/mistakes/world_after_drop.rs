//! Nothing is launched on a world that is gone.
use congruent::device::{Sym, kernels};
use congruent::{Grid, LaunchError, Stream, SymVec, World};

kernels! {
    pub fn idle(block, ctx, values: Sym<f32>) {}
}

fn late(world: World, stream: Stream, values: SymVec<f32>) -> Result<(), LaunchError> {
    drop(world);
    world.launch(&stream, idle, Grid::one(32), (values.view(),))
}

fn main() {}
