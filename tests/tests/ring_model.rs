//! The protocol of a ring in a model checker: producers reserve, wait for room, publish, and wait for their requests; the proxy takes,
//! tells that it took, replies, and tells that it is through. Every order of these steps is tried that memory allows.
//!
//! The steps are those of `ask`, `complete` and `reply` in `device/src/proxy.rs`, and of `Consumer` in `host/src/rings.rs`, in their
//! order and with theirs. What they share beside counts is plain here: an access that nothing orders with another fails the test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use congruent_heap::abi::Request;

const PRODUCERS: u64 = 2;
/// How often a thread that could go on is put behind another one: all orders with so few of it are tried. What the weak steps below do
/// wrong takes one.
const PREEMPTIONS: usize = 2;

/// A step that is weaker than it must be.
#[derive(Clone, Copy, PartialEq)]
enum Weak {
    Nothing,
    /// The header is published without release.
    Publish,
    /// The slot is told to be taken before it was read.
    TakenEarly,
    /// Whoever waits for room does not acquire.
    Room,
    /// It is told without release how far requests to a peer are.
    Through,
    /// A request that wants a reply is taken while another reply lies unread where its own goes.
    ReplyUnread,
    /// The header does not tell laps apart.
    NoParity,
}

struct Slot {
    header: AtomicU64,
    request: UnsafeCell<u64>,
    reply: UnsafeCell<u64>,
    read: AtomicU64,
}

struct Ring {
    weak: Weak,
    reserved: AtomicU64,
    taken: AtomicU64,
    complete: AtomicU64,
    slots: Vec<Slot>,
    /// For each producer, whose peer nobody else asks anything of.
    through: Vec<AtomicU64>,
    /// What its peer has.
    arrived: Vec<UnsafeCell<u64>>,
}

impl Ring {
    fn new(slots: u64, weak: Weak) -> Self {
        let slot = |_| Slot {
            header: AtomicU64::new(0),
            request: UnsafeCell::new(0),
            reply: UnsafeCell::new(0),
            read: AtomicU64::new(0),
        };
        Self {
            weak,
            reserved: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            complete: AtomicU64::new(0),
            slots: (0..slots).map(slot).collect(),
            through: (0..PRODUCERS).map(|_| AtomicU64::new(0)).collect(),
            arrived: (0..PRODUCERS).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[(ticket % self.slots.len() as u64) as usize]
    }

    fn parity(&self, ticket: u64) -> u64 {
        if self.weak == Weak::NoParity { 0 } else { Request::parity(ticket / self.slots.len() as u64) }
    }

    fn or_relaxed(&self, weak: Weak, order: Ordering) -> Ordering {
        if self.weak == weak { Ordering::Relaxed } else { order }
    }

    fn ask(&self, request: u64) -> u64 {
        let ticket = self.reserved.fetch_add(1, Ordering::Relaxed);
        let free = (ticket + 1).wrapping_sub(self.slots.len() as u64);
        let order = self.or_relaxed(Weak::Room, Ordering::Acquire);
        while (self.taken.load(order).wrapping_sub(free) as i64) < 0 {
            thread::yield_now();
        }
        let slot = self.slot(ticket);
        // SAFETY: the model fails where another thread has it.
        slot.request.with_mut(|place| unsafe { *place = request });
        slot.header.store(self.parity(ticket) | 1, self.or_relaxed(Weak::Publish, Ordering::Release));
        ticket
    }

    fn complete(&self, peer: u64, ticket: u64) {
        while self.through[peer as usize].load(Ordering::Acquire) < ticket + 1 {
            thread::yield_now();
        }
    }

    fn reply(&self, peer: u64, ticket: u64) -> u64 {
        self.complete(peer, ticket);
        let slot = self.slot(ticket);
        // SAFETY: the model fails where another thread has it.
        let reply = slot.reply.with(|place| unsafe { *place });
        slot.read.store(ticket + 1, Ordering::Release);
        reply
    }

    /// Takes the next request, once its producer has published it.
    fn take(&self, next: u64, awaited: &mut [u64]) -> u64 {
        let (slot, awaited) = (self.slot(next), &mut awaited[(next % self.slots.len() as u64) as usize]);
        while slot.header.load(Ordering::Acquire) != self.parity(next) | 1 {
            thread::yield_now();
        }
        let tell = || self.taken.store(next + 1, Ordering::Release);
        if self.weak == Weak::TakenEarly {
            tell();
        }
        // SAFETY: the model fails where another thread has it.
        let request = slot.request.with(|place| unsafe { *place });
        let unread = || *awaited != 0 && slot.read.load(Ordering::Acquire) != *awaited;
        while self.weak != Weak::ReplyUnread && unread() {
            thread::yield_now();
        }
        *awaited = next + 1;
        tell();
        request
    }

    /// Does what was asked for, and says so.
    fn serve(&self, ticket: u64, peer: u64, request: u64) {
        // SAFETY: the model fails where another thread has it.
        self.arrived[peer as usize].with_mut(|place| unsafe { *place = request });
        // SAFETY: as above.
        self.slot(ticket).reply.with_mut(|place| unsafe { *place = request + 1000 });
        self.through[peer as usize].store(ticket + 1, self.or_relaxed(Weak::Through, Ordering::Release));
        self.complete.store(ticket + 1, Ordering::Release);
    }
}

/// One producer asks for a few things, and waits for all of them, with replies as lanes of a warp do. Or two ask at the same time, each
/// of a peer of its own, where there is room: several who wait by turns are more than can be tried.
fn asked_and_served(producers: u64, slots: u64, replies: bool, weak: Weak) {
    let waits = producers == 1;
    let each = if !waits {
        1
    } else if replies {
        2
    } else {
        3
    };
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let ring = Arc::new(Ring::new(slots, weak));
        let start = |producer| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let requests = (0..each).map(|i| 10 * producer + i);
                let tickets: Vec<_> = requests.clone().map(|request| ring.ask(request)).collect();
                for (&ticket, request) in tickets.iter().zip(requests).filter(|_| replies) {
                    assert_eq!(ring.reply(producer, ticket), request + 1000, "its own reply");
                }
                if !waits {
                    return;
                }
                ring.complete(producer, tickets[tickets.len() - 1]);
                // SAFETY: the model fails where another thread has it.
                let arrived = ring.arrived[producer as usize].with(|place| unsafe { *place });
                assert_eq!(arrived, 10 * producer + each - 1, "what was asked for last has arrived");
            })
        };
        let running: Vec<_> = (0..producers).map(start).collect();
        let mut awaited = vec![0; slots as usize];
        let mut next = [0; PRODUCERS as usize];
        for ticket in 0..producers * each {
            let request = ring.take(ticket, &mut awaited);
            let producer = request / 10;
            assert_eq!(request % 10, next[producer as usize], "once, and in order");
            next[producer as usize] += 1;
            if !replies {
                awaited.fill(0);
            }
            ring.serve(ticket, producer, request);
        }
        running.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn requests_arrive_once_and_in_order() {
    for slots in [1, 2] {
        asked_and_served(1, slots, false, Weak::Nothing);
    }
    asked_and_served(PRODUCERS, 2, false, Weak::Nothing);
}

#[test]
fn replies_reach_who_asked() {
    for slots in [1, 2] {
        asked_and_served(1, slots, true, Weak::Nothing);
    }
}

macro_rules! found {
    ($($name:ident: $weak:ident, $slots:literal, $replies:literal, $how:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $how)]
        fn $name() {
            asked_and_served(1, $slots, $replies, Weak::$weak);
        }
    )*};
}

// The model finds each of these, so it would find them in the protocol.
found! {
    a_header_without_release_is_found: Publish, 2, false, "Causality violation";
    a_slot_that_is_free_too_early_is_found: TakenEarly, 1, false, "Causality violation";
    a_wait_for_room_without_acquire_is_found: Room, 1, false, "Causality violation";
    a_count_without_release_is_found: Through, 2, false, "Causality violation";
    a_reply_over_another_is_found: ReplyUnread, 1, true, "Causality violation";
    laps_without_parity_are_found: NoParity, 1, false, "once, and in order";
}
