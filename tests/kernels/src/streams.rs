//! What the host's operations on streams are ordered with.

use congruent_device::{Group, Sym, kernels};

kernels! {
    /// Adds `more` to every word.
    pub fn raise(block, ctx, words: Sym<u64>, more: u64) {
        for i in block.strided(words.len()) {
            ctx.store(words, i, ctx.load(words, i) + more);
        }
    }
}
