//! How a kernel tells its host that something went wrong: what, who, and where in the program.

use crate::print::Prints;

/// What a kernel tells its host and hears from it, in memory of its own PE.
#[repr(C, align(64))]
pub struct Control {
    /// 0 while all is well; otherwise an [`Abort`], and every wait ends.
    pub abort: u32,
    /// A [`FaultState`], as a number: the first writer wins.
    pub fault_state: u32,
    /// The first fault of this PE.
    pub fault: FaultRecord,
    /// What its kernels print.
    pub prints: Prints,
}

/// Why every wait of a PE ends.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// A wait of this PE passed its deadline, or its kernel broke a rule; the fault record says more.
    Fault = 1,
    /// Another PE gave up or died; the host knows which.
    Peer = 2,
}

/// How far a [`FaultRecord`] is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultState {
    /// Nothing went wrong.
    Empty = 0,
    /// A thread writes it.
    Claimed = 1,
    /// All of it is there but the site, which the same thread writes when it leaves its kernel.
    Told = 2,
    /// Complete.
    Complete = 3,
}

/// Who found what wrong, and where in the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// A [`FaultKind`], as a number.
    pub kind: u32,
    /// The launch, by the host's count (`Context::launch`).
    pub launch: u32,
    /// The block, in its launch.
    pub block: u32,
    /// The thread, in its block.
    pub thread: u32,
    /// What the kind has to say: see [`Cause`].
    pub words: [u64; 5],
    /// Where the program waited, or did what was wrong.
    pub site: Site,
    /// What a panic said.
    pub said: Said,
}

/// The beginning of a text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// How many bytes of `text` count.
    pub bytes: u64,
    /// The text.
    pub text: [u8; Self::TEXT],
}

/// A place in a program's source.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Counted from 1; 0 where the place is not known.
    pub line: u32,
    /// Counted from 1.
    pub column: u32,
    /// How many bytes of `file` count.
    pub bytes: u64,
    /// The end of the file's path.
    pub file: [u8; Self::FILE],
}

/// What a [`FaultRecord`] records.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A wait passed its deadline.
    Timeout = 1,
    /// A block without a slot of its own synchronized a team.
    BlockSlot = 2,
    /// The proxy did not complete a request before the deadline.
    Proxy = 3,
    /// What one PE sends is not as long as what the other receives.
    CountMismatch = 4,
    /// Members of a team called different collectives.
    CallMismatch = 5,
    /// A loop that waits by itself paused for longer than the deadline.
    Pause = 6,
    /// The kernel panicked: it was given what it must refuse, or the program's own code did.
    Panicked = 7,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A wait passed its deadline.
    Timeout {
        /// Heap offset of the word.
        offset: u64,
        /// The PE that was expected to notify, or [`NO_PE`](crate::abi::NO_PE).
        peer: u32,
        /// The value that was waited for.
        expected: u64,
        /// The value last seen.
        seen: u64,
        /// How long it waited.
        waited_ns: u64,
    },
    /// A block without a slot of its own synchronized a team.
    BlockSlot {
        /// The block.
        block: u32,
        /// How many blocks have slots.
        slots: u32,
    },
    /// The proxy did not complete a request before the deadline.
    Proxy {
        /// The peer that the request is to, or [`NO_PE`](crate::abi::NO_PE) for all of them.
        peer: u32,
        /// How many requests were to be complete.
        expected: u64,
        /// How many were.
        seen: u64,
        /// How long it waited.
        waited_ns: u64,
    },
    /// What one PE sends is not as long as what the other receives.
    Counts {
        /// The other PE.
        peer: u32,
        /// Whether this PE is the one that sends.
        sends: bool,
        /// Bytes here.
        mine: u64,
        /// Bytes there.
        theirs: u64,
    },
    /// A loop that waits by itself paused for longer than the deadline.
    Pause {
        /// How long it paused.
        waited_ns: u64,
    },
    /// Members of a team called different collectives.
    Calls {
        /// The other PE.
        peer: u32,
        /// Which call this is.
        number: u64,
        /// What this PE called.
        called: u64,
        /// The first word of the descriptions that differs.
        word: u32,
        /// The word here.
        mine: u64,
        /// The word there.
        theirs: u64,
    },
    /// The kernel panicked; the record says of it what it said.
    Panicked,
}

impl Said {
    /// Room for a text, bytes.
    pub const TEXT: usize = 120;
}

impl Site {
    /// Room for the end of a file's path, bytes.
    pub const FILE: usize = 88;
}

impl Cause {
    /// As a record has it. `peer` and a flag or a small number share the first word.
    #[inline(always)]
    pub const fn encode(self) -> (FaultKind, [u64; 5]) {
        match self {
            Self::Timeout { offset, peer, expected, seen, waited_ns } => {
                (FaultKind::Timeout, [pair(peer, 0), offset, expected, seen, waited_ns])
            }
            Self::BlockSlot { block, slots } => (FaultKind::BlockSlot, [pair(block, slots), 0, 0, 0, 0]),
            Self::Proxy { peer, expected, seen, waited_ns } => {
                (FaultKind::Proxy, [pair(peer, 0), 0, expected, seen, waited_ns])
            }
            Self::Pause { waited_ns } => (FaultKind::Pause, [0, 0, 0, 0, waited_ns]),
            Self::Counts { peer, sends, mine, theirs } => {
                (FaultKind::CountMismatch, [pair(peer, sends as u32), 0, mine, theirs, 0])
            }
            Self::Calls { peer, number, called, word, mine, theirs } => {
                (FaultKind::CallMismatch, [pair(peer, word), number, mine, theirs, called])
            }
            Self::Panicked => (FaultKind::Panicked, [0; 5]),
        }
    }
}

impl FaultRecord {
    /// What it records, or `None` where it holds no known kind.
    pub const fn cause(&self) -> Option<Cause> {
        let [first, second, third, fourth, fifth] = self.words;
        let (low, high) = (first as u32, (first >> 32) as u32);
        Some(match FaultKind::from_raw(self.kind) {
            Some(FaultKind::Timeout) => {
                Cause::Timeout { offset: second, peer: low, expected: third, seen: fourth, waited_ns: fifth }
            }
            Some(FaultKind::BlockSlot) => Cause::BlockSlot { block: low, slots: high },
            Some(FaultKind::Proxy) => Cause::Proxy { peer: low, expected: third, seen: fourth, waited_ns: fifth },
            Some(FaultKind::CountMismatch) => {
                Cause::Counts { peer: low, sends: high == 1, mine: third, theirs: fourth }
            }
            Some(FaultKind::CallMismatch) => {
                Cause::Calls { peer: low, number: second, called: fifth, word: high, mine: third, theirs: fourth }
            }
            Some(FaultKind::Pause) => Cause::Pause { waited_ns: fifth },
            Some(FaultKind::Panicked) => Cause::Panicked,
            None => return None,
        })
    }
}

impl FaultKind {
    /// The kind that a record holds.
    pub const fn from_raw(kind: u32) -> Option<Self> {
        match kind {
            1 => Some(Self::Timeout),
            2 => Some(Self::BlockSlot),
            3 => Some(Self::Proxy),
            4 => Some(Self::CountMismatch),
            5 => Some(Self::CallMismatch),
            6 => Some(Self::Pause),
            7 => Some(Self::Panicked),
            _ => None,
        }
    }
}

/// Two numbers in a word.
#[inline(always)]
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const _: () = {
    assert!(size_of::<Site>() == 104);
    assert!(size_of::<FaultRecord>() == 288);
    assert!(size_of::<Control>() == 320 + size_of::<Prints>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_was_recorded() {
        let causes = [
            Cause::Timeout { offset: 1, peer: u32::MAX, expected: 3, seen: 4, waited_ns: u64::MAX },
            Cause::BlockSlot { block: 7, slots: 4 },
            Cause::Proxy { peer: 6, expected: 9, seen: 8, waited_ns: 7 },
            Cause::Pause { waited_ns: 12 },
            Cause::Counts { peer: 2, sends: true, mine: 8, theirs: 16 },
            Cause::Counts { peer: 2, sends: false, mine: 8, theirs: 16 },
            Cause::Calls { peer: 3, number: 5, called: 6, word: 2, mine: 10, theirs: 11 },
            Cause::Panicked,
        ];
        let site = Site { line: 0, column: 0, bytes: 0, file: [0; Site::FILE] };
        let said = Said { bytes: 0, text: [0; Said::TEXT] };
        for cause in causes {
            let (kind, words) = cause.encode();
            let record = FaultRecord { kind: kind as u32, launch: 0, block: 0, thread: 0, words, site, said };
            assert_eq!(record.cause(), Some(cause));
            assert_eq!(FaultRecord { kind: 99, ..record }.cause(), None);
        }
    }
}
