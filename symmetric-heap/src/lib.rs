//! PEs, teams, symmetric objects, the offset allocator, and the ABI that host, kernel and proxy agree on.
//!
//! Everything here is pure: no address is followed, no thread is made, nothing waits. A symmetric object is an offset with
//! the same bits on every PE ([`Sym`]); a destination is that object at a rank ([`Place`]). What reads and writes it is
//! `congruent-device`, on the CPU and on the GPU alike.
#![no_std]
#![forbid(unsafe_op_in_unsafe_fn)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate alloc as std_alloc;

pub mod abi;
#[cfg(not(target_arch = "nvptx64"))]
mod alloc;
mod argument;
mod fault;
mod nic_word;
mod pe;
mod pod;
mod print;
mod refuse;
#[cfg(not(target_arch = "nvptx64"))]
mod retire;
mod signal;
mod sym;
mod team;

#[cfg(not(target_arch = "nvptx64"))]
pub use alloc::{AllocError, Allocator, FreeError, GRANULE, HeapStats, MAX_ALIGN};
pub use argument::KernelArg;
pub use nic_word::NicWord;
pub use pe::{Node, Pe, Rank, Tag, World};
pub use pod::{Element, Fp8E4M3, Fp8E5M2, Locatable, Pod, ValueAt, bf16, f16};
#[doc(hidden)]
pub use refuse::refused;
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub use refuse::refused_because;
#[cfg(not(target_arch = "nvptx64"))]
pub use retire::{DecodeError, Retired};
pub use signal::{Awaited, Notify, NotifyOp, Semaphore, Signal};
#[doc(hidden)]
pub use sym::is_inside;
pub use sym::{Place, Sym};
pub use team::TeamView;
#[cfg(not(target_arch = "nvptx64"))]
pub use team::{Members, TeamError};
