//! A kernel is lent buffers, and not the host's memory.
use congruent::device::{Slice, kernels};
use congruent::{Grid, LaunchError, Stream, World};

kernels! {
    pub fn sum(block, ctx, values: Slice<f32>) {}
}

fn a_slice(world: &World, stream: &Stream, values: &[f32]) -> Result<(), LaunchError> {
    world.launch(stream, sum, Grid::one(32), (values,))
}

fn a_pointer(world: &World, stream: &Stream, values: *const f32) -> Result<(), LaunchError> {
    world.launch(stream, sum, Grid::one(32), (values,))
}

fn main() {}
