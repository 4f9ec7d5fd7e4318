//! How the PEs of a job find each other, and the control plane that joins them until the job ends.
//!
//! Every job is a star through PE 0: what a PE says goes to the relay, which passes it on to the others in one order.
//! The relay judges who failed first, so all PEs report the same reason. [`local`] builds the star out of threads and
//! channels, [`connect`] out of processes and TCP; everything above the wire is shared.
//!
//! Each side of a connection proves that it knows the job's token before the other believes a word; until then it can do no
//! more than be sent away, and whatever it says ends nobody's job. What follows is neither authenticated nor encrypted: between
//! hosts, the control plane trusts the network. It carries no data of the heaps.
//!
//! ```text
//! environment -> Job -> connect: rendezvous, handshake -> monitor (poll loop) -> relay -> seat -> Control
//!                       local:                            in_process (channel) -> relay -> seat -> Control
//! ```

mod assemble;
mod control;
mod environment;
mod error;
mod files;
mod frame;
mod handshake;
mod host_identity;
mod in_process;
mod job;
mod join;
mod link;
mod monitor;
mod notice;
mod relay;
mod rendezvous;
mod seat;
mod token;
mod verdict;

pub use control::Control;
pub use error::{BootstrapError, ControlError};
pub use in_process::local;
pub use job::{Bootstrap, Job, Launcher, Rendezvous};
pub use notice::Notice;
pub use token::Token;

pub use crate::shared_memory::ReserveError;

use std::sync::Arc;
use std::time::Duration;

/// The most PEs of one job: what one star through PE 0 is meant to carry.
pub const MAX_PES: u32 = 4096;

/// The most bytes one PE can give to one [`Control::all_gather`].
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// How long a PE waits for the others unless told otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// Longer ones mean "for ever", and would leave the range of the clock.
const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The PEs that share this one's host, itself among them, in order.
///
/// # Collective
pub(crate) fn neighbours(control: &Control) -> Result<Vec<u32>, ControlError> {
    if control.same_host() {
        return Ok((0..control.npes()).collect());
    }
    let own = host_identity::HostIdentity::own();
    let all = control.all_gather(&own.0)?;
    Ok((0..).zip(all).filter(|(_, theirs)| theirs[..] == own.0).map(|(pe, _)| pe).collect())
}

/// Joins a job: returns when all its PEs are there, or says why they are not.
pub fn connect(job: &Job) -> Result<Control, BootstrapError> {
    if !(1..=MAX_PES).contains(&job.npes) {
        return Err(BootstrapError::Size { npes: job.npes.into() });
    }
    if job.pe >= job.npes {
        return Err(BootstrapError::PeOutOfRange { pe: job.pe, npes: job.npes });
    }
    let deadline = job.deadline.min(LONGEST_DEADLINE);
    if job.npes == 1 {
        return in_process::alone(deadline);
    }
    let (links, same_host) = if job.pe == 0 {
        let meeting = rendezvous::Meeting::open(job)?;
        let assembly = assemble::assemble(meeting, job.npes, deadline)?;
        (assembly.links, assembly.same_host)
    } else {
        let (link, same_host) = join::join(job, deadline)?;
        (vec![(0, link)], same_host)
    };
    let seat = Arc::new(seat::Seat::new(job.pe, job.npes));
    let monitor = monitor::Monitor::start(Arc::clone(&seat), links)?;
    Ok(Control::new(seat, Box::new(monitor), deadline, same_host, None))
}

/// Reads bytes as every decoder of the wire does: for fuzzing.
#[doc(hidden)]
pub fn fuzz_decode(mut bytes: &[u8]) {
    use frame::{Frame, Stage};
    let stages = [Stage::Stranger, Stage::Found, Stage::Proved, Stage::Joined];
    while let Some((frame, length)) = stages.into_iter().find_map(|stage| Frame::decode(bytes, stage).ok().flatten()) {
        let _ = verdict::Verdict::decode(&frame.payload);
        let _ = relay::Envelope::try_from(frame);
        bytes = &bytes[length..];
    }
}
