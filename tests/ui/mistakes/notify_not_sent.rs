//! A signal that is prepared and not sent is most likely forgotten.
#![deny(unused_must_use)]
use congruent::device::{Semaphore, Sym, kernels};

kernels! {
    pub fn forget(_block, ctx, semaphore: Sym<Semaphore>) {
        semaphore.at(ctx.world().next()).post();
    }
}

fn main() {}
