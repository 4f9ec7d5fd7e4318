//! Semaphores are not plain data, so no put can overwrite one.
use congruent::device::{Semaphore, Sym, kernels};

kernels! {
    pub fn overwrite(block, ctx, semaphores: Sym<Semaphore>) {
        ctx.put(block, semaphores.at(ctx.world().next()), semaphores);
    }
}

fn main() {}
