//! Why a world failed: the first reason wins, and every later call tells it.

use std::fmt;

use congruent_device::abi::{Cause, FaultKind, FaultRecord, NO_PE, Said, Site};

use congruent_collectives::Operation;

use crate::comm::checked::CallMismatch;
use crate::launches::Launched;

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
    /// The object that the word is of, as the program made it, and which word of it.
    pub object: Option<String>,
    /// Of a word of a plan, which chunk of the call is awaited, counted from 1, where that is known.
    pub chunk: Option<u64>,
    /// What this PE's block does with the plan.
    pub operation: Option<Operation>,
    /// What the peer's block does with it, if anything.
    pub peer_operation: Option<Operation>,
    /// The kernel.
    pub kernel: Option<&'static str>,
    /// The line of the kernel's source where it waited, or called what waited: `src/lib.rs:12:9`. Of a call on a stream, that of
    /// the call.
    pub at: Option<String>,
    /// The line of the program that launched the kernel, where it launched one of its own.
    pub launched_at: Option<String>,
}

impl Fault {
    /// What PE `pe` found.
    pub(crate) fn new(pe: u32, cause: Cause) -> Self {
        let known = |peer: u32| (peer != NO_PE).then_some(peer);
        let nothing = Self {
            kind: cause.encode().0,
            pe,
            block: 0,
            thread: 0,
            peer: None,
            offset: 0,
            expected: 0,
            seen: 0,
            waited_ms: 0,
            receives: false,
            mismatch: None,
            object: None,
            chunk: None,
            operation: None,
            peer_operation: None,
            kernel: None,
            at: None,
            launched_at: None,
        };
        match cause {
            Cause::Timeout { offset, peer, expected, seen, waited_ns } => {
                Self { peer: known(peer), offset, expected, seen, waited_ms: waited_ns / 1_000_000, ..nothing }
            }
            Cause::BlockSlot { block, slots } => Self { expected: slots.into(), seen: block.into(), ..nothing },
            Cause::Proxy { peer, expected, seen, waited_ns } => {
                Self { peer: known(peer), expected, seen, waited_ms: waited_ns / 1_000_000, ..nothing }
            }
            Cause::Pause { waited_ns } => Self { waited_ms: waited_ns / 1_000_000, ..nothing },
            Cause::Counts { peer, sends, mine, theirs } => {
                Self { peer: known(peer), expected: mine, seen: theirs, receives: !sends, ..nothing }
            }
            Cause::Panicked => nothing,
            Cause::Calls { peer, number, called, word, mine, theirs } => {
                let mismatch = CallMismatch::new(number, called, word, mine, theirs);
                Self { peer: known(peer), mismatch: Some(Box::new(mismatch)), ..nothing }
            }
        }
    }

    /// The same, with who found it and where.
    pub(crate) fn of(self, record: &FaultRecord, launched: Option<Launched>) -> Self {
        let calls = launched.is_some_and(|launched| launched.by.calls);
        let launched_at = launched.map(|launched| launched.by.at.to_string());
        Self {
            block: record.block,
            thread: record.thread,
            kernel: launched.map(|launched| launched.kernel),
            // Where a kernel of ours waits is nothing to the program, which has made a call.
            at: if calls { launched_at.clone() } else { shown(&record.site) },
            launched_at: if calls { None } else { launched_at },
            ..self
        }
    }
}

impl Fault {
    /// Says what this PE and its peer do with the plan that the word is of.
    fn tell_operations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(operation) = self.operation else { return Ok(()) };
        write!(f, "; PE {} is in {operation}", self.pe)?;
        if let Some(chunk) = self.chunk {
            write!(f, ", at chunk {chunk}")?;
        }
        match (self.peer, self.peer_operation) {
            (Some(peer), Some(operation)) => write!(f, "; PE {peer} is in {operation}"),
            (Some(peer), None) => write!(f, "; PE {peer} is in no call with that plan"),
            (None, _) => Ok(()),
        }
    }

    /// Says which kernel it was, and where in the program that waits and was launched.
    fn tell_where(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kernel) = self.kernel {
            write!(f, "; in kernel {kernel}")?;
        }
        if let Some(at) = &self.at {
            write!(f, " at {at}")?;
        }
        match &self.launched_at {
            Some(launched_at) => write!(f, ", launched at {launched_at}"),
            None => Ok(()),
        }
    }
}

/// A place in the source as compilers write it, where it is known.
fn shown(site: &Site) -> Option<String> {
    let kept = &site.file[..usize::try_from(site.bytes).map_or(0, |bytes| bytes.min(Site::FILE))];
    // The beginning of a long path is cut off.
    let cut = if kept.len() == Site::FILE { "…" } else { "" };
    (site.line > 0).then(|| format!("{cut}{}:{}:{}", String::from_utf8_lossy(kept), site.line, site.column))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pe, block, thread, offset, expected, seen, waited_ms, .. } = self;
        let peer = self.peer.map_or("another PE".to_owned(), |peer| format!("PE {peer}"));
        match self.kind {
            FaultKind::Timeout => {
                let object = self.object.clone().unwrap_or_else(|| format!("the word at {offset:#x}"));
                write!(
                    f,
                    "PE {pe}, block {block}, thread {thread} waited {waited_ms} ms for {object} to reach {expected}; it is {seen}"
                )?;
                match self.peer {
                    Some(peer) => write!(f, "; PE {peer} was to notify it")?,
                    None => f.write_str("; name the notifier with from_rank to see which PE is late")?,
                }
                self.tell_operations(f)?;
                f.write_str(" (a PE did not take part, or CONGRUENT_DEADLINE_MS is too short)")?;
            }
            FaultKind::Proxy => write!(
                f,
                "PE {pe}, block {block}, thread {thread} waited {waited_ms} ms until its proxy had served {expected} requests of a ring; \
                 it has served {seen} ({peer} may be unreachable, or CONGRUENT_DEADLINE_MS is too short)"
            )?,
            FaultKind::Pause => write!(
                f,
                "PE {pe}, block {block}, thread {thread} paused for {waited_ms} ms, and what its loop waits for did not come (nobody \
                 stored it, or CONGRUENT_DEADLINE_MS is too short)"
            )?,
            FaultKind::BlockSlot => write!(
                f,
                "PE {pe}, block {seen} synchronized a team, but only {expected} blocks may: raise CONGRUENT_MAX_BLOCKS"
            )?,
            FaultKind::CountMismatch => {
                match self.receives {
                    false => write!(f, "PE {pe} sends {expected} bytes to {peer}, which receives {seen}")?,
                    true => write!(f, "{peer} sends {seen} bytes to PE {pe}, which receives {expected}")?,
                }
                f.write_str("; give both sides the same count and the same type")?;
            }
            FaultKind::Panicked => write!(f, "PE {pe}, block {block}, thread {thread} panicked")?,
            FaultKind::CallMismatch => match &self.mismatch {
                Some(mismatch) => mismatch.tell(f, *pe, &peer)?,
                None => write!(f, "{peer} called another collective than PE {pe}")?,
            },
        }
        self.tell_where(f)
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
    #[error("kernel {kernel} panicked on PE {pe}, block {block}, thread {thread}: {message}")]
    KernelPanicked {
        /// The kernel.
        kernel: &'static str,
        /// This PE.
        pe: u32,
        /// The block of the launch.
        block: u32,
        /// The thread of the block.
        thread: u32,
        /// What it said. Of a panic of the program's own a GPU, whose kernels format no text, tells the file and the line instead.
        message: String,
    },
    /// Lanes of a block wait for each other at different places, so that none goes on.
    #[error(
        "kernel {kernel} stands still on PE {pe}, block {block}: {lanes}; every lane of a group must come to the same barriers, in the \
         same order"
    )]
    StoodStill {
        /// The kernel.
        kernel: &'static str,
        /// This PE.
        pe: u32,
        /// The block of the launch.
        block: u32,
        /// Which lanes wait where.
        lanes: String,
    },
    /// A kernel of this PE began to ask its proxy for something, and ended before it had.
    #[error(
        "PE {pe}: request {request} of ring {ring} was begun and never written: a kernel was killed, or ended, while it asked the proxy; \
         that ring is served no more"
    )]
    RequestLost {
        /// This PE.
        pe: u32,
        /// Which of its rings; that of the blocks whose index, modulo the number of rings, is this.
        ring: usize,
        /// Which of the ring's requests, counted from 0.
        request: u64,
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
    /// Another PE gave up, or this one ([`World::abort`](crate::World::abort)).
    #[error("PE {by} gave up: {reason}{}", meanwhile(waited.as_deref()))]
    Aborted {
        /// The PE.
        by: u32,
        /// What it said.
        reason: String,
        /// What a kernel of this PE waited for then, if one did, or what it found at the same time. A PE that gives up may have waited for
        /// one that itself waits: what all of them say leads to the first. There once the kernel has ended.
        waited: Option<Box<Fault>>,
    },
}

/// Says what a PE waited for when another one gave up.
fn meanwhile(waited: Option<&Fault>) -> String {
    waited.map_or_else(String::new, |fault| format!("; meanwhile {fault}"))
}

impl WorldFailure {
    /// A panic that PE `pe` recorded.
    pub(crate) fn panicked(pe: u32, record: &FaultRecord, launched: Option<Launched>) -> Self {
        let kept = usize::try_from(record.said.bytes).map_or(0, |bytes| bytes.min(Said::TEXT));
        let said = String::from_utf8_lossy(&record.said.text[..kept]);
        let at = shown(&record.site).map_or_else(String::new, |at| format!(" ({at})"));
        let kernel = launched.map_or("(unknown)", |launched| launched.kernel);
        Self::KernelPanicked { kernel, pe, block: record.block, thread: record.thread, message: format!("{said}{at}") }
    }
}
