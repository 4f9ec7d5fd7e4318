//! The same bytes at two widths from two PEs at once, as the safe `Sym::cast` allows: undefined for Rust's atomics, and defined here,
//! where the CPU machine accesses them by assembly.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use congruent::device::{Group, Sym, kernels};
use congruent::{Error, Grid, World};

const TIMES: u32 = 20_000;

kernels! {
    /// PE 0 counts in a whole word and stores to another, PE 1 counts in the upper half of the first and reads those of the other:
    /// they never get less.
    pub fn count(block, ctx, words: Sym<u64>, wrong: Sym<u32>) {
        let (pe, home) = (ctx.world().me(), ctx.world().rank(0));
        let halves = words.cast::<u32>();
        ctx.barrier(block, &ctx.world());
        if block.leader() {
            let mut last = [0, 0];
            for i in 1..=TIMES {
                if pe == home {
                    ctx.fetch_add(words.elem(0).at(home), 1);
                    ctx.put_value(words.elem(1).at(home), u64::from(i) << 32 | u64::from(i));
                } else {
                    ctx.fetch_add(halves.elem(1).at(home), 1);
                    for (half, last) in last.iter_mut().enumerate() {
                        let now = ctx.get_value(halves.elem(2 + half).at(home));
                        if now < *last {
                            ctx.fetch_add(wrong.at(home), 1);
                        }
                        *last = now;
                    }
                }
            }
        }
        ctx.barrier(block, &ctx.world());
    }
}

#[test]
fn words_and_halves_of_them_are_accessed_at_once() {
    let told = World::builder().heap(8 << 20).local(2, |world| {
        let (words, wrong, stream) = (world.alloc::<u64>(2)?, world.alloc::<u32>(1)?, world.stream()?);
        world.run(&stream, count, Grid::one(1), (words.view(), wrong.view()))?;
        Ok::<_, Error>((words.to_vec()?, wrong.to_vec()?))
    });
    let both = u64::from(TIMES) << 32 | u64::from(TIMES);
    assert_eq!(told.unwrap()[0], (vec![both; 2], vec![0]));
}
