//! The smallest kernel of buffers, which benches compare with plain Rust and with CUDA C++.

use congruent_device::{Slice, SliceMut, kernels};

kernels! { in crate::PTX;
    /// `y` becomes `a * x + y`, so many times.
    pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>, rounds: u64) {
        let x = &x[..y.len()];
        for _ in 0..rounds {
            for (i, y) in y.iter_mut(block) {
                *y += a * x[i];
            }
        }
    }
}
