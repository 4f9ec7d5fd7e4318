//! Moves bytes to peers that loads and stores cannot reach, on behalf of a PE's proxy.
//!
//! A [`Transport`] is one PE's way to all its peers. It fits on this page on purpose. There are two ways to make one:
//!
//! - Where operations on one peer take effect in the order in which they were started, as between [`Local`] heaps and on one
//!   reliable connection, implement [`Transport`] itself.
//! - Where the network promises no order, implement [`Network`], which is smaller, and put a [`Shell`] around it.
//!
//! # What a transport must keep
//! 1. Operations on one peer take effect in the order in which they were started; reads and NIC atomics have no order among themselves. The data of a
//!    write with a signal may land before signals alone that were started before it, but its own signal is after those.
//! 2. The signal of a write becomes visible at the peer after the write's data, and with release: a PE that acquires the
//!    signal sees the data (MM-2). Data and signal never travel as two unordered messages. Each transport argues this
//!    rule in its own file.
//! 3. A ticket ends once ([`Progress::Ended`]): when the operation is complete at the peer, or with the reason
//!    why it never will be, or why nobody knows.
//! 4. What goes wrong with one peer ends the operations on that peer and no others.

mod fabric;
mod faulty;
mod in_process;
#[cfg(test)]
mod layouts;
mod local;
mod memory;
mod message;
mod network;
mod shell;
mod verbs;

pub use fabric::{Fabric, FabricError};
pub use faulty::{Faults, Faulty};
pub use in_process::{Exchange, InProcess};
pub use local::Local;
pub use memory::{Access, Memory};
pub use network::{Event, Failure, Network, Post, Reach, Reconnect};
pub use shell::{EAGER, Shell};
pub use verbs::{Verbs, VerbsError, VerbsOptions};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, NumberKind};

/// One PE's way to its peers. It is used by one thread at a time, though not always by the same: the proxy's, or on the CPU machine that
/// of a lane that waits.
pub trait Transport: Send {
    /// Starts an operation on a peer, whose end [`poll`](Transport::poll) tells by its ticket.
    ///
    /// # Errors
    /// Where it is not started, and its ticket does not come back.
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError>;

    /// Tells how far operations have come since the last call, by their tickets. It is called all the time: peers may
    /// need what this PE does in it, too. True where something is under way, so that the next call had better be soon.
    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool;

    /// How it stands with a peer.
    fn state(&self, peer: Pe) -> PeerState;

    /// Whether peers need [`poll`](Transport::poll) to reach this PE, so that its proxy may not sleep. Not where memory or a network
    /// card does what they ask.
    fn serves(&self) -> bool {
        false
    }

    /// Tells the peers, at the first call, that nothing more comes from here. True once this PE may stop polling: every peer has
    /// said the same, or is dead. At once where it [serves](Transport::serves) nobody.
    fn leave(&mut self) -> bool {
        true
    }
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is a write whose source has been read and may be overwritten. Told at most once, and not after it has ended.
    Local,
    /// It has ended, with this reply.
    Ended(Result<u64, TransportError>),
}

/// What is done to a peer. Offsets are heap offsets, `remote` ones at the peer and `local` ones at this PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies bytes from here to the peer, and then signals it.
    Write {
        /// Where to.
        remote: u64,
        /// Where from.
        local: u64,
        /// How many, or none at all.
        bytes: u64,
        /// What follows.
        then: Option<Signal>,
    },
    /// Copies bytes from the peer to here.
    Read {
        /// Where from.
        remote: u64,
        /// Where to.
        local: u64,
        /// How many.
        bytes: u64,
    },
    /// Stores a word.
    Store {
        /// Where.
        remote: u64,
        /// 1, 2, 4 or 8.
        bytes: u64,
        /// Its bits, in the low bytes.
        value: u64,
    },
    /// Loads a word, which is the reply.
    Load {
        /// Where.
        remote: u64,
        /// 1, 2, 4 or 8.
        bytes: u64,
    },
    /// An atomic on a word, whose old value is the reply.
    Atomic {
        /// Where.
        remote: u64,
        /// What.
        atomic: Atomic,
    },
    /// An atomic on a word of 8 bytes of which network cards do all atomics, this PE's own too, in worlds where they can: an addition of
    /// integers or a compare-exchange.
    NicAtomic {
        /// Where.
        remote: u64,
        /// What.
        atomic: Atomic,
    },
}

/// What follows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Heap offset of the word at the peer, 8 bytes.
    pub offset: u64,
    /// What is added or stored.
    pub value: u64,
    /// Whether the value is stored; otherwise it is added.
    pub set: bool,
}

/// An atomic on a word of 2, 4 or 8 bytes. Values are bits, in the low bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Which.
    pub op: AtomicOp,
    /// Of what kind of number.
    pub kind: NumberKind,
    /// 2, 4 or 8.
    pub bytes: u64,
    /// The operand.
    pub value: u64,
    /// What a compare-exchange expects.
    pub expected: u64,
}

impl Atomic {
    /// What becomes of these bits.
    pub fn apply(&self, old: u64) -> u64 {
        self.op.apply(self.kind, self.bytes, old, [self.value, self.expected])
    }
}

/// How it stands with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Operations are under way.
    Up,
    /// Something failed; what was posted before is awaited, and nothing more is posted.
    Draining,
    /// Everything posted has come back; the connection is made anew, and what is not known to be done is posted again.
    Reconnecting,
    /// Nothing reaches it any more.
    Dead(String),
}

/// Why an operation was not done, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The peer cannot be reached.
    #[error("{peer} cannot be reached: {why}")]
    Unreachable {
        /// The peer.
        peer: Pe,
        /// What the transport knows.
        why: String,
    },
    /// An operation that this transport cannot do.
    #[error("an operation on {bytes} bytes at offset {remote:#x} of {peer} is malformed")]
    Malformed {
        /// The peer.
        peer: Pe,
        /// The heap offset.
        remote: u64,
        /// The bytes.
        bytes: u64,
    },
    /// An atomic of which nobody knows whether it was done.
    #[error("nobody knows whether an atomic on the word at offset {remote:#x} of {peer} was done: {why}")]
    Unknown {
        /// The peer.
        peer: Pe,
        /// The heap offset.
        remote: u64,
        /// What the transport knows.
        why: String,
    },
    /// A heap that its machine does not access any more.
    #[error("the heap of {peer} cannot be accessed: {why}")]
    Memory {
        /// Whose.
        peer: Pe,
        /// What the machine says.
        why: String,
    },
}

impl TransportError {
    /// The peer that it is about.
    pub fn peer(&self) -> Pe {
        match self {
            Self::Unreachable { peer, .. }
            | Self::Malformed { peer, .. }
            | Self::Unknown { peer, .. }
            | Self::Memory { peer, .. } => *peer,
        }
    }
}
