//! A kernel on memory of one PE's own, whoever allocated it, and on symmetric memory.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
use congruent_device::{Slice, SliceMut, Sym, kernels};

kernels! {
    /// `y` becomes `a * x + y`, and `mine` the same.
    pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>, mine: Sym<f32>) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            *y += a * x[i];
            ctx.store(mine, i, *y);
        }
    }
}
