//! A sparse matrix times a vector, both spread over the PEs by rows.

use congruent_device::{Slice, SliceMut, kernels};
use congruent_fused::sparse::{Matrix, Rows};

pub use congruent_fused::sparse::{Entry, Exchange, Part};

kernels! { in crate::PTX;
    /// `y` becomes this PE's rows times the vector, of which this PE has the part `x`. Row `i` has the entries from `near_offsets[i]` to
    /// `near_offsets[i + 1]` of `near`, whose columns are in `x`, and likewise those of `far`, whose columns are in the halo. Number `i` of
    /// `packed` is that of `x` at `gives[i]`.
    ///
    /// Every launch has as many blocks as any other, on every PE.
    pub fn multiply(
        block, ctx, exchange: Exchange, parts: Slice<Part>, gives: Slice<u32>, near_offsets: Slice<u32>,
        near: Slice<Entry>, far_offsets: Slice<u32>, far: Slice<Entry>, x: Slice<f64>, y: SliceMut<f64>,
    ) {
        let near = Rows { offsets: near_offsets, entries: near };
        let far = Rows { offsets: far_offsets, entries: far };
        let matrix = Matrix { near, far, parts, gives };
        // SAFETY: the program has the exchange for launches of this kernel alone, all of as many blocks, counts them, and has a part of
        // each PE for each that gives it one.
        unsafe { congruent_fused::sparse::multiply(block, ctx, exchange, matrix, x, &mut y) };
    }
}
