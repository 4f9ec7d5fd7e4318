//! Compiles a kernels crate to PTX: congruent's own and any user's.
//!
//! ```no_run
//! # fn main() -> Result<(), congruent_build::BuildError> {
//! for ptx in congruent_build::Builder::new("kernels/Cargo.toml").out_dir("kernels/ptx").build()? {
//!     println!("wrote {}", ptx.path.display());
//! }
//! # Ok(()) }
//! ```
//!
//! The crate needs no build settings: a plain `#![no_std]` library with `extern "ptx-kernel"` functions will do. The
//! result is the same text wherever it is built, so it can be checked in; [`Builder::check`] says whether it is current.
#![forbid(unsafe_code)]

mod bounds;
mod builder;
mod cache;
mod check;
mod error;
mod header;
mod lines;
mod metadata;
mod ptxas;
mod symbols;
mod target;
mod toolchain;
mod usage;

pub use builder::{Builder, PtxFile};
pub use cache::{cache_folder, nvcc, nvdisasm};
pub use check::{Check, Verdict};
pub use error::BuildError;
pub use ptxas::{Assembly, FunctionUsage, Ptxas};
pub use target::Target;
pub use toolchain::{CoreLibrary, DeviceRustc};
pub use usage::{UsageTable, UsageVerdict};
