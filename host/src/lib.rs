//! GPU-initiated PGAS communication in Rust: symmetric heap, device-side put/get/signals, in-kernel collectives.

pub mod bootstrap;
mod builder;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod cpu;
mod error;
mod fault;
mod launch;
mod local;
mod on_stream;
mod plan;
mod proxy;
mod shared;
mod shared_memory;
mod sym_vec;
mod team;
pub mod tunables;
mod world;

pub use congruent_collectives as collectives;
pub use congruent_device as device;
pub use congruent_heap::HeapStats;
pub use congruent_kernels as kernels;

pub use builder::Builder;
pub use error::{AccessError, AllocError, BuildError, Error, LaunchError, SplitError};
pub use fault::{Fault, WorldFailure};
pub use launch::{Grid, Stream};
pub use local::{local, run};
pub use plan::Plan;
pub use sym_vec::SymVec;
pub use team::Team;
pub use tunables::Tunables;
pub use world::World;
