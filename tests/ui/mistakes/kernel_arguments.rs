//! A launch gives what the kernel takes.
use congruent::device::{Sym, kernels};
use congruent::{Grid, LaunchError, Stream, SymVec, World};

kernels! {
    pub fn double(block, ctx, values: Sym<f32>, times: u32) {}
}

fn of_another_type(world: &World, stream: &Stream, values: &SymVec<u32>) -> Result<(), LaunchError> {
    world.launch(stream, double, Grid::one(32), (values.view(), 2))
}

fn too_few(world: &World, stream: &Stream, values: &SymVec<f32>) -> Result<(), LaunchError> {
    world.launch(stream, double, Grid::one(32), (values.view(),))
}

fn main() {}
