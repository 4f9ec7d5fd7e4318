//! What a [`Shell`](super::Shell) knows of one peer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{EAGER, READS, WINDOW};
use crate::message::Header;
use crate::{Failure, Operation, PeerState};

/// One peer: what is done to it, and what it does here.
pub(super) struct Peer {
    pub(super) state: PeerState,
    /// Since when it is draining, and what failed.
    pub(super) drains: Instant,
    pub(super) why: Option<Failure>,
    /// Failures since something last went well.
    pub(super) failures: u32,
    /// What is under way at the network.
    pub(super) posts: usize,
    /// Bulk operations among them: reads, and writes.
    pub(super) reads: usize,
    pub(super) writes: usize,
    /// Not yet started. What nobody waits for has no ticket.
    pub(super) waiting: VecDeque<(Option<u64>, Operation)>,
    /// Messages that are not acknowledged, the first with number `first`, of which so many are posted.
    pub(super) sent: VecDeque<Sent>,
    pub(super) first: u64,
    pub(super) posted: usize,
    /// When it last answered, or was first asked; and when the oldest message was last posted.
    pub(super) heard: Instant,
    pub(super) asked: Instant,
    /// The number of the message to do next, those that came before their turn, and the replies to the last ones done.
    pub(super) next: u64,
    pub(super) early: BTreeMap<u64, Vec<u8>>,
    pub(super) replies: [u64; WINDOW],
    /// Whether it is owed an acknowledgement, and the numbers whose replies it is owed.
    pub(super) owes: bool,
    pub(super) owed: VecDeque<u64>,
    /// It has said that nothing more comes.
    pub(super) has_left: bool,
}

pub(super) struct Sent {
    pub(super) ticket: Option<u64>,
    pub(super) operation: Operation,
    pub(super) reply: Option<u64>,
}

/// The class of an operation: see the top of this file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Message,
    Read,
    Write,
}

pub(super) fn class(operation: &Operation) -> Class {
    match operation {
        Operation::Write { bytes, .. } if *bytes > EAGER as u64 => Class::Write,
        Operation::Read { .. } => Class::Read,
        _ => Class::Message,
    }
}

pub(super) fn has_reply(operation: &Operation) -> bool {
    matches!(operation, Operation::Load { .. } | Operation::Atomic { .. })
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            state: PeerState::Up,
            drains: Instant::now(),
            why: None,
            failures: 0,
            posts: 0,
            reads: 0,
            writes: 0,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            first: 0,
            posted: 0,
            heard: Instant::now(),
            asked: Instant::now(),
            next: 0,
            early: BTreeMap::new(),
            replies: [0; WINDOW],
            owes: false,
            owed: VecDeque::new(),
            has_left: false,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, PeerState::Dead(_))
    }

    /// Whether nothing is asked of it and nothing owed to it.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && !self.owes && self.owed.is_empty()
    }

    /// The message that is next, where it came before its turn.
    pub(super) fn take_early(&mut self) -> Option<(Header, Vec<u8>)> {
        let early = self.early.remove(&self.next)?;
        Header::decode(&early).map(|header| (header, early))
    }

    pub(super) fn answered(&mut self) {
        self.failures = 0;
        self.heard = Instant::now();
    }

    /// Whether what waits first may be posted beside what is under way.
    pub(super) fn may_start(&self, class: Class) -> bool {
        match class {
            Class::Message => self.reads == 0 && self.writes == 0 && self.sent.len() < WINDOW,
            Class::Read => self.writes == 0 && self.sent.is_empty() && self.reads < READS,
            Class::Write => self.reads == 0 && self.writes == 0 && self.sent.is_empty(),
        }
    }
}
