//! Sums that are normalized where they are summed.

use congruent_collectives::PlanView;
use congruent_collectives::norm::{self, NormRows, rows_of_block};
use congruent_device::{Group, Slice, Sym, bf16, kernels};

/// The same kernel of each type.
macro_rules! of_types {
    ($($name:ident: $type:ty;)*) => {
        kernels! {$(
            /// Sums and normalizes rows that each block has just stored.
            pub fn $name(
                block, ctx, plan: PlanView, dst: Sym<$type>, src: Sym<$type>, residual: Sym<$type>,
                weights: Slice<$type>, epsilon: f32, given: Slice<$type>,
            ) {
                let len = weights.len();
                let mine = rows_of_block(given.len() / len, block.index(), block.count());
                for i in block.strided(mine.len() * len) {
                    ctx.store(src, mine.start * len + i, given[mine.start * len + i]);
                }
                block.sync();
                let rows = NormRows { dst, src, residual, weights, epsilon };
                norm::all_reduce(&mut plan.enter(block, ctx), rows);
            }
        )*}
    };
}

of_types! { norm_f32: f32; norm_bf16: bf16; }
