//! What a [`Shell`](super::Shell) knows of one peer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{EAGER, QUICK, READS, SOON, WINDOW};
use crate::message::Header;
use crate::{Failure, Operation, PeerState, Signal};

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
    /// Bulk reads under way, and bulk writes, of which so many are awaited by messages.
    pub(super) reads: usize,
    pub(super) writes: usize,
    pub(super) awaited: usize,
    /// The message by whose number the peer was last told of a write. It is not told of another one by that.
    pub(super) told: Option<u64>,
    /// Those that failed, by the ids of their posts: they may have been done.
    pub(super) undone: BTreeMap<u64, Bulk>,
    /// When it is to be asked next what it has done, over this connection to it, counted.
    pub(super) asks: Option<Instant>,
    pub(super) connection: u64,
    /// Not yet started.
    pub(super) waiting: VecDeque<Asked>,
    /// What it has asked for and is not sent yet. It waits for nothing that is asked of the peer, which may wait for this.
    pub(super) answers: VecDeque<Task>,
    /// Messages that are not acknowledged, the first with number `first`, of which so many are posted.
    pub(super) sent: VecDeque<Sent>,
    pub(super) first: u64,
    pub(super) posted: usize,
    /// It has done all messages before this one.
    pub(super) done: u64,
    /// When it last answered, or was first asked; and when the oldest message was last posted.
    pub(super) heard: Instant,
    pub(super) asked: Instant,
    /// The number of the message to do next, those that came before their turn, and the replies to the last ones done.
    pub(super) next: u64,
    pub(super) early: BTreeMap<u64, (Header, Vec<u8>)>,
    /// Of the next messages, by the low bits of their numbers, those whose bulk writes have arrived.
    pub(super) arrived: u64,
    pub(super) replies: [u64; WINDOW],
    /// Whether it is owed an acknowledgement, and the numbers whose replies it is owed.
    pub(super) owes: Owes,
    pub(super) owed: VecDeque<u64>,
    /// When its last signal was done, if nothing was sent to it since; and how many of its signals in a row had something sent soon after.
    pub(super) signalled: Option<Instant>,
    pub(super) quick: u32,
    /// The connection over which it has asked what is done here, and is not told yet.
    pub(super) asked_over: Option<u64>,
    /// It has said that nothing more comes.
    pub(super) has_left: bool,
}

/// Whether an acknowledgement is owed, and when.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owes {
    Nothing,
    /// At the next poll, unless a message brings it by then.
    Next,
    Now,
}

/// What is asked of a peer. What nobody waits for has no ticket.
pub(super) struct Asked {
    pub(super) ticket: Option<u64>,
    pub(super) task: Task,
    /// What its message carries, once that has been read.
    pub(super) data: Option<Box<[u8]>>,
    /// It is done only when the bulk write before it has arrived, of which the network tells.
    pub(super) awaits: bool,
    /// It was a small write of the network's, which failed, and is to be one again: as a message it would take a number by which the peer may
    /// know another one.
    pub(super) is_again: bool,
}

impl Asked {
    pub(super) fn new(ticket: Option<u64>, task: Task) -> Self {
        Self { ticket, task, data: None, awaits: false, is_again: false }
    }
}

pub(super) struct Sent {
    pub(super) asked: Asked,
    pub(super) reply: Option<u64>,
}

/// A write or read of the network's own that is posted.
pub(super) struct Bulk {
    pub(super) ticket: Option<u64>,
    /// Whose source a write reads, unless it is done again.
    pub(super) source: Option<u64>,
    pub(super) operation: Operation,
    /// The number of the message behind it.
    pub(super) next: u64,
    /// That message awaits it at the peer, so that nothing need wait for it here.
    pub(super) is_awaited: bool,
    /// What a small write carries.
    pub(super) data: Option<Box<[u8]>>,
}

impl Bulk {
    /// Takes the signal from a write, which then is complete with the signal.
    pub(super) fn take_signal(&mut self) -> Option<Asked> {
        let Operation::Write { then, .. } = &mut self.operation else { return None };
        let signal = then.take()?;
        Some(Asked::new(self.ticket.take(), Task::signal(signal)))
    }
}

/// What is done to a peer, or said to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Do(Operation),
    /// All that it asked for by this message has been sent to it before.
    Answer(u64),
    /// Nothing more comes.
    Bye,
}

/// Where a number is in a set of numbers of which no two are a window apart.
pub(super) fn bit(number: u64) -> u64 {
    1 << (number % WINDOW as u64)
}

/// A write as messages, the last of which has its signal.
pub(super) fn pieces(write: Operation) -> Vec<Task> {
    let Operation::Write { remote, local, bytes, then } = write else { return vec![Task::Do(write)] };
    let last = bytes.saturating_sub(1) / EAGER as u64 * EAGER as u64;
    let piece = |at: u64| {
        let (bytes, then) = if at == last { (bytes - at, then) } else { (EAGER as u64, None) };
        Task::Do(Operation::Write { remote: remote + at, local: local + at, bytes, then })
    };
    (0..=last).step_by(EAGER).map(piece).collect()
}

/// The class of a task: see the top of `shell.rs`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Message,
    Read,
    Write,
}

impl Task {
    /// The signal of a write, as a message of its own.
    pub(super) fn signal(signal: Signal) -> Self {
        Self::Do(Operation::Write { remote: 0, local: 0, bytes: 0, then: Some(signal) })
    }

    pub(super) fn class(&self) -> Class {
        match self {
            Self::Do(Operation::Write { bytes, .. }) if *bytes > EAGER as u64 => Class::Write,
            Self::Do(Operation::Read { .. } | Operation::NicAtomic { .. }) => Class::Read,
            _ => Class::Message,
        }
    }

    /// Whether it is a signal alone.
    pub(super) fn is_signal(&self) -> bool {
        matches!(self, Self::Do(Operation::Write { bytes: 0, .. }))
    }

    /// How many bytes of data its message has.
    pub(super) fn carries(&self) -> usize {
        match self {
            Self::Do(Operation::Write { bytes, .. }) => *bytes as usize,
            _ => 0,
        }
    }

    /// Whether it is complete only with an answer of its own.
    pub(super) fn has_reply(&self) -> bool {
        use Operation::{Atomic, Load, Read};
        matches!(self, Self::Do(Load { .. } | Atomic { .. } | Read { .. }))
    }
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
            awaited: 0,
            told: None,
            undone: BTreeMap::new(),
            asks: None,
            connection: 0,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            sent: VecDeque::new(),
            first: 0,
            posted: 0,
            done: 0,
            heard: Instant::now(),
            asked: Instant::now(),
            next: 0,
            early: BTreeMap::new(),
            arrived: 0,
            replies: [0; WINDOW],
            owes: Owes::Nothing,
            owed: VecDeque::new(),
            signalled: None,
            quick: 0,
            asked_over: None,
            has_left: false,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, PeerState::Dead(_))
    }

    /// Whether something is to be posted to it, and may be as far as the connection goes.
    pub(super) fn may_be_asked(&self) -> bool {
        let has_some = !self.waiting.is_empty() || !self.answers.is_empty() || self.posted < self.sent.len();
        has_some && self.state == PeerState::Up && self.asks.is_none()
    }

    /// Whether nothing is asked of it and nothing owed to it.
    pub(super) fn is_settled(&self) -> bool {
        let asks_nothing = self.waiting.is_empty() && self.undone.is_empty() && self.sent.is_empty();
        let owes_nothing = self.owes == Owes::Nothing && self.owed.is_empty() && self.asked_over.is_none();
        asks_nothing && self.answers.is_empty() && owes_nothing
    }

    /// The message that is next, where it came before its turn.
    pub(super) fn take_early(&mut self) -> Option<(Header, Vec<u8>)> {
        self.early.get(&self.next).is_some_and(|(header, _)| self.may_do(header)).then_some(())?;
        self.early.remove(&self.next)
    }

    /// Whether it is a message's turn, which is not before what it awaits has arrived.
    pub(super) fn may_do(&self, header: &Header) -> bool {
        header.number == self.next && (!header.awaits || self.arrived & bit(self.next) != 0)
    }

    /// Notes that the next message is done.
    pub(super) fn did_next(&mut self) {
        // Also where it did not await what has arrived: after a failure it is not told to.
        self.arrived &= !bit(self.next);
        self.early.remove(&self.next);
        self.next += 1;
    }

    /// Notes a message that is to be posted.
    pub(super) fn say(&mut self, mut asked: Asked, now: Instant) {
        asked.awaits = self.awaited > 0 && self.told == Some(self.next_number());
        if self.sent.is_empty() {
            (self.heard, self.asked) = (now, now);
        }
        self.reads += usize::from(asked.task.class() == Class::Read);
        self.sent.push_back(Sent { asked, reply: None });
    }

    pub(super) fn heard_from(&mut self, now: Instant) {
        self.failures = 0;
        self.heard = now;
    }

    /// Notes that a message of the peer's is done, which signals or does not.
    pub(super) fn owe(&mut self, signals: bool) {
        if signals {
            self.signalled = Some(Instant::now());
        }
        let due = if signals && self.quick == QUICK { Owes::Next } else { Owes::Now };
        self.owes = self.owes.max(due);
    }

    /// Notes that an acknowledgement was posted to it, without a message.
    pub(super) fn note_acknowledgement(&mut self) {
        self.owes = Owes::Nothing;
        if let Some(signalled) = &mut self.signalled {
            // What it took to send that does not count.
            *signalled = Instant::now();
            if self.quick == QUICK {
                // Something was expected by now.
                self.quick = 0;
            }
        }
    }

    /// Notes that a message is posted to it, which acknowledges all that is done here.
    pub(super) fn note_message(&mut self) {
        if let Some(signalled) = self.signalled.take() {
            self.quick = if signalled.elapsed() < SOON { (self.quick + 1).min(QUICK) } else { self.quick / 2 };
        }
    }

    /// Whether what waits first may be posted beside what is under way. Reads may be messages, too, and then lie among those.
    pub(super) fn may_start(&self, class: Class, reads_are_messages: bool, is_ordered: bool) -> bool {
        let messages = self.sent.len() - if reads_are_messages { self.reads } else { 0 };
        let after_bulk = self.reads == 0 && (self.writes == self.awaited || is_ordered);
        match class {
            Class::Message => after_bulk && self.sent.len() < WINDOW,
            Class::Read => self.writes == 0 && messages == 0 && self.reads < READS,
            Class::Write => self.reads == 0 && (self.writes == 0 || is_ordered) && self.sent.is_empty(),
        }
    }

    /// Whether a bulk write that is told to have arrived may be posted, with the message that awaits it: beside signals alone that are under
    /// way.
    pub(super) fn may_tell(&self) -> bool {
        let has_room = self.reads == 0 && self.writes == 0 && self.sent.len() < WINDOW;
        has_room && self.told != Some(self.next_number()) && self.sent.iter().all(|sent| sent.asked.task.is_signal())
    }

    /// The number of the next message.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// Takes up what was under way when the connection failed, in its order, now that it is known which messages the peer has done.
    /// Gives the tickets of writes that it has done, too: those before such a message.
    pub(super) fn resume(&mut self) -> Vec<u64> {
        self.asks = None;
        let (done, again): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.undone).into_values().partition(|bulk| bulk.next < self.done);
        if !again.is_empty() {
            // All of these come behind those writes, which were begun when no message was under way.
            // They are complete then.
            let behind = self.sent.drain(..).map(|sent| Asked { awaits: false, ..sent.asked });
            let again = again.into_iter().map(|bulk| {
                let is_again = bulk.data.is_some();
                Asked { data: bulk.data, is_again, ..Asked::new(bulk.ticket, Task::Do(bulk.operation)) }
            });
            let rest = std::mem::take(&mut self.waiting);
            self.waiting = again.chain(behind).chain(rest).collect();
        }
        done.into_iter().filter_map(|bulk| bulk.ticket).collect()
    }
}
