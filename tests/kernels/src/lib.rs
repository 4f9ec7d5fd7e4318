//! What the conformance suite runs on every machine: kernels that use each operation of the device API once.
//!
//! A kernel does, the suite's host half (`congruent_tests::conformance`) says what must come of it. They are a crate of
//! their own so that `congruent-build` makes PTX of them as of any user's kernels.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

mod by;
pub mod rma;

pub use by::By;
