//! The proxy: a thread of each PE that serves its kernels' requests to peers that loads and stores do not reach.
#![allow(clippy::disallowed_types, reason = "the consumer's side of the ring that kernels write")]

use std::collections::VecDeque;
use std::io;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use congruent_device::{Pe, abi};
use congruent_heap::abi::{Request, Ring, Route, Slot, Then, Verb};
use congruent_transports::{Atomic, Operation, Signal, Transport, TransportError};

use crate::cpu::nap;
use crate::route::Routes;

/// Requests that a ring holds.
const CAPACITY: usize = 1 << LOG2_CAPACITY;
const LOG2_CAPACITY: u32 = 8;

/// How often the proxy finds nothing to do before it gives up its core, as a waiting lane does.
const SPINS: u32 = 200;

/// Where peers need this PE's transport to be polled: how much longer the proxy yields, and how long it sleeps then.
const SERVING_YIELDS: u32 = 40;
const SERVING_NAP: Duration = Duration::from_micros(50);

/// What the proxy and the kernels share: the ring and the route table. Raw memory, because both write it.
pub(crate) struct Rings {
    ring: *mut Ring,
    requests: *mut [Request],
    slots: *mut [Slot],
    routes: *mut [u32],
}

// SAFETY: the pointers own their memory; whoever shares it accesses it atomically (see `Server` and the device's proxy.rs).
unsafe impl Send for Rings {}

/// The proxy of one PE.
pub(crate) struct Proxy {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
    routes: Routes,
}

/// What the proxy is told.
#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    /// Before it stops, to serve what has been asked for.
    drain: AtomicBool,
}

impl Rings {
    /// A ring, and the table of routes to all PEs.
    pub(crate) fn new(table: &[Route]) -> Self {
        let empty = Request { header: 0, peer: 0, remote: 0, local: 0, bytes: 0, value: 0, second: 0, signal: 0 };
        let requests = Box::into_raw(vec![empty; CAPACITY].into_boxed_slice());
        let slots = Box::into_raw((0..CAPACITY).map(|_| Slot { laps: 0, reply: 0 }).collect());
        let ring = Box::into_raw(Box::new(Ring {
            requests: requests.expose_provenance() as u64,
            slots: slots.expose_provenance() as u64,
            log2_capacity: LOG2_CAPACITY.into(),
            line: [0; 5],
            reserved: 0,
            producers: [0; 7],
            complete: 0,
            proxy: [0; 7],
        }));
        Self { ring, requests, slots, routes: Box::into_raw(table.iter().map(|route| *route as u32).collect()) }
    }

    /// The context of a PE whose kernels use these.
    pub(crate) fn context(&self, context: abi::Context) -> abi::Context {
        let (routes, ring) = (self.routes.expose_provenance() as u64, self.ring.expose_provenance() as u64);
        abi::Context { routes, ring, ..context }
    }

    /// Entry `ticket` of the ring.
    fn entry(&self, ticket: u64) -> *mut Request {
        self.requests.cast::<Request>().wrapping_add(ticket as usize % CAPACITY)
    }

    /// What goes with it.
    fn slot(&self, ticket: u64) -> *mut Slot {
        self.slots.cast::<Slot>().wrapping_add(ticket as usize % CAPACITY)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: each came from Box::into_raw, and the world is idle: no kernel looks at them any more.
        unsafe {
            drop(Box::from_raw(self.ring));
            drop(Box::from_raw(self.requests));
            drop(Box::from_raw(self.slots));
            drop(Box::from_raw(self.routes));
        }
    }
}

impl Proxy {
    /// Starts to serve the ring of the PE that `context` describes; `failed` hears of each operation that could not be done. Those on
    /// other peers go on.
    pub(crate) fn start(
        context: abi::Context,
        rings: Rings,
        transport: Box<dyn Transport>,
        routes: Routes,
        mut failed: impl FnMut(&TransportError) + Send + 'static,
    ) -> io::Result<Self> {
        let orders = Arc::new(Orders::default());
        let told = Arc::clone(&orders);
        let pe_thread = thread::Builder::new().name("proxy".into());
        let thread = pe_thread.spawn(move || {
            let mut server =
                Server { context: &context, rings: &rings, transport, next: 0, in_flight: VecDeque::new() };
            server.serve(&told, &mut failed);
            // Kernels may still look at the ring until they notice the failure: it lives until the world is idle.
            while !told.stop.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_millis(50));
            }
        })?;
        Ok(Self { orders, thread: Some(thread), routes })
    }

    /// How each PE is reached.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Stops it, when no kernel runs any more. With `drain` it first serves what kernels have asked for and not waited for
    /// (a notify, say), and peers until they say that they need it no more; after a failure there may be entries that nobody will
    /// ever fill.
    pub(crate) fn finish(&mut self, drain: bool) {
        self.orders.drain.store(drain, Ordering::Relaxed);
        self.orders.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.finish(false);
    }
}

struct Server<'r> {
    context: &'r abi::Context,
    rings: &'r Rings,
    transport: Box<dyn Transport>,
    /// Number of the next request.
    next: u64,
    /// For each request started and not yet complete, in order: whether it has a reply, and whether it is done.
    in_flight: VecDeque<(bool, bool)>,
}

impl Server<'_> {
    fn serve(&mut self, orders: &Orders, failed: &mut dyn FnMut(&TransportError)) {
        let serves = self.transport.serves();
        let mut idle = 0u32;
        while !orders.stop.load(Ordering::Acquire) || (orders.drain.load(Ordering::Relaxed) && !self.may_end()) {
            let (mut busy, complete) = (false, self.next - self.in_flight.len() as u64);
            while let Some(request) = self.take() {
                self.start(&request).unwrap_or_else(|error| failed(&error));
                busy = true;
            }
            let waits = self.finish(failed) || !self.in_flight.is_empty();
            busy |= complete < self.next - self.in_flight.len() as u64;
            idle = if busy { 0 } else { idle.saturating_add(1) };
            match idle.checked_sub(SPINS) {
                None => std::hint::spin_loop(),
                // The network, and peers' proxies, need cores.
                Some(_) if waits => thread::yield_now(),
                // SAFETY: as below.
                Some(turn) if serves => unsafe {
                    let (word, seen) = (low_half(self.reserved()), self.next as u32);
                    nap::pass_for(self.context, turn / SERVING_YIELDS, word, seen, SERVING_NAP);
                },
                // Who reserves a request changes this word, and wakes who sleeps on it once the request is published.
                // SAFETY: a word of the ring, and the heap outlives the proxy.
                Some(turn) => unsafe {
                    nap::pass(self.context, turn, low_half(self.reserved()), self.next as u32);
                },
            }
        }
    }

    /// Whether nobody needs it any more: all is done that was asked for, and peers say the same; or the world has failed.
    fn may_end(&mut self) -> bool {
        let control: *mut abi::Control = with_exposed_provenance_mut(self.context.control as usize);
        // SAFETY: the control block outlives the proxy, and the word is only accessed atomically.
        let aborted = unsafe { AtomicU32::from_ptr(&raw mut (*control).abort) }.load(Ordering::Relaxed) != 0;
        aborted || (!self.is_behind() && self.transport.leave())
    }

    /// How many requests were ever asked for.
    fn reserved(&self) -> *mut u64 {
        // SAFETY: the word is in the ring, which `rings` owns.
        unsafe { &raw mut (*self.rings.ring).reserved }
    }

    /// Whether requests are left to serve. Asked when no kernel runs, so none comes after.
    fn is_behind(&self) -> bool {
        // SAFETY: the word is in the ring, which `rings` owns.
        let reserved = unsafe { AtomicU64::from_ptr(self.reserved()) }.load(Ordering::Acquire);
        self.next < reserved || !self.in_flight.is_empty()
    }

    /// The next request, once its producer has published it.
    fn take(&mut self) -> Option<Request> {
        let entry = self.rings.entry(self.next);
        // SAFETY: the entry is in the ring, which `rings` owns.
        let header = unsafe { AtomicU64::from_ptr(&raw mut (*entry).header) }.load(Ordering::Acquire);
        let published = header & Request::PARITY == Request::parity(self.next >> LOG2_CAPACITY) && header & 0xff != 0;
        // SAFETY: a published entry is not written again before this proxy counts its lap, and the acquire load of the
        // header makes its fields visible.
        published.then(|| unsafe { entry.read() })
    }

    fn start(&mut self, request: &Request) -> Result<(), TransportError> {
        let ticket = self.next;
        self.next += 1;
        let (peer, remote, bytes) = (Pe::new(request.peer as u32), request.remote, request.bytes);
        let then = match request.then() {
            Then::Nothing => None,
            then => Some(Signal { offset: request.signal, value: request.second, set: then == Then::Set }),
        };
        let verb = request.verb();
        self.in_flight.push_back((matches!(verb, Some(Verb::GetValue | Verb::Atomic)), false));
        let verb = verb.ok_or(TransportError::Malformed { peer, remote, bytes })?;
        let operation = match verb {
            Verb::Put | Verb::Signal => Operation::Write { remote, local: request.local, bytes, then },
            Verb::Get => Operation::Read { remote, local: request.local, bytes },
            Verb::PutValue => Operation::Store { remote, bytes, value: request.value },
            Verb::GetValue => Operation::Load { remote, bytes },
            Verb::Atomic => {
                let (op, kind) = (request.atomic(), request.kind());
                let atomic = Atomic { op, kind, bytes, value: request.value, expected: request.second };
                Operation::Atomic { remote, atomic }
            }
        };
        self.transport.start(ticket, peer, operation)
    }

    /// Takes what has completed, and counts it complete in order. What has failed never is: the world has failed, and who waits for it
    /// ends. True where something is under way.
    fn finish(&mut self, failed: &mut dyn FnMut(&TransportError)) -> bool {
        let Self { context, rings, transport, next, in_flight } = self;
        let first = *next - in_flight.len() as u64;
        let is_under_way = transport.poll(&mut |ticket, reply| {
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) => return failed(&error),
            };
            // SAFETY: the slot is in the ring, which `rings` owns.
            unsafe { AtomicU64::from_ptr(&raw mut (*rings.slot(ticket)).reply) }.store(reply, Ordering::Relaxed);
            if let Some(entry) = in_flight.get_mut((ticket - first) as usize) {
                entry.1 = true;
            }
        });
        let mut complete = first;
        while let Some(&(has_reply, true)) = in_flight.front() {
            in_flight.pop_front();
            if !has_reply {
                // SAFETY: as above.
                let laps = unsafe { &raw mut (*rings.slot(complete)).laps };
                // SAFETY: as above; the heap outlives the proxy.
                unsafe {
                    AtomicU64::from_ptr(laps).store(complete / CAPACITY as u64 + 1, Ordering::Release);
                    nap::wake_own(context, low_half(laps));
                }
            }
            complete += 1;
        }
        if complete > first {
            // Whoever waits for this sees what the transport has done before.
            // SAFETY: the word is in the ring, which `rings` owns.
            unsafe {
                let word = &raw mut (*rings.ring).complete;
                AtomicU64::from_ptr(word).store(complete, Ordering::Release);
                nap::wake_own(context, low_half(word));
            }
        }
        is_under_way
    }
}

/// The half of a word that lanes sleep on: the one that changes with every count.
fn low_half(word: *mut u64) -> *const u32 {
    word.cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")))
}
