//! The proxy: a thread of each PE that serves its kernels' requests to peers that loads and stores do not reach.
//!
//! On the CPU machine a lane that waits serves them itself, as MPI's waits do: what it waits for is often what it has asked for, and
//! two threads that need each other on few cores wait for the scheduler more than for the network. The thread rests while lanes do that.
#![allow(clippy::disallowed_types, reason = "orders from the world's thread")]

use std::collections::VecDeque;
use std::io;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use congruent_device::{Pe, abi};
use congruent_heap::abi::{Request, Then, Verb};
use congruent_transports::{Atomic, Operation, Progress, Signal, Transport, TransportError};

use crate::cpu::{Served, Service, park};
use crate::rings::{Consumer, Rings};
use crate::route::Routes;

/// How often the proxy finds nothing to do before it gives up its core, as a waiting lane does.
const SPINS: u32 = 200;
/// How long the thread rests while lanes serve, and once after they have; and how long after it has found that they go on. Each time it
/// wakes, it takes a lane's core for some microseconds.
const REST: Duration = Duration::from_micros(200);
const LONG_REST: Duration = Duration::from_millis(1);
/// The most requests of a ring that it has begun: as long as a slow peer has fewer, nobody else's requests wait for it.
const MOST: usize = 1 << 16;

/// How often it looks for requests that never come.
const LOOK: Duration = Duration::from_millis(1);
/// The most requests of a ring that it takes before it looks after the others.
const BATCH: usize = 64;

/// The proxy of one PE.
pub(crate) struct Proxy {
    orders: Arc<Orders>,
    shared: Arc<SharedServer>,
    thread: Option<JoinHandle<()>>,
    routes: Routes,
}

/// The peer of the oldest request that is not complete, as of when the proxy last had nothing to do but wait; none while there was none.
#[derive(Clone)]
pub(crate) struct OldestPeer(Arc<AtomicU32>);

impl OldestPeer {
    pub(crate) fn peer(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for OldestPeer {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(abi::NO_PE)))
    }
}

/// What the proxy is told.
#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    /// Before it stops, to serve what has been asked for.
    drain: AtomicBool,
}

/// What the proxy cannot go on with.
#[derive(Debug, PartialEq)]
pub(crate) enum ProxyFailure {
    /// An operation that could not be done. Those on other peers go on.
    Transport(TransportError),
    /// A request was reserved and not published for longer than any wait may take. It serves that ring no more.
    Lost { ring: usize, request: u64 },
}

/// Where kernels sleep that wait for the proxy, and the proxy while it has nothing to do.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sleep {
    /// On the words that they wait for.
    OnWords,
    /// Nowhere: kernels poll, and nobody wakes the proxy.
    Never,
}

impl Proxy {
    /// Starts to serve the rings of the PE that `context` describes; `oldest` is told whom it waits for, and `failed` hears what it cannot
    /// go on with.
    pub(crate) fn start(
        context: abi::Context,
        rings: Rings,
        sleep: Sleep,
        transport: Box<dyn Transport>,
        routes: Routes,
        oldest: OldestPeer,
        failed: impl FnMut(ProxyFailure) + Send + 'static,
    ) -> io::Result<Self> {
        let orders = Arc::new(Orders::default());
        let told = Arc::clone(&orders);
        let server = Server::new(context, rings, sleep, transport, Box::new(failed));
        let shared = Arc::new(SharedServer { server: Mutex::new(Some(server)), asked: AtomicU64::new(0) });
        let served = Arc::clone(&shared);
        let pe_thread = thread::Builder::new().name("proxy".into());
        let thread = pe_thread.spawn(move || {
            served.go_on(&told, &oldest);
            // Lanes of a stream that was forgotten may still wait, and keep this; but nothing may stay registered longer than the heaps.
            *served.lock() = None;
        })?;
        Ok(Self { orders, shared, thread: Some(thread), routes })
    }

    /// What lanes serve while they wait.
    pub(crate) fn service(&self) -> Arc<dyn Service> {
        Arc::clone(&self.shared) as _
    }

    /// How each PE is reached.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Stops it, when no kernel runs any more. With `drain` it first serves what kernels have asked for and not waited for
    /// (a notify, say), and peers until they say that they need it no more; after a failure there may be slots that nobody will ever
    /// fill. Whether it did so to the end.
    pub(crate) fn finish(&mut self, drain: bool) -> bool {
        self.orders.drain.store(drain, Ordering::Relaxed);
        self.orders.stop.store(true, Ordering::Release);
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.finish(false);
    }
}

/// What serves the rings, for whoever does it.
struct SharedServer {
    /// None once the proxy has ended.
    server: Mutex<Option<Server>>,
    /// How often a lane has asked to serve.
    asked: AtomicU64,
}

struct Server {
    context: abi::Context,
    rings: Rings,
    sleep: Sleep,
    transport: Box<dyn Transport>,
    failed: Box<dyn FnMut(ProxyFailure) + Send>,
    lines: Vec<Line>,
    /// Turns without anything to do since there was something.
    idle: u32,
    /// What the transport has told; kept for its memory.
    progress: Vec<(u64, Progress)>,
}

impl SharedServer {
    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves until it is told to stop, and rests while lanes do.
    fn go_on(&self, orders: &Orders, oldest: &OldestPeer) {
        let (mut looked, mut asked, mut pauses) = (Instant::now(), 0, Pauses::NEW);
        loop {
            let stops = orders.stop.load(Ordering::Acquire);
            let before = std::mem::replace(&mut asked, self.asked.load(Ordering::Relaxed));
            let rests = before != asked && !stops;
            let time = pauses.next(rests);
            if rests && looked.elapsed() <= LOOK {
                // They need not wait for a lock.
                thread::sleep(time);
                continue;
            }
            let rest = {
                let mut server = match self.server.try_lock() {
                    Ok(server) => server,
                    // A lane serves. Who slept on the lock would have to be woken by it each time.
                    Err(TryLockError::WouldBlock) => {
                        thread::sleep(time);
                        continue;
                    }
                    Err(TryLockError::Poisoned(server)) => server.into_inner(),
                };
                let Some(server) = server.as_mut() else { return };
                if stops && (!orders.drain.load(Ordering::Relaxed) || server.may_end()) {
                    return;
                }
                let waits = !rests && server.turn().waits;
                if rests || server.idle == SPINS {
                    oldest.0.store(server.oldest(), Ordering::Relaxed);
                }
                // Whether or not other rings keep it busy.
                if (rests || server.idle == 0 || server.idle > SPINS) && looked.elapsed() > LOOK {
                    looked = Instant::now();
                    server.look_for_lost().into_iter().for_each(|lost| (server.failed)(lost));
                }
                match server.idle.checked_sub(SPINS) {
                    _ if rests => Rest::Asleep(time),
                    None => Rest::Spinning,
                    // The network, and peers' proxies, need cores.
                    Some(_) if waits => Rest::Yielding,
                    Some(turns) => server.rest(turns),
                }
            };
            // Lanes may serve meanwhile.
            rest.take();
        }
    }
}

impl Service for SharedServer {
    fn serve(&self) -> Served {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.server.try_lock().as_deref_mut() {
            Ok(Some(server)) => {
                let Turn { busy, waits } = server.turn();
                if busy {
                    Served::Something
                } else if waits || server.transport.serves() {
                    Served::NothingYet
                } else {
                    Served::Nothing
                }
            }
            Err(TryLockError::WouldBlock) => Served::NothingYet,
            Ok(None) | Err(TryLockError::Poisoned(_)) => Served::Nothing,
        }
    }
}

/// How long the thread rests each time. In turn a short time, in which lanes that go on would ask, and a long one: after a long one alone it
/// would not know whether they still do, and a PE that waits once in a while would be served by nobody between its waits.
struct Pauses {
    was_long: bool,
}

impl Pauses {
    const NEW: Self = Self { was_long: true };

    /// How long it may rest, where lanes have asked since it last looked or have not.
    fn next(&mut self, asked: bool) -> Duration {
        self.was_long = !asked || !self.was_long;
        if asked && self.was_long { LONG_REST } else { REST }
    }
}

/// How the thread passes time.
enum Rest {
    Spinning,
    Yielding,
    Asleep(Duration),
    /// Like a lane that waits, until a request is asked for in the first ring.
    OnBell {
        context: abi::Context,
        turns: u32,
        bell: *const u32,
        seen: u32,
        polls: bool,
    },
}

impl Rest {
    fn take(self) {
        match self {
            Self::Spinning => std::hint::spin_loop(),
            Self::Yielding => thread::yield_now(),
            Self::Asleep(time) => thread::sleep(time),
            // SAFETY: a word of a ring, which outlives the proxy, as the heap does.
            Self::OnBell { context, turns, bell, seen, polls } => unsafe {
                park::pass(&context, turns, bell, seen, polls);
            },
        }
    }
}

/// A ring, and what the proxy knows of its requests.
struct Line {
    ring: Consumer,
    /// Those that were begun, in order, from the first that is not complete on.
    begun: VecDeque<Begun>,
    first: u64,
    /// Of each peer the requests to it.
    peers: Vec<Tickets>,
    /// Since when the next request is reserved and not published.
    missing: Option<Instant>,
    /// It will never be.
    lost: bool,
}

/// What a turn came to.
struct Turn {
    /// Something was begun or has completed.
    busy: bool,
    /// Something is under way.
    waits: bool,
}

/// The tickets of requests to one peer, in order.
#[derive(Default)]
struct Tickets {
    /// Those that are not complete.
    open: VecDeque<u64>,
    /// Puts that are not known to be locally complete.
    puts: VecDeque<u64>,
}

struct Begun {
    peer: u32,
    replies: bool,
    /// Its source may be overwritten.
    local: bool,
    done: bool,
}

impl Line {
    /// Tells how far puts to a peer are locally complete, if that is further than before. Gives the word that producers sleep on.
    fn tell_local(&mut self, peer: u32) -> Option<*const u32> {
        let is_local = |ticket: &mut u64| self.begun[(*ticket - self.first) as usize].local;
        let ticket = last(&mut self.peers[peer as usize].puts, is_local)?;
        Some(self.ring.tell_local(peer, ticket + 1))
    }
}

/// Takes tickets that are as they have to be from the front, and gives the last one.
fn last(tickets: &mut VecDeque<u64>, mut is: impl FnMut(&mut u64) -> bool) -> Option<u64> {
    std::iter::from_fn(|| tickets.pop_front_if(&mut is)).last()
}

impl Server {
    fn new(
        context: abi::Context,
        rings: Rings,
        sleep: Sleep,
        transport: Box<dyn Transport>,
        failed: Box<dyn FnMut(ProxyFailure) + Send>,
    ) -> Self {
        let peers = || (0..context.npes).map(|_| Tickets::default()).collect();
        let line = |ring| Line { ring, begun: VecDeque::new(), first: 0, peers: peers(), missing: None, lost: false };
        let lines = rings.consumers().into_iter().map(line).collect();
        Self { context, rings, sleep, transport, failed, lines, idle: 0, progress: Vec::new() }
    }

    /// The peer of a request that is not complete, the first of a ring.
    fn oldest(&self) -> u32 {
        let mut begun = self.lines.iter().flat_map(|line| &line.begun);
        begun.find(|begun| !begun.done).map_or(abi::NO_PE, |begun| begun.peer)
    }

    /// Begins what was asked for, and takes what has completed.
    fn turn(&mut self) -> Turn {
        let mut busy = false;
        for index in 0..self.lines.len() {
            // So that no ring waits for another one that never ends.
            for _ in 0..BATCH {
                let line = &mut self.lines[index];
                if line.lost || line.begun.len() >= MOST {
                    break;
                }
                let Some((ticket, request)) = line.ring.take() else { break };
                busy = true;
                line.missing = None;
                if let Some(word) = line.ring.tell() {
                    self.wake(word);
                }
                if let Err(error) = self.begin(index, ticket, &request) {
                    (self.failed)(ProxyFailure::Transport(error));
                }
            }
        }
        let mut progress = std::mem::take(&mut self.progress);
        let is_under_way = self.transport.poll(&mut |number, how_far| progress.push((number, how_far)));
        busy |= !progress.is_empty();
        for (number, how_far) in progress.drain(..) {
            match how_far {
                Progress::Local => self.local(number),
                Progress::Ended(Ok(reply)) => self.done(number, reply),
                // It never completes: the world has failed, and who waits for it ends.
                Progress::Ended(Err(error)) => (self.failed)(ProxyFailure::Transport(error)),
            }
        }
        self.progress = progress;
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        Turn { busy, waits: is_under_way || self.lines.iter().any(|line| !line.begun.is_empty()) }
    }

    fn begin(&mut self, index: usize, ticket: u64, request: &Request) -> Result<(), TransportError> {
        let (peer, remote, bytes) = (Pe::new(request.peer as u32), request.remote, request.bytes);
        let (line, number) = (&mut self.lines[index], self.rings.number(index, ticket));
        let (verb, tickets) = (request.verb(), line.peers.get_mut(peer.index()));
        let replies = verb.is_some_and(Verb::replies);
        line.begun.push_back(Begun { peer: peer.raw(), replies, local: false, done: false });
        let (Some(verb), Some(tickets)) = (verb, tickets) else {
            return Err(TransportError::Malformed { peer, remote, bytes });
        };
        tickets.open.push_back(ticket);
        if verb == Verb::Put {
            tickets.puts.push_back(ticket);
        }
        let then = match request.then() {
            Then::Nothing => None,
            then => Some(Signal { offset: request.signal, value: request.second, set: then == Then::Set }),
        };
        let operation = match verb {
            // Only asks how far the requests before it are.
            Verb::Signal if then.is_none() => {
                self.done(number, 0);
                return Ok(());
            }
            Verb::Put | Verb::Signal => Operation::Write { remote, local: request.local, bytes, then },
            Verb::Get => Operation::Read { remote, local: request.local, bytes },
            Verb::PutValue => Operation::Store { remote, bytes, value: request.value },
            Verb::GetValue => Operation::Load { remote, bytes },
            Verb::Atomic | Verb::Post | Verb::NicAtomic | Verb::NicPost => {
                let (op, kind) = (request.atomic(), request.kind());
                let atomic = Atomic { op, kind, bytes, value: request.value, expected: request.second };
                match verb {
                    Verb::NicAtomic | Verb::NicPost => Operation::NicAtomic { remote, atomic },
                    _ => Operation::Atomic { remote, atomic },
                }
            }
        };
        self.transport.start(number, peer, operation)
    }

    /// Takes note that the source of a put may be overwritten, and tells whoever waits for it.
    fn local(&mut self, number: u64) {
        let (index, ticket) = self.rings.ticket(number);
        let Some(line) = self.lines.get_mut(index) else { return };
        let Some(begun) = line.begun.get_mut(ticket.wrapping_sub(line.first) as usize) else { return };
        begun.local = true;
        let peer = begun.peer;
        line.tell_local(peer).into_iter().for_each(|word| self.wake(word));
    }

    /// Takes note that a request has completed, and tells whoever waits for it, or for all before it.
    fn done(&mut self, number: u64, reply: u64) {
        let (index, ticket) = self.rings.ticket(number);
        let Some(line) = self.lines.get_mut(index) else { return };
        let first = line.first;
        let Some(begun) = line.begun.get_mut(ticket.wrapping_sub(first) as usize) else { return };
        (begun.local, begun.done) = (true, true);
        let peer = begun.peer;
        if begun.replies {
            line.ring.reply(ticket, reply);
        }
        let local = line.tell_local(peer);
        let is_done = |ticket: &mut u64| line.begun[(*ticket - first) as usize].done;
        let through = last(&mut line.peers[peer as usize].open, is_done);
        let through = through.map(|ticket| line.ring.tell_through(peer, ticket + 1));
        while line.begun.pop_front_if(|begun| begun.done).is_some() {
            line.first += 1;
        }
        let complete = (line.first > first).then(|| line.ring.tell_complete(line.first));
        [local, through, complete].into_iter().flatten().for_each(|word| self.wake(word));
    }

    /// Whether nobody needs it any more: all is done that was asked for, and peers say the same; or the world has failed.
    fn may_end(&mut self) -> bool {
        let control: *mut abi::Control = with_exposed_provenance_mut(self.context.control as usize);
        // SAFETY: the control block outlives the proxy, and the word is only accessed atomically.
        let aborted = unsafe { AtomicU32::from_ptr(&raw mut (*control).abort) }.load(Ordering::Relaxed) != 0;
        aborted || (!self.is_behind() && self.transport.leave())
    }

    /// Whether requests are left to serve. Asked when no kernel runs, so none comes after.
    fn is_behind(&self) -> bool {
        self.lines.iter().any(|line| !line.begun.is_empty() || (!line.lost && line.ring.is_behind()))
    }

    /// A request that its producer will not publish any more: it had as long for that as half of what a wait may take, so that those who
    /// wait for it do not end before its name is told.
    fn look_for_lost(&mut self) -> Option<ProxyFailure> {
        if self.context.deadline_ns == abi::NO_DEADLINE {
            return None;
        }
        let patience = Duration::from_nanos(self.context.deadline_ns / 2);
        let now = Instant::now();
        self.lines.iter_mut().enumerate().find_map(|(ring, line)| {
            if line.lost || !line.ring.is_missing() {
                line.missing = None;
                return None;
            }
            line.lost = now - *line.missing.get_or_insert(now) > patience;
            line.lost.then(|| ProxyFailure::Lost { ring, request: line.ring.next() })
        })
    }

    /// How time passes when there is nothing to do, for so many turns already.
    fn rest(&self, turns: u32) -> Rest {
        let polls = self.transport.serves();
        match (self.lines.first(), self.sleep) {
            // Who reserves a request in the first ring changes this word, and whoever publishes one wakes who sleeps on it.
            (Some(first), Sleep::OnWords) if !self.is_behind() => {
                let (bell, seen) = (first.ring.bell(), first.ring.next() as u32);
                Rest::OnBell { context: self.context, turns, bell, seen, polls }
            }
            _ if turns < park::yields(polls) => Rest::Yielding,
            _ => Rest::Asleep(park::SHORT),
        }
    }

    fn wake(&self, word: *const u32) {
        if self.sleep == Sleep::OnWords {
            // SAFETY: a word of the ring, and the heap outlives the proxy.
            unsafe { park::wake_own(&self.context, word) };
        }
    }
}

#[cfg(test)]
mod tests;
