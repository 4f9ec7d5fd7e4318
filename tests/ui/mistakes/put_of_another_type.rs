//! Destination and source have one type.
use congruent::device::{Sym, kernels};

kernels! {
    pub fn send(block, ctx, whole: Sym<u32>, real: Sym<f32>) {
        ctx.put(block, whole.at(ctx.world().next()), real);
    }
}

fn main() {}
