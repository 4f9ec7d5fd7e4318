//! What the host's operations on streams are ordered with, and what a communicator launches.

use congruent_collectives::{PlanView, direct, ring};
use congruent_device::{Group, Sum, Sym, f16, kernels};

/// Of [`product`].
pub const MODULUS: u32 = 251;

kernels! {
    /// Adds `more` to every word.
    pub fn raise(block, ctx, words: Sym<u64>, more: u64) {
        for i in block.strided(words.len()) {
            ctx.store(words, i, ctx.load(words, i) + more);
        }
    }

    /// All-reduce by an operator of this crate's: the product, modulo a prime.
    pub fn product(block, ctx, dst: Sym<u32>, src: Sym<u32>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), dst, src, |a: u32, b: u32| a * b % MODULUS);
    }

    /// All-reduce of sums that are held in 16 bits, or in `f32`. Loads and stores reach all members.
    pub fn sum_of_halves(block, ctx, dst: Sym<f16>, src: Sym<f16>, in_halves: u32, plan: PlanView) {
        let mut coll = plan.enter(block, ctx);
        match in_halves {
            0 => direct::all_reduce(&mut coll, dst, src, Sum),
            _ => direct::all_reduce(&mut coll, dst, src, Sum.accumulate_in::<f16>()),
        }
    }
}
