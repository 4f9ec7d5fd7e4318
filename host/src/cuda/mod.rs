//! The CUDA machine: what it needs of the driver, its devices, and the heap in their memory.
#![allow(dead_code, reason = "the machine that launches kernels on this heap uses the rest")]

mod agree;
mod calls;
mod device;
mod driver;
mod error;
mod heap;
mod memory;
#[cfg(test)]
mod tests;

pub(crate) use device::Properties;
pub(crate) use driver::Driver;

pub use error::{CudaError, CudaVersion};
