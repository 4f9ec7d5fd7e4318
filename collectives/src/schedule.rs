//! What a collective will do, known before it runs: which bytes go from whom to whom, in which step, in how many bytes on the
//! wire. Selectors price it and simulators read it; a test compares it with what kernels really move.
//!
//! Each [`Descriptor`] gives that of its algorithm, with the same divisions that the algorithm uses ([`Share`], the pairs, the trees,
//! the slots of a [`Layout`]), for one block after the other.

use congruent_device::{Sym, packed_words};

use crate::plan::{Layout, payload};
use crate::share::Share;
use crate::{Descriptor, Protocol, scratch};

/// One call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// How data and signals travel.
    pub protocol: Protocol,
    /// The root, where it has one.
    pub root: usize,
    /// Bytes of the longer of the two buffers: one part for each member where members have parts.
    pub bytes: usize,
    /// Whether destination and source are the same buffer, where a collective allows that.
    pub in_place: bool,
    /// Blocks that share the work.
    pub blocks: usize,
}

/// Data that one member moves: it writes to another's memory, or reads from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// What the step is called in traces.
    pub name: &'static str,
    /// Which step of how many.
    pub step: (u32, u32),
    /// From this member's memory.
    pub from: usize,
    /// To this member's.
    pub to: usize,
    /// Bytes of data.
    pub bytes: usize,
    /// Bytes that travel: with flags, where the protocol has them. Twice while a plan's flags are used up every 2^30 steps,
    /// and at its first steps, the queue's places are written as a whole, which is not in it.
    pub wire: usize,
}

impl Layout {
    /// Gives `visit` every movement of data by member `me`, in their order. False where the algorithm has no schedule.
    pub fn moves(&self, of: &Descriptor, call: &Call, me: usize, mut visit: impl FnMut(Move)) -> bool {
        let Some(moves) = of.moves else { return false };
        for block in (0..call.blocks).filter(|_| self.members() > 1) {
            let blocks = Share::new(block, call.blocks);
            moves(&mut Schedule { layout: self, call: *call, n: self.members(), me, blocks, visit: &mut visit });
        }
        true
    }

    /// Bytes that `bytes` bytes take on the wire where they travel in chunks of at most `most`.
    fn wire(&self, bytes: usize, most: usize, protocol: Protocol) -> usize {
        let packed = |bytes| match protocol {
            Protocol::Simple => bytes,
            Protocol::Ll => packed_words(bytes, 1) * 8,
            Protocol::Ll128 => packed_words(bytes, self.line_bytes()) * 8,
        };
        bytes / most * packed(most) + packed(bytes % most)
    }
}

/// What one member's block does, written down step by step by a descriptor's `moves`.
pub struct Schedule<'t> {
    layout: &'t Layout,
    call: Call,
    n: usize,
    me: usize,
    blocks: Share,
    visit: &'t mut dyn FnMut(Move),
}

impl Schedule<'_> {
    /// The call.
    pub const fn call(&self) -> &Call {
        &self.call
    }

    /// How many members, two or more.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// This member.
    pub const fn me(&self) -> usize {
        self.me
    }

    /// Member `i`, counted round and round.
    pub const fn wrap(&self, i: usize) -> usize {
        i % self.n
    }

    /// The longer buffer.
    pub(crate) fn whole(&self) -> Sym<u8> {
        Sym::from_raw(0, self.call.bytes as u64)
    }

    /// This block's share of a range.
    pub(crate) fn mine(&self, range: Sym<u8>) -> Sym<u8> {
        self.blocks.of(range)
    }

    /// Bytes of this block's share of the longer buffer.
    pub fn share(&self) -> usize {
        self.mine(self.whole()).len()
    }

    /// Bytes of this block's share of part `i` of a buffer that has one part for each member.
    pub fn part(&self, i: usize) -> usize {
        let each = self.call.bytes / self.n;
        self.mine(self.whole().slice(i * each..(i + 1) * each)).len()
    }

    /// Bytes of this block's share of chunk `i` of a buffer that is divided among the members.
    pub fn chunk(&self, i: usize) -> usize {
        self.blocks.of_chunks(self.whole(), i, self.n).len()
    }

    /// Bytes of data in a slot.
    pub(crate) fn slot(&self) -> usize {
        payload(self.layout.channel(self.call.protocol).slot, self.call.protocol, self.layout.line_bytes())
    }

    /// All that another algorithm moves in a call, as a step of this one.
    pub fn all_of(&mut self, of: &Descriptor, call: Call) {
        let whole = core::mem::replace(&mut self.call, call);
        if let Some(moves) = of.moves {
            moves(self);
        }
        self.call = whole;
    }

    /// A movement of plain bytes, if it is one between two: its name in traces, which step of how many, from whom to whom.
    pub fn plain(&mut self, name: &'static str, step: (usize, usize), from: usize, to: usize, bytes: usize) {
        self.give(name, step, (from, to), bytes, bytes);
    }

    /// In one step, movements of plain bytes from every other member.
    pub fn read_others(&mut self, name: &'static str, bytes: usize) {
        (1..self.n).for_each(|i| self.plain(name, (0, 1), self.wrap(self.me + i), self.me, bytes));
    }

    /// In one step, movements of plain bytes to every other member.
    pub fn write_others(&mut self, name: &'static str, bytes: usize) {
        (1..self.n).for_each(|i| self.plain(name, (0, 1), self.me, self.wrap(self.me + i), bytes));
    }

    /// A movement to `to` through its queue.
    pub fn queued(&mut self, name: &'static str, step: (usize, usize), to: usize, bytes: usize) {
        let wire = self.layout.wire(bytes, self.slot(), self.call.protocol);
        self.give(name, step, (self.me, to), bytes, wire);
    }

    /// A movement of packets to the inbox of every other member.
    pub(crate) fn packets(&mut self, name: &'static str, bytes: usize) {
        let wire = self.layout.wire(bytes, self.layout.shot(self.call.protocol), self.call.protocol);
        (1..self.n).for_each(|i| self.give(name, (0, 1), (self.me, self.wrap(self.me + i)), bytes, wire));
    }

    fn give(&mut self, name: &'static str, step: (usize, usize), ends: (usize, usize), bytes: usize, wire: usize) {
        let ((from, to), step) = (ends, (step.0 as u32, step.1 as u32));
        if bytes > 0 && from != to {
            (self.visit)(Move { name, step, from, to, bytes, wire });
        }
    }

    /// Parts of this block, as many bytes of each at a time as there is room for in `slots` slots of the queue.
    pub(crate) fn in_scratch(&mut self, slots: usize, mut run: impl FnMut(&mut Self, usize)) {
        let mut rest = self.part(0);
        let most = scratch::each::<u8>(slots * self.layout.channel(self.call.protocol).slot, self.n);
        while rest > 0 {
            run(self, most.min(rest));
            rest -= most.min(rest);
        }
    }
}
