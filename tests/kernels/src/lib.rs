//! What the conformance suite runs on every machine: kernels that use each operation of the device API.
//!
//! A kernel does, the suite's host half (`congruent_tests::conformance`) says what must come of it. They are a crate of
//! their own so that `congruent-build` makes PTX of them as of any user's kernels.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

pub mod arithmetic;
pub mod atomics;
pub mod buffers;
pub mod bulk;
mod by;
pub mod collectives;
mod crew;
pub mod direct;
pub mod groups;
pub mod lanes;
pub mod matrix;
pub mod misuse;
pub mod moe;
pub mod moe_layer;
pub mod multicast;
pub mod norm;
pub mod ordering;
pub mod prints;
pub mod rma;
pub mod shared;
pub mod signals;
pub mod streams;
pub mod teams;
mod tell;

pub use by::By;
pub use crew::Crew;
