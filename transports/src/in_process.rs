//! The network among PEs whose heaps this process maps: the smallest there is, for tests of what stands on networks.
//!
//! Writes and reads are copies by the CPU, done when they are posted. Messages, and that writes have arrived, lie in a box until their PE
//! polls; a box is behind a lock, so what a sender has copied is there for who takes its message, as [`Network`] demands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use congruent_heap::Pe;

use crate::{Event, Failure, Memory, Network, Post, Reach, Reconnect, TransportError};

/// The PEs' boxes for messages.
pub struct Exchange {
    boxes: Vec<Mutex<VecDeque<Come>>>,
}

/// What has come.
enum Come {
    Messages(Vec<u8>),
    Arrival(u32),
}

impl Exchange {
    /// A box for each of so many PEs.
    pub fn new(npes: u32) -> Self {
        Self { boxes: (0..npes).map(|_| Mutex::default()).collect() }
    }

    /// False where there is no such PE.
    fn put(&self, pe: Pe, come: Come) -> bool {
        self.boxes.get(pe.raw() as usize).is_some_and(|inbox| {
            inbox.lock().unwrap_or_else(PoisonError::into_inner).push_back(come);
            true
        })
    }
}

/// One PE's way to the others of its process.
pub struct InProcess {
    memory: Memory,
    exchange: Arc<Exchange>,
    /// What has ended, and what atomics have replied.
    ended: Vec<(u64, Result<Option<u64>, Failure>)>,
}

impl InProcess {
    /// The network of the PE whose memory this is.
    ///
    /// # Safety
    /// The heaps of all PEs are mapped.
    pub unsafe fn new(memory: Memory, exchange: Arc<Exchange>) -> Self {
        Self { memory, exchange, ended: Vec::new() }
    }
}

impl Network for InProcess {
    fn card(&self) -> Vec<u8> {
        Vec::new()
    }

    fn reach(&self) -> Reach {
        Reach::Atomics
    }

    fn tells_arrivals(&self) -> bool {
        true
    }

    fn connect(&mut self, _cards: &[Vec<u8>]) -> Result<(), TransportError> {
        Ok(())
    }

    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool {
        let own = self.memory.pe();
        let mut reply = None;
        let done = match post {
            Post::Write { remote, local, bytes, arrival, data } => {
                let copied = match data {
                    Some(data) => self.memory.give(peer, remote, data),
                    None => self.memory.copy((peer, remote), (own, local), bytes),
                };
                copied.is_ok() && arrival.is_none_or(|number| self.exchange.put(peer, Come::Arrival(number)))
            }
            Post::Read { remote, local, bytes } => self.memory.copy((own, local), (peer, remote), bytes).is_ok(),
            Post::Atomic { remote, atomic } => {
                reply = self.memory.atomic(peer, remote, atomic).ok();
                reply.is_some()
            }
            Post::Send(messages) => self.exchange.put(peer, Come::Messages(messages.to_vec())),
        };
        self.ended.push((id, if done { Ok(reply) } else { Err(Failure::RemoteAccess) }));
        true
    }

    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>)) {
        for (id, ended) in self.ended.drain(..) {
            hear(match ended {
                Ok(None) => Event::Done(id),
                Ok(Some(old)) => Event::Fetched(id, old),
                Err(failure) => Event::Failed(id, failure),
            });
        }
        let own = self.memory.pe().raw() as usize;
        let come = self
            .exchange
            .boxes
            .get(own)
            .map(|inbox| std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner)));
        for come in come.unwrap_or_default() {
            match come {
                Come::Messages(messages) => hear(Event::Messages(&messages)),
                Come::Arrival(number) => hear(Event::Arrived(number)),
            }
        }
    }

    fn reconnect(&mut self, _peer: Pe) -> Reconnect {
        Reconnect::Done
    }
}
