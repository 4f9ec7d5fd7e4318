//! A stand-in for the CUDA driver, for machines without a GPU.
//!
//! It is part of programs that have virtual GPUs, and behind the C library of `virtual/library`.
//! It implements the calls that congruent makes, and no other, over ordinary memory: device memory is memory of the
//! process, physical memory of VMM is a file in memory, and a stream is a thread. Kernels run as their PTX says, on virtual
//! GPUs; or, for tests of the host's part alone, as native functions that the process registered under their names. What
//! programs get wrong it finds out like the driver, or better. It says nothing of how fast anything is.
//!
//! - What it pretends to be, and which calls fail: [`VARIABLE`].
//! - What a test asks of it beside the driver's functions: [`congruentVirtualBody`], [`congruentVirtualTrap`],
//!   [`congruentVirtualCalls`].
//! - One engine for all processes of a job: [`Server`], [`ENGINE`].
//! - What was launched, to run it again: [`record`], [`recorded`].
//! - How it gets to where a program finds it: [`built`], [`install`], [`without_symbol`].
//!
//! Start reading at `entry.rs`, how every call enters; then `stream.rs` and `operation.rs`, what is done later;
//! `vmm/mod.rs`, memory; `launch.rs`, `executor.rs`, `gpus.rs` and `engine/mod.rs`, kernels. `calls/` has the functions by the driver's names.

mod calls;
mod capture;
mod config;
mod context;
mod device;
mod driver;
mod engine;
mod entry;
mod errors;
mod event;
mod executor;
mod fault;
mod gpus;
mod graph;
mod handles;
mod image;
#[cfg(feature = "library")]
mod install;
mod launch;
mod memory;
mod module;
mod monitor;
mod native;
mod operation;
mod pages;
mod recording;
mod registers;
mod say;
mod stream;
mod vmm;

pub use calls::context::*;
pub use calls::copy::*;
pub use calls::driver::*;
pub use calls::event::*;
pub use calls::graph::*;
pub use calls::launch::*;
pub use calls::memory::*;
pub use calls::module::*;
pub use calls::own::*;
pub use calls::stream::*;
pub use calls::vmm::*;
pub use calls::{function, names};
pub use config::VARIABLE;
pub use engine::{ENGINE, Server};
#[cfg(feature = "library")]
pub use install::{built, install, without_symbol};
pub use native::NativeBody;
pub use recording::{record, recorded};
