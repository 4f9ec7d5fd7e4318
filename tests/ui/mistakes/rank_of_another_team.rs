//! A rank of one team is not a rank of another.
use congruent::device::{Ctx, Node, Rank, Team, World};

fn neighbour(node: &Team<'_, Node>) -> Rank<Node> {
    node.next()
}

pub fn mixed(ctx: &Ctx<'_>, node: &Team<'_, Node>) -> bool {
    let world: Rank<World> = ctx.world().next();
    neighbour(node) == world
}

fn main() {}
