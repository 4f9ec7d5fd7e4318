//! Makes a [`Transport`] of a [`Network`]: order, signals, atomics and per-peer failure are here, once for all networks.
//!
//! To add a network, implement [`Network`] in a folder of its own; `in_process.rs` is the smallest that works, to copy from. It
//! says nothing of order: messages may come late, twice, in any order or not at all. A network that [is ordered](Network::is_ordered) or
//! [tells of arrivals](Network::tells_arrivals) saves round trips.
//!
//! # How
//! What is done to a peer is of three classes. *Messages* carry an operation with up to [`EAGER`] bytes of data, which the peer's
//! own proxy does to its heap: small writes, signals, stores, loads and atomics. They are numbered for each pair of PEs; the peer
//! does them in the order of their numbers, each once, and acknowledges. Those that are asked for together are sent together, as many
//! as fit, since a network takes as long for one as for some. *Bulk writes* and *bulk reads* are the network's own.
//! Atomics of the network's own count as reads. Messages are under way together, and so are reads; a bulk write is under way alone. What
//! is of another class than what is under way waits until that is complete. Where the network is ordered, bulk writes are under way
//! together, and messages behind them; where it tells of arrivals, messages behind one bulk write, which does not wait for signals alone.
//!
//! A small write without a signal, which a message could carry, is a write of the network's own where no message before it is under way:
//! over a network with order always, over one that tells of arrivals where it waits alone. It tells the number of the next message, which
//! awaits it if it is asked for meanwhile. No number is told twice, since the peer could take one arrival for the other.
//!
//! Every message says how many of the receiver's own are done, and so acknowledges them. A message that brings no signal is acknowledged at
//! once, since who waits for it may wait for nothing else. After a signal a lane may answer: where it lately did so within microseconds
//! each time, the acknowledgement is left to that answer, and to the next poll where none has come by then. Whoever stops polling polls
//! once more (`CpuMachine::run` of the host), or is one that another thread takes over from. So nobody waits for it longer than for the
//! next poll, and once in many signals as long as the proxy's thread rests.
//!
//! Where networks do not [reach the heaps](Network::reach), they move messages alone. A bulk write is many of them then, and a bulk
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
//! Where the network tells the peer that a write has arrived ([`Event::Arrived`]), the message with its signal is posted at once, too, and
//! says that it awaits that: the peer does it, and what follows it, once it has heard of both, in either order. The write is told by the
//! number of that message.
//!
//! # Why a failure changes nothing twice
//! A message that is posted again has its old number, and the peer does no number twice; of those with a reply it keeps the
//! replies for as long as they may be asked for. A bulk write that failed is posted again before anything that follows it, while its
//! source is still the caller's promise, so that whoever sees it sees one write. A network's
//! [`reconnect`](Network::reconnect) ends what was under way.
//!
//! An atomic of the network's that failed is not done again: nobody knows whether it was done, and whoever asked for it is told that
//! ([`TransportError::Unknown`]).
//!
//! Behind a bulk write that failed there may be messages of whose fate nobody knows, where they were posted at once. Who acts on one of them
//! may have changed again what was written. So the peer is asked first which messages it has done: a write before one of those was done,
//! and is not posted again. One that is, is not told by a number any more, and its message awaits nothing.

mod ask;
mod peer;
mod receive;

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, NumberKind};

use crate::message::{Header, Kind};
use crate::{
    Event, Failure, Memory, Network, Operation, PeerState, Post, Progress, Reach, Reconnect, Transport, TransportError,
};
use peer::{Asked, Bulk, Class, Owes, Peer, Task, pieces};

/// The most data of a message, bytes.
pub const EAGER: usize = 8192;

/// Messages to one peer that are under way at once.
const WINDOW: usize = 64;
/// The number that tells of an arrival has the low bits of a message's number, which a window has, and above them whose write it is. Not
/// more PEs than these can be told apart.
const MOST_TOLD: u32 = u32::MAX / WINDOW as u32;
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
    /// The most bytes of a message, and of several that are sent together.
    pub const MESSAGE: usize = Header::BYTES + EAGER;

    /// The transport of the PE whose memory this is, over a network that is connected. A peer that is silent for `patience` while
    /// it owes the answer to a message, or what was posted to it does not come back for so long after a failure, is dead. Of the heaps,
    /// only this PE's need be mapped. `reach` says, to all PEs alike, what every PE's network does to its heap ([`Reach::of_all`]).
    pub fn new(network: Box<dyn Network>, memory: Memory, patience: Duration, reach: Reach) -> Self {
        let book = Book {
            peers: (0..memory.npes()).map(|_| Peer::new()).collect(),
            tells_arrivals: network.tells_arrivals() && memory.npes() <= MOST_TOLD,
            memory,
            patience,
            reach,
            is_ordered: network.is_ordered(),
            posts: HashMap::new(),
            next_id: 0,
            progress: Vec::new(),
            messages: Vec::new(),
            now: Instant::now(),
            leaving: None,
        };
        Self { network, book }
    }
}

impl Transport for Shell {
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError> {
        self.book.memory.check(peer, &operation)?;
        let operation = match operation {
            Operation::NicAtomic { remote, atomic } if self.book.reach < Reach::Atomics => {
                Operation::Atomic { remote, atomic }
            }
            operation => operation,
        };
        // By the PE whose word it is, which here is this one.
        if let (true, Operation::Atomic { remote, atomic }) = (peer == self.book.memory.pe(), operation) {
            let ended = self.book.memory.atomic(peer, remote, atomic);
            self.book.progress.push((ticket, Progress::Ended(ended)));
            return Ok(());
        }
        let by_messages = self.book.by_messages();
        let entry = &mut self.book.peers[peer.raw() as usize];
        if let PeerState::Dead(why) = &entry.state {
            return Err(TransportError::Unreachable { peer, why: why.clone() });
        }
        let mut tasks = if by_messages { pieces(operation) } else { vec![Task::Do(operation)] };
        // The last one ends it.
        let last = tasks.pop().map(|last| (Some(ticket), last));
        entry.waiting.extend(
            tasks.into_iter().map(|task| (None, task)).chain(last).map(|(ticket, task)| Asked::new(ticket, task)),
        );
        Ok(())
    }

    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        let Self { network, book } = self;
        book.now = Instant::now();
        // What was asked for goes out before the network is looked at, which takes it a while.
        for peer in 0..book.memory.npes() {
            if book.peers[peer as usize].may_be_asked() {
                book.go_on_asking(&mut **network, Pe::new(peer));
            }
        }
        network.submit();
        let mut has_heard = false;
        network.poll(&mut |event| {
            // That may have taken long.
            if !std::mem::replace(&mut has_heard, true) {
                book.now = Instant::now();
            }
            book.hear(event);
        });
        for peer in 0..book.memory.npes() {
            book.go_on(&mut **network, Pe::new(peer));
        }
        network.submit();
        book.progress.drain(..).for_each(|(ticket, progress)| tell(ticket, progress));
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
            to.into_iter().for_each(|pe| peers[pe].waiting.push_back(Asked::new(None, Task::Bye)));
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
    /// What the networks of all PEs do to their heaps.
    reach: Reach,
    /// Whether it brings what is posted to a peer in order.
    is_ordered: bool,
    /// Whether it tells peers of writes that have arrived.
    tells_arrivals: bool,
    peers: Vec<Peer>,
    posts: HashMap<u64, (Pe, Posted)>,
    next_id: u64,
    progress: Vec<(u64, Progress)>,
    /// Messages that are sent together; kept for its memory.
    messages: Vec<u8>,
    /// When the last poll began, or heard something: to ask for the time takes as long as much of a poll.
    now: Instant,
    /// Whether this PE leaves, and since when it has heard that all others do.
    leaving: Option<Option<Instant>>,
}

/// What was posted.
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
    /// Whether the network moves messages alone.
    fn by_messages(&self) -> bool {
        self.reach == Reach::Nothing
    }

    fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Messages(bytes) => self.receive_all(bytes),
            Event::Arrived(number) => self.arrived(number),
            Event::Done(id) => self.ended_well(id),
            Event::Fetched(id, old) => {
                if let Some((pe, Posted::Bulk(Bulk { ticket: Some(ticket), .. }))) = self.returned(id) {
                    self.peers[pe.raw() as usize].heard_from(self.now);
                    self.progress.push((ticket, Progress::Ended(Ok(old))));
                }
            }
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
                _ => {
                    peer.writes -= 1;
                    peer.awaited -= usize::from(bulk.is_awaited);
                }
            }
        }
        Some((pe, posted))
    }

    fn ended_well(&mut self, id: u64) {
        let Some((pe, Posted::Bulk(Bulk { ticket, source, operation, .. }))) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        peer.heard_from(self.now);
        let ended = match operation {
            Operation::Write { then: Some(signal), .. } => {
                peer.waiting.push_front(Asked::new(ticket, Task::signal(signal)));
                None
            }
            Operation::Read { .. } => ticket.map(|ticket| (ticket, self.memory.flush().map(|()| 0))),
            _ => ticket.map(|ticket| (ticket, Ok(0))),
        };
        self.progress.extend(source.map(|source| (source, Progress::Local)));
        self.progress.extend(ended.map(|(ticket, reply)| (ticket, Progress::Ended(reply))));
    }

    fn failed(&mut self, id: u64, failure: Failure) {
        let Some((pe, posted)) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        match posted {
            // Done again, it might be done twice.
            Posted::Bulk(Bulk { ticket, operation: Operation::NicAtomic { remote, .. }, .. }) => {
                let error = TransportError::Unknown { peer: pe, remote, why: failure.to_string() };
                self.progress.extend(ticket.map(|ticket| (ticket, Progress::Ended(Err(error)))));
            }
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
        let sent = peer.sent.drain(..).map(|sent| sent.asked.ticket);
        let waiting = peer.waiting.drain(..).map(|asked| asked.ticket);
        let mut tickets: Vec<_> = undone.chain(sent).chain(waiting).flatten().collect();
        (peer.reads, peer.writes, peer.awaited, peer.owes) = (0, 0, 0, Owes::Nothing);
        (peer.asks, peer.asked_over) = (None, None);
        peer.owed.clear();
        peer.answers.clear();
        for (_, posted) in self.posts.values_mut().filter(|(to, _)| *to == pe) {
            if let Posted::Bulk(bulk) = std::mem::replace(posted, Posted::Nothing) {
                tickets.extend(bulk.ticket);
            }
        }
        let error = TransportError::Unreachable { peer: pe, why };
        self.progress.extend(tickets.into_iter().map(|ticket| (ticket, Progress::Ended(Err(error.clone())))));
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
        if self.peers[at].may_be_asked() {
            self.go_on_asking(network, pe);
        }
        self.acknowledge(network, pe);
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
                peer.heard = self.now;
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
        self.progress.extend(done.into_iter().map(|ticket| (ticket, Progress::Ended(Ok(0)))));
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
        // What awaits a bulk write may take as long as that.
        let owes_answer = !peer.sent.is_empty() && peer.awaited == 0;
        let (now, since) = (self.now, |then: Instant| self.now.saturating_duration_since(then));
        let is_waited_for = owes_answer && since(peer.asked) >= AGAIN;
        if !peer.asks.map_or(is_waited_for, |when| when <= now) {
            return;
        }
        let silent = since(peer.heard);
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
        let _sent = self.send(network, pe, 0..1);
    }

    /// Notes a message that is to be posted, and reads what it carries: whoever asked for it need not wait until it is acknowledged, and it
    /// may be posted again. False where the peer is given up.
    fn say(&mut self, pe: Pe, mut asked: Asked) -> bool {
        let is_read = self.read(pe, &mut asked);
        if is_read {
            self.peers[pe.raw() as usize].say(asked, self.now);
        }
        is_read
    }

    /// Reads what a message, or a small write, carries.
    fn read(&mut self, pe: Pe, asked: &mut Asked) -> bool {
        if let (Task::Do(Operation::Write { local, bytes: 1.., .. }), None) = (asked.task, &asked.data) {
            let mut data = vec![0; asked.task.carries()].into_boxed_slice();
            if let Err(error) = self.memory.take(local, &mut data) {
                // Its bounds were checked when it was started.
                self.die(pe, error.to_string());
                return false;
            }
            asked.data = Some(data);
            self.progress.extend(asked.ticket.map(|ticket| (ticket, Progress::Local)));
        }
        true
    }

    /// Posts the messages that are next, as many as are sent together.
    fn send_next(&mut self, network: &mut dyn Network, pe: Pe) -> bool {
        let peer = &self.peers[pe.raw() as usize];
        let mut room = Shell::MESSAGE;
        let fit = peer.sent.range(peer.posted..).take_while(|sent| {
            let left = room.checked_sub(Header::BYTES + sent.asked.data.as_ref().map_or(0, |data| data.len()));
            room = left.unwrap_or(0);
            left.is_some()
        });
        let next = peer.posted..peer.posted + fit.count();
        let end = next.end;
        let is_posted = self.send(network, pe, next);
        if is_posted {
            self.peers[pe.raw() as usize].posted = end;
        }
        is_posted
    }

    /// Posts some of the messages that are not acknowledged, together.
    fn send(&mut self, network: &mut dyn Network, pe: Pe, which: Range<usize>) -> bool {
        let mut messages = std::mem::take(&mut self.messages);
        messages.clear();
        let peer = &self.peers[pe.raw() as usize];
        for (number, sent) in (peer.first..).zip(&peer.sent).skip(which.start).take(which.len()) {
            messages
                .extend(Header { number, awaits: sent.asked.awaits, ..self.header_of(pe, &sent.asked.task) }.encode());
            messages.extend_from_slice(sent.asked.data.as_deref().unwrap_or_default());
        }
        self.peers[pe.raw() as usize].note_message();
        let is_posted = self.post(network, pe, Posted::Message, Post::Send(&messages));
        self.messages = messages;
        if is_posted {
            self.peers[pe.raw() as usize].owes = Owes::Nothing;
        }
        is_posted
    }

    /// What a message begins with that asks a peer for this.
    fn header_of(&self, pe: Pe, task: &Task) -> Header {
        let mut header = self.header(pe);
        match *task {
            Task::Bye => header.kind = Kind::Bye,
            Task::Answer(to) => (header.kind, header.value) = (Kind::Answer, to),
            Task::Do(Operation::Write { remote, bytes, then, .. }) => {
                (header.kind, header.remote, header.bytes, header.then) = (Kind::Write, remote, bytes, then);
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
            // A NIC's is none by message.
            Task::Do(Operation::Atomic { remote, atomic } | Operation::NicAtomic { remote, atomic }) => {
                (header.kind, header.remote, header.bytes) = (Kind::Atomic, remote, atomic.bytes);
                (header.value, header.expected) = (atomic.value, atomic.expected);
                (header.op, header.number_kind) = (atomic.op, atomic.kind);
            }
        }
        header
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
            Post::Read { .. } | Post::Atomic { .. } => peer.reads += 1,
            Post::Write { arrival, .. } => {
                peer.writes += 1;
                peer.awaited += usize::from(arrival.is_some());
            }
            Post::Send(_) => {}
        }
        true
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
            awaits: false,
        }
    }
}

#[cfg(test)]
mod tests;
