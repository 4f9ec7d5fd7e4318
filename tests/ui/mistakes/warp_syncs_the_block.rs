//! A function that holds only a warp cannot sync the block.
use congruent::device::{Block, Group, Warp, kernels};

fn whole(block: &Block<'_>) {
    block.sync();
}

fn part(warp: &Warp<'_>) {
    whole(warp);
}

kernels! {
    pub fn both(block, _ctx) {
        part(&block.warp());
    }
}

fn main() {}
