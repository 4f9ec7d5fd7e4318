//! The kernels, which become PTX by `congruent-build build`, and the PTX.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use congruent_collectives::{PlanView, Sum, ring};
use congruent_device::{Group, Sym, kernels};

kernels! { in crate::PTX;
    /// Doubles this PE's numbers, then sums them over all PEs.
    pub fn double_and_sum(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        for i in block.strided(numbers.len()) {
            ctx.store(numbers, i, ctx.load(numbers, i) * 2.0);
        }
        block.sync();
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
    }
}

/// What GPUs run: nothing until `congruent-build build` has written it.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "NAME-kernels",
    #[cfg(has_ptx)]
    images: &[("sm_80", include_str!("../ptx/IDENT_kernels.sm_80.ptx"))],
    #[cfg(not(has_ptx))]
    images: &[],
};
