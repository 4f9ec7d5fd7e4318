//! An all-gather and a product in one kernel: the rows of each PE are multiplied as soon as they are there.

use congruent_device::{Relaxed, Slice, bf16, kernels};
use congruent_fused::gemm::Eight;

pub use congruent_fused::gather_gemm::Rows;

kernels! { in crate::PTX;
    /// `y` becomes the rows of all PEs times the rows of `weights`, as in [`gemm`](crate::gemm::gemm).
    pub fn gather_gemm(
        block, ctx, rows: Rows, weights: Slice<Eight>, y: Relaxed<bf16>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let columns = weights.len() as u32 / k.max(1);
        // SAFETY: the program has the rows for launches of this kernel alone, with a turn more each time, in as many blocks on each PE, and
        // writes its own part where no launch is under way.
        unsafe {
            congruent_fused::gather_gemm::gather_gemm(block, ctx, shared, rows, weights, k, || {
                |row, column, sum| y.store((row as u32 * columns + column as u32) as usize, sum)
            });
        }
    }
}
