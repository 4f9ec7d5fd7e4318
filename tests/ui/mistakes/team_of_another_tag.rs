//! A kernel for one team is not launched with another.
use congruent::device::{Node, TeamView, kernels};
use congruent::{Grid, LaunchError, Stream, World};

kernels! {
    pub fn meet(block, ctx, node: TeamView<Node>) {
        ctx.barrier(block, &ctx.team(node));
    }
}

fn launch(world: &World, stream: &Stream) -> Result<(), LaunchError> {
    world.launch(stream, meet, Grid::one(32), (world.team(),))
}

fn main() {}
