//! Sums that are normalized where they are summed.

use congruent_collectives::PlanView;
use congruent_collectives::norm::{self, NormRows, Quantized, rows_of_block};
use congruent_device::{Fp8E4M3, Group, Slice, Sym, bf16, kernels};

/// The same kernel of each type.
macro_rules! of_types {
    ($($name:ident: $type:ty;)*) => {
        kernels! {$(
            /// Sums and normalizes rows that each block has just stored; and in the same session each thread looks at what another has.
            pub fn $name(
                block, ctx, plan: PlanView, dst: Sym<$type>, src: Sym<$type>, residual: Sym<$type>,
                weights: Slice<$type>, epsilon: f32, given: Slice<$type>, seen: Sym<$type>,
            ) {
                let len = weights.len();
                let mine = rows_of_block(given.len() / len, block.index(), block.count());
                let (first, whole) = (mine.start * len, mine.len() * len);
                let mut coll = plan.enter(block, ctx);
                for i in block.strided(whole) {
                    ctx.store(src, first + i, given[first + i]);
                }
                let rows = NormRows { dst, src, residual, weights, epsilon };
                norm::all_reduce(&mut coll, rows);
                for i in block.strided(whole) {
                    ctx.store(seen, first + i, ctx.load(dst, first + (i + 1) % whole));
                }
            }
        )*}
    };
}

of_types! { norm_f32: f32; norm_bf16: bf16; }

kernels! {
    /// Sums and normalizes rows to 8 bits, with a scale for each group.
    pub fn norm_quantized(
        block, ctx, plan: PlanView, numbers: Sym<Fp8E4M3>, scales: Sym<f32>, src: Sym<bf16>, residual: Sym<bf16>,
        weights: Slice<bf16>, group: u64,
    ) {
        let dst = Quantized { numbers, scales, group: group as usize };
        norm::all_reduce(&mut plan.enter(block, ctx), NormRows { dst, src, residual, weights, epsilon: 0.5 });
    }
}
