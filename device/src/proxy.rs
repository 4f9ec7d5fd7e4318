//! Requests to the proxy, for peers that loads and stores do not reach: the producer's side of the rings.
//!
//! A thread reserves a slot of its block's ring with one atomic, waits until the proxy has taken what was there a lap before, fills it,
//! and publishes it with a release store of its header; there is no lock and no doorbell. The proxy takes a ring's requests in order
//! and serves each peer in order, so what a block asks of one peer happens in the order it asked. Rings are not ordered with each other.
//! It tells of each peer by itself how far it is, so that nobody waits for a peer that he asked nothing of.

use core::mem::offset_of;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{AtomicOp, Cause, NO_PE, NumberKind, Reply, Request, Ring, RingLayout, Route, Then, Verb};
use congruent_heap::{Notify, NotifyOp, Pe, Place, Pod, Sym};

use crate::arch::{self, Rmw};
use crate::poll::{Expiry, Polled};
use crate::{Ctx, Group};

/// Instead of a ticket, when the launch is ending.
const ENDING: u64 = u64::MAX;

impl Ctx<'_> {
    /// Whether there is a proxy: some peers are reached through it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn has_proxy(&self) -> bool {
        self.abi().routes != 0
    }

    /// Whether a peer is reached through the proxy.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn is_proxied(&self, pe: Pe) -> bool {
        self.has_proxy() && self.route_is_proxied(pe)
    }

    /// The same for a group, whose threads all ask: those of a warp go the same way together.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn is_proxied_for(&self, group: &impl Group, pe: Pe) -> bool {
        self.has_proxy() && group.uniform(self.route_is_proxied(pe).into()) != 0
    }

    outlined! {
        /// Whether it is, where there are routes.
        pub(crate) fn route_is_proxied(&self, pe: Pe) -> bool {
            self.check_pe(pe);
            let index = arch::opaque(pe.raw().into()) as usize;
            let entry: *const u32 = with_exposed_provenance_mut::<u32>(self.abi().routes as usize).wrapping_add(index);
            // SAFETY: the route table has an entry for every PE (`Ctx::new`), of which this is one. The host writes it before any
            // kernel starts and nobody does after that, so a plain load races with nothing and gives all threads the same.
            unsafe { entry.read() == Route::Proxied as u32 }
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
        self.reply(pe, self.ask_word(header | to(pe), remote, bytes, 0, 0))
    }

    /// Does an atomic at the peer, and gives the old bits. Nothing when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_atomic(&self, pe: Pe, remote: u64, what: Computed, values: [u64; 2]) -> Option<u64> {
        let header = Request::header(Verb::Atomic, Then::Nothing, what.op, what.kind);
        let [value, second] = values;
        self.reply(pe, self.ask_word(header | to(pe), remote, what.bytes, value, second))
    }

    /// Does an atomic at the peer, some time. False when the kernel must end.
    #[inline(always)]
    pub(crate) fn ask_post(&self, pe: Pe, remote: u64, what: Computed, value: u64) -> bool {
        let header = Request::header(Verb::Post, Then::Nothing, what.op, what.kind);
        self.ask_word(header | to(pe), remote, what.bytes, value, 0) != ENDING
    }

    outlined! {
        /// Asks for what is done to a word.
        pub(crate) fn ask_word(&self, header: u64, remote: u64, bytes: u64, value: u64, second: u64) -> u64 {
            self.ask(Request { header, peer: 0, remote, local: 0, bytes, value, second, signal: 0 })
        }
    }

    /// Waits until everything that was asked before is complete, of whatever block; the leader does it for its group, which meets
    /// before and after it.
    #[cold]
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn drain(&self, group: &impl Group) {
        group.sync();
        self.join(group, group.leader() && !self.drained());
    }

    /// Waits until everything that this block asked of a peer before is complete; the leader does it for its group. False when the
    /// kernel must end.
    #[cold]
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn drain_to(&self, group: &impl Group, pe: Pe) -> bool {
        !group.any(group.leader() && !self.drained_to(pe))
    }

    /// Waits until request `ticket` of the group's leader to a peer is complete, locally or at the peer; other threads give any ticket.
    /// False when the kernel must end.
    #[cold]
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn finish(&self, group: &impl Group, pe: Pe, ticket: u64, at: Complete) -> bool {
        !group.any(group.leader() && !self.complete(pe, ticket, at))
    }

    /// Whether the group's leader could ask. False when the kernel must end.
    #[cold]
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn asked(&self, group: &impl Group, ticket: u64) -> bool {
        !group.any(group.leader() && !self.took(ticket))
    }

    /// Whether the proxy took what this thread asked. False when the kernel must end.
    #[inline(always)]
    pub(crate) fn took(&self, ticket: u64) -> bool {
        ticket != ENDING
    }

    /// Puts a request into the block's ring and wakes the proxy, which sleeps on a count where it has nothing to do. The header has the
    /// peer too ([`to`]). Gives a ticket, or [`ENDING`] when the kernel must end.
    #[inline(always)]
    fn ask(&self, request: Request) -> u64 {
        let (ring, layout) = (self.ring(), self.layout());
        // SAFETY: both are words of a ring, which is this context's.
        let (reserved, taken) =
            unsafe { (count(ring, offset_of!(Ring, reserved)), count(ring, offset_of!(Ring, taken))) };
        // SAFETY: the word is mapped and aligned.
        let ticket = unsafe { Rmw::fetch_add(reserved.as_ptr(), 1u64) };
        let (peer, free) = (request.header >> PEER, ticket.wrapping_add(1).wrapping_sub(layout.slots()));
        let expired = |expiry| self.give_up(expiry, peer as u32, free);
        if !self.poll(taken, Some(peer as u32), self.abi().deadline_ns, || taken.at_least(free), expired) {
            return ENDING;
        }
        let slot: *mut Request = with_exposed_provenance_mut((ring + layout.request(ticket)) as usize);
        // SAFETY: the slot is mapped (`Ctx::new`) and this thread's until it publishes it, because the proxy has taken what was there:
        // the release store of the header makes the fields the proxy's.
        unsafe {
            arch::store(&raw mut (*slot).peer, peer);
            arch::store(&raw mut (*slot).remote, request.remote);
            arch::store(&raw mut (*slot).local, request.local);
            arch::store(&raw mut (*slot).bytes, request.bytes);
            arch::store(&raw mut (*slot).value, request.value);
            arch::store(&raw mut (*slot).second, request.second);
            arch::store(&raw mut (*slot).signal, request.signal);
            let header = request.header & ((1 << PEER) - 1) | Request::parity(layout.lap(ticket));
            arch::store_release(&raw mut (*slot).header, header);
        }
        // The proxy of all rings sleeps on the count of the first.
        // SAFETY: the first ring of this context has this word.
        self.wake(self.pe(), unsafe { count(self.abi().ring, offset_of!(Ring, reserved)) });
        ticket
    }

    /// Waits for the reply to request `ticket` to a peer, and gives its place back. Nothing when the kernel must end.
    #[cold]
    pub(crate) fn reply(&self, pe: Pe, ticket: u64) -> Option<u64> {
        if !self.complete(pe, ticket, Complete::AtPeer) {
            return None;
        }
        let reply: *mut Reply = with_exposed_provenance_mut((self.ring() + self.layout().reply(ticket)) as usize);
        // SAFETY: the place is mapped (`Ctx::new`), and this thread's until it says that it has read.
        unsafe {
            let value = arch::load(&raw const (*reply).value);
            arch::store_release(&raw mut (*reply).read, ticket.wrapping_add(1));
            Some(value)
        }
    }

    outlined! {
        /// Waits until everything that was asked before is complete. False when the kernel must end.
        pub(crate) fn drained(&self) -> bool {
            let (mut ring, mut left) = (self.abi().ring, self.abi().rings);
            // SAFETY: a context's rings lie one behind the other, and `left` of them from this one on.
            while left > 0 && unsafe { self.ring_drained(ring) } {
                ring += self.layout().bytes();
                left -= 1;
            }
            left == 0
        }
    }

    /// # Safety
    /// The ring is one of this context's.
    #[inline(always)]
    unsafe fn ring_drained(&self, ring: u64) -> bool {
        // SAFETY: as of this function; both are words of a ring.
        let (asked, complete) =
            unsafe { (count(ring, offset_of!(Ring, reserved)), count(ring, offset_of!(Ring, complete))) };
        self.reached_count(complete, NO_PE, asked.load())
    }

    outlined! {
        /// Waits until everything that this block asked of a peer before is complete. False when the kernel must end.
        pub(crate) fn drained_to(&self, pe: Pe) -> bool {
            let ring = self.ring();
            // SAFETY: both are words of a ring, which is this context's.
            let (asked, complete) =
                unsafe { (count(ring, offset_of!(Ring, reserved)), count(ring, offset_of!(Ring, complete))) };
            if complete.at_least(asked.load()) {
                return true;
            }
            // What is asked of a peer is complete in order: so this is, once all before it are.
            let header = Request::header(Verb::Signal, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
            self.complete(pe, self.ask_range(header | to(pe), 0, 0, 0, 0, 0), Complete::AtPeer)
        }
    }

    outlined! {
        /// Waits until request `ticket` to a peer is complete. False when the kernel must end, and where there is no request for that.
        pub(crate) fn complete(&self, pe: Pe, ticket: u64, at: Complete) -> bool {
            let word = match at {
                Complete::Locally => self.layout().local(pe.raw()),
                Complete::AtPeer => self.layout().through(pe.raw()),
            };
            // SAFETY: the ring is this context's, and has such a word for each PE.
            let word = unsafe { count(self.ring(), word as usize) };
            ticket != ENDING && self.reached_count(word, pe.raw(), ticket.wrapping_add(1))
        }
    }

    /// Waits until a word of a ring is at least `count`.
    #[inline(always)]
    fn reached_count(&self, word: Polled, peer: u32, count: u64) -> bool {
        self.poll(
            word,
            Some(peer),
            self.abi().deadline_ns,
            || word.at_least(count),
            |expiry| self.give_up(expiry, peer, count),
        )
    }

    #[cold]
    #[inline(always)]
    fn give_up(&self, expiry: Expiry, peer: u32, count: u64) {
        self.leave(Cause::Proxy { peer, expected: count, seen: expiry.seen, waited_ns: expiry.waited_ns });
    }

    /// The ring of this block: mapped, with what goes with it, where peers are proxied, which callers have found.
    #[inline(always)]
    fn ring(&self) -> u64 {
        let index = self.lane.block() & self.abi().rings.wrapping_sub(1);
        self.abi().ring + u64::from(index) * self.layout().bytes()
    }

    #[inline(always)]
    fn layout(&self) -> RingLayout {
        RingLayout::new(self.abi().log2_slots, self.abi().npes)
    }
}

/// Where a request is to be complete.
#[derive(Clone, Copy)]
pub(crate) enum Complete {
    /// A put's source may be overwritten.
    Locally,
    /// Its data has arrived.
    AtPeer,
}

/// What an atomic computes, and of how many bytes.
#[derive(Clone, Copy)]
pub(crate) struct Computed {
    pub(crate) op: AtomicOp,
    pub(crate) kind: NumberKind,
    pub(crate) bytes: u64,
}

/// The word at `offset` of a ring.
///
/// # Safety
/// The ring is one of this context's, and has a word there.
#[inline(always)]
unsafe fn count(ring: u64, offset: usize) -> Polled {
    // SAFETY: a ring and its words are mapped for as long as kernels run (`Ctx::new`), and aligned.
    unsafe { Polled::new(with_exposed_provenance_mut(ring as usize + offset)) }
}

/// Where in a header the peer is, on its way to the ring: a request has fields enough, but a function not arguments.
const PEER: u32 = 32;

#[inline(always)]
pub(crate) const fn to(pe: Pe) -> u64 {
    (pe.raw() as u64) << PEER
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
