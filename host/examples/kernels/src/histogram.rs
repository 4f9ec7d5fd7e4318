//! A histogram whose bins are spread over the PEs.

use congruent_device::{Ctx, Group, Place, Slice, Sym, World, kernels};

/// How many bins there are on all PEs together.
pub const BINS: usize = 1000;

/// Where a bin is: bin `b` of `n` PEs is on PE `b % n`, at `b / n`.
fn place(ctx: &Ctx<'_>, counts: Sym<u64>, bin: usize) -> Place<u64, World> {
    let pes = ctx.npes();
    counts.elem(bin / pes).at(ctx.world().rank(bin % pes))
}

kernels! { in crate::PTX;
    /// Counts keys with an atomic addition at the bin's PE for each of them.
    pub fn count_each(block, ctx, keys: Slice<u32>, counts: Sym<u64>) {
        let all = block.count() * block.size();
        for i in (block.index() * block.size() + block.rank()..keys.len()).step_by(all) {
            ctx.add(place(ctx, counts, keys[i] as usize % BINS), 1);
        }
        ctx.barrier(block, &ctx.world());
    }

    /// Counts keys in the shared memory of each block, and then adds a number to each bin, at the bin's PE.
    pub fn count_in_blocks(block, ctx, keys: Slice<u32>, counts: Sym<u64>; shared: ([u32; BINS],)) {
        let (bins,) = shared.sync(block);
        bins.part(block).fill_with(|_| 0);
        let (bins,) = shared.sync(block);
        let bins = bins.cells();
        let all = block.count() * block.size();
        for i in (block.index() * block.size() + block.rank()..keys.len()).step_by(all) {
            bins.add(keys[i] as usize % BINS, 1);
        }
        let (bins,) = shared.sync(block);
        let bins = bins.all();
        for bin in block.strided(BINS) {
            let count = bins.get(bin);
            if count > 0 {
                ctx.add(place(ctx, counts, bin), u64::from(count));
            }
        }
        ctx.barrier(block, &ctx.world());
    }
}
