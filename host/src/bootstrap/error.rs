//! What can go wrong before and while the PEs of a job are joined.

use super::notice::Notice;
use super::{MAX_PAYLOAD, MAX_PES};
use std::io;
use std::time::Duration;

/// Why a job could not be brought together.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A job needs between one PE and [`MAX_PES`].
    #[error("a job of {npes} PEs is not possible: give between 1 and {MAX_PES}")]
    Size {
        /// The number asked for.
        npes: u64,
    },
    /// A variable is missing that another one calls for.
    #[error("{because} is set but {name} is not: set both, as the launcher does, or unset both for a single PE")]
    MissingVariable {
        /// The variable that is missing.
        name: &'static str,
        /// The variable that calls for it.
        because: &'static str,
    },
    /// A variable has a value that makes no sense.
    #[error("{name}={value}: expected {expected}")]
    BadVariable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// Two launchers claim this process and disagree.
    #[error("{first} and {second} disagree: unset the variables of the launcher that did not start this process")]
    Contradiction {
        /// One launcher's word.
        first: String,
        /// The other's.
        second: String,
    },
    /// The launcher does not say where the PEs can meet.
    #[error("the launcher names no meeting place: set CONGRUENT_RENDEZVOUS to host:port, with the host of PE 0")]
    NoRendezvous,
    /// The PEs meet where others can come too, and nothing tells who is of the job.
    #[error(
        "PEs meet at {place}, where anyone can come: export CONGRUENT_JOB_TOKEN, a secret that is the same on every PE (as \
         `openssl rand -hex 32` makes one; mpirun passes it on with -x, srun by itself, torchrun on every node that has it)"
    )]
    NoToken {
        /// Where they meet.
        place: String,
    },
    /// PE 0 needs more open files than its process may have.
    #[error("{npes} PEs take {needed} open files in PE 0 and the limit is {limit}: raise it with ulimit -Hn")]
    Files {
        /// The number of PEs.
        npes: u32,
        /// How many files that takes, with those that are open.
        needed: u64,
        /// How many there may be.
        limit: u64,
    },
    /// This PE and PE 0 speak different versions of the control protocol.
    #[error(
        "PE 0 speaks version {hub} of the control protocol and another PE version {peer}: use one build of congruent"
    )]
    Version {
        /// PE 0's version.
        hub: u32,
        /// The other's.
        peer: u32,
    },
    /// This PE and PE 0 do not share a token.
    #[error("PE 0 and this PE do not share the job's token: are they of the same job? See CONGRUENT_JOB_TOKEN")]
    WrongToken,
    /// The PEs do not agree how many they are.
    #[error("PE {pe} was told of {claims} PEs but PE 0 of {expected}: start all PEs with the same number")]
    WorldSize {
        /// The PE that differs from PE 0.
        pe: u32,
        /// The number it was told.
        claims: u32,
        /// The number PE 0 was told.
        expected: u32,
    },
    /// Two processes were started as the same PE.
    #[error("two processes were started as PE {pe}: give every process its own index")]
    DuplicatePe {
        /// The index they share.
        pe: u32,
    },
    /// A process was started as a PE that the job does not have.
    #[error("there is no PE {pe} in a job of {npes}: PEs count from 0")]
    PeOutOfRange {
        /// The index it was given.
        pe: u32,
        /// The number of PEs.
        npes: u32,
    },
    /// Some PEs did not come in time.
    #[error("PEs {pes:?} did not come within {waited:?}: were they started, and can they reach PE 0?")]
    Missing {
        /// Those that did not come.
        pes: Vec<u32>,
        /// How long PE 0 waited for them.
        waited: Duration,
    },
    /// A PE was lost while the others were still on their way.
    #[error("PE {pe} was lost before the job was complete: see its own output")]
    Lost {
        /// The PE that was lost.
        pe: u32,
    },
    /// PE 0 was not found.
    #[error("PE 0 was not reached at {place} within {waited:?}: {last}")]
    Unreachable {
        /// Where it was looked for.
        place: String,
        /// For how long.
        waited: Duration,
        /// How the last attempt ended.
        last: String,
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

impl BootstrapError {
    /// For `map_err`: what was being done when the system refused.
    pub(super) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source: source.into() }
    }
}

/// Why a collective of the control plane did not complete.
#[derive(Clone, PartialEq, thiserror::Error)]
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
