//! What a [`Shell`](super::Shell) does with the messages that its peers send.

use std::time::Instant;

use congruent_heap::Pe;

use super::peer::{Asked, Class, Owes, Peer, Sent, Task, bit, pieces};
use super::{Book, WINDOW};
use crate::message::{Header, Kind};
use crate::{Atomic, Operation, Progress};

impl Book {
    /// Takes messages that were sent together.
    pub(super) fn receive_all(&mut self, mut messages: &[u8]) {
        // Whatever this PE's peers would not say is passed over.
        while let Some((header, data, rest)) = Header::decode(messages) {
            self.receive(&header, data);
            messages = rest;
        }
    }

    fn receive(&mut self, header: &Header, data: &[u8]) {
        let Some(peer) = self.peers.get_mut(header.from as usize).filter(|peer| !peer.is_dead()) else { return };
        peer.failures = 0;
        if header.done > peer.done {
            peer.acknowledged(header.done, None, self.now, &mut self.progress);
        }
        match header.kind {
            Kind::Acknowledgement => {}
            Kind::Reply => peer.acknowledged(header.number, Some(header.value), self.now, &mut self.progress),
            Kind::Ask => peer.asked_over = Some(header.value),
            Kind::Tell => {
                if peer.asks.is_some() && header.value == peer.connection {
                    self.resume(Pe::new(header.from));
                }
            }
            _ if header.number < peer.next => {
                peer.owes = Owes::Now;
                let kept = peer.next - header.number <= WINDOW as u64;
                let is_owed = peer.owed.contains(&header.number);
                if kept && !is_owed && matches!(header.kind, Kind::Load | Kind::Atomic) {
                    peer.owed.push_back(header.number);
                }
            }
            _ if peer.may_do(header) => {
                self.do_one(header, data);
                self.do_early(header.from as usize);
            }
            _ => {
                if header.number - peer.next < WINDOW as u64 {
                    peer.early.insert(header.number, (*header, data.to_vec()));
                }
            }
        }
    }

    /// Takes note that a bulk write of a peer's has arrived, and does what awaited it.
    pub(super) fn arrived(&mut self, number: u32) {
        let at = number as usize / WINDOW;
        let Some(peer) = self.peers.get_mut(at).filter(|peer| !peer.is_dead()) else { return };
        peer.arrived |= bit(number.into());
        self.do_early(at);
    }

    /// Does messages whose turn has come meanwhile.
    fn do_early(&mut self, at: usize) {
        while let Some((header, data)) = self.peers[at].take_early() {
            self.do_one(&header, &data);
        }
    }

    /// Does what a peer asks for, the next in order, to this PE's heap.
    fn do_one(&mut self, header: &Header, data: &[u8]) {
        let own = self.memory.pe();
        let &Header { remote, bytes, value, expected, op, number_kind: kind, .. } = header;
        // Devices write without messages alone.
        let flushed = if self.by_messages() { Ok(()) } else { self.memory.flush() };
        let done = flushed.and_then(|()| match header.kind {
            Kind::Write => self.memory.give(own, remote, data).and_then(|()| {
                header.then.map_or(Ok(()), |signal| self.memory.signal(own, signal))?;
                Ok(0)
            }),
            Kind::Store => self.memory.store(own, remote, bytes, value).map(|()| 0),
            Kind::Load => self.memory.load(own, remote, bytes),
            Kind::Atomic => self.memory.atomic(own, remote, Atomic { op, kind, bytes, value, expected }),
            Kind::Read => {
                let back = Operation::Write { remote: value, local: remote, bytes, then: None };
                self.memory.check(Pe::new(header.from), &back).map(|()| {
                    let peer = &mut self.peers[header.from as usize];
                    peer.answers.extend(pieces(back).into_iter().chain([Task::Answer(header.number)]));
                    0
                })
            }
            Kind::Answer => {
                let peer = &mut self.peers[header.from as usize];
                peer.acknowledged(value, Some(0), self.now, &mut self.progress);
                Ok(0)
            }
            Kind::Bye | Kind::Acknowledgement | Kind::Reply | Kind::Ask | Kind::Tell => Ok(0),
        });
        let reply = match done {
            Ok(reply) => reply,
            Err(error) => return self.die(Pe::new(header.from), format!("of what it asked for: {error}")),
        };
        let peer = &mut self.peers[header.from as usize];
        peer.replies[header.number as usize % WINDOW] = reply;
        peer.did_next();
        match header.kind {
            Kind::Load | Kind::Atomic => peer.owed.push_back(header.number),
            kind => {
                peer.has_left |= kind == Kind::Bye;
                peer.owe(header.then.is_some());
            }
        }
    }
}

impl Peer {
    /// The peer has done everything before `number`; and `number`, where it replies.
    fn acknowledged(&mut self, number: u64, reply: Option<u64>, now: Instant, progress: &mut Vec<(u64, Progress)>) {
        self.heard_from(now);
        let asked = self.first + self.sent.len() as u64;
        // It does them in order, so before it replies to one, all before that.
        self.done = self.done.max(number.saturating_add(reply.is_some().into()).min(asked));
        let done = number.min(asked).saturating_sub(self.first) as usize;
        for sent in self.sent.iter_mut().take(done).filter(|sent| !sent.asked.task.has_reply()) {
            sent.reply = Some(0);
        }
        let asked = number.checked_sub(self.first).and_then(|at| self.sent.get_mut(at as usize));
        if let (Some(reply), Some(sent)) = (reply, asked) {
            sent.reply = Some(reply);
        }
        while let Some(Sent { asked: Asked { ticket, task, .. }, reply: Some(reply) }) =
            self.sent.pop_front_if(|sent| sent.reply.is_some())
        {
            progress.extend(ticket.map(|ticket| (ticket, Progress::Ended(Ok(reply)))));
            self.reads -= usize::from(task.class() == Class::Read);
            self.first += 1;
            self.posted = self.posted.saturating_sub(1);
            self.asked = now;
        }
    }
}
