//! A product and a reduce-scatter in one kernel, and an all-gather behind them where every PE needs all sums.

use congruent_device::{Slice, SmallFloat, bf16, kernels};
use congruent_fused::gemm::Eight;

pub use congruent_fused::gemm_scatter::Sums;

kernels! { in crate::PTX;
    /// Each PE's rows of `y` become those of `x` times the rows of `weights`, summed over all PEs: `x` has rows for all PEs, of which each PE
    /// has other columns.
    pub fn gemm_scatter(
        block, ctx, sums: Sums, x: Slice<Eight>, weights: Slice<Eight>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let round = |_, _, sum| bf16::narrow(sum);
        // SAFETY: the program has the sums for launches of this kernel alone, with a turn more for each product, in as many blocks on each PE.
        unsafe {
            congruent_fused::gemm_scatter::gemm_scatter(block, ctx, shared, sums, [x, weights], k, round);
        }
    }
}
