//! The smallest kernel of buffers, which benches compare with plain Rust and with CUDA C++.

use congruent_device::math::multiply_add;
use congruent_device::{Pack, Slice, SliceMut, kernels};

kernels! { in crate::PTX;
    /// `y` becomes `a * x + y`, so many times.
    pub fn axpy(block, ctx, a: f32, x: Slice<Pack<f32, 4>>, y: SliceMut<Pack<f32, 4>>, rounds: u64) {
        let x = &x[..y.len()];
        for _ in 0..rounds {
            for (i, y) in y.iter_mut(block) {
                let (x, old) = (x[i], *y);
                *y = Pack::from_fn(|j| multiply_add(a, x[j], old[j]));
            }
        }
    }
}
