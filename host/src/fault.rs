//! Why a world failed: the first reason wins, and every later call tells it.

use std::fmt;

use congruent_device::abi::{FaultKind, FaultRecord, NO_PE};

use crate::comm::checked::CallMismatch;

/// A wait that passed its deadline, a rule that a kernel broke, or PEs that contradict each other, as the device recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The PE that recorded it.
    pub pe: u32,
    /// The block of the launch.
    pub block: u32,
    /// The thread of the block.
    pub thread: u32,
    /// The PE that was expected to notify, where the kernel said so (`sem.from_rank(rank)`), or that says something else.
    pub peer: Option<u32>,
    /// Heap offset of the word that was waited on.
    pub offset: u64,
    /// The value waited for. Where counts differ, this PE's bytes.
    pub expected: u64,
    /// The value last seen. Where counts differ, the peer's bytes.
    pub seen: u64,
    /// How long it waited, milliseconds.
    pub waited_ms: u64,
    /// Where counts differ, whether this PE is the one that receives.
    pub receives: bool,
    /// Where calls differ, in what.
    pub mismatch: Option<Box<CallMismatch>>,
}

impl Fault {
    pub(crate) fn from_record(record: &FaultRecord) -> Option<Self> {
        let kind = FaultKind::from_raw(record.kind)?;
        let calls_differ = kind == FaultKind::CallMismatch;
        Some(Self {
            kind,
            pe: record.pe,
            block: record.block,
            thread: record.thread,
            peer: (record.peer != NO_PE).then_some(record.peer),
            offset: record.offset,
            expected: record.expected,
            seen: record.seen,
            waited_ms: if calls_differ { 0 } else { record.waited_ns / 1_000_000 },
            receives: kind == FaultKind::CountMismatch && record.part == 1,
            mismatch: calls_differ.then(|| Box::new(CallMismatch::from_record(record))),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pe, block, thread, offset, expected, seen, waited_ms, .. } = self;
        let peer = self.peer.map_or("another PE".to_owned(), |peer| format!("PE {peer}"));
        match self.kind {
            FaultKind::Timeout => {
                write!(
                    f,
                    "PE {pe}, block {block}, thread {thread} waited {waited_ms} ms for the word at {offset:#x} to reach {expected}; it is {seen}"
                )?;
                match self.peer {
                    Some(peer) => write!(f, "; PE {peer} was to notify it")?,
                    None => f.write_str("; name the notifier with from_rank to see which PE is late")?,
                }
                f.write_str(" (a PE did not take part, or CONGRUENT_DEADLINE_MS is too short)")
            }
            FaultKind::Proxy => write!(
                f,
                "PE {pe}, block {block}, thread {thread} waited {waited_ms} ms for its proxy to complete request {expected}; \
                 it has completed {seen} (the peer may be unreachable, or CONGRUENT_DEADLINE_MS is too short)"
            ),
            FaultKind::BlockSlot => write!(
                f,
                "PE {pe}, block {seen} synchronized a team, but only {expected} blocks may: raise CONGRUENT_MAX_BLOCKS"
            ),
            FaultKind::CountMismatch => {
                match self.receives {
                    false => write!(f, "PE {pe} sends {expected} bytes to {peer}, which receives {seen}")?,
                    true => write!(f, "{peer} sends {seen} bytes to PE {pe}, which receives {expected}")?,
                }
                f.write_str("; give both sides the same count and the same type")
            }
            FaultKind::CallMismatch => match &self.mismatch {
                Some(mismatch) => mismatch.tell(f, *pe, &peer),
                None => write!(f, "{peer} called another collective than PE {pe}"),
            },
        }
    }
}

/// Why a world can do nothing more. The first reason of the job wins; every PE reports the same cause.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldFailure {
    /// A wait of this PE passed its deadline, or a kernel of it broke a rule.
    #[error("{0}")]
    Fault(Fault),
    /// A kernel of this PE panicked.
    #[error("kernel {kernel} panicked on PE {pe}, block {block}: {message}")]
    KernelPanicked {
        /// The kernel.
        kernel: &'static str,
        /// This PE.
        pe: u32,
        /// The block of the launch.
        block: u32,
        /// What it said.
        message: String,
    },
    /// The GPU of this PE, or its driver, can do no more.
    #[error("the GPU of PE {pe} failed: {message}")]
    Device {
        /// This PE.
        pe: u32,
        /// What the driver said.
        message: String,
    },
    /// Another PE died, or left while it was needed.
    #[error("PE {pe} failed: {evidence}")]
    PeerFailed {
        /// The PE.
        pe: u32,
        /// How that is known.
        evidence: String,
    },
    /// Another PE gave up.
    #[error("PE {by} gave up: {reason}")]
    Aborted {
        /// The PE.
        by: u32,
        /// What it said.
        reason: String,
    },
}
