//! Requests to peers: how they are given to the device, and how they end.
//!
//! What is posted to a peer between two calls of [`submit`](crate::Network::submit) is given to the device as one chain, by one call. Of
//! messages nobody waits for the completion, and a completion says that all requests before it on its connection are complete
//! (InfiniBand Architecture Specification, volume 1, on the ordering of completions and on unsignaled ones): so of a chain's messages only
//! the last is signaled, and one of so many in a long chain. A request that fails is told of, signaled or not, and so are those behind it.
//! The last request of a chain is signaled always, so that each ends.

use std::ptr;

use congruent_heap::abi::AtomicOp;

use super::library::{self, Completion, Send, Span};
use super::link::LinkState;
use super::{MOST, RECEIVES, SENDS, Verbs};
use crate::{Atomic, Event, Failure};

/// Bytes of an old value.
const OLD: usize = size_of::<u64>();
/// In a longer chain of messages, one of so many is signaled.
const SIGNALED: usize = 32;

/// What is known of a request that is under way.
#[derive(Clone, Copy)]
pub(super) struct Request {
    id: u64,
    peer: u32,
    /// What follows it, where it moves more than one request may.
    rest: Option<Piece>,
    /// The old value of a word comes to its buffer.
    fetches: bool,
}

/// Bytes to move.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) opcode: i32,
    pub(super) remote: u64,
    pub(super) local: u64,
    pub(super) bytes: u64,
}

/// A request that is next to be given to the device.
pub(super) struct Queued {
    send: Send,
    piece: Span,
}

impl Verbs {
    /// Queues a message to a peer, in the buffer of its slot.
    pub(super) fn send_message(&mut self, slot: usize, id: u64, peer: u32, message: &[u8]) {
        let send = self.request(slot, library::WR_SEND, 0);
        self.queue_bytes(Request { id, peer, rest: None, fetches: false }, slot, send, message);
    }

    /// Queues a write of bytes, in the buffer of its slot.
    pub(super) fn write(&mut self, slot: usize, id: u64, peer: u32, remote: u64, data: &[u8]) {
        let Some(port) = self.links[peer as usize].as_ref().and_then(|link| link.port.as_ref()) else {
            return self.refuse(slot, id, peer, Failure::LocalOperation);
        };
        let mut send = self.request(slot, library::WR_RDMA_WRITE, library::SEND_SIGNALED);
        (send.remote, send.key_or_pair) = (port.base + remote, port.key);
        self.queue_bytes(Request { id, peer, rest: None, fetches: false }, slot, send, data);
    }

    fn queue_bytes(&mut self, request: Request, slot: usize, mut send: Send, bytes: &[u8]) {
        let (index, Request { id, peer, .. }) = (RECEIVES + slot, request);
        let Some(buffer) = self.buffers[index].get_mut(..bytes.len()) else {
            return self.refuse(slot, id, peer, Failure::LocalLength);
        };
        buffer.copy_from_slice(bytes);
        let piece = Span { addr: self.buffer(index), length: bytes.len() as u32, lkey: self.buffers_key };
        if self.links[peer as usize].as_ref().is_some_and(|link| bytes.len() <= link.ends.inline as usize) {
            send.send_flags |= library::SEND_INLINE;
        }
        self.queue(slot, request, send, piece);
    }

    /// Queues an atomic on a word of a peer's.
    pub(super) fn fetch(&mut self, slot: usize, id: u64, peer: u32, remote: u64, atomic: &Atomic) {
        let Some(port) = self.links[peer as usize].as_ref().and_then(|link| link.port.as_ref()) else {
            return self.refuse(slot, id, peer, Failure::LocalOperation);
        };
        let there = (port.base + remote, port.key);
        let (opcode, compare_add, swap) = match atomic.op {
            AtomicOp::CompareExchange => (library::WR_ATOMIC_CMP_AND_SWP, atomic.expected, atomic.value),
            _ => (library::WR_ATOMIC_FETCH_AND_ADD, atomic.value, 0),
        };
        let here = Span { addr: self.buffer(RECEIVES + slot), length: OLD as u32, lkey: self.buffers_key };
        let mut send = self.request(slot, opcode, library::SEND_SIGNALED);
        send.atomic(there, compare_add, swap);
        self.queue(slot, Request { id, peer, rest: None, fetches: true }, send, here);
    }

    /// Queues the next bytes of what is to be moved between the heaps.
    pub(super) fn move_piece(&mut self, slot: usize, id: u64, peer: u32, piece: Piece) {
        let port = self.links[peer as usize].as_ref().and_then(|link| link.port.as_ref());
        let (Some(port), Some((own_key, _))) = (port, self.keys) else {
            return self.refuse(slot, id, peer, Failure::LocalOperation);
        };
        let there = (port.base + piece.remote, port.key);
        let most = MOST.min(self.device.facts.max_msg_sz.into()).max(1);
        let bytes = piece.bytes.min(most);
        let left =
            Piece { remote: piece.remote + bytes, local: piece.local + bytes, bytes: piece.bytes - bytes, ..piece };
        let here = Span { addr: self.base + piece.local, length: bytes as u32, lkey: own_key };
        let request = Request { id, peer, rest: (left.bytes > 0).then_some(left), fetches: false };
        let mut send = self.request(slot, piece.opcode, library::SEND_SIGNALED);
        (send.remote, send.key_or_pair) = there;
        self.queue(slot, request, send, here);
    }

    fn request(&self, slot: usize, opcode: i32, flags: u32) -> Send {
        Send::new((RECEIVES + slot) as u64, opcode, flags, ptr::null_mut())
    }

    fn queue(&mut self, slot: usize, request: Request, send: Send, piece: Span) {
        let Some(link) = &mut self.links[request.peer as usize] else { return };
        link.queued.push(Queued { send, piece });
        link.under_way.push_back(slot);
        link.is_in_parts = request.rest.is_some();
        self.requests[slot] = Some(request);
    }

    /// Gives a peer's chain to the device.
    pub(super) fn submit_to(&mut self, peer: usize) {
        let Some(link) = self.links[peer].as_mut().filter(|link| !link.queued.is_empty()) else { return };
        let count = link.queued.len();
        let mut next = ptr::null_mut();
        for (at, Queued { send, piece }) in link.queued.iter_mut().enumerate().rev() {
            (send.next, send.sg_list) = (next, ptr::from_mut(piece));
            if (at + 1).is_multiple_of(SIGNALED) || at + 1 == count {
                send.send_flags |= library::SEND_SIGNALED;
            }
            next = send;
        }
        let (context, mut bad) = (self.device.context, ptr::null_mut());
        // SAFETY: the pair is open, and the chain stays until this returns. What is moved is registered: buffers, which are these requests' until
        // they complete, or parts of the heap, whose bounds were checked.
        let taken = unsafe { ((*context).ops.post_send)(link.ends.pair, next, &raw mut bad) };
        link.queued.clear();
        // There was room. Of a chain that was taken in part, nothing tells the end.
        if taken != 0 {
            self.fail();
        }
    }

    /// Tells, with the next poll, that something failed that was not queued. Nothing may come after it, so that its connection has failed.
    pub(super) fn refuse(&mut self, slot: usize, id: u64, peer: u32, failure: Failure) {
        self.free.push(slot);
        self.refused.push((id, failure));
        self.break_link(peer);
    }

    /// Has all that is posted to a peer come back, and nothing more posted until the connection is made anew.
    pub(super) fn break_link(&mut self, peer: u32) {
        let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
        let Some(link) = link.filter(|link| link.state != LinkState::Broken) else { return };
        (link.state, link.is_in_parts) = (LinkState::Broken, false);
        self.device.end(&link.ends);
        let not_given = link.under_way.len() - link.queued.len();
        for slot in link.under_way.drain(not_given..) {
            self.refused.extend(self.requests[slot].take().map(|request| (request.id, Failure::Flushed)));
            self.free.push(slot);
        }
        link.queued.clear();
    }

    /// Tells, with the next poll, that everything has failed with the device.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
        let requests = self.requests.iter_mut().filter_map(Option::take);
        self.refused.extend(requests.map(|request| (request.id, Failure::Fatal)));
        for link in self.links.iter_mut().flatten() {
            link.queued.clear();
            link.under_way.clear();
        }
    }

    /// Hears of a completion.
    pub(super) fn completed(&mut self, completion: &Completion, hear: &mut dyn FnMut(Event<'_>)) {
        let index = completion.wr_id as usize;
        if index < RECEIVES {
            if completion.status == 0 {
                let message = self.buffers[index].get(..completion.byte_len as usize).unwrap_or_default();
                hear(Event::Messages(message));
            }
            // A queue that takes no receive has failed, which its device tells.
            let _posted = self.receive(index);
            return;
        }
        let slot = index - RECEIVES;
        if slot >= SENDS {
            if let Some(hello) = self.hellos.completed(&self.device, completion) {
                self.greeted(hello);
            }
            return;
        }
        let Some(Request { peer, .. }) = self.requests[slot] else { return };
        while let Some(first) = self.links[peer as usize].as_mut().and_then(|link| link.under_way.pop_front()) {
            let is_last = first == slot;
            self.ended(first, if is_last { completion.status } else { 0 }, hear);
            if is_last {
                break;
            }
        }
        self.answer_if_drained(peer);
    }

    /// A request has ended with this status, and what follows it is posted.
    fn ended(&mut self, slot: usize, status: i32, hear: &mut dyn FnMut(Event<'_>)) {
        let Some(Request { id, peer, rest, fetches }) = self.requests[slot].take() else { return };
        let is_connected = self.links[peer as usize].as_ref().is_some_and(|link| link.state == LinkState::Connected);
        match rest {
            Some(rest) if status == 0 && is_connected => return self.move_piece(slot, id, peer, rest),
            Some(_) if status == 0 => hear(Event::Failed(id, Failure::Flushed)),
            None if status == 0 && fetches => {
                let old = self.buffers[RECEIVES + slot].first_chunk::<OLD>();
                hear(Event::Fetched(id, old.map_or(0, |old| u64::from_ne_bytes(*old))));
            }
            None if status == 0 => hear(Event::Done(id)),
            _ => {
                self.break_link(peer);
                hear(Event::Failed(id, failure(status)));
            }
        }
        self.free.push(slot);
    }
}

/// What a status of `enum ibv_wc_status` is.
fn failure(status: i32) -> Failure {
    match status {
        1 => Failure::LocalLength,
        2 => Failure::LocalOperation,
        4 => Failure::LocalProtection,
        5 => Failure::Flushed,
        7 => Failure::BadResponse,
        8 => Failure::LocalAccess,
        9 => Failure::RemoteInvalid,
        10 => Failure::RemoteAccess,
        11 => Failure::RemoteOperation,
        12 => Failure::RetryExceeded,
        13 => Failure::ReceiverNotReady,
        16 => Failure::RemoteAborted,
        19 => Failure::Fatal,
        20 => Failure::TimedOut,
        other => Failure::Other(other),
    }
}
