//! Makes a [`Transport`] of a [`Network`]: order, signals, atomics and per-peer failure are here, once for all networks.
//!
//! To add a network, implement [`Network`] in a folder of its own; `in_process.rs` is the smallest that works, to copy from. It
//! says nothing of order: messages may come late, twice, in any order or not at all. A network that [is ordered](Network::is_ordered)
//! saves round trips.
//!
//! # How
//! What is done to a peer is of three classes. *Messages* carry an operation with up to [`EAGER`] bytes of data, which the peer's
//! own proxy does to its heap: small writes, signals, stores, loads and atomics. They are numbered for each pair of PEs; the peer
//! does them in the order of their numbers, each once, and acknowledges. *Bulk writes* and *bulk reads* are the network's own.
//! Messages are under way together, and so are reads; a bulk write is under way alone. What is of another class than what is
//! under way waits until that is complete. Where the network is ordered, bulk writes are under way together, and messages behind them.
//!
//! Every message says how many of the receiver's own are done, and so acknowledges them. A message that brings no signal is acknowledged at
//! once, since who waits for it may wait for nothing else. After a signal a lane may answer: where it lately did so within microseconds
//! each time, the acknowledgement is left to that answer, and to the next poll where none has come by then. Whoever stops polling polls
//! once more (`CpuMachine::run` of the host), or is one that another thread takes over from. So nobody waits for it longer than for the
//! next poll, and once in many signals as long as the proxy's thread rests.
//!
//! Where networks do not [reach the heaps](Network::reaches_heap), they move messages alone. A bulk write is many of them then, and a bulk
//! read is one that the peer answers with writes, and with a message that says that these were all.
//!
//! # Why the signal follows the data
//! A small write and its signal are one message: the proxy of the peer copies the data, then stores the signal with release, on one
//! thread. A bulk write is complete when its data is in the peer's memory ([`Event::Done`]), and only then is the message with its
//! signal posted, which the peer's proxy receives after that and does with release. Either way who acquires the signal sees the
//! data, and whatever was done to that peer before (MM-2): earlier messages have lower numbers, and earlier bulk writes are
//! complete. This costs a round trip between the data of a bulk write and its signal, and needs nothing of the network: no
//! counters of what has arrived, no data that travels with a write. An ordered network itself brings the message after the data, so that
//! it is posted at once.
//!
//! # Why a failure changes nothing twice
//! A message that is posted again has its old number, and the peer does no number twice; of those with a reply it keeps the
//! replies for as long as they may be asked for. A bulk write that failed is posted again before anything that follows it, while its
//! source is still the caller's promise, so that whoever sees it sees one write. A network's
//! [`reconnect`](Network::reconnect) ends what was under way.
//!
//! Behind a bulk write that failed there may be messages of whose fate nobody knows, on an ordered network. Who acts on one of them may
//! have changed again what was written. So the peer is asked first which messages it has done: a write before one of those was done,
//! and is not posted again.

mod peer;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, NumberKind};

use crate::message::{Header, Kind};
use crate::{
    Atomic, Event, Failure, Memory, Network, Operation, PeerState, Post, Reconnect, Transport, TransportError,
};
use peer::{Bulk, Class, Owes, Peer, Sent, Task, pieces};

/// The most data of a message, bytes.
pub const EAGER: usize = 8192;

/// Messages to one peer that are under way at once.
const WINDOW: usize = 64;
/// Bulk reads from one peer that are under way at once.
const READS: usize = 16;
/// How long a message may be without answer before it is posted again.
const AGAIN: Duration = Duration::from_millis(5);
/// After so many signals in a row of a peer's that a message to it followed so soon, one is expected to follow the next.
const QUICK: u32 = 16;
const SOON: Duration = Duration::from_micros(10);
/// How often a peer may fail with no progress between.
const FAILURES: u32 = 16;
/// How long a PE that may leave waits for the last acknowledgements.
const LINGER: Duration = Duration::from_millis(500);

/// A transport over a network.
pub struct Shell {
    network: Box<dyn Network>,
    book: Book,
}

impl Shell {
    /// The most bytes of a message.
    pub const MESSAGE: usize = Header::BYTES + EAGER;

    /// The transport of the PE whose memory this is, over a network that is connected. A peer that is silent for `patience` while
    /// it owes the answer to a message, or what was posted to it does not come back for so long after a failure, is dead. Of the heaps,
    /// only this PE's need be mapped. `by_messages` says, to all PEs alike, that not every PE's network [reaches](Network::reaches_heap)
    /// its heap.
    pub fn new(network: Box<dyn Network>, memory: Memory, patience: Duration, by_messages: bool) -> Self {
        let book = Book {
            peers: (0..memory.npes()).map(|_| Peer::new()).collect(),
            memory,
            patience,
            by_messages,
            is_ordered: network.is_ordered(),
            posts: HashMap::new(),
            next_id: 0,
            ended: Vec::new(),
            leaving: None,
        };
        Self { network, book }
    }
}

impl Transport for Shell {
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError> {
        self.book.memory.check(peer, &operation)?;
        let entry = &mut self.book.peers[peer.raw() as usize];
        if let PeerState::Dead(why) = &entry.state {
            return Err(TransportError::Unreachable { peer, why: why.clone() });
        }
        let mut tasks = if self.book.by_messages { pieces(operation) } else { vec![Task::Do(operation)] };
        // The last one ends it.
        let last = tasks.pop().map(|last| (Some(ticket), last));
        entry.waiting.extend(tasks.into_iter().map(|task| (None, task)).chain(last));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(u64, Result<u64, TransportError>)) -> bool {
        let Self { network, book } = self;
        network.poll(&mut |event| book.hear(event));
        for peer in 0..book.memory.npes() {
            book.go_on(&mut **network, Pe::new(peer));
        }
        book.ended.drain(..).for_each(|(ticket, reply)| done(ticket, reply));
        !book.posts.is_empty() || book.peers.iter().any(|peer| peer.owes != Owes::Nothing)
    }

    fn state(&self, peer: Pe) -> PeerState {
        self.book.peers.get(peer.raw() as usize).map_or(PeerState::Dead("no such PE".into()), |peer| peer.state.clone())
    }

    fn serves(&self) -> bool {
        true
    }

    fn leave(&mut self) -> bool {
        let Book { memory, peers, leaving, posts, .. } = &mut self.book;
        let own = memory.pe().raw() as usize;
        let others = || peers.iter().enumerate().filter(|(pe, peer)| *pe != own && !peer.is_dead());
        if leaving.is_none() {
            let to: Vec<_> = others().map(|(pe, _)| pe).collect();
            to.into_iter().for_each(|pe| peers[pe].waiting.push_back((None, Task::Bye)));
            *leaving = Some(None);
            return false;
        }
        if !others().all(|(_, peer)| peer.has_left) {
            return false;
        }
        let heard_all = leaving.get_or_insert(None).get_or_insert_with(Instant::now);
        let settled = posts.is_empty() && others().all(|(_, peer)| peer.is_settled());
        settled || heard_all.elapsed() > LINGER
    }
}

/// Everything but the network.
struct Book {
    memory: Memory,
    patience: Duration,
    /// Whether the network moves messages alone.
    by_messages: bool,
    /// Whether it brings what is posted to a peer in order.
    is_ordered: bool,
    peers: Vec<Peer>,
    posts: HashMap<u64, (Pe, Posted)>,
    next_id: u64,
    ended: Vec<(u64, Result<u64, TransportError>)>,
    /// Whether this PE leaves, and since when it has heard that all others do.
    leaving: Option<Option<Instant>>,
}

/// What was posted.
#[derive(Clone, Copy)]
enum Posted {
    Bulk(Bulk),
    Message,
    Acknowledgement,
    Reply(u64),
    Tell(u64),
    /// Nobody waits for it: it is asked again, or its peer is dead.
    Nothing,
}

impl Book {
    fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Message(bytes) => self.receive(bytes),
            Event::Done(id) => self.ended_well(id),
            Event::Failed(id, failure) => self.failed(id, failure),
        }
    }

    /// Takes note that what was posted has ended.
    fn returned(&mut self, id: u64) -> Option<(Pe, Posted)> {
        let (pe, posted) = self.posts.remove(&id)?;
        let peer = &mut self.peers[pe.raw() as usize];
        peer.posts -= 1;
        if let Posted::Bulk(bulk) = &posted {
            match Task::Do(bulk.operation).class() {
                Class::Read => peer.reads -= 1,
                _ => peer.writes -= 1,
            }
        }
        Some((pe, posted))
    }

    fn ended_well(&mut self, id: u64) {
        let Some((pe, Posted::Bulk(Bulk { ticket, operation, .. }))) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        peer.heard_from();
        match operation {
            Operation::Write { then: Some(signal), .. } => {
                peer.waiting.push_front((ticket, Task::signal(signal)));
            }
            Operation::Read { .. } => {
                let flushed = self.memory.flush().map(|()| 0);
                self.ended.extend(ticket.map(|ticket| (ticket, flushed)));
            }
            _ => self.ended.extend(ticket.map(|ticket| (ticket, Ok(0)))),
        }
    }

    fn failed(&mut self, id: u64, failure: Failure) {
        let Some((pe, posted)) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        match posted {
            Posted::Bulk(bulk) => drop(peer.undone.insert(id, bulk)),
            Posted::Reply(number) => peer.owed.push_back(number),
            Posted::Tell(connection) => peer.asked_over = Some(connection),
            Posted::Message | Posted::Acknowledgement | Posted::Nothing => {}
        }
        peer.failures += u32::from(peer.state == PeerState::Up);
        match peer.state {
            PeerState::Dead(_) => {}
            _ if failure.passes() && peer.failures <= FAILURES => {
                if peer.state == PeerState::Up {
                    peer.drains = Instant::now();
                }
                (peer.state, peer.why) = (PeerState::Draining, Some(failure));
                // What failed may have acknowledged something.
                peer.owes = Owes::Now;
            }
            _ => self.die(pe, failure.to_string()),
        }
    }

    /// Nothing more is asked of a peer, and who waits for it is told.
    fn die(&mut self, pe: Pe, why: String) {
        let peer = &mut self.peers[pe.raw() as usize];
        peer.state = PeerState::Dead(why.clone());
        let undone = std::mem::take(&mut peer.undone).into_values().map(|bulk| bulk.ticket);
        let sent = peer.sent.drain(..).map(|sent| sent.ticket);
        let waiting = peer.waiting.drain(..).map(|(ticket, _)| ticket);
        let mut tickets: Vec<_> = undone.chain(sent).chain(waiting).flatten().collect();
        (peer.reads, peer.writes, peer.owes) = (0, 0, Owes::Nothing);
        (peer.asks, peer.asked_over) = (None, None);
        peer.owed.clear();
        peer.answers.clear();
        for (_, posted) in self.posts.values_mut().filter(|(to, _)| *to == pe) {
            if let Posted::Bulk(bulk) = std::mem::replace(posted, Posted::Nothing) {
                tickets.extend(bulk.ticket);
            }
        }
        let error = TransportError::Unreachable { peer: pe, why };
        self.ended.extend(tickets.into_iter().map(|ticket| (ticket, Err(error.clone()))));
    }

    /// Posts what can be posted.
    fn go_on(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        let peer = &mut self.peers[at];
        if peer.state == PeerState::Draining && peer.posts == 0 {
            peer.state = PeerState::Reconnecting;
        } else if peer.state == PeerState::Draining && peer.drains.elapsed() > self.patience {
            self.die(pe, "what was posted to it does not come back".into());
        }
        if self.peers[at].state == PeerState::Reconnecting {
            self.connect_again(network, pe);
        }
        if self.peers[at].state != PeerState::Up {
            return;
        }
        self.reply(network, pe);
        self.ask_again(network, pe);
        if self.peers[at].asks.is_none() {
            self.go_on_asking(network, pe);
        }
        self.acknowledge(network, pe);
    }

    /// Posts what is to be done to a peer.
    fn go_on_asking(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        loop {
            let peer = &mut self.peers[at];
            if peer.posted < peer.sent.len() {
                let (number, task) = (peer.first + peer.posted as u64, peer.sent[peer.posted].task);
                if !self.send(network, pe, number, &task) {
                    return;
                }
                self.peers[at].posted += 1;
                continue;
            }
            if let Some(answer) = peer.answers.front().copied().filter(|_| peer.sent.len() < WINDOW) {
                peer.answers.pop_front();
                peer.say(None, answer);
                continue;
            }
            let Some(&(ticket, task)) = peer.waiting.front() else { return };
            let class = task.class();
            if !peer.may_start(class, self.by_messages, self.is_ordered) {
                return;
            }
            match task {
                Task::Do(operation) if class != Class::Message && !self.by_messages => {
                    let mut bulk = Bulk { ticket, operation, next: peer.first };
                    let post = match operation {
                        Operation::Read { remote, local, bytes } => Post::Read { remote, local, bytes },
                        Operation::Write { remote, local, bytes, .. } => Post::Write { remote, local, bytes },
                        _ => return,
                    };
                    let behind = if self.is_ordered { bulk.take_signal() } else { None };
                    if !self.post(network, pe, Posted::Bulk(bulk), post) {
                        return;
                    }
                    let waiting = &mut self.peers[at].waiting;
                    waiting.pop_front();
                    behind.into_iter().for_each(|behind| waiting.push_front(behind));
                }
                _ => {
                    peer.waiting.pop_front();
                    peer.say(ticket, task);
                }
            }
        }
    }

    fn connect_again(&mut self, network: &mut dyn Network, pe: Pe) {
        let connected = network.reconnect(pe);
        let peer = &mut self.peers[pe.raw() as usize];
        let is_late = peer.drains.elapsed() > self.patience;
        match connected {
            Reconnect::Done => {
                (peer.state, peer.why) = (PeerState::Up, None);
                peer.posted = 0;
                peer.connection += 1;
                peer.heard = Instant::now();
                if peer.undone.is_empty() || peer.sent.is_empty() {
                    self.resume(pe);
                } else {
                    peer.asks = Some(peer.heard);
                }
            }
            Reconnect::UnderWay if !is_late => {}
            Reconnect::UnderWay | Reconnect::Impossible => {
                let why = peer.why.take().map_or_else(String::new, |why| why.to_string());
                let late = if is_late { ", and no new connection comes about" } else { "" };
                self.die(pe, format!("{why}{late}"));
            }
        }
    }

    /// Goes on with what was under way when a connection failed.
    fn resume(&mut self, pe: Pe) {
        let done = self.peers[pe.raw() as usize].resume();
        self.ended.extend(done.into_iter().map(|ticket| (ticket, Ok(0))));
    }

    /// Sends the replies that a peer is owed.
    fn reply(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        while let Some(&number) = self.peers[at].owed.front() {
            let value = self.peers[at].replies[number as usize % WINDOW];
            let header = Header { kind: Kind::Reply, number, value, ..self.header(pe) };
            if !self.post(network, pe, Posted::Reply(number), Post::Send(&header.encode())) {
                return;
            }
            self.peers[at].owed.pop_front();
        }
        if let Some(value) = self.peers[at].asked_over {
            let header = Header { kind: Kind::Tell, value, ..self.header(pe) };
            if self.post(network, pe, Posted::Tell(value), Post::Send(&header.encode())) {
                self.peers[at].asked_over = None;
            }
        }
    }

    /// Sends a peer the acknowledgement that is due and no message has brought.
    fn acknowledge(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        match self.peers[at].owes {
            Owes::Nothing => {}
            Owes::Next => self.peers[at].owes = Owes::Now,
            Owes::Now => {
                let header = Header { kind: Kind::Acknowledgement, ..self.header(pe) };
                if self.post(network, pe, Posted::Acknowledgement, Post::Send(&header.encode())) {
                    self.peers[at].note_acknowledgement();
                }
            }
        }
    }

    /// Posts the oldest message again where no answer comes, or asks which are done where that must be known first, and gives the peer
    /// up where that lasts.
    fn ask_again(&mut self, network: &mut dyn Network, pe: Pe) {
        let peer = &mut self.peers[pe.raw() as usize];
        let (now, is_waited_for) = (Instant::now(), !peer.sent.is_empty() && peer.asked.elapsed() >= AGAIN);
        if !peer.asks.map_or(is_waited_for, |when| when <= now) {
            return;
        }
        let silent = peer.heard.elapsed();
        if silent > self.patience {
            return self.die(pe, format!("it has been silent for {} ms", silent.as_millis()));
        }
        if peer.asks.is_some() {
            peer.asks = Some(now + AGAIN);
            let header = Header { kind: Kind::Ask, value: peer.connection, ..self.header(pe) };
            // Without room it is tried later.
            let _asked = self.post(network, pe, Posted::Nothing, Post::Send(&header.encode()));
            return;
        }
        // What the network still has, it need not get again.
        if peer.posted == 0 || peer.posts > WINDOW {
            return;
        }
        peer.asked = now;
        let (number, task) = (peer.first, peer.sent[0].task);
        let _sent = self.send(network, pe, number, &task);
    }

    /// Posts a message.
    fn send(&mut self, network: &mut dyn Network, pe: Pe, number: u64, task: &Task) -> bool {
        let mut header = Header { number, ..self.header(pe) };
        let mut data = (0, 0);
        match *task {
            Task::Bye => header.kind = Kind::Bye,
            Task::Answer(to) => (header.kind, header.value) = (Kind::Answer, to),
            Task::Do(Operation::Write { remote, local, bytes, then }) => {
                (header.kind, header.remote, header.bytes, header.then) = (Kind::Write, remote, bytes, then);
                data = (local, bytes as usize);
            }
            Task::Do(Operation::Read { remote, local, bytes }) => {
                (header.kind, header.remote, header.bytes, header.value) = (Kind::Read, remote, bytes, local);
            }
            Task::Do(Operation::Store { remote, bytes, value }) => {
                (header.kind, header.remote, header.bytes, header.value) = (Kind::Store, remote, bytes, value);
            }
            Task::Do(Operation::Load { remote, bytes }) => {
                (header.kind, header.remote, header.bytes) = (Kind::Load, remote, bytes);
            }
            Task::Do(Operation::Atomic { remote, atomic }) => {
                (header.kind, header.remote, header.bytes) = (Kind::Atomic, remote, atomic.bytes);
                (header.value, header.expected) = (atomic.value, atomic.expected);
                (header.op, header.number_kind) = (atomic.op, atomic.kind);
            }
        }
        let mut message = header.encode().to_vec();
        message.resize(Header::BYTES + data.1, 0);
        if data.1 > 0
            && let Err(error) = self.memory.take(data.0, &mut message[Header::BYTES..])
        {
            // Its bounds were checked when it was started.
            self.die(pe, error.to_string());
            return false;
        }
        self.peers[pe.raw() as usize].note_message();
        let is_posted = self.post(network, pe, Posted::Message, Post::Send(&message));
        if is_posted {
            self.peers[pe.raw() as usize].owes = Owes::Nothing;
        }
        is_posted
    }

    fn post(&mut self, network: &mut dyn Network, pe: Pe, posted: Posted, post: Post<'_>) -> bool {
        let id = self.next_id;
        if !network.post(id, pe, post) {
            return false;
        }
        self.next_id += 1;
        self.posts.insert(id, (pe, posted));
        let peer = &mut self.peers[pe.raw() as usize];
        peer.posts += 1;
        match post {
            Post::Read { .. } => peer.reads += 1,
            Post::Write { .. } => peer.writes += 1,
            Post::Send(_) => {}
        }
        true
    }

    fn receive(&mut self, bytes: &[u8]) {
        // Whatever this PE's peers would not say is passed over.
        let Some(header) = Header::decode(bytes) else { return };
        let Some(peer) = self.peers.get_mut(header.from as usize).filter(|peer| !peer.is_dead()) else { return };
        peer.failures = 0;
        if header.done > peer.done {
            Self::acknowledged(&mut self.ended, peer, header.done, None);
        }
        match header.kind {
            Kind::Acknowledgement => {}
            Kind::Reply => Self::acknowledged(&mut self.ended, peer, header.number, Some(header.value)),
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
            _ if header.number > peer.next => {
                if header.number - peer.next < WINDOW as u64 {
                    peer.early.insert(header.number, bytes.to_vec());
                }
            }
            _ => {
                self.do_one(&header, &bytes[Header::BYTES..]);
                let at = header.from as usize;
                while let Some((header, early)) = self.peers[at].take_early() {
                    self.do_one(&header, &early[Header::BYTES..]);
                }
            }
        }
    }

    /// Does what a peer asks for, the next in order, to this PE's heap.
    fn do_one(&mut self, header: &Header, data: &[u8]) {
        let own = self.memory.pe();
        let &Header { remote, bytes, value, expected, op, number_kind: kind, .. } = header;
        // Devices write without messages alone.
        let flushed = if self.by_messages { Ok(()) } else { self.memory.flush() };
        let done = flushed.and_then(|()| match header.kind {
            Kind::Write => self.memory.give(remote, data).and_then(|()| {
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
                Self::acknowledged(&mut self.ended, peer, value, Some(0));
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
        peer.next += 1;
        match header.kind {
            Kind::Load | Kind::Atomic => peer.owed.push_back(header.number),
            kind => {
                peer.has_left |= kind == Kind::Bye;
                peer.owe(header.then.is_some());
            }
        }
    }

    /// A peer has done everything before `number`; and `number`, where it replies.
    fn acknowledged(
        ended: &mut Vec<(u64, Result<u64, TransportError>)>,
        peer: &mut Peer,
        number: u64,
        reply: Option<u64>,
    ) {
        peer.heard_from();
        let asked = peer.first + peer.sent.len() as u64;
        // It does them in order, so before it replies to one, all before that.
        peer.done = peer.done.max(number.saturating_add(reply.is_some().into()).min(asked));
        let done = number.min(asked).saturating_sub(peer.first) as usize;
        for sent in peer.sent.iter_mut().take(done).filter(|sent| !sent.task.has_reply()) {
            sent.reply = Some(0);
        }
        let asked = number.checked_sub(peer.first).and_then(|at| peer.sent.get_mut(at as usize));
        if let (Some(reply), Some(sent)) = (reply, asked) {
            sent.reply = Some(reply);
        }
        while let Some(Sent { ticket, task, reply: Some(reply) }) = peer.sent.pop_front_if(|sent| sent.reply.is_some())
        {
            ended.extend(ticket.map(|ticket| (ticket, Ok(reply))));
            peer.reads -= usize::from(task.class() == Class::Read);
            peer.first += 1;
            peer.posted = peer.posted.saturating_sub(1);
            peer.asked = Instant::now();
        }
    }

    /// What every message to a peer has.
    fn header(&self, to: Pe) -> Header {
        Header {
            kind: Kind::Bye,
            from: self.memory.pe().raw(),
            done: self.peers[to.raw() as usize].next,
            number: 0,
            remote: 0,
            bytes: 0,
            value: 0,
            expected: 0,
            op: AtomicOp::Add,
            number_kind: NumberKind::Unsigned,
            then: None,
        }
    }
}

#[cfg(test)]
mod tests;
