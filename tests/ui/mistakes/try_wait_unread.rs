//! Whether a bounded wait got what it waited for is not to be overlooked.
#![deny(unused_must_use)]
use std::time::Duration;

use congruent::device::{Semaphore, Sym, kernels};

kernels! {
    pub fn hope(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.try_wait(block, semaphore, 1, Duration::from_millis(1));
    }
}

fn main() {}
