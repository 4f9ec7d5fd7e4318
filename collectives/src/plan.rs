//! What the algorithms need on the heap, told to the host before a kernel runs, and given to kernels as a [`PlanView`].

use congruent_device::{KernelArg, PACKETS, PLAIN, PerMember, Signal, Sym, Tag, TeamView, kernel_arg, refuse};

use crate::Protocol;
use crate::share::Share;
use crate::word::PlanWord;

/// How much is needed on every PE's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Signals.
    pub signals: usize,
    /// Bytes of scratch.
    pub scratch: usize,
}

/// What kernels need for a team of a certain size: how much, and their argument once that is allocated.
///
/// The host's `World::plan` turns a shape into a plan.
pub trait Shape {
    /// The plan as a kernel argument.
    type View: KernelArg;

    /// What it needs.
    fn needs(&self) -> Needs;

    /// The kernel argument, over signals and scratch of at least what it needs, zeroed when they were allocated.
    fn view(&self, signals: Sym<Signal>, scratch: Sym<u8>) -> Self::View;

    /// What the word at a heap offset is for, if it is a word of the plan: what a fault says of a wait for it.
    fn word(&self, _signals: Sym<Signal>, _scratch: Sym<u8>, _offset: u64) -> Option<PlanWord> {
        None
    }
}

/// A plan for every algorithm of this crate: so many bytes of scratch and a few signals for each block and member.
///
/// Each block of a launch has a *slot*, and a slot has a *channel* for each protocol, because data of one could look like
/// flags of another: a turn counter; for each other member a queue of [`Layout::DEPTH`] slots that this member writes and
/// the channel's owner reads; words that it posts there; and, where data carries flags, an inbox of two halves for exchanges of
/// all with all, which takes half of the channel.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    team: TeamView,
    blocks: u32,
    buffer: u64,
    flag_bits: u32,
    line: u32,
}

/// Signals of one member's link to a channel, each on a cache line of its own.
pub(crate) const LINK: usize = 6 * LINE;
/// Signals in a cache line of 64 bytes.
pub(crate) const LINE: usize = 8;
/// Bytes of a channel's own words: the turn, and the counts of exchanges and of barriers.
pub(crate) const HEAD: usize = 128;
/// Counters that a channel's owner keeps of each link.
pub(crate) const COUNTERS: usize = 4;
/// Words of 8 bytes that a member posts at a channel, or the channel's owner keeps beside them (`agree.rs`, `exchange.rs`).
pub(crate) const POST: usize = 16;
/// Channels of a slot, one for each protocol.
pub(crate) const CHANNELS: usize = Protocol::ALL.len();
/// Everything starts on a multiple of this.
const GRAIN: usize = 128;

/// Where everything is in a channel's memory.
#[derive(Clone, Copy)]
pub(crate) struct ChannelLayout {
    pub(crate) members: usize,
    /// Bytes of a slot of a queue.
    pub(crate) slot: usize,
    /// Bytes of one half of what a member writes to an inbox.
    pub(crate) inbox: usize,
}

impl ChannelLayout {
    /// Of a protocol whose slots have so many bytes.
    #[inline(always)]
    const fn of(slot: usize, members: usize, protocol: Protocol) -> Self {
        Self { members, slot, inbox: if matches!(protocol, Protocol::Simple) { 0 } else { slot * 2 } }
    }

    /// Of a protocol to which so many bytes are given.
    const fn within(buffer: u64, members: usize, protocol: Protocol) -> Self {
        let (buffer, slots) = match protocol {
            Protocol::Simple => (buffer, Layout::DEPTH),
            // An inbox takes as much as the queue.
            Protocol::Ll | Protocol::Ll128 => (Layout::packed(buffer, members), 2 * Layout::DEPTH),
        };
        Self::of((buffer / slots) as usize / members / GRAIN * GRAIN, members, protocol)
    }

    /// The counters that the channel's owner keeps of its link with a member.
    #[inline(always)]
    pub(crate) const fn counters(self, member: usize) -> usize {
        HEAD + member * COUNTERS * 8
    }

    /// The words that a member posts.
    #[inline(always)]
    pub(crate) const fn post(self, member: usize) -> usize {
        HEAD + (self.members * COUNTERS * 8).next_multiple_of(GRAIN) + member * POST * 8
    }

    /// Slot `index` of the queue that a member writes.
    #[inline(always)]
    pub(crate) const fn slot(self, member: usize, index: usize) -> usize {
        self.post(self.members) + (member * Layout::DEPTH as usize + index) * self.slot
    }

    /// Half `half` of what a member writes to the inbox.
    #[inline(always)]
    pub(crate) const fn inbox(self, member: usize, half: usize) -> usize {
        self.slot(self.members, 0) + (half * self.members + member) * self.inbox
    }

    /// Bytes of the channel.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> usize {
        self.inbox(0, 2)
    }
}

impl Layout {
    /// Slots of a queue.
    pub const DEPTH: u64 = 4;
    /// Scratch of each block and protocol where nothing else is asked for, bytes.
    pub const BUFFER: u64 = 1 << 20;
    /// Bytes of a line of the LL128 protocol where nothing else is asked for.
    pub const LINE_BYTES: u32 = 128;
    /// The most of it that protocols have whose data carries flags, where a team does not need more: they are for short messages.
    const MOST_PACKED: u64 = 1 << 20;
    /// Scratch of each block and protocol for each member where less is asked for, bytes.
    pub const FEWEST_BYTES: u64 = 4096;
    const FEWEST_FLAG_BITS: u32 = 4;
    const MOST_FLAG_BITS: u32 = 31;

    /// For launches of up to `blocks` blocks on a team.
    pub const fn new<G: Tag>(team: TeamView<G>, blocks: u32) -> Self {
        Self {
            team: team.untagged(),
            blocks: if blocks == 0 { 1 } else { blocks },
            buffer: Self::BUFFER,
            flag_bits: Self::MOST_FLAG_BITS,
            line: Self::LINE_BYTES,
        }
    }

    /// With about `bytes` of scratch for each block and protocol; at least 4 KiB for each member.
    #[must_use]
    pub const fn buffer(self, bytes: u64) -> Self {
        Self { buffer: bytes, ..self }
    }

    /// With lines of 16, 32, 64 or 128 bytes for the LL128 protocol: as many as the hardware stores at once.
    ///
    /// # Panics
    /// For another number.
    #[must_use]
    pub const fn line(self, bytes: u32) -> Self {
        assert!(matches!(bytes, 16 | 32 | 64 | 128), "lines have 16, 32, 64 or 128 bytes");
        Self { line: bytes, ..self }
    }

    /// With flags of so few bits, 4 to 31, that they wrap around soon: for tests.
    #[must_use]
    pub const fn flag_bits(self, bits: u32) -> Self {
        let bits = if bits < Self::FEWEST_FLAG_BITS { Self::FEWEST_FLAG_BITS } else { bits };
        Self { flag_bits: if bits > Self::MOST_FLAG_BITS { Self::MOST_FLAG_BITS } else { bits }, ..self }
    }

    /// The most blocks of a launch.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Members of its team.
    pub const fn members(&self) -> usize {
        self.team.size()
    }

    /// Bytes of one slot of a queue: what one step of an algorithm moves at most, in the simple protocol.
    pub const fn slot(&self) -> usize {
        self.channel(Protocol::Simple).slot
    }

    /// Bytes that one member writes to one half of another's inbox.
    pub const fn inbox(&self) -> usize {
        self.channel(Protocol::Ll).inbox
    }

    /// The most bytes of data that a one-shot algorithm moves at once in a protocol, which has flags; more take several rounds.
    pub const fn shot(&self, protocol: Protocol) -> usize {
        payload(self.channel(protocol).inbox, protocol, self.line)
    }

    /// The same of each block, where `buffer` bytes of scratch serve so many members.
    pub const fn shot_of(buffer: u64, members: usize, protocol: Protocol) -> usize {
        payload(ChannelLayout::within(buffer, members, protocol).inbox, protocol, Self::LINE_BYTES)
    }

    /// The most bytes of data in a slot of a queue: what one step of an algorithm moves at once in a protocol, where `buffer` bytes
    /// of scratch serve so many members.
    pub const fn chunk(buffer: u64, members: usize, protocol: Protocol) -> usize {
        payload(ChannelLayout::within(buffer, members, protocol).slot, protocol, Self::LINE_BYTES)
    }

    /// Scratch of each block and protocol, bytes.
    pub const fn buffer_bytes(&self) -> u64 {
        let fewest = self.members() as u64 * Self::FEWEST_BYTES;
        if self.buffer < fewest { fewest } else { self.buffer }
    }

    /// Bytes of a line of the LL128 protocol.
    pub const fn line_bytes(&self) -> u32 {
        self.line
    }

    /// What a protocol whose data carries flags has of so many bytes.
    const fn packed(buffer: u64, members: usize) -> u64 {
        let fewest = members as u64 * Self::FEWEST_BYTES;
        let most = if fewest > Self::MOST_PACKED { fewest } else { Self::MOST_PACKED };
        if buffer < most { buffer } else { most }
    }

    pub(crate) const fn channel(&self, protocol: Protocol) -> ChannelLayout {
        ChannelLayout::within(self.buffer_bytes(), self.members(), protocol)
    }
}

impl Shape for Layout {
    type View = PlanView;

    fn needs(&self) -> Needs {
        let blocks = self.blocks as usize;
        let channels = Protocol::ALL.iter().map(|&protocol| self.channel(protocol).bytes());
        Needs { signals: blocks * CHANNELS * self.members() * LINK, scratch: blocks * channels.sum::<usize>() }
    }

    fn view(&self, signals: Sym<Signal>, scratch: Sym<u8>) -> PlanView {
        PlanView {
            signals,
            scratch,
            team: self.team,
            simple_slot: self.channel(Protocol::Simple).slot as u32,
            packed_slot: self.channel(Protocol::Ll).slot as u32,
            blocks: self.blocks,
            flag_mask: (1 << self.flag_bits) - 1,
            line: self.line,
            protocol: Protocol::Simple as u32,
            first: 0,
            alone: 0,
            abort_aware: 0,
            slot_bytes: 0,
            slot_payload: 0,
            inbox_payload: 0,
            slots: 0,
            inboxes: 0,
        }
        .over(Protocol::Simple)
    }

    fn word(&self, signals: Sym<Signal>, scratch: Sym<u8>, offset: u64) -> Option<PlanWord> {
        PlanWord::at(&self.view(signals, scratch), offset)
    }
}

/// Bytes of data that `bytes` bytes of a queue hold in a protocol, a multiple of 128 where there is room for it.
#[inline(always)]
pub(crate) const fn payload(bytes: usize, protocol: Protocol, line: u32) -> usize {
    let most = match protocol {
        Protocol::Simple => bytes,
        Protocol::Ll => bytes / 2,
        Protocol::Ll128 => bytes / line as usize * (line as usize - 8),
    };
    if most >= GRAIN { most / GRAIN * GRAIN } else { most / 8 * 8 }
}

kernel_arg! {
    /// A plan as a kernel argument: for its team, over a protocol, simple where nothing else is asked for, and with the slots that
    /// blocks use. [`enter`](PlanView::enter) begins a session on it.
    #[derive(Debug)]
    pub struct PlanView {
        pub(crate) signals: Sym<Signal>,
        pub(crate) scratch: Sym<u8>,
        pub(crate) team: TeamView,
        /// Bytes of a slot of a queue in the simple protocol, and in the others.
        simple_slot: u32,
        packed_slot: u32,
        pub(crate) blocks: u32,
        /// What flags count up to.
        flag_mask: u32,
        pub(crate) line: u32,
        protocol: u32,
        /// The slot of block 0, or of the one group that enters.
        first: u32,
        alone: u32,
        /// Whether a session ends before it touches anything where the launch is ending already.
        pub(crate) abort_aware: u32,
        /// Bytes of a slot in the protocol, and of the data that it holds.
        pub(crate) slot_bytes: u32,
        slot_payload: u32,
        /// The same of data that one member sends another in one exchange of all with all.
        inbox_payload: u32,
        /// Where the queues begin in a channel's memory, and the inboxes of a protocol that has some.
        slots: u32,
        inboxes: u32,
    }
    most_blocks = Self::launch_blocks;
}

impl PlanView {
    /// The same plan, over another protocol. All members' blocks that meet use the same.
    #[must_use]
    #[inline(always)]
    pub const fn over(self, protocol: Protocol) -> Self {
        let layout = self.layout_of(protocol);
        Self {
            protocol: protocol as u32,
            slot_bytes: layout.slot as u32,
            slot_payload: payload(layout.slot, protocol, self.line) as u32,
            inbox_payload: payload(layout.inbox, protocol, self.line) as u32,
            slots: layout.slot(0, 0) as u32,
            inboxes: if layout.inbox > 0 { layout.inbox(0, 0) as u32 } else { 0 },
            ..self
        }
    }

    /// The same plan, for a group that calls collectives by itself, on buffers that no other block shares: it uses slot
    /// `slot`, whichever block it is in. Groups that run at the same time use different slots, and the members' groups that
    /// meet use the same.
    #[must_use]
    #[inline(always)]
    pub const fn alone(self, slot: usize) -> Self {
        Self { first: slot as u32, alone: 1, ..self }
    }

    /// The same plan, for a launch that does nothing if one before it on its stream has failed. It asks the host's memory, which
    /// from a GPU takes about as long as a message.
    #[must_use]
    #[inline(always)]
    pub const fn abort_aware(self) -> Self {
        Self { abort_aware: 1, ..self }
    }

    /// The same plan, for a launch whose blocks use the slots from `first` on: launches that run at the same time use
    /// different ones.
    #[must_use]
    #[inline(always)]
    pub const fn from_slot(self, first: usize) -> Self {
        Self { first: first as u32, alone: 0, ..self }
    }

    /// The team that it is for.
    #[inline(always)]
    pub const fn team(&self) -> TeamView {
        self.team
    }

    /// The channel of block `index` of `blocks`, and which share of the work is its.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn channel_of(&self, index: usize, blocks: usize) -> (usize, Share) {
        let (slot, share) = match self.alone {
            0 => (self.first as usize + index, Share::new(index, blocks)),
            _ => (self.first as usize, Share::new(0, 1)),
        };
        if slot >= self.blocks as usize {
            refuse!("the plan has no slot for this block; make it for as many blocks as run at once");
        }
        (slot * CHANNELS + self.protocol() as usize, share)
    }

    /// How data and signals travel.
    #[inline(always)]
    pub const fn protocol(&self) -> Protocol {
        match self.protocol {
            1 => Protocol::Ll,
            2 => Protocol::Ll128,
            _ => Protocol::Simple,
        }
    }

    /// The form of an operand that is data of this protocol.
    #[inline(always)]
    pub(crate) const fn form(&self) -> u32 {
        match self.protocol() {
            Protocol::Simple => PLAIN,
            Protocol::Ll => PACKETS,
            Protocol::Ll128 => self.line,
        }
    }

    /// The most blocks of a launch with it.
    #[inline(always)]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The most blocks of a launch that is given it as it is. Groups that enter by themselves say in the kernel which slot is theirs.
    fn launch_blocks(&self) -> u32 {
        if self.alone == 0 { self.blocks.saturating_sub(self.first) } else { u32::MAX }
    }

    /// Elements that a slot holds, in the plan's protocol.
    #[inline(always)]
    pub(crate) fn slot_elements<T>(&self) -> usize {
        (self.slot_payload as usize / size_of::<T>()).max(1)
    }

    /// Bytes of data that one member sends another in one exchange of all with all, in its protocol.
    #[inline(always)]
    pub(crate) const fn shot_bytes(&self) -> usize {
        self.inbox_payload as usize
    }

    #[inline(always)]
    const fn layout(&self) -> ChannelLayout {
        ChannelLayout::of(self.slot_bytes as usize, self.team.size(), self.protocol())
    }

    /// What the channel of a protocol has.
    #[inline(always)]
    pub(crate) const fn layout_of(&self, protocol: Protocol) -> ChannelLayout {
        let slot = if matches!(protocol, Protocol::Simple) { self.simple_slot } else { self.packed_slot };
        ChannelLayout::of(slot as usize, self.team.size(), protocol)
    }

    /// Where a channel's memory is. A slot has that of the simple protocol first.
    #[inline(always)]
    pub(crate) fn memory(&self, channel: usize) -> u64 {
        let (slot, protocol) = (channel / CHANNELS, channel % CHANNELS);
        let (simple, packed) = (self.layout_of(Protocol::Simple).bytes(), self.layout_of(Protocol::Ll).bytes());
        let before = if protocol == 0 { 0 } else { simple + (protocol - 1) * packed };
        self.scratch.offset() + (slot * (simple + (CHANNELS - 1) * packed) + before) as u64
    }

    /// The channel in whose memory byte `at` of the scratch is, and where there.
    pub(crate) fn channel_at(&self, at: u64) -> Option<(usize, usize)> {
        let at = self.scratch.offset() + at;
        (0..self.blocks as usize * CHANNELS).rev().find_map(|channel| {
            let within = at.checked_sub(self.memory(channel))?;
            Some((channel, within as usize))
        })
    }

    // What a channel has of its memory, by where that is. Whether it is on the heap is checked at its use.

    /// A channel's own words.
    #[inline(always)]
    pub(crate) fn head(&self, memory: u64) -> Sym<u64> {
        Sym::from_raw(memory, HEAD as u64 / 8)
    }

    /// The counters that a channel's owner keeps of its link with a member.
    #[inline(always)]
    pub(crate) fn counters(&self, memory: u64, member: usize) -> Sym<u64> {
        Sym::from_raw(memory + self.layout().counters(member) as u64, COUNTERS as u64)
    }

    /// The words that a member posts at a channel.
    #[inline(always)]
    pub(crate) fn post(&self, memory: u64, member: usize) -> Sym<u64> {
        Sym::from_raw(memory + self.layout().post(member) as u64, POST as u64)
    }

    /// Slot `index` of the queue that a member writes and a channel's owner reads.
    #[inline(always)]
    pub(crate) fn slot(&self, memory: u64, member: usize, index: usize) -> Sym<u8> {
        let before = (member * Layout::DEPTH as usize + index) as u64 * u64::from(self.slot_bytes);
        Sym::from_raw(memory + u64::from(self.slots) + before, self.slot_bytes.into())
    }

    /// Half `half` of what each member writes to a channel's inbox, which has one.
    #[inline(always)]
    pub(crate) fn inbox(&self, memory: u64, half: usize) -> PerMember<u8> {
        let (each, before) = (2 * self.slot_bytes as usize, if half == 0 { 0 } else { self.team.size() });
        PerMember::new(Sym::from_raw(memory + u64::from(self.inboxes) + (before * each) as u64, each as u64), each)
    }

    /// Signal `which` that a member sets for a channel's owner.
    #[inline(always)]
    pub(crate) fn signal(&self, channel: usize, member: usize, which: usize) -> Sym<Signal> {
        let index = (channel * self.team.size() + member) * LINK + which * LINE;
        Sym::from_raw(self.signals.offset() + (index * size_of::<Signal>()) as u64, 1)
    }

    /// The flag of step `step` of a queue or inbox that `step` counts the uses of. It is not 0, which is what unwritten
    /// words hold.
    #[inline(always)]
    pub(crate) fn flag(&self, step: u64) -> u32 {
        (step as u32 & self.flag_mask) + 1
    }

    /// Whether at this step the whole slot must be written, with a queue or inbox of `slots` slots.
    ///
    /// A flag comes again after `flag_mask + 1` steps. A word that no message has reached since then would be taken for new.
    /// So twice in that time every slot is written as a whole: no word ever holds a flag older than half the time (NCCL's
    /// `LL_CLEAN`).
    #[inline(always)]
    pub(crate) fn cleans(&self, step: u64, slots: u64) -> bool {
        step & u64::from(self.flag_mask >> 1) < slots
    }
}

#[cfg(test)]
mod tests {
    use congruent_device::World;

    use super::*;

    /// Of the plan for a team of so many.
    fn layout(members: u32, buffer: u64) -> Layout {
        Layout::new(TeamView::<World>::strided(0, 1, members, 0, Sym::from_raw(64, 1)), 2).buffer(buffer)
    }

    #[test]
    fn slots_of_packets_are_half_as_long_and_share_a_mebibyte_at_most() {
        let slots = |buffer| Protocol::ALL.iter().map(move |&protocol| layout(8, buffer).channel(protocol).slot);
        assert!(slots(1 << 20).eq([32 << 10, 16 << 10, 16 << 10]));
        assert!(slots(4 << 20).eq([128 << 10, 16 << 10, 16 << 10]));
        // As many bytes as are needed are there, however many members share them.
        for members in [1, 2, 300, 2000, 5000] {
            let layout = layout(members, 0);
            assert_eq!((layout.slot(), layout.inbox()), (1024, 1024), "{members} members");
        }
    }

    #[test]
    fn channels_lie_behind_each_other() {
        for (members, buffer) in [(3, 0), (8, 4 << 20), (300, 0)] {
            let layout = layout(members, buffer);
            let scratch = Sym::from_raw(1 << 20, layout.needs().scratch as u64);
            let view = layout.view(Sym::from_raw(0, layout.needs().signals as u64), scratch);
            let mut end = scratch.offset();
            for channel in 0..2 * CHANNELS {
                let bytes = view.layout_of(Protocol::ALL[channel % CHANNELS]).bytes();
                assert_eq!(view.memory(channel), end);
                let at = |byte| view.channel_at(end - scratch.offset() + byte as u64);
                assert_eq!((at(0), at(bytes - 1)), (Some((channel, 0)), Some((channel, bytes - 1))));
                end += bytes as u64;
            }
            assert_eq!(end, scratch.offset() + scratch.len() as u64);
        }
    }
}
