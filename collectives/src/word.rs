//! What a word of a plan's memory is for, so that a fault can say what was awaited there.

use core::fmt;

use crate::plan::{CHANNELS, COUNTERS, HEAD, LINE, LINK, Layout, POST, PlanView};
use crate::session::{BUSY, EXCHANGES};
use crate::{Operation, Protocol};

/// A word of a plan's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanWord {
    role: Role,
    /// The member that writes it.
    member: usize,
    protocol: Protocol,
    slot: usize,
    /// Heap offset of the first word of each channel of the slot.
    heads: [u64; CHANNELS],
    /// Where the channel's owner keeps the count that the word is compared with, if there is one, and how far ahead of what
    /// is awaited that count is.
    counter: Option<(u64, u64)>,
}

/// What is awaited at a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// That a chunk is in the queue.
    Data,
    /// That a place of the queue is free.
    Credit,
    /// That what was agreed on is done.
    Signal,
    /// That the member has come to a barrier.
    Barrier,
    /// That the member has said where it receives, or that it has sent.
    Ready,
    Sent,
    /// A chunk itself, with its flags.
    Chunk,
    /// A part of an exchange of all with all, with its flags.
    Inbox,
    /// Words that the member posts.
    Post,
    /// What only the owner writes.
    Own,
}

impl PlanWord {
    /// The word at a heap offset, if it is one of this plan's.
    pub(crate) fn at(plan: &PlanView, offset: u64) -> Option<Self> {
        let members = plan.team().size();
        let inside = |start: u64, bytes: usize| offset.checked_sub(start).filter(|&at| at < bytes as u64);
        if let Some(at) = inside(plan.signals.offset(), plan.signals.bytes()) {
            let index = at as usize / 8;
            let (channel, member) = (index / LINK / members, index / LINK % members);
            let counter = plan.counters(plan.memory(channel), member).offset();
            let (role, counter) = match index % LINK / LINE {
                0 => (Role::Data, Some((counter + 8, 0))),
                1 => (Role::Credit, Some((counter, Layout::DEPTH))),
                2 => (Role::Signal, Some((counter + 24, 0))),
                3 => (Role::Barrier, None),
                4 => (Role::Ready, None),
                _ => (Role::Sent, None),
            };
            return Self::of(plan, channel, member, role, counter);
        }
        let (channel, at) = plan.channel_at(inside(plan.scratch.offset(), plan.scratch.bytes())?)?;
        let layout = plan.layout_of(*Protocol::ALL.get(channel % CHANNELS)?);
        let (posts, slots, inboxes) = (layout.post(0), layout.slot(0, 0), layout.inbox(0, 0));
        let (role, member) = if at < posts {
            (Role::Own, at.saturating_sub(HEAD) / (COUNTERS * 8))
        } else if at < slots {
            (Role::Post, (at - posts) / (POST * 8))
        } else if at < inboxes {
            (Role::Chunk, (at - slots) / (Layout::DEPTH as usize * layout.slot))
        } else {
            (Role::Inbox, (at - inboxes).checked_div(layout.inbox)? % members)
        };
        // Flags count as the counter does, from 1 on.
        let counter = (role == Role::Chunk).then(|| (plan.counters(plan.memory(channel), member).offset() + 8, 0));
        Self::of(plan, channel, member, role, counter)
    }

    fn of(plan: &PlanView, channel: usize, member: usize, role: Role, counter: Option<(u64, u64)>) -> Option<Self> {
        let slot = channel / CHANNELS;
        let mut heads = [0; CHANNELS];
        for (head, channel) in heads.iter_mut().zip(slot * CHANNELS..) {
            *head = plan.head(plan.memory(channel)).elem(EXCHANGES).offset();
        }
        let protocol = *Protocol::ALL.get(channel % CHANNELS)?;
        (slot < plan.blocks() as usize).then_some(Self { role, member, protocol, slot, heads, counter })
    }

    /// Rank of the member that writes it.
    pub const fn member(&self) -> usize {
        self.member
    }

    /// How data travels in its channel.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Heap offsets of words that say, on each member, what the blocks of this slot do: see [`Operation::under_way`].
    pub const fn heads(&self) -> [u64; CHANNELS] {
        self.heads
    }

    /// Which chunk of its call a wait for `expected` awaits, counted from 1. `read` gives a word of this PE's heap.
    pub fn chunk(&self, expected: u64, read: impl FnOnce(u64) -> Option<u64>) -> Option<u64> {
        let (counter, ahead) = self.counter?;
        let chunk = expected.wrapping_add(ahead).wrapping_sub(read(counter)?);
        // What has wrapped around says nothing.
        (1..1 << 40).contains(&chunk).then_some(chunk)
    }
}

impl Operation {
    /// What a block does that has left this word at the head of a channel, if it does anything.
    pub fn under_way(head: u64) -> Option<Self> {
        let number = usize::try_from(head.checked_sub(BUSY)?).ok()?;
        Self::ALL.get(number).copied()
    }
}

impl fmt::Display for PlanWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, protocol, slot, .. } = self;
        let what = match self.role {
            Role::Data => "the arrival of a chunk of",
            Role::Credit => "the credit of the queue to",
            Role::Signal => "the signal of",
            Role::Barrier => "the barrier with",
            Role::Ready => "the readiness of",
            Role::Sent => "what is sent by",
            Role::Chunk => "a chunk of",
            Role::Inbox => "the inbox part of",
            Role::Post => "the words of",
            Role::Own => "the counters for",
        };
        write!(f, "{what} rank {member} ({protocol}, slot {slot})")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use congruent_device::{Sym, TeamView, World};

    use super::*;
    use crate::Shape;

    #[test]
    fn every_word_is_known_by_its_place() {
        let team = TeamView::<World>::strided(0, 1, 5, 1, Sym::from_raw(64, 1));
        let layout = Layout::new(team, 4);
        let needs = layout.needs();
        let (signals, scratch) =
            (Sym::from_raw(4096, needs.signals as u64), Sym::from_raw(1 << 20, needs.scratch as u64));
        let view = layout.view(signals, scratch);
        let packed = view.over(Protocol::Ll);
        let at = |offset| layout.word(signals, scratch, offset).unwrap().to_string();
        let channel = CHANNELS * 2 + Protocol::Ll as usize;
        assert_eq!(at(view.signal(channel, 3, 1).offset()), "the credit of the queue to rank 3 (ll, slot 2)");
        assert_eq!(at(view.signal(0, 4, 0).offset()), "the arrival of a chunk of rank 4 (simple, slot 0)");
        assert_eq!(at(view.signal(channel, 0, 3).offset()), "the barrier with rank 0 (ll, slot 2)");
        assert_eq!(at(packed.slot(packed.memory(channel), 2, 3).offset() + 8), "a chunk of rank 2 (ll, slot 2)");
        assert_eq!(at(packed.inbox(packed.memory(channel), 1).of(4).offset()), "the inbox part of rank 4 (ll, slot 2)");
        let last = view.slot(view.memory(channel + 2), 4, 3);
        assert_eq!(at(last.offset() + last.len() as u64 - 8), "a chunk of rank 4 (simple, slot 3)");
        assert_eq!(at(view.post(view.memory(1), 2).offset()), "the words of rank 2 (ll, slot 0)");
        assert_eq!(layout.word(signals, scratch, 8), None);
        let word = layout.word(signals, scratch, view.signal(channel, 3, 0).offset()).unwrap();
        assert_eq!(word.heads()[Protocol::Ll as usize], view.head(view.memory(channel)).offset());
        let received = view.counters(view.memory(channel), 3).offset() + 8;
        assert_eq!(word.chunk(9, |offset| (offset == received).then_some(7)), Some(2));
    }

    #[test]
    fn what_is_under_way_is_told_by_its_number() {
        for &operation in Operation::ALL {
            assert_eq!(Operation::under_way(BUSY + operation as u64), Some(operation));
        }
        assert_eq!([0, 7, BUSY - 1, BUSY + 99].map(Operation::under_way), [None; 4]);
    }
}
