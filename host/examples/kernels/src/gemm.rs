//! A product of matrices by tiles.

#[cfg(not(target_arch = "nvptx64"))]
use congruent_device::SmallFloat;
use congruent_device::{Global, Relaxed, Slice, bf16, kernels};
use congruent_fused::gemm::{Eight, Product};

kernels! { in crate::PTX;
    /// `c` becomes `a` times `b` transposed: element `i, j` is the product of row `i` of `a` and row `j` of `b`, as a layer's weights
    /// are rows. A row has `k` groups of eight: where there are fewer numbers, zeros follow. Sums are `f32`, and
    /// rounded at the end. Both have fewer than 2^32 rows. Blocks of [`THREADS`](congruent_fused::gemm::THREADS) threads with [`SHARED`](congruent_fused::gemm::SHARED) bytes of shared memory, as many as
    /// you like.
    pub fn gemm(
        block, ctx, a: Slice<Eight>, b: Slice<Eight>, c: Relaxed<bf16>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        // SAFETY: a launch is lent both to be read, which lasts until it is over.
        let product = unsafe { Product::new(Global::of(a), Global::of(b), k) };
        for tile in (block.index() as u32..product.tiles()).step_by(block.count()) {
            product.tile(block, shared, tile, || |row, column, sum| c.store(row * product.n() + column, sum));
        }
    }
}

/// Rows of `width` small numbers, each a sixteenth of an integer: with zeros behind them where they are no multiple of eight.
#[cfg(not(target_arch = "nvptx64"))]
pub fn numbers(count: usize, width: usize, seed: usize) -> Vec<Eight> {
    let number = |row: usize, i: usize| ((row * 31 + i * 7 + seed * 11) % 29) as f32 / 16.0 - 0.875;
    let eight =
        |row, first| Eight::from_fn(|j| bf16::narrow(if first + j < width { number(row, first + j) } else { 0.0 }));
    (0..count).flat_map(|row| (0..width).step_by(8).map(move |first| eight(row, first))).collect()
}

/// The product of a row of [`numbers`] and another: multiples of 2^-8 that are less than 2^16, which are exact in `f32`, in whatever order
/// they are summed.
#[cfg(not(target_arch = "nvptx64"))]
pub fn exact_product(x: &[Eight], y: &[Eight]) -> f32 {
    let (x, y) = (x.iter().flat_map(|eight| eight.0), y.iter().flat_map(|eight| eight.0));
    x.zip(y).map(|(x, y)| x.widen() * y.widen()).sum()
}
