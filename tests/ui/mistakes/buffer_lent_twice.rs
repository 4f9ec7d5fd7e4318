//! A launch has what it writes for itself: one buffer is lent once, or to be read only.
use congruent::device::{Slice, SliceMut, kernels};
use congruent::{Buffer, Grid, LaunchError, Stream, World};

kernels! {
    pub fn swap(block, ctx, a: SliceMut<f32>, b: SliceMut<f32>) {}
    pub fn copy(block, ctx, to: SliceMut<f32>, from: Slice<f32>) {}
}

fn twice(world: &World, stream: &Stream, values: &mut Buffer<f32>) -> Result<(), LaunchError> {
    world.launch(stream, swap, Grid::one(32), (&mut *values, &mut *values))
}

fn to_itself(world: &World, stream: &Stream, values: &mut Buffer<f32>) -> Result<(), LaunchError> {
    world.launch(stream, copy, Grid::one(32), (&mut *values, &*values))
}

fn main() {}
