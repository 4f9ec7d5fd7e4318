//! Requests to the proxy, for peers that loads and stores do not reach: the producer's side of the ring.
//!
//! A thread reserves an entry with one atomic, waits until the entry's last lap is over, fills it, and publishes it with a
//! release store of its header; there is no lock and no doorbell. The proxy serves the entries in order, so what one thread
//! asks of one peer happens in the order it asked.

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{AtomicOp, Cause, NumberKind, Request, Ring, Route, Slot, Then, Verb};
use congruent_heap::{Notify, NotifyOp, Pe, Place, Pod, Sym};

use crate::arch::{self, Rmw};
use crate::poll::{Expiry, Polled, Waiter};
use crate::{Ctx, Group};

/// What [`submit`] gives when the launch is ending.
const ENDING: u64 = u64::MAX;

impl Ctx<'_> {
    /// Whether a peer is reached through the proxy.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn is_proxied(&self, pe: Pe) -> bool {
        self.check_pe(pe);
        if self.abi.routes == 0 {
            return false;
        }
        let index = arch::anew(pe.raw().into()) as usize;
        let entry: *const u32 = with_exposed_provenance_mut::<u32>(self.abi.routes as usize).wrapping_add(index);
        // SAFETY: the route table has an entry for every PE (`Ctx::new`), of which this is one.
        unsafe { arch::load(entry) == Route::Proxied as u32 }
    }

    /// Starts a put by the group's leader, with the signal that follows it.
    #[cold]
    pub(crate) fn ask_put<T: Pod, G>(&self, place: Place<T, G>, src: Sym<T>, then: Option<Notify>) -> u64 {
        // Every thread's data is ordered before this by the group's sync; this publishes it to the proxy.
        let (then, second, signal) = tail(then);
        let header = Request::header(Verb::Put, then, AtomicOp::Add, NumberKind::Unsigned);
        let (remote, local) = (place.sym().offset(), src.offset());
        self.ask(Request { header, second, signal, ..request(place.pe(), remote, local, src.bytes() as u64) })
    }

    /// Starts a get by the group's leader.
    #[cold]
    pub(crate) fn ask_get<T: Pod, G>(&self, dst: Sym<T>, place: Place<T, G>) -> u64 {
        let header = Request::header(Verb::Get, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.ask(Request { header, ..request(place.pe(), place.sym().offset(), dst.offset(), dst.bytes() as u64) })
    }

    /// Sends a signal.
    #[cold]
    pub(crate) fn ask_signal(&self, notify: Notify) -> u64 {
        let ticket = signal(self.waiter(), self.ring(), self.abi.deadline_ns, notify);
        self.wake_proxy();
        ticket
    }

    /// Sets a word of a peer's, after all that was asked of it before. False when the kernel must end.
    #[cold]
    pub(crate) fn ask_set(&self, pe: Pe, offset: u64, value: u64) -> bool {
        let header = Request::header(Verb::Signal, Then::Set, AtomicOp::Add, NumberKind::Unsigned);
        self.ask(Request { header, second: value, signal: offset, ..request(pe, 0, 0, 0) }) != ENDING
    }

    /// Stores a word of `bytes` bytes at the peer. False when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_put_word(&self, pe: Pe, remote: u64, bytes: u64, value: u64) -> bool {
        let header = Request::header(Verb::PutValue, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.ask_word(header, pe, remote, bytes, value, 0) != ENDING
    }

    /// Loads a word of `bytes` bytes from the peer. Nothing when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_get_word(&self, pe: Pe, remote: u64, bytes: u64) -> Option<u64> {
        let header = Request::header(Verb::GetValue, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.reply(self.ask_word(header, pe, remote, bytes, 0, 0))
    }

    /// Does an atomic at the peer, and gives the old bits. Nothing when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_atomic(
        &self,
        pe: Pe,
        remote: u64,
        op: AtomicOp,
        kind: NumberKind,
        bytes: u64,
        values: [u64; 2],
    ) -> Option<u64> {
        let header = Request::header(Verb::Atomic, Then::Nothing, op, kind);
        let [value, second] = values;
        self.reply(self.ask_word(header, pe, remote, bytes, value, second))
    }

    #[cold]
    fn ask_word(&self, header: u64, pe: Pe, remote: u64, bytes: u64, value: u64, second: u64) -> u64 {
        self.ask(Request { header, value, second, ..request(pe, remote, 0, bytes) })
    }

    /// Waits until everything that was asked before is complete; the leader does it for its group. False when the kernel must end.
    #[cold]
    pub(crate) fn drain(&self, group: &impl Group) -> bool {
        !group.any(group.leader() && !drained(self.waiter(), self.ring(), self.abi.deadline_ns))
    }

    /// Waits until request `ticket` of the group's leader is complete; other threads give any ticket. False when the kernel must end.
    #[cold]
    pub(crate) fn finish(&self, group: &impl Group, ticket: u64) -> bool {
        let is_done =
            || ticket != ENDING && complete(self.waiter(), self.ring(), ticket.wrapping_add(1), self.abi.deadline_ns);
        !group.any(group.leader() && !is_done())
    }

    /// Whether the group's leader could ask. False when the kernel must end.
    #[cold]
    pub(crate) fn asked(&self, group: &impl Group, ticket: u64) -> bool {
        !group.any(group.leader() && ticket == ENDING)
    }

    #[inline(always)]
    fn ask(&self, request: Request) -> u64 {
        let ticket = enqueue(self.waiter(), self.ring(), self.abi.deadline_ns, request);
        self.wake_proxy();
        ticket
    }

    /// Wakes the proxy, which sleeps on the count of requests where it has nothing to do.
    #[inline(always)]
    fn wake_proxy(&self) {
        // SAFETY: the ring is mapped, and the word aligned.
        self.wake(self.pe(), unsafe { Polled::new(&raw mut (*self.ring().start()).reserved) });
    }

    /// Waits for the reply to request `ticket`, and frees its entry. Nothing when the kernel must end.
    #[inline(always)]
    fn reply(&self, ticket: u64) -> Option<u64> {
        let came = ticket != ENDING && complete(self.waiter(), self.ring(), ticket + 1, self.abi.deadline_ns);
        came.then(|| take_reply(self.ring(), ticket))
    }

    #[inline(always)]
    fn ring(&self) -> RingAt {
        // SAFETY: where peers are proxied, which callers have found, the ring is mapped (`Ctx::new`).
        unsafe { RingAt::new(self.abi.ring) }
    }
}

/// The address of a mapped ring: one scalar, which functions of a GPU take in a register.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct RingAt(u64);

impl RingAt {
    /// # Safety
    /// The ring is mapped for as long as the kernel runs, with its entries, and their provenance is exposed.
    #[inline(always)]
    unsafe fn new(address: u64) -> Self {
        Self(address)
    }

    #[inline(always)]
    fn start(self) -> *mut Ring {
        with_exposed_provenance_mut(self.0 as usize)
    }
}

/// Puts a request into the ring. [`ENDING`] when the kernel must end.
#[inline(always)]
fn enqueue(waiter: Waiter<'_>, ring: RingAt, budget_ns: u64, request: Request) -> u64 {
    let ticket = reserve(waiter, ring, budget_ns);
    if ticket != ENDING {
        fill(ring, ticket, request.peer, request.remote, request.local, request.bytes);
        publish(ring, ticket, request.header, request.value, request.second, request.signal);
    }
    ticket
}

/// Asks for a signal.
#[cfg(not(target_arch = "nvptx64"))]
fn signal(waiter: Waiter<'_>, ring: RingAt, budget_ns: u64, notify: Notify) -> u64 {
    let (then, second, signal) = tail(Some(notify));
    let header = Request::header(Verb::Signal, then, AtomicOp::Add, NumberKind::Unsigned);
    enqueue(waiter, ring, budget_ns, Request { header, second, signal, ..request(notify.pe(), 0, 0, 0) })
}

/// The same, by a function of few scalar arguments: kernels notify in many places.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn signal(waiter: Waiter<'_>, ring: RingAt, budget_ns: u64, notify: Notify) -> u64 {
    let adds = u64::from(notify.op() == NotifyOp::Add) << 63;
    let (control, to) = (waiter.parts().0, u64::from(notify.pe().raw()) | adds);
    signal_apart(ring, control, budget_ns, to, notify.value(), notify.offset())
}

#[cfg(target_arch = "nvptx64")]
#[inline(never)]
fn signal_apart(ring: RingAt, control: u64, budget_ns: u64, to: u64, second: u64, signal: u64) -> u64 {
    let then = if to >> 63 == 1 { Then::Add } else { Then::Set };
    let header = Request::header(Verb::Signal, then, AtomicOp::Add, NumberKind::Unsigned);
    let peer = Pe::new(to as u32);
    // SAFETY: the caller has it from a waiter. The launch is recalled where it is told.
    let waiter = unsafe { Waiter::new(arch::Lane::new(), control, 0) };
    enqueue(waiter, ring, budget_ns, Request { header, second, signal, ..request(peer, 0, 0, 0) })
}

// Three functions of few scalar arguments each: more would travel through local memory on a GPU.

/// Reserves an entry and waits until it is free. [`ENDING`] when the kernel must end.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
fn reserve(waiter: Waiter<'_>, ring: RingAt, budget_ns: u64) -> u64 {
    // SAFETY: the ring is mapped.
    let ticket = unsafe { Rmw::fetch_add(&raw mut (*ring.start()).reserved, 1u64) };
    let entry = Entry::new(ring, ticket);
    // SAFETY: the slot is mapped with its ring, and the word aligned.
    let laps = unsafe { Polled::new(&raw mut (*entry.slot).laps) };
    let is_free = || laps.load_acquire() == entry.lap;
    if waiter.poll(laps, budget_ns, is_free, |expiry| give_up(waiter, expiry, ticket)) { ticket } else { ENDING }
}

#[cfg_attr(target_arch = "nvptx64", inline(never))]
fn fill(ring: RingAt, ticket: u64, peer: u64, remote: u64, local: u64, bytes: u64) {
    let request = Entry::new(ring, ticket).request;
    // SAFETY: the entry is mapped (`Ctx::new`) and this thread's until it publishes it.
    unsafe {
        arch::store(&raw mut (*request).peer, peer);
        arch::store(&raw mut (*request).remote, remote);
        arch::store(&raw mut (*request).local, local);
        arch::store(&raw mut (*request).bytes, bytes);
    }
}

#[cfg_attr(target_arch = "nvptx64", inline(never))]
fn publish(ring: RingAt, ticket: u64, header: u64, value: u64, second: u64, signal: u64) {
    let entry = Entry::new(ring, ticket);
    // SAFETY: as in `fill`; the release store of the header makes the fields the proxy's.
    unsafe {
        arch::store(&raw mut (*entry.request).value, value);
        arch::store(&raw mut (*entry.request).second, second);
        arch::store(&raw mut (*entry.request).signal, signal);
        arch::store_release(&raw mut (*entry.request).header, header | Request::parity(entry.lap));
    }
}

/// Where request `ticket` of a ring lies.
struct Entry {
    request: *mut Request,
    slot: *mut Slot,
    lap: u64,
}

impl Entry {
    #[inline(always)]
    fn new(ring: RingAt, ticket: u64) -> Self {
        let ring = ring.start();
        // SAFETY: the ring is mapped, and these fields never change.
        let (requests, slots, shift) = unsafe { ((*ring).requests, (*ring).slots, (*ring).log2_capacity as u32) };
        let lap = ticket.wrapping_shr(shift);
        let index = (ticket - lap.wrapping_shl(shift)) as usize;
        Self {
            request: with_exposed_provenance_mut::<Request>(requests as usize).wrapping_add(index),
            slot: with_exposed_provenance_mut::<Slot>(slots as usize).wrapping_add(index),
            lap,
        }
    }
}

/// The reply to request `ticket`, which is complete; frees its entry.
#[cold]
fn take_reply(ring: RingAt, ticket: u64) -> u64 {
    let entry = Entry::new(ring, ticket);
    // SAFETY: the slot is mapped (`Ctx::new`), and this thread's until it counts the lap.
    unsafe {
        let reply = arch::load(&raw const (*entry.slot).reply);
        arch::store_release(&raw mut (*entry.slot).laps, entry.lap + 1);
        reply
    }
}

/// Waits until everything that was asked before is complete. False when the kernel must end.
#[cold]
fn drained(waiter: Waiter<'_>, ring: RingAt, budget_ns: u64) -> bool {
    // SAFETY: the ring is mapped (`Ctx::new`), and the word aligned.
    let reserved = unsafe { arch::load(&raw const (*ring.start()).reserved) };
    complete(waiter, ring, reserved, budget_ns)
}

/// Waits until `count` requests are complete. False when the kernel must end.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
fn complete(waiter: Waiter<'_>, ring: RingAt, count: u64, budget_ns: u64) -> bool {
    // SAFETY: the ring is mapped, and the word aligned.
    let word = unsafe { Polled::new(&raw mut (*ring.start()).complete) };
    let is_complete = || word.at_least(count);
    waiter.poll(word, budget_ns, is_complete, |expiry| give_up(waiter, expiry, count))
}

#[cold]
fn give_up(waiter: Waiter<'_>, expiry: Expiry, count: u64) {
    waiter.leave(Cause::Proxy { expected: count, seen: expiry.seen, waited_ns: expiry.waited_ns });
}

#[inline(always)]
const fn request(pe: Pe, remote: u64, local: u64, bytes: u64) -> Request {
    Request { header: 0, peer: pe.raw() as u64, remote, local, bytes, value: 0, second: 0, signal: 0 }
}

/// The part of a request that sends a signal.
#[inline(always)]
const fn tail(notify: Option<Notify>) -> (Then, u64, u64) {
    match notify {
        None => (Then::Nothing, 0, 0),
        Some(notify) => match notify.op() {
            NotifyOp::Add => (Then::Add, notify.value(), notify.offset()),
            NotifyOp::Set => (Then::Set, notify.value(), notify.offset()),
        },
    }
}
