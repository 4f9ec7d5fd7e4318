//! Requests to the proxy, for peers that loads and stores do not reach: the producer's side of the ring.
//!
//! A thread reserves an entry with one atomic, waits until the entry's last lap is over, fills it, and publishes it with a
//! release store of its header; there is no lock and no doorbell. The proxy serves the entries in order, so what one thread
//! asks of one peer happens in the order it asked.

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{AtomicOp, Cause, NumberKind, Request, Ring, Route, Slot, Then, Verb};
use congruent_heap::{Notify, NotifyOp, Pe, Place, Pod, Sym};

use crate::arch::{self, Rmw};
use crate::poll::{Expiry, Polled};
use crate::{Ctx, Group};

/// Instead of a ticket, when the launch is ending.
const ENDING: u64 = u64::MAX;

impl Ctx<'_> {
    /// Whether a peer is reached through the proxy.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn is_proxied(&self, pe: Pe) -> bool {
        self.abi().routes != 0 && self.route_is_proxied(pe)
    }

    outlined! {
        /// The same, where there are routes.
        pub(crate) fn route_is_proxied(&self, pe: Pe) -> bool {
            self.check_pe(pe);
            let index = arch::opaque(pe.raw().into()) as usize;
            let entry: *const u32 = with_exposed_provenance_mut::<u32>(self.abi().routes as usize).wrapping_add(index);
            // SAFETY: the route table has an entry for every PE (`Ctx::new`), of which this is one.
            unsafe { arch::load(entry) == Route::Proxied as u32 }
        }
    }

    /// Starts a put by the group's leader, with the signal that follows it.
    #[inline(always)]
    pub(crate) fn ask_put<T: Pod, G>(&self, place: Place<T, G>, src: Sym<T>, then: Option<Notify>) -> u64 {
        let _checked = (self.reach(place), self.locate(src, self.pe()));
        // Every thread's data is ordered before this by the group's sync; this publishes it to the proxy.
        let (then, second, signal) = tail(then);
        let header = Request::header(Verb::Put, then, AtomicOp::Add, NumberKind::Unsigned);
        let (remote, local) = (place.sym().offset(), src.offset());
        self.ask_range(header | to(place.pe()), remote, local, src.bytes() as u64, second, signal)
    }

    /// Starts a get by the group's leader.
    #[inline(always)]
    pub(crate) fn ask_get<T: Pod, G>(&self, dst: Sym<T>, place: Place<T, G>) -> u64 {
        let _checked = (self.locate(dst, self.pe()), self.reach(place));
        let header = Request::header(Verb::Get, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.ask_range(header | to(place.pe()), place.sym().offset(), dst.offset(), dst.bytes() as u64, 0, 0)
    }

    // Few scalar arguments: more would travel through a GPU's local memory.

    outlined! {
        /// Asks for what is done to a range, and for the signal that follows it.
        pub(crate) fn ask_range(&self, header: u64, remote: u64, local: u64, bytes: u64, second: u64, signal: u64) -> u64 {
            self.ask(Request { header, peer: 0, remote, local, bytes, value: 0, second, signal })
        }
    }

    /// Adds to a word of a peer's or sets it, after all that was asked of it before. False when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_signal(&self, pe: Pe, adds: bool, offset: u64, value: u64) -> bool {
        let then = if adds { Then::Add } else { Then::Set };
        let header = Request::header(Verb::Signal, then, AtomicOp::Add, NumberKind::Unsigned);
        self.ask_range(header | to(pe), 0, 0, 0, value, offset) != ENDING
    }

    /// Stores a word of `bytes` bytes at the peer. False when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_put_word(&self, pe: Pe, remote: u64, bytes: u64, value: u64) -> bool {
        let header = Request::header(Verb::PutValue, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.ask_word(header | to(pe), remote, bytes, value, 0) != ENDING
    }

    /// Loads a word of `bytes` bytes from the peer. Nothing when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_get_word(&self, pe: Pe, remote: u64, bytes: u64) -> Option<u64> {
        let header = Request::header(Verb::GetValue, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.reply(self.ask_word(header | to(pe), remote, bytes, 0, 0))
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
        self.reply(self.ask_word(header | to(pe), remote, bytes, value, second))
    }

    outlined! {
        /// Asks for what is done to a word.
        pub(crate) fn ask_word(&self, header: u64, remote: u64, bytes: u64, value: u64, second: u64) -> u64 {
            self.ask(Request { header, peer: 0, remote, local: 0, bytes, value, second, signal: 0 })
        }
    }

    /// Waits until everything that was asked before is complete; the leader does it for its group. False when the kernel must end.
    #[cold]
    pub(crate) fn drain(&self, group: &impl Group) -> bool {
        !group.any(group.leader() && !self.drained())
    }

    /// Waits until request `ticket` of the group's leader is complete; other threads give any ticket. False when the kernel must end.
    #[cold]
    pub(crate) fn finish(&self, group: &impl Group, ticket: u64) -> bool {
        !group.any(group.leader() && !(ticket != ENDING && self.complete(ticket.wrapping_add(1))))
    }

    /// Whether the group's leader could ask. False when the kernel must end.
    #[cold]
    pub(crate) fn asked(&self, group: &impl Group, ticket: u64) -> bool {
        !group.any(group.leader() && ticket == ENDING)
    }

    /// Puts a request into the ring and wakes the proxy, which sleeps on their count where it has nothing to do. The header has the
    /// peer too ([`to`]). Gives a ticket, or [`ENDING`] when the kernel must end.
    #[inline(always)]
    fn ask(&self, request: Request) -> u64 {
        // SAFETY: the ring is mapped, and the words aligned.
        let (reserved, ticket) = unsafe {
            let reserved = &raw mut (*self.ring()).reserved;
            (Polled::new(reserved), Rmw::fetch_add(reserved, 1u64))
        };
        let entry = Entry::new(self.ring(), ticket);
        // SAFETY: the slot is mapped with its ring, and the word aligned.
        let laps = unsafe { Polled::new(&raw mut (*entry.slot).laps) };
        let is_free = || laps.load_acquire() == entry.lap;
        if !self.poll(laps, self.abi().deadline_ns, is_free, |expiry| self.give_up(expiry, ticket)) {
            return ENDING;
        }
        // SAFETY: the entry is mapped (`Ctx::new`) and this thread's until it publishes it: the release store of the header makes
        // the fields the proxy's.
        unsafe {
            arch::store(&raw mut (*entry.request).peer, request.header >> PEER);
            arch::store(&raw mut (*entry.request).remote, request.remote);
            arch::store(&raw mut (*entry.request).local, request.local);
            arch::store(&raw mut (*entry.request).bytes, request.bytes);
            arch::store(&raw mut (*entry.request).value, request.value);
            arch::store(&raw mut (*entry.request).second, request.second);
            arch::store(&raw mut (*entry.request).signal, request.signal);
            arch::store_release(
                &raw mut (*entry.request).header,
                request.header & ((1 << PEER) - 1) | Request::parity(entry.lap),
            );
        }
        self.wake(self.pe(), reserved);
        ticket
    }

    /// Waits for the reply to request `ticket`, and frees its entry. Nothing when the kernel must end.
    #[cold]
    fn reply(&self, ticket: u64) -> Option<u64> {
        if ticket == ENDING || !self.complete(ticket + 1) {
            return None;
        }
        let entry = Entry::new(self.ring(), ticket);
        // SAFETY: the slot is mapped (`Ctx::new`), and this thread's until it counts the lap.
        unsafe {
            let reply = arch::load(&raw const (*entry.slot).reply);
            arch::store_release(&raw mut (*entry.slot).laps, entry.lap + 1);
            Some(reply)
        }
    }

    /// Waits until everything that was asked before is complete. False when the kernel must end.
    #[inline(always)]
    fn drained(&self) -> bool {
        // SAFETY: the ring is mapped (`Ctx::new`), and the word aligned.
        self.complete(unsafe { arch::load(&raw const (*self.ring()).reserved) })
    }

    outlined! {
        /// Waits until `count` requests are complete. False when the kernel must end.
        pub(crate) fn complete(&self, count: u64) -> bool {
            // SAFETY: the ring is mapped, and the word aligned.
            let word = unsafe { Polled::new(&raw mut (*self.ring()).complete) };
            let is_complete = || word.at_least(count);
            self.poll(word, self.abi().deadline_ns, is_complete, |expiry| self.give_up(expiry, count))
        }
    }

    #[cold]
    #[inline(always)]
    fn give_up(&self, expiry: Expiry, count: u64) {
        self.leave(Cause::Proxy { expected: count, seen: expiry.seen, waited_ns: expiry.waited_ns });
    }

    /// The ring: mapped, with its entries, where peers are proxied, which callers have found.
    #[inline(always)]
    fn ring(&self) -> *mut Ring {
        with_exposed_provenance_mut(self.abi().ring as usize)
    }
}

/// Where in a header the peer is, on its way to the ring: a request has fields enough, but a function not arguments.
const PEER: u32 = 32;

#[inline(always)]
const fn to(pe: Pe) -> u64 {
    (pe.raw() as u64) << PEER
}

/// Where request `ticket` of a ring lies.
struct Entry {
    request: *mut Request,
    slot: *mut Slot,
    lap: u64,
}

impl Entry {
    #[inline(always)]
    fn new(ring: *mut Ring, ticket: u64) -> Self {
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
