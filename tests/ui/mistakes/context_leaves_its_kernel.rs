//! Block and context belong to one launch: they cannot be kept, nor given to another thread.
use congruent::device::{Block, Ctx, Group};

fn keep(block: &Block<'_>) -> &'static Block<'static> {
    block
}

fn send(block: &Block<'_>, ctx: &Ctx<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(|| ctx.pe());
        scope.spawn(|| block.sync());
    });
}

fn main() {}
