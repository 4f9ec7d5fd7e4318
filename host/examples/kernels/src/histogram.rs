//! A histogram whose bins are spread over the PEs.

use congruent_device::{Slice, Sym, kernels};
use congruent_fused::histogram;

/// How many bins there are on all PEs together.
pub const BINS: usize = 1000;

/// The bin of a key.
fn bin(key: u32) -> usize {
    key as usize % BINS
}

kernels! { in crate::PTX;
    /// Counts keys with an atomic addition at the bin's PE for each of them.
    pub fn count_each(block, ctx, keys: Slice<u32>, counts: Sym<u64>) {
        histogram::count_each(block, ctx, keys, counts, bin);
        ctx.barrier(block, &ctx.world());
    }

    /// Counts keys in the shared memory of each block, and then adds a number to each bin, at the bin's PE.
    pub fn count_in_blocks(block, ctx, keys: Slice<u32>, counts: Sym<u64>; shared: ([u32; BINS],)) {
        histogram::count_in_blocks(block, ctx, shared, keys, counts, bin);
        ctx.barrier(block, &ctx.world());
    }
}
