//! Makes a [`Transport`] of a [`Network`]: order, signals, atomics and per-peer failure are here, once for all networks.
//!
//! To add a network, implement [`Network`] in a folder of its own; `in_process.rs` is the smallest that works, to copy from. It
//! says nothing of order: messages may come late, twice, in any order or not at all.
//!
//! # How
//! What is done to a peer is of three classes. *Messages* carry an operation with up to [`EAGER`] bytes of data, which the peer's
//! own proxy does to its heap: small writes, signals, stores, loads and atomics. They are numbered for each pair of PEs; the peer
//! does them in the order of their numbers, each once, and acknowledges. *Bulk writes* and *bulk reads* are the network's own.
//! Messages are under way together, and so are reads; a bulk write is under way alone. What is of another class than what is
//! under way waits until that is complete.
//!
//! # Why the signal follows the data
//! A small write and its signal are one message: the proxy of the peer copies the data, then stores the signal with release, on one
//! thread. A bulk write is complete when its data is in the peer's memory ([`Event::Done`]), and only then is the message with its
//! signal posted, which the peer's proxy receives after that and does with release. Either way who acquires the signal sees the
//! data, and whatever was done to that peer before (MM-2): earlier messages have lower numbers, and earlier bulk writes are
//! complete. This costs a round trip between the data of a bulk write and its signal, and needs nothing of the network: no
//! counters of what has arrived, no data that travels with a write.
//!
//! # Why a failure changes nothing twice
//! A message that is posted again has its old number, and the peer does no number twice; of those with a reply it keeps the
//! replies for as long as they may be asked for. A bulk write that failed is posted again before anything that follows it, while its
//! source is still the caller's promise, so that whoever sees it sees one write. A network's
//! [`reconnect`](Network::reconnect) ends what was under way.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, NumberKind};

use crate::message::{Header, Kind};
use crate::{Atomic, Memory, Operation, PeerState, Transport, TransportError};

/// The most data of a message, bytes.
pub const EAGER: usize = 8192;

/// Messages to one peer that are under way at once.
const WINDOW: usize = 64;
/// Bulk reads from one peer that are under way at once.
const READS: usize = 16;
/// How long a message may be without answer before it is posted again.
const AGAIN: Duration = Duration::from_millis(5);
/// How often a peer may fail with no progress between.
const FAILURES: u32 = 16;
/// How long a PE that may leave waits for the last acknowledgements.
const LINGER: Duration = Duration::from_millis(500);

/// One PE's way to its peers by a network that promises no order.
pub trait Network: Send {
    /// What peers must know to reach this PE.
    fn card(&self) -> Vec<u8>;

    /// Takes the cards of all PEs, in the order of PEs.
    ///
    /// # Errors
    /// Where one cannot be read, or its PE cannot be reached.
    fn connect(&mut self, cards: &[Vec<u8>]) -> Result<(), TransportError>;

    /// Posts something, whose end [`poll`](Network::poll) tells by its id. False where there is no room now.
    ///
    /// A write or a read takes effect before it has ended, with failure or without, or never. A message may arrive at any time,
    /// more than once, or never.
    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool;

    /// Gives `hear` everything that has happened since the last call.
    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>));

    /// Connects to a peer anew after a failure, when everything posted to it has ended. False where that is not possible.
    fn reconnect(&mut self, peer: Pe) -> bool;
}

/// What can be posted. Offsets are heap offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post<'m> {
    /// Copies bytes from here to the peer.
    Write {
        /// Where to.
        remote: u64,
        /// Where from.
        local: u64,
        /// How many.
        bytes: u64,
    },
    /// Copies bytes from the peer to here.
    Read {
        /// Where from.
        remote: u64,
        /// Where to.
        local: u64,
        /// How many.
        bytes: u64,
    },
    /// Sends a message of at most [`Shell::MESSAGE`] bytes.
    Send(&'m [u8]),
}

/// What a network tells.
#[derive(Debug)]
pub enum Event<'m> {
    /// This has ended well. The data of a write is in the peer's memory, that of a read in this PE's.
    Done(u64),
    /// This has failed; the peer may have it or not.
    Failed(u64, Failure),
    /// A message has come.
    Message(&'m [u8]),
}

/// Why something that was posted failed: what completion queues say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is longer than its buffer here.
    LocalLength,
    /// The connection cannot do it.
    LocalOperation,
    /// Memory here is not registered for it.
    LocalProtection,
    /// It was dropped since something before it failed.
    Flushed,
    /// The peer answered what nobody understands.
    BadResponse,
    /// Memory here does not allow it.
    LocalAccess,
    /// The peer found it malformed.
    RemoteInvalid,
    /// The peer's memory does not allow it.
    RemoteAccess,
    /// The peer could not do it.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// The peer had no room for it after all retries.
    ReceiverNotReady,
    /// The peer gave it up.
    RemoteAborted,
    /// The device has failed.
    Fatal,
    /// It took too long.
    TimedOut,
    /// The connection was reset.
    Reset,
    /// Another error of the system or the library, by its number.
    Other(i32),
}

impl Failure {
    /// Every one that has a name.
    pub const ALL: [Self; 15] = [
        Self::LocalLength,
        Self::LocalOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalid,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::ReceiverNotReady,
        Self::RemoteAborted,
        Self::Fatal,
        Self::TimedOut,
        Self::Reset,
    ];

    /// Whether a new connection may help.
    pub const fn passes(self) -> bool {
        use Failure::{Flushed, ReceiverNotReady, RemoteAborted, Reset, RetryExceeded, TimedOut};
        matches!(self, Flushed | RetryExceeded | ReceiverNotReady | RemoteAborted | TimedOut | Reset)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "a length error here",
            Self::LocalOperation => "an operation that the connection cannot do",
            Self::LocalProtection => "memory here that is not registered",
            Self::Flushed => "the connection had failed before",
            Self::BadResponse => "an answer that nobody understands",
            Self::LocalAccess => "memory here that does not allow it",
            Self::RemoteInvalid => "the peer found a request malformed",
            Self::RemoteAccess => "the peer's memory does not allow it",
            Self::RemoteOperation => "the peer could not do it",
            Self::RetryExceeded => "no answer after all retries",
            Self::ReceiverNotReady => "the peer had no room after all retries",
            Self::RemoteAborted => "the peer gave a request up",
            Self::Fatal => "the network device has failed",
            Self::TimedOut => "it took too long",
            Self::Reset => "the connection was reset",
            Self::Other(code) => return write!(f, "error {code}"),
        })
    }
}

/// A transport over a network.
pub struct Shell {
    network: Box<dyn Network>,
    book: Book,
}

impl Shell {
    /// The most bytes of a message.
    pub const MESSAGE: usize = Header::BYTES + EAGER;

    /// The transport of the PE whose memory this is, over a network that is connected. A peer that is silent for `patience` while
    /// it owes the answer to a message, or what was posted to it does not come back for so long after a failure, is dead. Of the heaps, only this PE's need be mapped.
    pub fn new(network: Box<dyn Network>, memory: Memory, patience: Duration) -> Self {
        let peers = (0..memory.npes()).map(|_| Peer::new()).collect();
        let book =
            Book { memory, patience, peers, posts: HashMap::new(), next_id: 0, ended: Vec::new(), leaving: None };
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
        entry.waiting.push_back((Some(ticket), operation));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(u64, Result<u64, TransportError>)) -> bool {
        let Self { network, book } = self;
        network.poll(&mut |event| book.hear(event));
        for peer in 0..book.memory.npes() {
            book.go_on(&mut **network, Pe::new(peer));
        }
        book.ended.drain(..).for_each(|(ticket, reply)| done(ticket, reply));
        !book.posts.is_empty()
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
            to.into_iter().for_each(|pe| peers[pe].waiting.push_back((None, BYE)));
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

/// Stands for the last message, which asks for nothing.
const BYE: Operation = Operation::Write { remote: u64::MAX, local: 0, bytes: 0, then: None };

/// Everything but the network.
struct Book {
    memory: Memory,
    patience: Duration,
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
    Bulk(Option<u64>, Operation),
    Message,
    Acknowledgement,
    Reply(u64),
    /// Of a peer that is dead: nobody waits for it.
    Nothing,
}

/// One peer: what is done to it, and what it does here.
struct Peer {
    state: PeerState,
    /// Since when it is draining, and what failed.
    drains: Instant,
    why: Option<Failure>,
    /// Failures since something last went well.
    failures: u32,
    /// What is under way at the network.
    posts: usize,
    /// Bulk operations among them: reads, and writes.
    reads: usize,
    writes: usize,
    /// Not yet started. What nobody waits for has no ticket.
    waiting: VecDeque<(Option<u64>, Operation)>,
    /// Messages that are not acknowledged, the first with number `first`, of which so many are posted.
    sent: VecDeque<Sent>,
    first: u64,
    posted: usize,
    /// When it last answered, or was first asked; and when the oldest message was last posted.
    heard: Instant,
    asked: Instant,
    /// The number of the message to do next, those that came before their turn, and the replies to the last ones done.
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    replies: [u64; WINDOW],
    /// Whether it is owed an acknowledgement, and the numbers whose replies it is owed.
    owes: bool,
    owed: VecDeque<u64>,
    /// It has said that nothing more comes.
    has_left: bool,
}

struct Sent {
    ticket: Option<u64>,
    operation: Operation,
    reply: Option<u64>,
}

/// The class of an operation: see the top of this file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Message,
    Read,
    Write,
}

fn class(operation: &Operation) -> Class {
    match operation {
        Operation::Write { bytes, .. } if *bytes > EAGER as u64 => Class::Write,
        Operation::Read { .. } => Class::Read,
        _ => Class::Message,
    }
}

fn has_reply(operation: &Operation) -> bool {
    matches!(operation, Operation::Load { .. } | Operation::Atomic { .. })
}

impl Peer {
    fn new() -> Self {
        Self {
            state: PeerState::Up,
            drains: Instant::now(),
            why: None,
            failures: 0,
            posts: 0,
            reads: 0,
            writes: 0,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            first: 0,
            posted: 0,
            heard: Instant::now(),
            asked: Instant::now(),
            next: 0,
            early: BTreeMap::new(),
            replies: [0; WINDOW],
            owes: false,
            owed: VecDeque::new(),
            has_left: false,
        }
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, PeerState::Dead(_))
    }

    /// Whether nothing is asked of it and nothing owed to it.
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && !self.owes && self.owed.is_empty()
    }

    /// The message that is next, where it came before its turn.
    fn take_early(&mut self) -> Option<(Header, Vec<u8>)> {
        let early = self.early.remove(&self.next)?;
        Header::decode(&early).map(|header| (header, early))
    }

    fn answered(&mut self) {
        self.failures = 0;
        self.heard = Instant::now();
    }

    /// Whether what waits first may be posted beside what is under way.
    fn may_start(&self, class: Class) -> bool {
        match class {
            Class::Message => self.reads == 0 && self.writes == 0 && self.sent.len() < WINDOW,
            Class::Read => self.writes == 0 && self.sent.is_empty() && self.reads < READS,
            Class::Write => self.reads == 0 && self.writes == 0 && self.sent.is_empty(),
        }
    }
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
        if let Posted::Bulk(_, operation) = &posted {
            match class(operation) {
                Class::Read => peer.reads -= 1,
                _ => peer.writes -= 1,
            }
        }
        Some((pe, posted))
    }

    fn ended_well(&mut self, id: u64) {
        let Some((pe, Posted::Bulk(ticket, operation))) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        peer.answered();
        match operation {
            Operation::Write { then: Some(signal), .. } => {
                let signal = Operation::Write { remote: 0, local: 0, bytes: 0, then: Some(signal) };
                peer.waiting.push_front((ticket, signal));
            }
            _ => self.ended.extend(ticket.map(|ticket| (ticket, Ok(0)))),
        }
    }

    fn failed(&mut self, id: u64, failure: Failure) {
        let Some((pe, posted)) = self.returned(id) else { return };
        let peer = &mut self.peers[pe.raw() as usize];
        match posted {
            Posted::Bulk(ticket, operation) => peer.waiting.push_front((ticket, operation)),
            Posted::Acknowledgement => peer.owes = true,
            Posted::Reply(number) => peer.owed.push_back(number),
            Posted::Message | Posted::Nothing => {}
        }
        peer.failures += u32::from(peer.state == PeerState::Up);
        match peer.state {
            PeerState::Dead(_) => {}
            _ if failure.passes() && peer.failures <= FAILURES => {
                if peer.state == PeerState::Up {
                    peer.drains = Instant::now();
                }
                (peer.state, peer.why) = (PeerState::Draining, Some(failure));
            }
            _ => self.die(pe, failure.to_string()),
        }
    }

    /// Nothing more is asked of a peer, and who waits for it is told.
    fn die(&mut self, pe: Pe, why: String) {
        let peer = &mut self.peers[pe.raw() as usize];
        peer.state = PeerState::Dead(why.clone());
        let sent = peer.sent.drain(..).map(|sent| sent.ticket);
        let mut tickets: Vec<_> = sent.chain(peer.waiting.drain(..).map(|(ticket, _)| ticket)).flatten().collect();
        (peer.reads, peer.writes, peer.owes) = (0, 0, false);
        peer.owed.clear();
        for (_, posted) in self.posts.values_mut().filter(|(to, _)| *to == pe) {
            if let Posted::Bulk(ticket, _) = std::mem::replace(posted, Posted::Nothing) {
                tickets.extend(ticket);
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
            let why = peer.why.take();
            if network.reconnect(pe) {
                peer.state = PeerState::Up;
                peer.posted = 0;
            } else {
                self.die(pe, why.map_or_else(String::new, |why| why.to_string()));
            }
        } else if peer.state == PeerState::Draining && peer.drains.elapsed() > self.patience {
            self.die(pe, "what was posted to it does not come back".into());
        }
        if self.peers[at].state != PeerState::Up {
            return;
        }
        self.settle_debts(network, pe);
        self.ask_again(network, pe);
        loop {
            let peer = &mut self.peers[at];
            if peer.posted < peer.sent.len() {
                let (number, operation) = (peer.first + peer.posted as u64, peer.sent[peer.posted].operation);
                if !self.send(network, pe, number, &operation) {
                    return;
                }
                self.peers[at].posted += 1;
                continue;
            }
            let Some(&(ticket, operation)) = peer.waiting.front() else { return };
            let class = class(&operation);
            if !peer.may_start(class) {
                return;
            }
            if class == Class::Message {
                if peer.sent.is_empty() {
                    peer.heard = Instant::now();
                    peer.asked = peer.heard;
                }
                peer.sent.push_back(Sent { ticket, operation, reply: None });
            } else {
                let post = match operation {
                    Operation::Read { remote, local, bytes } => Post::Read { remote, local, bytes },
                    Operation::Write { remote, local, bytes, .. } => Post::Write { remote, local, bytes },
                    _ => return,
                };
                if !self.post(network, pe, Posted::Bulk(ticket, operation), post) {
                    return;
                }
            }
            self.peers[at].waiting.pop_front();
        }
    }

    /// Sends the acknowledgements and replies that a peer is owed.
    fn settle_debts(&mut self, network: &mut dyn Network, pe: Pe) {
        let at = pe.raw() as usize;
        while let Some(&number) = self.peers[at].owed.front() {
            let value = self.peers[at].replies[number as usize % WINDOW];
            let header = Header { kind: Kind::Reply, number, value, ..self.header() };
            if !self.post(network, pe, Posted::Reply(number), Post::Send(&header.encode())) {
                return;
            }
            self.peers[at].owed.pop_front();
        }
        if self.peers[at].owes {
            let header = Header { kind: Kind::Acknowledgement, number: self.peers[at].next, ..self.header() };
            let sent = self.post(network, pe, Posted::Acknowledgement, Post::Send(&header.encode()));
            self.peers[at].owes = !sent;
        }
    }

    /// Posts the oldest message again where no answer comes, and gives the peer up where that lasts.
    fn ask_again(&mut self, network: &mut dyn Network, pe: Pe) {
        let peer = &mut self.peers[pe.raw() as usize];
        let Some(oldest) = peer.sent.front().filter(|_| peer.asked.elapsed() >= AGAIN) else { return };
        let silent = peer.heard.elapsed();
        if silent > self.patience {
            return self.die(pe, format!("it has been silent for {} ms", silent.as_millis()));
        }
        // What the network still has, it need not get again.
        if peer.posted == 0 || peer.posts > WINDOW {
            return;
        }
        peer.asked = Instant::now();
        let (number, operation) = (peer.first, oldest.operation);
        // Without room it is tried later.
        let _sent = self.send(network, pe, number, &operation);
    }

    /// Posts a message that asks for an operation.
    fn send(&mut self, network: &mut dyn Network, pe: Pe, number: u64, operation: &Operation) -> bool {
        let mut header = Header { number, ..self.header() };
        let mut data = (0, 0);
        match *operation {
            BYE => header.kind = Kind::Bye,
            Operation::Write { remote, local, bytes, then } => {
                (header.kind, header.remote, header.bytes, header.then) = (Kind::Write, remote, bytes, then);
                data = (local, bytes as usize);
            }
            Operation::Store { remote, bytes, value } => {
                (header.kind, header.remote, header.bytes, header.value) = (Kind::Store, remote, bytes, value);
            }
            Operation::Load { remote, bytes } => {
                (header.kind, header.remote, header.bytes) = (Kind::Load, remote, bytes);
            }
            Operation::Atomic { remote, atomic } => {
                (header.kind, header.remote, header.bytes) = (Kind::Atomic, remote, atomic.bytes);
                (header.value, header.expected) = (atomic.value, atomic.expected);
                (header.op, header.number_kind) = (atomic.op, atomic.kind);
            }
            // Of another class.
            Operation::Read { .. } => return true,
        }
        let mut message = header.encode().to_vec();
        message.resize(Header::BYTES + data.1, 0);
        if data.1 > 0 && self.memory.take(data.0, &mut message[Header::BYTES..]).is_err() {
            // Checked when it was started.
            return true;
        }
        self.post(network, pe, Posted::Message, Post::Send(&message))
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
        match header.kind {
            Kind::Acknowledgement => Self::acknowledged(&mut self.ended, peer, header.number, None),
            Kind::Reply => Self::acknowledged(&mut self.ended, peer, header.number, Some(header.value)),
            _ if header.number < peer.next => {
                peer.owes = true;
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
        let done = match header.kind {
            Kind::Write => self.memory.give(remote, data).and_then(|()| {
                header.then.map_or(Ok(()), |signal| self.memory.signal(own, signal))?;
                Ok(0)
            }),
            Kind::Store => self.memory.store(own, remote, bytes, value).map(|()| 0),
            Kind::Load => self.memory.load(own, remote, bytes),
            Kind::Atomic => self.memory.atomic(own, remote, Atomic { op, kind, bytes, value, expected }),
            Kind::Bye | Kind::Acknowledgement | Kind::Reply => Ok(0),
        };
        let Ok(reply) = done else {
            return self.die(Pe::new(header.from), "it asked for what is not on the heap".into());
        };
        let peer = &mut self.peers[header.from as usize];
        peer.replies[header.number as usize % WINDOW] = reply;
        peer.next += 1;
        match header.kind {
            Kind::Load | Kind::Atomic => peer.owed.push_back(header.number),
            kind => {
                peer.has_left |= kind == Kind::Bye;
                peer.owes = true;
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
        peer.answered();
        let done = number.saturating_sub(peer.first).min(peer.sent.len() as u64) as usize;
        for sent in peer.sent.iter_mut().take(done).filter(|sent| !has_reply(&sent.operation)) {
            sent.reply = Some(0);
        }
        let asked = number.checked_sub(peer.first).and_then(|at| peer.sent.get_mut(at as usize));
        if let (Some(reply), Some(sent)) = (reply, asked) {
            sent.reply = Some(reply);
        }
        while let Some(reply) = peer.sent.front().and_then(|sent| sent.reply) {
            ended.extend(peer.sent.pop_front().and_then(|sent| sent.ticket).map(|ticket| (ticket, Ok(reply))));
            peer.first += 1;
            peer.posted = peer.posted.saturating_sub(1);
            peer.asked = Instant::now();
        }
    }

    fn header(&self) -> Header {
        Header {
            kind: Kind::Bye,
            from: self.memory.pe().raw(),
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::tests::heaps;
    use crate::{Exchange, Faults, Faulty, InProcess, Signal};

    /// Bytes of a heap.
    const HEAP: u64 = 64 << 10;
    const SIGNAL: u64 = 64;
    const COUNT: u64 = 72;
    /// Where a PE keeps what it sends, and how much further on its peers find it. The last words of both are a mark each.
    const FROM: u64 = 16 << 10;
    const FURTHER: u64 = 16 << 10;
    const MARKS: u64 = FROM + FURTHER - 8 * ROUNDS;
    const ROUNDS: u64 = 40;

    /// PEs of one thread, each with its shell over a network that goes wrong.
    struct Job {
        memories: Vec<Memory>,
        shells: Vec<Shell>,
        ended: Vec<Vec<(u64, Result<u64, TransportError>)>>,
        _heaps: Vec<u64>,
    }

    impl Job {
        fn new(npes: u32, patience: Duration, faults: Faults, fails: Option<(Pe, Failure)>) -> Self {
            let mut words = vec![0; npes as usize * HEAP as usize / 8];
            let memories: Vec<_> = (0..npes).map(|pe| heaps(&mut words, npes, pe)).collect();
            let exchange = Arc::new(Exchange::new(npes));
            let shell = |memory: &Memory| {
                // SAFETY: all heaps are there.
                let network = unsafe { InProcess::new(*memory, Arc::clone(&exchange)) };
                let mut network = Faulty::new(network, memory.pe(), faults);
                fails.iter().for_each(|&(peer, failure)| network.fail_next(peer, failure));
                Shell::new(Box::new(network), *memory, patience)
            };
            let shells = memories.iter().map(shell).collect();
            Self { memories, shells, ended: vec![Vec::new(); npes as usize], _heaps: words }
        }

        fn start(&mut self, pe: usize, ticket: u64, peer: u32, operation: Operation) {
            self.shells[pe].start(ticket, Pe::new(peer), operation).unwrap();
        }

        fn poll(&mut self, pe: usize) {
            let ended = &mut self.ended[pe];
            self.shells[pe].poll(&mut |ticket, reply| ended.push((ticket, reply)));
        }

        /// Polls every PE until so many operations of PE 0's have ended, and looks at the heaps between.
        fn poll_until(&mut self, many: usize, look: impl Fn(&Self)) {
            let began = Instant::now();
            while self.ended[0].len() < many {
                (0..self.shells.len()).for_each(|pe| self.poll(pe));
                look(self);
                assert!(began.elapsed() < Duration::from_secs(60), "{:?}", self.ended[0]);
            }
        }

        fn word(&self, pe: u32, offset: u64) -> u64 {
            self.memories[0].load(Pe::new(pe), offset, 8).unwrap()
        }
    }

    fn fine() -> Faults {
        Faults { seed: 0, delay: 0, one_of: 0 }
    }

    fn wrong(seed: u64) -> Faults {
        Faults { one_of: 20, ..Faults::seeded(seed) }
    }

    fn write(bytes: u64) -> Operation {
        let then = Some(Signal { offset: SIGNAL, value: 1, set: false });
        Operation::Write { remote: FROM + FURTHER, local: FROM, bytes, then }
    }

    fn add(value: u64) -> Operation {
        let atomic = Atomic { op: AtomicOp::Add, kind: NumberKind::Unsigned, bytes: 8, value, expected: 0 };
        Operation::Atomic { remote: COUNT, atomic }
    }

    /// Whatever the network does, each signal follows what was written before, and each atomic is done once.
    #[test]
    fn nothing_is_lost_doubled_or_early_over_a_network_that_goes_wrong() {
        for seed in 0..40 {
            let mut job = Job::new(3, Duration::MAX, wrong(seed), None);
            for round in 0..ROUNDS {
                let mark = MARKS + 8 * round;
                job.memories[0].store(Pe::new(0), mark, 8, round + 1).unwrap();
                let bytes = [8, 0, 696, 15_000, 8192, 8, 9000][round as usize % 7];
                for peer in [1, 2] {
                    let mark = Operation::Write { remote: mark + FURTHER, local: mark, bytes: 8, then: None };
                    let ticket = 10 * round + u64::from(peer);
                    job.start(0, 1000 + ticket, peer, mark);
                    job.start(0, 2000 + ticket, peer, write(bytes));
                    job.start(0, 3000 + ticket, peer, add(1));
                }
            }
            job.poll_until(6 * ROUNDS as usize, |job| {
                for peer in [1, 2] {
                    for round in 0..job.word(peer, SIGNAL) {
                        assert_eq!(job.word(peer, MARKS + FURTHER + 8 * round), round + 1, "seed {seed}");
                    }
                }
            });
            for peer in [1, 2] {
                assert_eq!([SIGNAL, COUNT].map(|at| job.word(peer, at)), [ROUNDS; 2], "seed {seed}");
                let of_peer = |ticket: u64| ticket >= 3000 && ticket % 10 == u64::from(peer);
                let replies = job.ended[0].iter().filter(|(ticket, _)| of_peer(*ticket));
                let replies: Vec<_> = replies.map(|(_, reply)| reply.clone().unwrap()).collect();
                assert_eq!(replies, (0..ROUNDS).collect::<Vec<_>>(), "seed {seed}");
            }
        }
    }

    #[test]
    fn who_leaves_stays_for_the_others() {
        for seed in 0..20 {
            let mut job = Job::new(3, Duration::MAX, wrong(seed), None);
            // PE 0 leaves at once, PE 1 has work for it.
            (0..100).for_each(|ticket| job.start(1, ticket, 0, add(1)));
            let (mut left, began) = ([false; 3], Instant::now());
            while left != [true; 3] {
                for (pe, left) in left.iter_mut().enumerate().filter(|(_, left)| !**left) {
                    job.poll(pe);
                    let busy = pe == 1 && job.ended[1].len() < 100;
                    *left = !busy && job.shells[pe].leave();
                }
                assert!(began.elapsed() < Duration::from_secs(20), "seed {seed}: {left:?}");
            }
            assert_eq!(job.word(0, COUNT), 100, "seed {seed}");
        }
    }

    #[test]
    fn what_passes_is_got_over_and_what_does_not_ends_one_peer() {
        for failure in Failure::ALL.into_iter().chain([Failure::Other(7)]) {
            for operation in [add(1), write(15_000), Operation::Read { remote: 0, local: FROM, bytes: 100 }] {
                let mut job = Job::new(3, Duration::MAX, fine(), Some((Pe::new(1), failure)));
                job.start(0, 1, 1, operation);
                job.start(0, 2, 1, add(1));
                job.start(0, 3, 2, add(1));
                job.poll_until(3, |_| ());
                let ends: BTreeMap<_, _> = job.ended[0].iter().cloned().collect();
                assert_eq!(ends[&3], Ok(0), "another peer, {failure:?}");
                if failure.passes() {
                    assert!(ends[&1].is_ok() && ends[&2].is_ok(), "{failure:?}: {ends:?}");
                    assert_eq!(job.shells[0].state(Pe::new(1)), PeerState::Up);
                    continue;
                }
                let why = failure.to_string();
                let error = TransportError::Unreachable { peer: Pe::new(1), why: why.clone() };
                assert_eq!([&ends[&1], &ends[&2]], [&Err(error.clone()); 2]);
                assert_eq!(job.shells[0].state(Pe::new(1)), PeerState::Dead(why));
                assert_eq!(job.shells[0].start(4, Pe::new(1), add(1)), Err(error));
                job.start(0, 5, 2, add(1));
                job.poll_until(4, |_| ());
                assert_eq!(job.ended[0][3], (5, Ok(1)));
            }
        }
    }

    #[test]
    fn a_silent_peer_is_given_up_and_the_others_are_not() {
        let mut job = Job::new(3, Duration::from_millis(500), fine(), None);
        job.start(0, 1, 1, add(1));
        job.start(0, 2, 2, add(1));
        let began = Instant::now();
        while job.ended[0].len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(20));
            // PE 1 does not poll.
            [0, 2].into_iter().for_each(|pe| job.poll(pe));
        }
        assert_eq!(job.ended[0][0], (2, Ok(0)));
        let (ticket, error) = &job.ended[0][1];
        assert!(*ticket == 1 && error.as_ref().unwrap_err().to_string().contains("silent for"), "{error:?}");
    }

    #[test]
    fn what_is_no_message_is_passed_over() {
        let mut job = Job::new(2, Duration::MAX, fine(), None);
        let write = Header { kind: Kind::Write, bytes: 8, ..job.shells[0].book.header() };
        let message = [&write.encode()[..], &[7; 8]].concat();
        assert_eq!(Header::decode(&message), Some(write));
        for cut in 0..message.len() {
            assert_eq!(Header::decode(&message[..cut]), None, "{cut} bytes");
        }
        for (at, byte) in [(0, 0), (0, 8), (1, 3), (2, 8), (3, 4), (24, 9)] {
            let mut changed = message.clone();
            changed[at] = byte;
            assert_eq!(Header::decode(&changed), None, "byte {at} is {byte}");
        }
        // From no PE; and from a peer, to a place that no heap has.
        job.shells[1].book.receive(&Header { from: 9, bytes: 0, ..write }.encode());
        assert_eq!(job.shells[1].state(Pe::new(0)), PeerState::Up);
        let outside = Header { kind: Kind::Store, remote: u64::MAX - 7, ..write };
        job.shells[1].book.receive(&outside.encode());
        assert!(matches!(job.shells[1].state(Pe::new(0)), PeerState::Dead(_)));
    }

    #[test]
    fn what_is_outside_of_the_heap_is_not_started() {
        let mut job = Job::new(2, Duration::MAX, fine(), None);
        let then = Some(Signal { offset: 4, value: 1, set: false });
        for operation in [
            Operation::Write { remote: HEAP, local: 0, bytes: 1, then: None },
            Operation::Write { remote: 0, local: HEAP - 1, bytes: 2, then: None },
            Operation::Write { remote: 0, local: 0, bytes: 0, then },
            Operation::Read { remote: 0, local: u64::MAX, bytes: 8 },
            Operation::Load { remote: 0, bytes: 3 },
            Operation::Store { remote: 4, bytes: 8, value: 0 },
        ] {
            let refused = job.shells[0].start(0, Pe::new(1), operation);
            assert!(matches!(refused, Err(TransportError::Malformed { .. })), "{operation:?}: {refused:?}");
        }
    }
}
