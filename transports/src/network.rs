//! What a [`Shell`](crate::Shell) needs of a network: what can be posted, what happens then, and how posts fail.

use std::fmt;

use congruent_heap::Pe;

use crate::{Atomic, TransportError};

/// One PE's way to its peers by a network, which need promise no order.
pub trait Network: Send {
    /// What peers must know to reach this PE.
    fn card(&self) -> Vec<u8>;

    /// What it does to this PE's heap itself, which may be a GPU's memory.
    fn reach(&self) -> Reach {
        Reach::Data
    }

    /// Whether what is posted to one peer takes effect in the order of posting, messages after the data of the writes before them, and
    /// nothing of it after something before it that failed without effect. A read is done at any time.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Whether it tells the peer that a write's data is there, where [`Post::Write`] asks for that.
    fn tells_arrivals(&self) -> bool {
        false
    }

    /// Takes the cards of all PEs, in the order of PEs.
    ///
    /// # Errors
    /// Where one cannot be read, or its PE cannot be reached.
    fn connect(&mut self, cards: &[Vec<u8>]) -> Result<(), TransportError>;

    /// Posts something, whose end [`poll`](Network::poll) tells by its id. False where there is no room now. It may be kept until
    /// [`submit`](Network::submit) is called, so that the device is given several things at once.
    ///
    /// A write or a read takes effect before it has ended; where it failed, before the peer is connected to anew, or never. A message may
    /// arrive at any time, more than once, or never.
    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool;

    /// Gives the device what was kept.
    fn submit(&mut self) {}

    /// Gives `hear` everything that has happened since the last call.
    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>));

    /// Connects to a peer anew after a failure, when everything posted to it has ended. It is called until that is done, or cannot be.
    /// From then on nothing that was posted before takes effect, and of nothing that failed is the peer told that it has arrived.
    fn reconnect(&mut self, peer: Pe) -> Reconnect;
}

/// What a network does to a heap itself. What it does not do, it is not asked to do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Nothing: it sends messages alone.
    Nothing,
    /// It reads and writes bytes.
    Data,
    /// It does atomics too, which are atomic with its own on the same PE's heap, whoever asks for them, that PE included.
    Atomics,
}

impl Reach {
    /// What the networks of all PEs do, by what each does as a number.
    pub fn of_all(each: impl IntoIterator<Item = u8>) -> Self {
        match each.into_iter().min() {
            None | Some(0) => Self::Nothing,
            Some(1) => Self::Data,
            Some(_) => Self::Atomics,
        }
    }
}

/// How a new connection comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// It is there.
    Done,
    /// The peer has not answered yet.
    UnderWay,
    /// There is none.
    Impossible,
}

/// What can be posted. Offsets are heap offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post<'m> {
    /// Copies bytes from here to the peer.
    Write {
        /// Where to.
        remote: u64,
        /// Where from.
        local: u64,
        /// How many.
        bytes: u64,
        /// Tells the peer by this number when they are there, where the network [tells](Network::tells_arrivals) that.
        arrival: Option<u32>,
        /// The bytes themselves, no more than a message has, where they were read before and may be others by now.
        data: Option<&'m [u8]>,
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
    /// An atomic on a word of 8 bytes of the peer's, where the network has [those](Reach::Atomics). [`Event::Fetched`] tells its end.
    Atomic {
        /// Where.
        remote: u64,
        /// An addition of integers, or a compare-exchange.
        atomic: Atomic,
    },
    /// Sends messages of at most [`Shell::MESSAGE`](crate::Shell::MESSAGE) bytes together.
    Send(&'m [u8]),
}

/// What a network tells.
#[derive(Debug)]
pub enum Event<'m> {
    /// This has ended well. The data of a write is in the peer's memory, that of a read in this PE's.
    Done(u64),
    /// This atomic has ended well, and the word was so before.
    Fetched(u64, u64),
    /// This has failed; the peer may have it or not.
    Failed(u64, Failure),
    /// The data of a peer's write is in this PE's memory, which asked for that to be told by this number. Of a write that ended well it is
    /// told once, and before any message that was posted after its end; of one that failed once or never.
    Arrived(u32),
    /// Messages that were sent together have come.
    Messages(&'m [u8]),
}

/// Why something that was posted failed: what completion queues say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is longer than its buffer here.
    LocalLength,
    /// The connection cannot do it.
    LocalOperation,
    /// Memory here is not registered for it.
    LocalProtection,
    /// It was dropped since something before it failed.
    Flushed,
    /// The peer answered what nobody understands.
    BadResponse,
    /// Memory here does not allow it.
    LocalAccess,
    /// The peer found it malformed.
    RemoteInvalid,
    /// The peer's memory does not allow it.
    RemoteAccess,
    /// The peer could not do it.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// The peer had no room for it after all retries.
    ReceiverNotReady,
    /// The peer gave it up.
    RemoteAborted,
    /// The device has failed.
    Fatal,
    /// It took too long.
    TimedOut,
    /// The connection was reset.
    Reset,
    /// Another error of the system or the library, by its number.
    Other(i32),
}

impl Failure {
    /// Every one that has a name.
    pub const ALL: [Self; 15] = [
        Self::LocalLength,
        Self::LocalOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalid,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::ReceiverNotReady,
        Self::RemoteAborted,
        Self::Fatal,
        Self::TimedOut,
        Self::Reset,
    ];

    /// Whether a new connection may help.
    pub const fn passes(self) -> bool {
        use Failure::{Flushed, LocalOperation, ReceiverNotReady, RemoteAborted, Reset, RetryExceeded, TimedOut};
        matches!(self, LocalOperation | Flushed | RetryExceeded | ReceiverNotReady | RemoteAborted | TimedOut | Reset)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "a length error here",
            Self::LocalOperation => "an operation that the connection cannot do",
            Self::LocalProtection => "memory here that is not registered",
            Self::Flushed => "the connection had failed before",
            Self::BadResponse => "an answer that nobody understands",
            Self::LocalAccess => "memory here that does not allow it",
            Self::RemoteInvalid => "the peer found a request malformed",
            Self::RemoteAccess => "the peer's memory does not allow it",
            Self::RemoteOperation => "the peer could not do it",
            Self::RetryExceeded => "no answer after all retries",
            Self::ReceiverNotReady => "the peer had no room after all retries",
            Self::RemoteAborted => "the peer gave a request up",
            Self::Fatal => "the network device has failed",
            Self::TimedOut => "it took too long",
            Self::Reset => "the connection was reset",
            Self::Other(code) => return write!(f, "error {code}"),
        })
    }
}
