//! What can go wrong before and while the PEs of a job are joined.

use super::seat::Notice;
use super::{MAX_PAYLOAD, MAX_PES};
use std::io;
use std::time::Duration;

/// Why a job could not be brought together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A job needs between one PE and [`MAX_PES`].
    #[error("a job of {npes} PEs is not possible: give between 1 and {MAX_PES}")]
    Size {
        /// The number asked for.
        npes: u64,
    },
    /// The operating system refused something the bootstrap needs.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a collective of the control plane did not complete.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The job has ended; every PE reports the same first reason.
    #[error("the job has ended: {0}")]
    Ended(Notice),
    /// A PE that left in order was needed again.
    #[error("PE {pe} has left the job but is needed in a collective")]
    Departed {
        /// The PE that left.
        pe: u32,
    },
    /// Some PEs did not come in time.
    #[error("PEs {missing:?} did not join the collective within {waited:?}")]
    Deadline {
        /// Those that did not come.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// More bytes than one gather carries for each PE.
    #[error("{bytes} bytes are too many for one gather: give at most {MAX_PAYLOAD}")]
    TooLarge {
        /// The number of bytes given.
        bytes: usize,
    },
}
