//! Softmax and RMSNorm of rows, a block for each row.

use congruent_device::{Group, Max, RowsMut, Slice, Sum, kernels, math};

/// Added to the mean of squares.
pub const EPSILON: f32 = 1e-5;

kernels! { in crate::PTX;
    /// Each row becomes its softmax: e to the power of each number, divided by the sum of these powers.
    pub fn softmax(block, ctx, rows: RowsMut<f32>) {
        for (_, mut row) in rows.iter_mut(block) {
            let mine = row.iter_mut(block).fold(f32::NEG_INFINITY, |most, (_, x)| most.max(*x));
            // Less the largest, no power is more than 1, so none overflows; and the quotients stay what they are.
            let most = block.reduce(mine, Max);
            let mut sum = 0.0;
            for (_, x) in row.iter_mut(block) {
                *x = math::exp(*x - most);
                sum += *x;
            }
            let scale = 1.0 / block.reduce(sum, Sum);
            row.iter_mut(block).for_each(|(_, x)| *x *= scale);
        }
    }

    /// Each row is divided by the root of the mean of its squares; then number `i` is multiplied by weight `i`.
    pub fn rms_norm(block, ctx, rows: RowsMut<f32>, weights: Slice<f32>) {
        for (_, mut row) in rows.iter_mut(block) {
            let squares = row.iter_mut(block).map(|(_, x)| *x * *x).sum::<f32>();
            let mean = block.reduce(squares, Sum) / row.len() as f32;
            let scale = math::rsqrt(mean + EPSILON);
            row.iter_mut(block).for_each(|(i, x)| *x *= scale * weights[i]);
        }
    }
}
