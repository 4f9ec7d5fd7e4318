//! The rings that a PE's kernels ask its proxy by: where they are, and the consumer's side of one.
#![allow(clippy::disallowed_types, reason = "the consumer's side of the rings that kernels write")]

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use congruent_device::abi;
use congruent_heap::abi::{Reply, Request, Ring, RingLayout, Route, Verb};

/// How many rings a PE has, and how many requests each holds: two to these powers.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) log2_rings: u32,
    pub(crate) log2_slots: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { log2_rings: 2, log2_slots: 8 }
    }
}

/// What the proxy and the kernels share: the rings, and behind them the route table.
#[derive(Clone, Copy)]
pub(crate) struct Rings {
    first: u64,
    npes: u32,
    shape: Shape,
}

impl Rings {
    /// What they take, in lines of 64 bytes.
    pub(crate) fn lines(npes: u32, shape: Shape) -> usize {
        let layout = RingLayout::new(shape.log2_slots, npes);
        let bytes = (layout.bytes() << shape.log2_rings) + u64::from(npes) * size_of::<Route>() as u64;
        bytes.div_ceil(64) as usize
    }

    /// Rings, and behind them the table of routes to all PEs.
    ///
    /// # Safety
    /// There are so many zeroed [`lines`](Self::lines), which start at a multiple of 64 bytes, and outlive this, all that is made of it
    /// and all kernels that are given it. Nobody else has them.
    pub(crate) unsafe fn new(memory: *mut u8, table: &[Route], shape: Shape) -> Self {
        let rings = Self { first: memory.expose_provenance() as u64, npes: table.len() as u32, shape };
        let routes: *mut u32 = with_exposed_provenance_mut(rings.routes() as usize);
        for (peer, &route) in table.iter().enumerate() {
            // SAFETY: the table has an entry for each PE, and nobody else has it yet.
            unsafe { routes.add(peer).write(route as u32) };
        }
        rings
    }

    /// The context of a PE whose kernels use these.
    pub(crate) fn context(&self, context: abi::Context) -> abi::Context {
        let Shape { log2_rings, log2_slots } = self.shape;
        abi::Context { routes: self.routes(), ring: self.first, rings: 1 << log2_rings, log2_slots, ..context }
    }

    /// The consumer of each ring. There is one of each.
    pub(crate) fn consumers(&self) -> Vec<Consumer> {
        let layout = self.layout();
        let first = |ring| self.first + ring * layout.bytes();
        let awaited = || vec![0; layout.slots() as usize];
        (0..1 << self.shape.log2_rings)
            .map(|ring| Consumer { at: first(ring), layout, next: 0, told: 0, awaited: awaited() })
            .collect()
    }

    /// Numbers a request of a ring among those of all rings.
    pub(crate) fn number(&self, ring: usize, ticket: u64) -> u64 {
        ticket << self.shape.log2_rings | ring as u64
    }

    /// The ring and the ticket of a number.
    pub(crate) fn ticket(&self, number: u64) -> (usize, u64) {
        let ring = number & ((1 << self.shape.log2_rings) - 1);
        (ring as usize, number >> self.shape.log2_rings)
    }

    fn layout(&self) -> RingLayout {
        RingLayout::new(self.shape.log2_slots, self.npes)
    }

    fn routes(&self) -> u64 {
        self.first + (self.layout().bytes() << self.shape.log2_rings)
    }
}

/// The end of a ring at which requests are taken.
pub(crate) struct Consumer {
    at: u64,
    layout: RingLayout,
    /// The ticket of the next request.
    next: u64,
    /// How many requests producers know to be taken.
    told: u64,
    /// Of each slot, one more than the ticket of the last request that wants its reply there.
    awaited: Vec<u64>,
}

impl Consumer {
    /// The ticket of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// How many requests were ever asked for.
    pub(crate) fn reserved(&self) -> u64 {
        self.word(std::mem::offset_of!(Ring, reserved)).load(Ordering::Acquire)
    }

    /// Whether a request was asked for that is not taken.
    pub(crate) fn is_behind(&self) -> bool {
        self.next < self.reserved()
    }

    /// Whether the next request was asked for and is not published.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_behind() && !self.is_published()
    }

    #[inline]
    fn is_published(&self) -> bool {
        let header = self.word(self.layout.request(self.next) as usize).load(Ordering::Acquire);
        header & Request::PARITY == Request::parity(self.layout.lap(self.next)) && header & 0xff != 0
    }

    /// Takes the next request with its ticket, once its producer has published it. Its slot is free once producers are [told](Self::tell).
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u64, Request)> {
        let ticket = self.next;
        if !self.is_published() {
            return None;
        }
        let slot: *mut Request = with_exposed_provenance_mut((self.at + self.layout.request(ticket)) as usize);
        // SAFETY: a published slot is not written again before it is told to be taken, and the acquire load of the header, which comes
        // first in it, makes its fields visible.
        let request = unsafe { slot.read() };
        if request.verb().is_some_and(Verb::replies) {
            let read = self.layout.reply(ticket) as usize + std::mem::offset_of!(Reply, read);
            let read = self.word(read).load(Ordering::Acquire);
            let awaited = &mut self.awaited[(ticket % self.layout.slots()) as usize];
            if *awaited != 0 && read != *awaited {
                return None;
            }
            *awaited = ticket + 1;
        }
        self.next = ticket + 1;
        Some((ticket, request))
    }

    /// Tells producers what was taken, a quarter of the ring at a time: they look at that word for each request. Nobody waits longer for
    /// it, because whoever finds no room has a whole ring of requests ahead of him that will be taken. Gives the word that they sleep on.
    #[inline]
    pub(crate) fn tell(&mut self) -> Option<*const u32> {
        let untold = self.next - self.told;
        (untold > 0 && untold >= self.layout.slots() / 4).then(|| {
            self.told = self.next;
            self.publish(std::mem::offset_of!(Ring, taken), self.next)
        })
    }

    /// Leaves the reply to a request that is about to be complete.
    pub(crate) fn reply(&self, ticket: u64, value: u64) {
        let at = self.layout.reply(ticket) as usize + std::mem::offset_of!(Reply, value);
        self.word(at).store(value, Ordering::Relaxed);
    }

    /// Tells producers how far puts to a peer are locally complete. Gives the word that they sleep on.
    pub(crate) fn tell_local(&self, peer: u32, count: u64) -> *const u32 {
        self.publish(self.layout.local(peer) as usize, count)
    }

    /// Tells producers how far requests to a peer are complete. Gives the word that they sleep on.
    pub(crate) fn tell_through(&self, peer: u32, count: u64) -> *const u32 {
        self.publish(self.layout.through(peer) as usize, count)
    }

    /// Tells producers how far requests to all peers are. Gives the word that they sleep on.
    pub(crate) fn tell_complete(&self, count: u64) -> *const u32 {
        self.publish(std::mem::offset_of!(Ring, complete), count)
    }

    /// The word that changes with each request that is asked for.
    pub(crate) fn bell(&self) -> *const u32 {
        low_half(self.word(std::mem::offset_of!(Ring, reserved)))
    }

    /// Whoever waits for this sees what was done before.
    fn publish(&self, offset: usize, count: u64) -> *const u32 {
        let word = self.word(offset);
        word.store(count, Ordering::Release);
        low_half(word)
    }

    /// A word of the ring.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word is in the ring, which outlives its consumer, and aligned; all access it atomically (`device/src/proxy.rs`).
        unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(self.at as usize + offset)) }
    }
}

/// The half of a word that lanes sleep on: the one that changes with every count.
fn low_half(word: &AtomicU64) -> *const u32 {
    word.as_ptr().cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")))
}
