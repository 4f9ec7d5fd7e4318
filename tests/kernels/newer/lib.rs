//! Those of the test kernels that are run with the instructions of newer GPUs: to compile all of them a second time takes minutes.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

#[path = "../src/arithmetic.rs"]
pub mod arithmetic;
#[path = "../src/crew.rs"]
mod crew;
#[path = "../src/multicast.rs"]
pub mod multicast;

pub use crew::Crew;
