//! A step of an optimizer on weights that another library has.

use congruent_device::{SliceMut, Sym, kernels};

kernels! { in crate::PTX;
    /// A step against the gradients, which are the same on all PEs.
    pub fn descend(block, ctx, weights: SliceMut<f32>, gradients: Sym<f32>, rate: f32) {
        for (i, weight) in weights.iter_mut(block) {
            *weight -= rate * ctx.load(gradients, i);
        }
    }
}
