//! A job whose PEs are threads of this process: the star without sockets.

use super::control::{Commons, Control, Uplink};
use super::error::BootstrapError;
use super::relay::{Message, Relay};
use super::seat::Seat;
use super::{DEFAULT_DEADLINE, MAX_PES};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// Joins `n` PEs that are threads of this process, with the semantics of [`connect`](super::connect).
pub fn local(n: usize) -> Result<Vec<Control>, BootstrapError> {
    within(n, DEFAULT_DEADLINE)
}

/// As [`local`], with a deadline of its own.
pub(super) fn within(n: usize, deadline: Duration) -> Result<Vec<Control>, BootstrapError> {
    let npes = u32::try_from(n).ok().filter(|npes| (1..=MAX_PES).contains(npes));
    let npes = npes.ok_or(BootstrapError::Size { npes: n as u64 })?;
    let seats: Vec<_> = (0..npes).map(|pe| Arc::new(Seat::new(pe, npes))).collect();
    let (events, heard) = mpsc::channel();
    let relayed = seats.clone();
    thread::Builder::new()
        .name("congruent-relay".into())
        .spawn(move || relay(&relayed, &heard))
        .map_err(BootstrapError::io("starting the relay thread"))?;
    let commons = Arc::new(Commons::default());
    let control = |seat: Arc<Seat>| {
        let channel = Channel { pe: seat.pe(), events: events.clone() };
        Control::new(seat, Box::new(channel), deadline, true, Some(Arc::clone(&commons)))
    };
    Ok(seats.into_iter().map(control).collect())
}

/// A job of one PE.
pub(super) fn alone(deadline: Duration) -> Result<Control, BootstrapError> {
    within(1, deadline)?.pop().ok_or(BootstrapError::Size { npes: 0 })
}

enum Event {
    Said { pe: u32, message: Message },
    Gone { pe: u32 },
}

/// Ends when the last control handle, and with it the last sender, is dropped.
fn relay(seats: &[Arc<Seat>], events: &mpsc::Receiver<Event>) {
    let mut relay = Relay::new(seats.len() as u32);
    for event in events {
        let envelope = match event {
            Event::Said { pe, message } => relay.admit(pe, message),
            Event::Gone { pe } => relay.lost(pe, "its control handle was dropped before it left".into()),
        };
        if let Some(envelope) = envelope {
            seats.iter().filter(|seat| envelope.is_for(seat.pe())).for_each(|seat| seat.deliver(envelope.clone()));
        }
    }
}

struct Channel {
    pe: u32,
    events: mpsc::Sender<Event>,
}

/// The relay outlives every sender, so a refused event can only mean that nobody is left to hear it.
impl Uplink for Channel {
    fn send(&self, message: Message) {
        let _ = self.events.send(Event::Said { pe: self.pe, message });
    }

    fn close(&self, _departed: bool) {
        let _ = self.events.send(Event::Gone { pe: self.pe });
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ControlError;
    use super::super::notice::Notice;
    use super::*;

    /// The next notice of a control handle, or none within five seconds.
    fn notice_of(control: &Control) -> Option<Notice> {
        let (told, heard) = mpsc::channel();
        control.watch(move |notice| drop(told.send(notice)));
        heard.recv_timeout(Duration::from_secs(5)).ok()
    }

    #[test]
    fn everyone_gets_everything_in_order() {
        let controls = local(5).unwrap();
        thread::scope(|scope| {
            for control in &controls {
                scope.spawn(move || {
                    for round in 0..100_u8 {
                        let gathered = control.all_gather(&[control.pe() as u8, round]).unwrap();
                        assert_eq!(gathered, (0..5).map(|pe| vec![pe, round]).collect::<Vec<_>>());
                    }
                });
            }
        });
        assert!(controls.iter().all(|control| control.same_host() && control.in_process() && control.npes() == 5));
    }

    #[test]
    fn no_pes_and_too_many_are_refused() {
        assert!(matches!(local(0), Err(BootstrapError::Size { npes: 0 })));
        assert!(matches!(local(5000), Err(BootstrapError::Size { npes: 5000 })));
    }

    #[test]
    fn one_abort_is_everyones_notice() {
        let controls = local(3).unwrap();
        controls[1].abort(b"out of patience");
        let expected = Notice::Aborted { by: 1, reason: b"out of patience".to_vec() };
        for control in &controls {
            assert_eq!(notice_of(control), Some(expected.clone()));
            assert_eq!(control.all_gather(&[]), Err(ControlError::Ended(expected.clone())));
        }
        controls[2].abort(b"me too");
        assert_eq!(notice_of(&controls[0]), Some(expected));
    }

    #[test]
    fn a_dropped_handle_is_a_failed_peer() {
        let mut controls = local(3).unwrap();
        drop(controls.remove(2));
        for control in &controls {
            assert!(matches!(notice_of(control), Some(Notice::PeerFailed { pe: 2, .. })));
        }
    }

    #[test]
    fn a_departed_peer_is_missed_only_when_needed() {
        let mut controls = local(2).unwrap();
        let gone = controls.remove(1);
        gone.depart();
        assert_eq!(gone.all_gather(&[]), Err(ControlError::Departed { pe: 1 }));
        drop(gone);
        assert_eq!(controls[0].all_gather(&[]), Err(ControlError::Departed { pe: 1 }));
        let (told, heard) = mpsc::channel();
        controls[0].watch(move |notice| drop(told.send(notice)));
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn too_many_bytes_are_refused_and_the_limit_itself_is_not() {
        let controls = local(1).unwrap();
        let limit = super::super::MAX_PAYLOAD;
        assert_eq!(controls[0].all_gather(&vec![0; limit + 1]), Err(ControlError::TooLarge { bytes: limit + 1 }));
        assert_eq!(controls[0].all_gather(&vec![9; limit]), Ok(vec![vec![9; limit]]));
    }
}
