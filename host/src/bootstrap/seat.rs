//! One PE's view of the job: the parts it has received, who has left, and how the job ended.

use super::error::ControlError;
use super::notice::Notice;
use super::relay::{Envelope, Message};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Sink = Box<dyn FnOnce(Notice) + Send>;

pub(super) struct Seat {
    pe: u32,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    notice: Option<Notice>,
    sinks: Vec<Sink>,
    departed: Vec<bool>,
    /// The first round that is still open here; parts of earlier ones come too late to matter.
    open: u64,
    rounds: BTreeMap<u64, Vec<Option<Arc<[u8]>>>>,
}

impl Seat {
    pub(super) fn new(pe: u32, npes: u32) -> Self {
        let state = State {
            notice: None,
            sinks: Vec::new(),
            departed: vec![false; npes as usize],
            open: 0,
            rounds: BTreeMap::new(),
        };
        Self { pe, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn pe(&self) -> u32 {
        self.pe
    }

    pub(super) fn npes(&self) -> u32 {
        self.lock().departed.len() as u32
    }

    /// Takes in what the relay passed on. Sinks run here, outside the lock, so they may use the control plane.
    pub(super) fn deliver(&self, envelope: Envelope) {
        let mut state = self.lock();
        let mut called = Vec::new();
        match envelope.message {
            Message::Part { round, bytes } => {
                // Only the last part is worth waking anyone for.
                if !state.keep(round, envelope.from, bytes) {
                    return;
                }
            }
            Message::Depart => state.depart(envelope.from),
            Message::Abort { reason } => called = state.end(Notice::Aborted { by: envelope.from, reason }),
            Message::Failed { evidence } => called = state.end(Notice::PeerFailed { pe: envelope.from, evidence }),
        }
        let notice = state.notice.clone();
        drop(state);
        self.changed.notify_all();
        if let Some(notice) = notice {
            called.into_iter().for_each(|sink| sink(notice.clone()));
        }
    }

    /// Without the relay nobody can be heard any more: as if all had left.
    pub(super) fn relay_left(&self) {
        self.lock().departed.fill(true);
        self.changed.notify_all();
    }

    pub(super) fn leave(&self) {
        self.lock().depart(self.pe);
        self.changed.notify_all();
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_departed(self.pe)
    }

    pub(super) fn has_departed(&self, pe: u32) -> bool {
        self.lock().departed.get(pe as usize).copied().unwrap_or(false)
    }

    pub(super) fn watch(&self, sink: Sink) {
        let mut state = self.lock();
        match state.notice.clone() {
            Some(notice) => {
                drop(state);
                sink(notice);
            }
            None => state.sinks.push(sink),
        }
    }

    /// Waits for everyone's part of `round`. However it ends, the round is closed here afterwards.
    pub(super) fn gather(&self, round: u64, limit: Duration) -> Result<Vec<Vec<u8>>, ControlError> {
        let begun = Instant::now();
        let mut state = self.lock();
        let outcome = loop {
            match state.outcome(round) {
                Progress::Done(outcome) => break outcome,
                Progress::Waiting { missing } => {
                    let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                        break Err(ControlError::Deadline { missing, waited: limit });
                    };
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        state.open = round + 1;
        state.rounds = state.rounds.split_off(&(round + 1));
        outcome
    }

    /// A panic in a sink or a test leaves plain data behind, so a poisoned lock is as good as any other.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Progress {
    Done(Result<Vec<Vec<u8>>, ControlError>),
    Waiting { missing: Vec<u32> },
}

impl State {
    /// Says if the round is complete with it.
    fn keep(&mut self, round: u64, from: u32, bytes: Arc<[u8]>) -> bool {
        if round < self.open {
            return false;
        }
        let npes = self.departed.len();
        let parts = self.rounds.entry(round).or_insert_with(|| vec![None; npes]);
        if let Some(part) = parts.get_mut(from as usize) {
            *part = Some(bytes);
        }
        parts.iter().all(Option::is_some)
    }

    fn depart(&mut self, pe: u32) {
        if let Some(departed) = self.departed.get_mut(pe as usize) {
            *departed = true;
        }
    }

    fn end(&mut self, notice: Notice) -> Vec<Sink> {
        if self.notice.is_none() {
            self.notice = Some(notice);
        }
        std::mem::take(&mut self.sinks)
    }

    fn outcome(&self, round: u64) -> Progress {
        if let Some(notice) = &self.notice {
            return Progress::Done(Err(ControlError::Ended(notice.clone())));
        }
        let parts = self.rounds.get(&round).map_or(&[][..], Vec::as_slice);
        let missing: Vec<u32> = (0..self.departed.len())
            .filter(|&pe| !matches!(parts.get(pe), Some(Some(_))))
            .map(|pe| pe as u32)
            .collect();
        if missing.is_empty() {
            return Progress::Done(Ok(parts.iter().flatten().map(|part| part.to_vec()).collect()));
        }
        match missing.iter().find(|&&pe| self.departed[pe as usize]) {
            Some(&pe) => Progress::Done(Err(ControlError::Departed { pe })),
            None => Progress::Waiting { missing },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: u32, round: u64, byte: u8) -> Envelope {
        Envelope { from, message: Message::Part { round, bytes: Arc::from([byte]) } }
    }

    #[test]
    fn late_parts_of_a_closed_round_are_dropped() {
        let seat = Seat::new(0, 2);
        seat.deliver(part(0, 0, 1));
        let missed = seat.gather(0, Duration::from_millis(5));
        assert_eq!(missed, Err(ControlError::Deadline { missing: vec![1], waited: Duration::from_millis(5) }));
        seat.deliver(part(1, 0, 2));
        assert!(seat.lock().rounds.is_empty());
        seat.deliver(part(1, 1, 4));
        seat.deliver(part(0, 1, 3));
        assert_eq!(seat.gather(1, Duration::from_secs(5)), Ok(vec![vec![3], vec![4]]));
    }

    #[test]
    fn a_sink_may_use_the_seat_it_watches() {
        let seat = Arc::new(Seat::new(0, 1));
        let inner = Arc::clone(&seat);
        let (told, heard) = std::sync::mpsc::channel();
        seat.watch(Box::new(move |notice| told.send((notice, inner.gather(0, Duration::ZERO))).unwrap()));
        seat.deliver(Envelope { from: 0, message: Message::Abort { reason: vec![7] } });
        let notice = Notice::Aborted { by: 0, reason: vec![7] };
        assert_eq!(heard.recv().unwrap(), (notice.clone(), Err(ControlError::Ended(notice))));
    }
}
