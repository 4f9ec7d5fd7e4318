//! How the PEs of a job find each other, and the control plane that joins them until the job ends.
//!
//! Every job is a star through PE 0: what a PE says goes to the relay, which passes it on to the others in one order.
//! The relay judges who failed first, so all PEs report the same reason. [`local`] builds the star out of threads and
//! channels, [`connect`] out of processes and TCP; everything above the wire is shared.
//!
//! ```text
//! environment -> Job -> connect: rendezvous, handshake -> monitor (poll loop) -> relay -> seat -> Control
//!                       local:                            in_process (channel) -> relay -> seat -> Control
//! ```

mod control;
mod error;
mod in_process;
mod relay;
mod seat;

pub use control::Control;
pub use error::{BootstrapError, ControlError};
pub use in_process::local;
pub use seat::Notice;

/// The most PEs of one job: what one star through PE 0 is meant to carry.
pub const MAX_PES: u32 = 4096;

/// The most bytes one PE can give to one [`Control::all_gather`].
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// How long a PE waits for the others unless told otherwise.
pub const DEFAULT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);
