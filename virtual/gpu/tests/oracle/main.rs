//! Kernels in CUDA C++, compiled by nvcc and run on a virtual GPU, beside an independent computation on the host.
//!
//! They compare bit for bit where all is integers or exactly rounded. Elsewhere the tolerance stands at the comparison.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod atomics;
mod control;
mod device;
mod grids;
mod numbers;
mod rounding;
mod sums;
mod tensors;
mod warps;
