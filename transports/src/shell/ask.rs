//! What a [`Shell`](super::Shell) asks of its peers: which of it goes as messages, which by the network's own writes, reads and atomics, and when.

use congruent_heap::Pe;

use super::peer::{Asked, Bulk, Class, Peer, Task};
use super::{Book, Posted, WINDOW};
use crate::{Network, Operation, Post};

impl Book {
    /// Posts what is to be done to a peer.
    pub(super) fn go_on_asking(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        loop {
            let peer = &mut self.peers[at];
            if let Some(answer) = peer.answers.front().copied().filter(|_| peer.sent.len() < WINDOW) {
                peer.answers.pop_front();
                if !self.say(pe, Asked::new(None, answer)) {
                    return;
                }
                continue;
            }
            let peer = &self.peers[at];
            let next = peer.waiting.front().map(|asked| (asked.ticket, asked.task));
            if peer.waiting.front().is_some_and(|asked| self.is_small_write(peer, asked)) {
                if !self.post_small(network, pe) {
                    return;
                }
                continue;
            }
            let tells = next.is_some_and(|(_, task)| self.tells(&task) && peer.may_tell());
            let may_start = |task: &Task| peer.may_start(task.class(), self.by_messages(), self.is_ordered);
            match next.filter(|(_, task)| tells || may_start(task)) {
                Some((_, task)) if task.class() == Class::Message || self.by_messages() => {
                    let next = self.peers[at].waiting.pop_front();
                    if !next.is_some_and(|asked| self.say(pe, asked)) {
                        return;
                    }
                }
                // What was said before goes before it, unless that goes with what awaits it.
                _ if !tells && peer.posted < peer.sent.len() => {
                    if !self.send_next(network, pe) {
                        return;
                    }
                }
                Some((ticket, Task::Do(operation))) => {
                    if !self.post_bulk(network, pe, ticket, operation) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Whether what waits first is written by the network, though a message could carry it: with nothing to be done at the peer it is complete
    /// sooner. Not beside messages, whose data may still land; and where the network has no order, not while something else waits, which
    /// would be longer under way together with it than as messages.
    fn is_small_write(&self, peer: &Peer, asked: &Asked) -> bool {
        let is_one = matches!(asked.task, Task::Do(Operation::Write { bytes: 1.., then: None, .. }));
        let is_small = is_one && asked.task.class() == Class::Message && !self.by_messages();
        let may_tell = self.tells_arrivals && peer.writes == 0 && (peer.waiting.len() == 1 || asked.is_again);
        is_small && peer.sent.is_empty() && peer.reads == 0 && (self.is_ordered || may_tell)
    }

    /// Posts the small write that waits first.
    fn post_small(&mut self, network: &mut dyn Network, pe: Pe) -> bool {
        let at = pe.raw() as usize;
        let Some(mut asked) = self.peers[at].waiting.pop_front() else { return false };
        let Task::Do(operation @ Operation::Write { remote, local, bytes, .. }) = asked.task else { return false };
        if !self.read(pe, &mut asked) {
            return false;
        }
        let peer = &self.peers[at];
        let next = peer.next_number();
        let is_awaited = !self.is_ordered && peer.told != Some(next);
        let arrival = is_awaited.then(|| self.arrival(next));
        let post = Post::Write { remote, local, bytes, arrival, data: asked.data.as_deref() };
        // Kept for when the network fails.
        let data = asked.data.clone();
        let bulk = Bulk { ticket: asked.ticket, source: None, operation, next, is_awaited, data };
        let is_posted = self.post(network, pe, Posted::Bulk(bulk), post);
        let peer = &mut self.peers[at];
        if !is_posted {
            peer.waiting.push_front(asked);
        } else if is_awaited {
            peer.told = Some(next);
        }
        is_posted
    }

    /// The number by which a peer is told of the write before this message.
    fn arrival(&self, next: u64) -> u32 {
        self.memory.pe().raw() * WINDOW as u32 + (next % WINDOW as u64) as u32
    }

    /// Whether it is a bulk write of whose arrival the peer is told.
    fn tells(&self, task: &Task) -> bool {
        let signals = matches!(task, Task::Do(Operation::Write { then: Some(_), .. }));
        signals && task.class() == Class::Write && self.tells_arrivals && !self.is_ordered && !self.by_messages()
    }

    /// Posts the bulk write or read that waits first.
    fn post_bulk(&mut self, network: &mut dyn Network, pe: Pe, ticket: Option<u64>, operation: Operation) -> bool {
        let peer = &self.peers[pe.raw() as usize];
        let next = peer.next_number();
        let is_awaited = self.tells(&Task::Do(operation)) && peer.may_tell();
        let (post, source) = match operation {
            Operation::Read { remote, local, bytes } => (Post::Read { remote, local, bytes }, None),
            Operation::NicAtomic { remote, atomic } => (Post::Atomic { remote, atomic }, None),
            Operation::Write { remote, local, bytes, .. } => {
                let arrival = is_awaited.then(|| self.arrival(next));
                (Post::Write { remote, local, bytes, arrival, data: None }, ticket)
            }
            _ => return false,
        };
        let mut bulk = Bulk { ticket, source, operation, next, is_awaited, data: None };
        let behind = if self.is_ordered || is_awaited { bulk.take_signal() } else { None };
        if !self.post(network, pe, Posted::Bulk(bulk), post) {
            return false;
        }
        let peer = &mut self.peers[pe.raw() as usize];
        peer.waiting.pop_front();
        match behind {
            Some(behind) if is_awaited => {
                peer.told = Some(next);
                peer.say(behind, self.now);
            }
            behind => behind.into_iter().for_each(|behind| peer.waiting.push_front(behind)),
        }
        true
    }
}
