//! The fixed kernels that host collectives launch, and their PTX.
//!
//! The algorithms are `congruent-collectives`'; here are only entries, so that the crate of the algorithms needs no unsafe
//! attribute. `ptx/` holds what `congruent-build` makes of this crate; `./check` rebuilds and compares it.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

mod exchange;
mod perf;
mod reduce;
mod share;

pub use exchange::*;
pub use perf::{perf_barrier, perf_fetch_add, perf_get, perf_ping_pong, perf_put, perf_put_value};
pub use reduce::*;
pub use share::*;

/// The PTX of every kernel here, by architecture.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-kernels",
    images: &[
        ("sm_80", include_str!("../ptx/congruent_kernels.sm_80.ptx")),
        ("sm_90", include_str!("../ptx/congruent_kernels.sm_90.ptx")),
        ("sm_100", include_str!("../ptx/congruent_kernels.sm_100.ptx")),
    ],
};
