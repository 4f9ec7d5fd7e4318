//! What the proxies of two PEs say to each other over a network: 72 bytes, and the data of a write.

use congruent_heap::abi::{AtomicOp, NumberKind};

use crate::Signal;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write = 1,
    Store = 2,
    Load = 3,
    Atomic = 4,
    Acknowledgement = 5,
    Reply = 6,
    Bye = 7,
    Read = 8,
    Answer = 9,
    Ask = 10,
    Tell = 11,
}

/// How a message begins; the data of a write follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) from: u32,
    /// Who sends it has done all messages of the receiver's before this one.
    pub(crate) done: u64,
    pub(crate) number: u64,
    pub(crate) remote: u64,
    pub(crate) bytes: u64,
    pub(crate) value: u64,
    pub(crate) expected: u64,
    pub(crate) op: AtomicOp,
    pub(crate) number_kind: NumberKind,
    pub(crate) then: Option<Signal>,
    /// It is done only when a bulk write has arrived that was told by its number.
    pub(crate) awaits: bool,
}

impl Header {
    pub(crate) const BYTES: usize = 72;

    /// Nine words, little endian.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let then = self.then.map_or(0, |signal| 1 + u64::from(signal.set));
        let flags = then | u64::from(self.awaits) << 7;
        let what = self.kind as u64 | flags << 8 | (self.op as u64) << 16 | (self.number_kind as u64) << 24;
        let Signal { offset, value, .. } = self.then.unwrap_or(Signal { offset: 0, value: 0, set: false });
        let words = [
            what | u64::from(self.from) << 32,
            self.done,
            self.number,
            self.remote,
            self.bytes,
            self.value,
            self.expected,
            offset,
            value,
        ];
        let mut bytes = [0; Self::BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// The header and the data of the first of some messages, and those behind it. Nothing where it is none, or shorter than it says.
    pub(crate) fn decode(messages: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, behind) = messages.split_at_checked(Self::BYTES)?;
        let mut words = head.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let mut word = || words.next().unwrap_or(0);
        let what = word();
        let [kind, flags, op, number_kind] = [0, 8, 16, 24].map(|shift| (what >> shift) as u8);
        let header = Self {
            kind: match kind {
                1 => Kind::Write,
                2 => Kind::Store,
                3 => Kind::Load,
                4 => Kind::Atomic,
                5 => Kind::Acknowledgement,
                6 => Kind::Reply,
                7 => Kind::Bye,
                8 => Kind::Read,
                9 => Kind::Answer,
                10 => Kind::Ask,
                11 => Kind::Tell,
                _ => return None,
            },
            from: (what >> 32) as u32,
            done: word(),
            number: word(),
            remote: word(),
            bytes: word(),
            value: word(),
            expected: word(),
            op: match op {
                0 => AtomicOp::Add,
                1 => AtomicOp::Swap,
                2 => AtomicOp::CompareExchange,
                3 => AtomicOp::And,
                4 => AtomicOp::Or,
                5 => AtomicOp::Xor,
                6 => AtomicOp::Min,
                7 => AtomicOp::Max,
                _ => return None,
            },
            number_kind: match number_kind {
                0 => NumberKind::Unsigned,
                1 => NumberKind::Signed,
                2 => NumberKind::Float,
                3 => NumberKind::Bfloat,
                _ => return None,
            },
            awaits: flags & 1 << 7 != 0,
            then: match flags & 0x7f {
                0 => None,
                set @ (1 | 2) => Some(Signal { offset: word(), value: word(), set: set == 2 }),
                _ => return None,
            },
        };
        let carried = if header.kind == Kind::Write { header.bytes } else { 0 };
        let (data, rest) = behind.split_at_checked(usize::try_from(carried).ok()?)?;
        Some((header, data, rest))
    }
}
