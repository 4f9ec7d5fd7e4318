//! The middle of the star: decides what is passed on, and which failure was the first.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a PE says to all the others.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// Its share of a gather.
    Part { round: u64, bytes: Arc<[u8]> },
    /// It gives up, and with it the job.
    Abort { reason: Vec<u8> },
    /// It has finished; its silence from now on is no failure.
    Depart,
    /// It is gone without a word. Said by the relay in its place.
    Failed { evidence: String },
}

/// A message and the PE it is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Envelope {
    pub(super) from: u32,
    pub(super) message: Message,
}

impl Envelope {
    /// Whether PE `pe` is to receive it. An end of the job goes to its author as well, so that all tell the same story.
    pub(super) fn is_for(&self, pe: u32) -> bool {
        self.from != pe || matches!(self.message, Message::Abort { .. } | Message::Failed { .. })
    }
}

/// How many rounds a PE may be ahead of the slowest. It is further ahead of another by one only where it gave a round up.
const AHEAD: u64 = 16;

/// The relay's memory: who has left, how many have given to which round, and whether the job has ended.
#[derive(Debug)]
pub(super) struct Relay {
    departed: Vec<bool>,
    given: BTreeMap<u64, usize>,
    /// The round that each PE gives to next.
    next: Vec<u64>,
    /// The least of `next`, when it was last needed.
    slowest: u64,
    ended: bool,
}

impl Relay {
    pub(super) fn new(npes: u32) -> Self {
        Self {
            departed: vec![false; npes as usize],
            given: BTreeMap::new(),
            next: vec![0; npes as usize],
            slowest: 0,
            ended: false,
        }
    }

    /// What to pass on of a message from PE `from`. Only the first end of the job is.
    pub(super) fn admit(&mut self, from: u32, message: Message) -> Option<Envelope> {
        if self.ended {
            return None;
        }
        match message {
            Message::Abort { .. } | Message::Failed { .. } => self.ended = true,
            Message::Depart if self.has_left(from) => return None,
            Message::Depart => self.mark_departed(from),
            Message::Part { round, .. } if !self.is_due(from, round) => {
                tracing::warn!(pe = from, round, "a part out of turn was dropped");
                return None;
            }
            Message::Part { round, .. } => self.count(round),
        }
        Some(Envelope { from, message })
    }

    /// What to pass on when the connection to `pe` is gone: nothing if it had left, or if the job had ended anyway.
    pub(super) fn lost(&mut self, pe: u32, evidence: String) -> Option<Envelope> {
        if self.has_left(pe) { None } else { self.admit(pe, Message::Failed { evidence }) }
    }

    pub(super) fn has_left(&self, pe: u32) -> bool {
        self.departed.get(pe as usize).copied().unwrap_or(false)
    }

    /// Whether the message can wait for others to go with it: a part of a round that is not complete is of no use yet.
    pub(super) fn can_wait(&self, message: &Message) -> bool {
        matches!(message, Message::Part { round, .. } if self.given.contains_key(round))
    }

    /// Whether it is the PE's turn to give to `round`: once, in order, and not too far ahead of the others, since all that the
    /// slowest has not given to is kept.
    fn is_due(&mut self, from: u32, round: u64) -> bool {
        let Some(next) = self.next.get_mut(from as usize).filter(|next| **next == round) else { return false };
        *next += 1;
        if round >= self.slowest + AHEAD {
            self.slowest = self.next.iter().copied().min().unwrap_or(0);
        }
        round < self.slowest + AHEAD
    }

    fn count(&mut self, round: u64) {
        let given = self.given.entry(round).or_default();
        *given += 1;
        if *given >= self.departed.len() {
            self.given.remove(&round);
        }
    }

    fn mark_departed(&mut self, pe: u32) {
        if let Some(departed) = self.departed.get_mut(pe as usize) {
            *departed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_end_is_passed_on() {
        let mut relay = Relay::new(3);
        assert!(relay.admit(1, Message::Abort { reason: b"first".to_vec() }).is_some());
        assert_eq!(relay.admit(2, Message::Abort { reason: b"second".to_vec() }), None);
        assert_eq!(relay.lost(0, "late".into()), None);
    }

    #[test]
    fn parts_can_wait_until_their_round_is_complete() {
        let mut relay = Relay::new(2);
        for (from, round, can_wait) in [(0, 0, true), (1, 0, false), (1, 1, true), (0, 1, false)] {
            let part = Message::Part { round, bytes: Arc::from([]) };
            assert!(relay.admit(from, part.clone()).is_some());
            assert_eq!(relay.can_wait(&part), can_wait, "PE {from}, round {round}");
        }
        assert!(!relay.can_wait(&Message::Depart));
    }

    #[test]
    fn parts_come_once_in_order_and_not_far_ahead() {
        let mut relay = Relay::new(2);
        let mut admitted = |from, round| relay.admit(from, Message::Part { round, bytes: Arc::from([]) }).is_some();
        assert!((0..AHEAD).all(|round| admitted(0, round)));
        assert!(!admitted(0, AHEAD - 1), "a second time");
        assert!(!admitted(0, AHEAD), "too far ahead");
        assert!(!admitted(0, u64::MAX), "out of order");
        assert!(admitted(1, 0) && !admitted(1, 2) && admitted(1, 1) && !admitted(1, 1));
        assert!(admitted(0, AHEAD + 1), "not too far ahead any more: PE 1 has given two");
        assert!(!admitted(7, 0), "of no PE");
        assert_eq!(relay.admit(1, Message::Depart), Some(Envelope { from: 1, message: Message::Depart }));
        assert_eq!(relay.admit(1, Message::Depart), None, "it leaves once");
    }

    #[test]
    fn silence_after_departure_is_no_failure() {
        let mut relay = Relay::new(2);
        assert!(relay.admit(1, Message::Depart).is_some());
        assert_eq!(relay.lost(1, "closed".into()), None);
        assert!(relay.lost(0, "closed".into()).is_some());
    }

    #[test]
    fn ends_return_to_their_author_and_parts_do_not() {
        let abort = Envelope { from: 1, message: Message::Abort { reason: Vec::new() } };
        let part = Envelope { from: 1, message: Message::Part { round: 0, bytes: Arc::from([]) } };
        assert!(abort.is_for(1) && abort.is_for(0));
        assert!(!part.is_for(1) && part.is_for(0));
    }
}
