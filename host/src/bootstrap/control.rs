//! A PE's handle on the control plane.

use super::MAX_PAYLOAD;
use super::error::ControlError;
use super::notice::Notice;
use super::relay::{Envelope, Message};
use super::seat::Seat;
use std::any::Any;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// One PE's connection to all the others of its job.
///
/// Dropping it without [`depart`](Self::depart) tells the others that this PE failed.
pub struct Control {
    seat: Arc<Seat>,
    uplink: Box<dyn Uplink>,
    round: Mutex<u64>,
    deadline: Duration,
    same_host: bool,
    commons: Option<Arc<Commons>>,
    closed: Once,
}

impl Control {
    /// This PE's index in the job.
    pub fn pe(&self) -> u32 {
        self.seat.pe()
    }

    /// The number of PEs in the job.
    pub fn npes(&self) -> u32 {
        self.seat.npes()
    }

    /// Collective: every PE gives bytes, every PE gets everyone's, in PE order.
    ///
    /// Ends by the job's deadline at the latest, and early with the first [`Notice`] or when a PE that is needed has
    /// left. The PE that was late may still complete a round that others gave up; the next round is then a new one.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ControlError> {
        if bytes.len() > MAX_PAYLOAD {
            return Err(ControlError::TooLarge { bytes: bytes.len() });
        }
        let mut next = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let round = *next;
        *next += 1;
        if !self.seat.has_left() {
            let part = Message::Part { round, bytes: Arc::from(bytes) };
            self.seat.deliver(Envelope { from: self.pe(), message: part.clone() });
            self.uplink.send(part);
        }
        self.seat.gather(round, self.deadline)
    }

    /// Tells every other PE that this one gives up; never blocks. The first reason of the job wins, and this PE's own
    /// watchers hear it too. Of a reason longer than [`MAX_PAYLOAD`] only the beginning is told.
    pub fn abort(&self, reason: &[u8]) {
        self.uplink.send(Message::Abort { reason: reason[..reason.len().min(MAX_PAYLOAD)].to_vec() });
    }

    /// Calls `sink` with the job's first notice, exactly once: from the monitor thread, or at once if it is known.
    pub fn watch(&self, sink: impl FnOnce(Notice) + Send + 'static) {
        self.seat.watch(Box::new(sink));
    }

    /// Whether all PEs run on this host under one user, so that they can share memory.
    pub fn same_host(&self) -> bool {
        self.same_host
    }

    /// Whether all PEs are threads of this process.
    pub fn in_process(&self) -> bool {
        self.commons.is_some()
    }

    /// Leaves in order: from now on this PE's silence is no failure, and it can take part in no collective.
    pub fn depart(&self) {
        if !self.seat.has_left() {
            self.seat.leave();
            self.uplink.send(Message::Depart);
        }
    }

    /// Ends this PE's part in the control plane: PE 0 relays until the others have left, for a bounded time. Whoever still has this
    /// afterwards can do nothing with it.
    pub fn close(&self) {
        self.closed.call_once(|| self.uplink.close(self.seat.has_left()));
    }

    /// What the PEs of one process share by hand instead of by descriptor.
    pub(crate) fn commons(&self) -> Option<&Commons> {
        self.commons.as_deref()
    }

    pub(super) fn new(
        seat: Arc<Seat>,
        uplink: Box<dyn Uplink>,
        deadline: Duration,
        same_host: bool,
        commons: Option<Arc<Commons>>,
    ) -> Self {
        Self { seat, uplink, round: Mutex::new(0), deadline, same_host, commons, closed: Once::new() }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}

/// A PE's way to the relay.
pub(super) trait Uplink: Send + Sync {
    /// Hands a message over; never blocks.
    fn send(&self, message: Message);
    /// The PE is done with the control plane; `departed` tells whether it left in order.
    fn close(&self, departed: bool);
}

/// A shelf where one PE of a process leaves a value for the others.
#[derive(Default)]
pub(crate) struct Commons {
    shelf: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Commons {
    /// Puts a value on the shelf, or clears it.
    pub(crate) fn put(&self, value: Option<Arc<dyn Any + Send + Sync>>) {
        *self.shelf.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    /// The value on the shelf, if it is of the type asked for.
    pub(crate) fn take<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).clone()?.downcast().ok()
    }
}
