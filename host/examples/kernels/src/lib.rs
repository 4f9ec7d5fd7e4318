//! The kernels of the examples, and their PTX: a crate of kernels as any user's, so that each example runs on a GPU too.
//!
//! A module has the kernels of one example; what is to be learnt from them is said there (`host/examples/NAME.rs`). `attention` is what several have in
//! common, and `axpy` is of none.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

pub mod attention;
pub mod axpy;
pub mod descend;
pub mod digits;
pub mod embedding;
pub mod flash_decode;
pub mod fused_norm;
pub mod gather_gemm;
pub mod gemm;
pub mod gemm_scatter;
pub mod gups;
pub mod histogram;
pub mod jacobi;
pub mod moe;
pub mod moe_experts;
pub mod paged_kv;
pub mod ping_pong;
pub mod pipeline;
pub mod ring_attention;
pub mod rows;
pub mod scale_and_sum;
pub mod sparse;
pub mod transformer;

/// The PTX of the kernels here.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-example-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_example_kernels.sm_80.ptx")))],
};
