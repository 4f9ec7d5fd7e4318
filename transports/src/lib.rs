//! Moves bytes to peers that loads and stores cannot reach, on behalf of a PE's proxy.
//!
//! A [`Transport`] is one PE's way to all its peers. It fits on this page on purpose: to add a network, implement it in a
//! folder of its own. [`Local`] is the one for peers whose heaps this process maps anyway; it makes the proxied route
//! testable everywhere.
//!
//! # What a transport must keep
//! 1. Operations on one peer take effect in the order in which they were started.
//! 2. The signal of a write becomes visible at the peer after the write's data, and with release: a PE that acquires the
//!    signal sees the data (MM-2). Data and signal never travel as two unordered messages. Each transport argues this
//!    rule in its own file.
//! 3. A ticket comes back from [`poll`](Transport::poll) once, when the operation is complete at the peer, or never, after
//!    the transport has reported an error.

mod local;

pub use local::{Access, Local};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, NumberKind};

/// One PE's way to its peers. Offsets are heap offsets, checked by the caller against the heap.
pub trait Transport: Send {
    /// Starts to copy `bytes` bytes from this PE's heap to the peer's, and then to signal it.
    ///
    /// # Errors
    /// Where the peer cannot be reached any more.
    fn write(
        &mut self,
        ticket: u64,
        peer: Pe,
        remote: u64,
        local: u64,
        bytes: u64,
        then: Option<Signal>,
    ) -> Result<(), TransportError>;

    /// Starts to copy `bytes` bytes from the peer's heap to this PE's.
    ///
    /// # Errors
    /// As [`write`](Transport::write).
    fn read(&mut self, ticket: u64, peer: Pe, remote: u64, local: u64, bytes: u64) -> Result<(), TransportError>;

    /// Starts to store a word of 1, 2, 4 or 8 bytes at the peer.
    ///
    /// # Errors
    /// As [`write`](Transport::write).
    fn store(&mut self, ticket: u64, peer: Pe, remote: u64, bytes: u64, value: u64) -> Result<(), TransportError>;

    /// Starts to load a word of 1, 2, 4 or 8 bytes at the peer; the reply is its value.
    ///
    /// # Errors
    /// As [`write`](Transport::write).
    fn load(&mut self, ticket: u64, peer: Pe, remote: u64, bytes: u64) -> Result<(), TransportError>;

    /// Starts an atomic on a word at the peer; the reply is the old value.
    ///
    /// # Errors
    /// As [`write`](Transport::write).
    fn atomic(&mut self, ticket: u64, peer: Pe, remote: u64, atomic: Atomic) -> Result<(), TransportError>;

    /// Gives `done` every operation that has completed since the last call, with its reply.
    ///
    /// # Errors
    /// Where the peer of an operation cannot be reached any more.
    fn poll(&mut self, done: &mut dyn FnMut(u64, u64)) -> Result<(), TransportError>;
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

/// An atomic on a word of 4 or 8 bytes. Values are bits, in the low bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Which.
    pub op: AtomicOp,
    /// Of what kind of number.
    pub kind: NumberKind,
    /// 4 or 8.
    pub bytes: u64,
    /// The operand.
    pub value: u64,
    /// What a compare-exchange expects.
    pub expected: u64,
}

/// Why a transport gave up.
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
}
