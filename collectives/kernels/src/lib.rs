//! The fixed kernels that host collectives launch, and their PTX.
//!
//! The algorithms are `congruent-collectives`'; here are only entries, so that the crate of the algorithms needs no unsafe
//! attribute. `ptx/` holds what `congruent-build` makes of this crate, packed; `./check` rebuilds and compares it, and `congruent
//! ptx` shows it.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

#[macro_use]
mod entries;

// A GPU runs what was compiled for older ones, so what is compiled for newer ones is what those cannot run.
#[cfg(not(target_feature = "sm_90"))]
mod exchange;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90"))]
mod multimem;
#[cfg(not(target_feature = "sm_90"))]
mod perf;
#[cfg(not(target_feature = "sm_90"))]
mod reduce;
#[cfg(not(target_feature = "sm_90"))]
mod share;

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90"))]
pub use multimem::*;
#[cfg(not(target_feature = "sm_90"))]
pub use {
    exchange::*,
    perf::{perf_barrier, perf_fetch_add, perf_get, perf_ping_pong, perf_put, perf_put_value},
    reduce::*,
    share::*,
};

/// The PTX of the kernels here that every supported GPU runs.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_kernels.sm_80.ptx")))],
};

/// The PTX of those that use `multimem` instructions.
#[cfg(not(target_arch = "nvptx64"))]
pub static MULTIMEM: congruent_device::Module = congruent_device::Module {
    name: "congruent-kernels for multimem",
    images: &[("sm_90", include_str!(concat!(env!("OUT_DIR"), "/congruent_kernels.sm_90.ptx")))],
};
