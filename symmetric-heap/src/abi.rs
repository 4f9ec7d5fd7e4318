//! What the two sides of the machine agree on: the host writes these, kernels and proxies read them (and the reverse).
//!
//! Everything is `repr(C)`, of a size checked below, and the same on every target. [`VERSION`] grows whenever a layout
//! changes; a kernel is launched only with a context of its own version.

use crate::{Pe, bf16, f16};

pub use crate::fault::{Abort, Cause, Control, FaultKind, FaultRecord, FaultState, Said, Site};
pub use crate::print::{PrintLine, Printed, Prints};

/// The version of every layout that crosses a boundary: those of this file, of faults and of lines.
pub const VERSION: u32 = 7;

/// Bytes at the start of every PE's heap that belong to the library: the [`HeapHeader`].
pub const HEAP_RESERVED: u64 = 4096;

/// Stands where a PE index is expected and none is known.
pub const NO_PE: u32 = u32::MAX;

/// The first argument of every kernel: where the heaps are and how this PE waits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// PE `p`'s heap starts at `base + p * stride`, on every PE, its own included.
    pub base: u64,
    /// Distance between two PEs' heaps, bytes.
    pub stride: u64,
    /// Bytes of one PE's heap.
    pub heap_bytes: u64,
    /// Address of this PE's [`Control`].
    pub control: u64,
    /// Address of `npes` [`Route`]s, as `u32`, or 0 where every peer is direct.
    pub routes: u64,
    /// Address of this PE's first [`Ring`], or 0 where no peer is proxied.
    pub ring: u64,
    /// Longest that one wait may take, nanoseconds; [`NO_DEADLINE`] for no bound.
    pub deadline_ns: u64,
    /// Heap offset of the world team's sync words (see [`SyncLayout`]).
    pub world_sync: u64,
    /// Address of the multicast windows (see [`Context::multicast`]). Unused where the machine emulates them.
    pub multicast: u64,
    /// This PE.
    pub pe: u32,
    /// How many PEs.
    pub npes: u32,
    /// How many blocks of one launch may synchronize teams at once.
    pub block_slots: u32,
    /// [`VERSION`].
    pub version: u32,
    /// How many multicast windows there are, numbered from 1; 0 without multicast. The first is the world's.
    pub windows: u32,
    /// Which launch this is, by the host's count: what a fault says.
    pub launch: u32,
    /// How many rings there are, a power of two, one behind the other ([`RingLayout`]). A block has the one of its index, modulo this.
    pub rings: u32,
    /// A ring holds two to this power of requests.
    pub log2_slots: u32,
}

/// The [`Context::deadline_ns`] that means no bound.
pub const NO_DEADLINE: u64 = u64::MAX;

/// How a peer is reached: one entry of the route table.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By loads and stores.
    Direct = 0,
    /// By requests to the proxy.
    Proxied = 1,
}

/// The start of every PE's heap, readable by all of them.
#[repr(C, align(64))]
pub struct HeapHeader {
    /// How many threads of this PE sleep on a word of its heap, or of its ring: who changes a word wakes them if this is not 0.
    pub sleepers: u32,
}

/// One request to the proxy, in a slot of a [`Ring`].
///
/// A producer writes all fields, then the header with release; the header's parity bit tells the proxy, which reads it with
/// acquire, that the slot is of its present lap. Nothing is reset between laps.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// See [`Request::header`].
    pub header: u64,
    /// The peer.
    pub peer: u64,
    /// Heap offset at the peer.
    pub remote: u64,
    /// Heap offset here.
    pub local: u64,
    /// Bytes to move: of data, or of the one value.
    pub bytes: u64,
    /// The value of a put or an atomic.
    pub value: u64,
    /// The second value of a compare-exchange, or what the signal adds or sets.
    pub second: u64,
    /// Heap offset of the signal at the peer.
    pub signal: u64,
}

/// What a [`Request`] asks for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Moves bytes from here to the peer.
    Put = 1,
    /// Moves bytes from the peer to here.
    Get = 2,
    /// Stores a value of 1, 2, 4 or 8 bytes at the peer.
    PutValue = 3,
    /// Loads a value of 1, 2, 4 or 8 bytes at the peer; the reply is the value.
    GetValue = 4,
    /// Moves nothing; for its signal. Without one it is complete when all requests to the peer before it are.
    Signal = 5,
    /// An atomic at the peer; the reply is the old value. The number kind says of what.
    Atomic = 6,
    /// The same without a reply.
    Post = 7,
    /// An [`Atomic`](Verb::Atomic) on a word of which network cards do all, where they can.
    NicAtomic = 8,
    /// The same without a reply.
    NicPost = 9,
}

impl Verb {
    /// Whether its producer waits for a reply.
    pub const fn replies(self) -> bool {
        matches!(self, Self::GetValue | Self::Atomic | Self::NicAtomic)
    }
}

/// What a [`Request`] does to its signal, after its data has arrived.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing = 0,
    /// Adds to it.
    Add = 1,
    /// Sets it.
    Set = 2,
}

/// Which atomic.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Addition.
    Add = 0,
    /// Swap.
    Swap = 1,
    /// Compare-exchange: stores the value if the second value is there.
    CompareExchange = 2,
    /// Bitwise and.
    And = 3,
    /// Bitwise or.
    Or = 4,
    /// Bitwise exclusive or.
    Xor = 5,
    /// Minimum.
    Min = 6,
    /// Maximum.
    Max = 7,
}

/// What kind of number an atomic acts on; its bytes are the request's.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Unsigned.
    Unsigned = 0,
    /// Signed.
    Signed = 1,
    /// Floating: IEEE's, of 2, 4 or 8 bytes.
    Float = 2,
    /// `bf16`.
    Bfloat = 3,
}

impl AtomicOp {
    /// The one of this number.
    pub const fn from_raw(number: u8) -> Self {
        match number {
            0 => Self::Add,
            1 => Self::Swap,
            2 => Self::CompareExchange,
            3 => Self::And,
            4 => Self::Or,
            5 => Self::Xor,
            6 => Self::Min,
            _ => Self::Max,
        }
    }

    /// The bits of a word of 2, 4 or 8 bytes after this operation on it, with the operand and what a compare-exchange expects. Sums of
    /// floats are rounded once.
    pub fn apply(self, kind: NumberKind, bytes: u64, old: u64, [value, expected]: [u64; 2]) -> u64 {
        match (self, kind) {
            (Self::Swap, _) => value,
            (Self::CompareExchange, _) => {
                if old == expected {
                    value
                } else {
                    old
                }
            }
            (Self::And, _) => old & value,
            (Self::Or, _) => old | value,
            (Self::Xor, _) => old ^ value,
            // A sum in f32, rounded once more, is the sum rounded once: 24 bits are at least 2 * 11 + 2.
            (Self::Add, NumberKind::Bfloat) => {
                (bf16::from_bits(old as u16) + bf16::from_bits(value as u16)).to_bits().into()
            }
            (Self::Add, NumberKind::Float) if bytes == 2 => {
                (f16::from_bits(old as u16) + f16::from_bits(value as u16)).to_bits().into()
            }
            (Self::Add, NumberKind::Float) if bytes == 4 => {
                (f32::from_bits(old as u32) + f32::from_bits(value as u32)).to_bits().into()
            }
            (Self::Add, NumberKind::Float) => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
            (Self::Add, _) => old.wrapping_add(value),
            (Self::Min | Self::Max, _) => {
                let signed = |bits| if bytes == 4 { i64::from(bits as u32 as i32) } else { bits as i64 };
                let smaller = if kind == NumberKind::Signed { signed(old) <= signed(value) } else { old <= value };
                if smaller == (self == Self::Min) { old } else { value }
            }
        }
    }
}

impl NumberKind {
    /// The one of this number, of whose bits the lower two count.
    pub const fn from_raw(number: u8) -> Self {
        // Without the bits above, larger numbers would be the last kind by a minimum of 16 bits, of which and a comparison ptxas 13.0
        // makes, for sm_90, an instruction that says of every kind that it is the last.
        match number & 3 {
            0 => Self::Unsigned,
            1 => Self::Signed,
            2 => Self::Float,
            _ => Self::Bfloat,
        }
    }
}

impl Request {
    /// The bit of a header that tells the lap: 1 on the first one, 0 on the next, and so on.
    pub const PARITY: u64 = 1 << 63;

    /// A header: verb in bits 0–7, signal in 8–15, atomic in 16–23, number kind in 24–31, and the parity.
    #[inline(always)]
    pub const fn header(verb: Verb, then: Then, atomic: AtomicOp, kind: NumberKind) -> u64 {
        verb as u64 | (then as u64) << 8 | (atomic as u64) << 16 | (kind as u64) << 24
    }

    /// What it asks for, or `None` where no such verb exists.
    pub const fn verb(&self) -> Option<Verb> {
        Some(match self.header as u8 {
            1 => Verb::Put,
            2 => Verb::Get,
            3 => Verb::PutValue,
            4 => Verb::GetValue,
            5 => Verb::Signal,
            6 => Verb::Atomic,
            7 => Verb::Post,
            8 => Verb::NicAtomic,
            9 => Verb::NicPost,
            _ => return None,
        })
    }

    /// What it does to its signal.
    pub const fn then(&self) -> Then {
        match (self.header >> 8) as u8 {
            1 => Then::Add,
            2 => Then::Set,
            _ => Then::Nothing,
        }
    }

    /// Which atomic.
    pub const fn atomic(&self) -> AtomicOp {
        AtomicOp::from_raw((self.header >> 16) as u8)
    }

    /// What kind of number.
    pub const fn kind(&self) -> NumberKind {
        NumberKind::from_raw((self.header >> 24) as u8)
    }

    /// The parity of a header in lap `lap` of a ring.
    #[inline(always)]
    pub const fn parity(lap: u64) -> u64 {
        if lap & 1 == 0 { Self::PARITY } else { 0 }
    }
}

/// The counts of a ring of [`Request`]s, in memory that both the kernel and the proxy reach. Requests are numbered in the order in
/// which producers reserve them: the number is a request's ticket. Each count has a line of its own, so that who looks for room misses it
/// only where that has changed.
#[repr(C, align(64))]
pub struct Ring {
    /// How many requests producers have reserved.
    pub reserved: u64,
    /// Keeps the line.
    pub producers: [u64; 7],
    /// How many requests the proxy is known to have taken out of their slots, which are free again.
    pub taken: u64,
    /// Keeps the line.
    pub room: [u64; 7],
    /// How many requests are complete at their peers, in order.
    pub complete: u64,
    /// Keeps the line.
    pub proxy: [u64; 7],
}

/// The reply to a request. It goes with the request's slot.
#[repr(C)]
pub struct Reply {
    /// The old value, or the one that was loaded.
    pub value: u64,
    /// One more than the ticket of the reply that was read here last. The proxy takes no request that wants its reply here while
    /// another one's is not read.
    pub read: u64,
}

/// How a PE's rings lie one behind the other: of each its [`Ring`], its [`Request`]s, its [`Reply`]s, and for each PE two words that
/// tell how far requests to it are: those below one ticket are complete, and those below the other locally. These words are in order for
/// each peer by itself, so that nobody waits for a peer that he asked nothing of.
#[derive(Clone, Copy, Debug)]
pub struct RingLayout {
    log2_slots: u32,
    npes: u32,
}

impl RingLayout {
    /// The layout of rings of `2^log2_slots` requests to `npes` PEs.
    #[inline(always)]
    pub const fn new(log2_slots: u32, npes: u32) -> Self {
        Self { log2_slots, npes }
    }

    /// Bytes of one ring with what goes with it.
    #[inline(always)]
    pub const fn bytes(self) -> u64 {
        self.local(self.npes).next_multiple_of(align_of::<Ring>() as u64)
    }

    /// How many requests fit.
    #[inline(always)]
    pub const fn slots(self) -> u64 {
        1 << self.log2_slots
    }

    /// How often slots have been used before this ticket.
    #[inline(always)]
    pub const fn lap(self, ticket: u64) -> u64 {
        ticket >> self.log2_slots
    }

    /// Byte offset of a ticket's request in its ring.
    #[inline(always)]
    pub const fn request(self, ticket: u64) -> u64 {
        size_of::<Ring>() as u64 + self.slot(ticket) * size_of::<Request>() as u64
    }

    /// Byte offset of a ticket's reply.
    #[inline(always)]
    pub const fn reply(self, ticket: u64) -> u64 {
        self.request(0) + self.slots() * size_of::<Request>() as u64 + self.slot(ticket) * size_of::<Reply>() as u64
    }

    /// Byte offset of the word that tells how far requests to a PE are complete.
    #[inline(always)]
    pub const fn through(self, pe: u32) -> u64 {
        self.reply(0) + self.slots() * size_of::<Reply>() as u64 + pe as u64 * 8
    }

    /// Byte offset of the word that tells how far they are locally complete: the source of a put before this ticket may be overwritten.
    #[inline(always)]
    pub const fn local(self, pe: u32) -> u64 {
        self.through(self.npes + pe)
    }

    #[inline(always)]
    const fn slot(self, ticket: u64) -> u64 {
        ticket & (self.slots() - 1)
    }
}

/// How a team's sync words lie: one slot per block, in it one epoch of its own and one word per member.
///
/// Each word has exactly one writer, its own PE for the epoch and one peer for each of the others.
#[derive(Clone, Copy, Debug)]
pub struct SyncLayout {
    slot_words: u64,
}

impl SyncLayout {
    /// The layout for a team of this size.
    pub const fn new(size: u32) -> Self {
        Self { slot_words: 16 + (size as u64).next_multiple_of(16) }
    }

    /// Words of 8 bytes that `slots` blocks need.
    pub const fn words(self, slots: u32) -> u64 {
        self.slot_words * slots as u64
    }

    /// Byte offset of a slot's epoch.
    #[inline(always)]
    pub const fn epoch(self, slot: u32) -> u64 {
        self.slot_words * slot as u64 * 8
    }

    /// Byte offset of a slot's word `i`.
    #[inline(always)]
    pub const fn word(self, slot: u32, i: u32) -> u64 {
        self.epoch(slot) + 128 + i as u64 * 8
    }
}

impl Context {
    /// Address of heap offset `offset` at `pe`, whose bounds the caller has checked.
    #[inline(always)]
    pub const fn address(&self, pe: Pe, offset: u64) -> u64 {
        self.base + pe.raw() as u64 * self.stride + offset
    }

    /// Address of heap offset `offset` in multicast window `window`, which is 1 or more: it names that offset on every member
    /// of the team that the window was made for. The caller has checked the bounds of both.
    #[inline(always)]
    pub const fn multicast(&self, window: u32, offset: u64) -> u64 {
        self.multicast + (window as u64 - 1) * self.stride + offset
    }
}

const _: () = {
    assert!(size_of::<Context>() == 104 && align_of::<Context>() == 8);
    assert!(size_of::<Route>() == 4);
    assert!(size_of::<HeapHeader>() == 64);
    assert!(size_of::<Request>() == 64 && align_of::<Request>() == 64);
    assert!(size_of::<Ring>() == 192 && size_of::<Reply>() == 16);
    assert!(size_of::<crate::Sym<u8>>() == 16 && size_of::<crate::Rank>() == 8 && size_of::<crate::Place<u8>>() == 24);
    assert!(size_of::<crate::TeamView>() == 56);
    assert!(HEAP_RESERVED as usize >= size_of::<HeapHeader>());
};
