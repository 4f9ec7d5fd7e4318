//! Softmax and RMSNorm of rows, a block for each row, four numbers at a time.

use core::array::from_fn;

use congruent_device::math::{self, multiply_add};
use congruent_device::{Group, Max, Pack, RowsMut, Slice, Sum, kernels};

/// Added to the mean of squares.
pub const EPSILON: f32 = 1e-5;

/// Four numbers, which one access moves.
pub type Four = Pack<f32, 4>;

kernels! { in crate::PTX;
    /// Each row becomes its softmax: e to the power of each number, divided by the sum of these powers.
    pub fn softmax(block, ctx, rows: RowsMut<Four>) {
        for (_, mut row) in rows.iter_mut(block) {
            let mut most = [f32::NEG_INFINITY; 4];
            for (_, x) in row.iter_mut(block) {
                let x = *x;
                most = from_fn(|j| most[j].max(x[j]));
            }
            let [a, b, c, d] = most;
            // Less the largest, no power is more than 1, so none overflows; and the quotients stay what they are.
            let most = block.reduce(a.max(b).max(c.max(d)), Max);
            let mut sums = [0.0; 4];
            for (_, x) in row.iter_mut(block) {
                let old = *x;
                let powers = Pack::from_fn(|j| math::exp(old[j] - most));
                sums = from_fn(|j| sums[j] + powers[j]);
                *x = powers;
            }
            let scale = 1.0 / block.reduce(total(sums), Sum);
            for (_, x) in row.iter_mut(block) {
                let power = *x;
                *x = Pack::from_fn(|j| power[j] * scale);
            }
        }
    }

    /// Each row is divided by the root of the mean of its squares; then number `i` is multiplied by weight `i`.
    pub fn rms_norm(block, ctx, rows: RowsMut<Four>, weights: Slice<Four>) {
        for (_, mut row) in rows.iter_mut(block) {
            let weights = &weights[..row.len()];
            let mut squares = [0.0; 4];
            for (_, x) in row.iter_mut(block) {
                let x = *x;
                squares = from_fn(|j| multiply_add(x[j], x[j], squares[j]));
            }
            let mean = block.reduce(total(squares), Sum) / (4 * row.len()) as f32;
            let scale = math::rsqrt(mean + EPSILON);
            for (i, x) in row.iter_mut(block) {
                let (old, weight) = (*x, weights[i]);
                *x = Pack::from_fn(|j| old[j] * scale * weight[j]);
            }
        }
    }
}

/// The sum of four sums.
#[inline(always)]
fn total([a, b, c, d]: [f32; 4]) -> f32 {
    (a + b) + (c + d)
}
