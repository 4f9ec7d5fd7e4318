//! Virtual GPUs: executes PTX on the CPU.
//!
//! A [`Machine`] has devices with multiprocessors. A [`Program`] is PTX that was taken in; a [`Launch`] runs one of its kernels
//! on memory that a [`Space`] puts at addresses. Every access is checked, and what goes wrong is a [`Fault`] that says where.
//!
//! ```
//! use congruent_virtual_gpu::{Access, Backing, Launch, Machine, Program, Segment, Settings, Space, Window};
//!
//! let program = Program::new(
//!     ".version 8.0 .target sm_80 .address_size 64
//!      .visible .entry twice(.param .u64 at) {
//!          .reg .b64 %rd<4>; .reg .b32 %r<3>;
//!          ld.param.u64 %rd1, [at];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.s64 %rd3, %rd1, %rd2;
//!          ld.global.u32 %r2, [%rd3];
//!          add.s32 %r2, %r2, %r2;
//!          st.global.u32 [%rd3], %r2;
//!          ret;
//!      }",
//! )?;
//! let (machine, space, memory) = (Machine::new(Settings::default())?, Space::new(0), Segment::zeroed(256));
//! memory.write(4, &21_u32.to_le_bytes());
//! let backing = Backing::Memory(memory.clone(), 0);
//! space.map(Window { at: 0x10000, bytes: 256, backing, access: Access::ReadWrite });
//! machine.launch(Launch {
//!     program,
//!     globals: [].into(),
//!     kernel: "twice".to_owned(),
//!     space,
//!     pe: None,
//!     blocks: [1, 1, 1],
//!     threads: [64, 1, 1],
//!     shared: 0,
//!     registers: 16,
//!     params: 0x10000_u64.to_le_bytes().to_vec(),
//! })?;
//! let mut out = [0; 4];
//! memory.read(4, &mut out);
//! assert_eq!(u32::from_le_bytes(out), 42);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

pub mod alu;
mod block;
mod decode;
mod fault;
mod inject;
mod instruction;
mod loops;
mod machine;
mod memory;
mod mutant;
mod order;
mod outline;
mod polls;
mod program;
mod record;
mod registers;
mod schedule;
mod warp;
mod watch;

pub use fault::{Cause, Fault, Party};
pub use inject::Injection;
pub use machine::{Launch, Machine, Multiprocessor, Settings, Space};
pub use memory::{Access, AddressMap, Backing, Member, Multicast, Segment, Window};
pub use mutant::{Loss, Mutant};
pub use order::Promises;
pub use outline::{Global, Outline};
pub use program::{LoadError, Program};
pub use schedule::{Explored, Schedule};
