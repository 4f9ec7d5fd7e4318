//! One operation takes places of one team.
use congruent::device::{Node, Sym, TeamView, kernels};

kernels! {
    pub fn add(block, ctx, values: Sym<f32>, node: TeamView<Node>) {
        let (world, node) = (ctx.world(), ctx.team(node));
        ctx.combine(block, [values.at(world.me())], [values.at(world.next()), values.at(node.next())], |a, b| a + b);
    }
}

fn main() {}
