#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
use congruent_device::{Group, Sym, kernels};

kernels! {
    /// Doubles this PE's numbers.
    pub fn double(block, ctx, numbers: Sym<f32>) {
        for i in block.strided(numbers.len()) {
            ctx.store(numbers, i, ctx.load(numbers, i) * 2.0);
        }
    }
}
