//! The CUDA machine: what it needs of the driver, its devices, and the heap in their memory.
#![allow(dead_code, reason = "the machine that launches kernels on this heap uses the rest")]

mod agree;
mod calls;
pub(crate) mod device;
pub(crate) mod driver;
mod error;
mod heap;
mod memory;
#[cfg(test)]
mod tests;

pub use error::{CudaError, CudaVersion};
