//! A layer of a network whose matrices are divided among PEs.

use core::ops::Range;

use congruent_collectives::PlanView;
use congruent_collectives::norm::{self, NormRows, rows_of_block};
use congruent_device::{Group, Slice, Sym, kernels};

/// Numbers of a token.
pub const HIDDEN: usize = 64;
/// Added to the mean of squares.
pub const EPSILON: f32 = 1e-5;

/// The columns of a matrix that a PE has, of so many PEs.
pub fn columns(pe: usize, pes: usize) -> Range<usize> {
    pe * HIDDEN / pes..(pe + 1) * HIDDEN / pes
}

/// A number of a product: some columns of a row of the matrix, times as many numbers of a token, in order.
pub fn partial(row: &[f32], columns: Range<usize>, x: impl Fn(usize) -> f32) -> f32 {
    columns.fold(0.0, |sum, j| sum + row[j] * x(j))
}

kernels! { in crate::PTX;
    /// A layer: `tokens` become their sum with the product of `normed`, and that is normalized to `normed` anew.
    pub fn multiply_sum_and_norm(
        block, ctx, plan: PlanView, normed: Sym<f32>, partials: Sym<f32>, tokens: Sym<f32>, matrix: Slice<f32>,
        weights: Slice<f32>,
    ) {
        let mine = columns(ctx.pe().index(), ctx.npes());
        for token in rows_of_block(tokens.len() / HIDDEN, block.index(), block.count()) {
            for i in block.strided(HIDDEN) {
                let row = &matrix[i * HIDDEN..(i + 1) * HIDDEN];
                let product = partial(row, mine.clone(), |j| ctx.load(normed, token * HIDDEN + j));
                ctx.store(partials, token * HIDDEN + i, product);
            }
        }
        block.sync();
        let rows = NormRows { dst: normed, src: partials, residual: tokens, weights, epsilon: EPSILON };
        norm::all_reduce(&mut plan.enter(block, ctx), rows);
    }
}
