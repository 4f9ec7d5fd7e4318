//! A network that goes wrong on purpose, by a seed: what real ones do once in a while, all the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use congruent_heap::Pe;

use crate::{Atomic, Event, Failure, Network, Post, Reach, Reconnect, TransportError};

/// How a [`Faulty`] network goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// What chance begins with. Each PE has chances of its own.
    pub seed: u64,
    /// What is posted is held back for up to so many polls, so that it is overtaken.
    pub delay: u32,
    /// How long a write of data is on the wire, of which each PE has one.
    pub wire: Duration,
    /// Of so many things that are posted, one is lost, one is done and told as failed, one fails undone, and one comes twice. 0 for
    /// never.
    pub one_of: u32,
    /// Whether what is posted to a peer keeps its order: then nothing is lost or comes twice, and behind what fails all fails until the
    /// connection is made anew, of which some may have been done, if that was.
    pub in_order: bool,
    /// Whether peers are told of writes that have arrived, where the other network does that.
    pub tells_arrivals: bool,
}

impl Faults {
    /// What the suites use.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, delay: 8, wire: Duration::ZERO, one_of: 2000, in_order: false, tells_arrivals: seed % 2 == 1 }
    }
}

/// A network over another one, which delays, reorders, duplicates, loses and fails.
///
/// Messages are delayed, overtake each other, come twice or never; writes and reads are delayed and overtake each other. Anything
/// may fail, done or not, with any failure that [passes](Failure::passes). A lost message may be told as sent.
pub struct Faulty<N> {
    network: N,
    faults: Faults,
    chance: u64,
    polls: u64,
    /// When the wire has no more on it.
    idle: Instant,
    held: Vec<Held>,
    /// What is under way in the other network, and fails when it ends.
    fails: HashMap<u64, Failure>,
    /// The next thing that is posted to this PE fails so.
    next: Option<(Pe, Failure)>,
    /// Failed connections that keep order, and how many more things are done over them.
    broken: HashMap<Pe, u64>,
}

struct Held {
    /// At which poll at the earliest, and when.
    due: u64,
    at: Instant,
    id: u64,
    peer: Pe,
    post: Owned,
    fate: Fate,
}

enum Owned {
    Write { remote: u64, local: u64, bytes: u64, arrival: Option<u32>, data: Option<Vec<u8>> },
    Read { remote: u64, local: u64, bytes: u64 },
    Atomic { remote: u64, atomic: Atomic },
    Send(Vec<u8>),
}

impl Owned {
    fn of(post: Post<'_>) -> Self {
        match post {
            Post::Write { remote, local, bytes, arrival, data } => {
                Self::Write { remote, local, bytes, arrival, data: data.map(<[u8]>::to_vec) }
            }
            Post::Read { remote, local, bytes } => Self::Read { remote, local, bytes },
            Post::Atomic { remote, atomic } => Self::Atomic { remote, atomic },
            Post::Send(message) => Self::Send(message.to_vec()),
        }
    }

    fn lend(&self) -> Post<'_> {
        match *self {
            Self::Write { remote, local, bytes, arrival, ref data } => {
                Post::Write { remote, local, bytes, arrival, data: data.as_deref() }
            }
            Self::Read { remote, local, bytes } => Post::Read { remote, local, bytes },
            Self::Atomic { remote, atomic } => Post::Atomic { remote, atomic },
            Self::Send(ref message) => Post::Send(message),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    FailsDone(Failure),
    FailsUndone(Failure),
    IsLost,
    IsACopy,
}

/// In the id of a copy, of which nobody asks how it ends.
const COPY: u64 = 1 << 63;

impl<N: Network> Faulty<N> {
    /// Goes wrong as `faults` says, for PE `pe`.
    pub fn new(network: N, pe: Pe, faults: Faults) -> Self {
        let chance = faults.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(pe.raw()));
        let (held, fails, broken) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { network, faults, chance, polls: 0, idle: Instant::now(), held, fails, next: None, broken }
    }

    /// Has the next thing that is posted to `peer` fail so, without being done.
    pub fn fail_next(&mut self, peer: Pe, failure: Failure) {
        self.next = Some((peer, failure));
    }

    /// A number below `below`, by SplitMix64.
    fn draw(&mut self, below: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }

    fn fate(&mut self, peer: Pe, is_message: bool) -> Fate {
        if let Some((_, failure)) = self.next.take_if(|(to, _)| *to == peer) {
            if self.faults.in_order {
                self.broken.insert(peer, 0);
            }
            return Fate::FailsUndone(failure);
        }
        if let Some(more) = self.broken.get_mut(&peer) {
            *more = more.saturating_sub(1);
            return if *more > 0 { Fate::FailsDone(Failure::Flushed) } else { Fate::FailsUndone(Failure::Flushed) };
        }
        if self.faults.one_of == 0 {
            return Fate::Passes;
        }
        let passing = Failure::ALL.into_iter().filter(|failure| failure.passes());
        let which = self.draw(passing.clone().count() as u64) as usize;
        let failure = passing.clone().nth(which).unwrap_or(Failure::Reset);
        let fate = match self.draw(self.faults.one_of.into()) {
            0 => Fate::FailsDone(failure),
            1 => Fate::FailsUndone(failure),
            2 if is_message && !self.faults.in_order => Fate::IsLost,
            3 if is_message && !self.faults.in_order => Fate::IsACopy,
            _ => return Fate::Passes,
        };
        if self.faults.in_order {
            let more = if fate == Fate::FailsDone(failure) { self.draw(4) } else { 0 };
            self.broken.insert(peer, more);
        }
        fate
    }

    fn hold(&mut self, id: u64, peer: Pe, post: Post<'_>, fate: Fate) {
        let mut due = self.polls + self.draw(u64::from(self.faults.delay) + 1);
        if self.faults.in_order {
            let before = self.held.iter().filter(|held| held.peer == peer).map(|held| held.due);
            due = before.max().unwrap_or(0).max(due);
        }
        let mut at = Instant::now();
        if matches!(post, Post::Write { .. }) && !self.faults.wire.is_zero() {
            at = self.idle.max(at) + self.faults.wire;
            self.idle = at;
        }
        self.held.push(Held { due, at, id, peer, post: Owned::of(post), fate });
    }
}

impl<N: Network> Network for Faulty<N> {
    fn card(&self) -> Vec<u8> {
        self.network.card()
    }

    fn reach(&self) -> Reach {
        // One that fails would end what asks for it.
        if self.faults.one_of == 0 { self.network.reach() } else { self.network.reach().min(Reach::Data) }
    }

    fn is_ordered(&self) -> bool {
        self.faults.in_order
    }

    fn tells_arrivals(&self) -> bool {
        self.faults.tells_arrivals && self.network.tells_arrivals()
    }

    fn connect(&mut self, cards: &[Vec<u8>]) -> Result<(), TransportError> {
        self.network.connect(cards)
    }

    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool {
        let fate = self.fate(peer, matches!(post, Post::Send(_)));
        if fate == Fate::IsACopy {
            self.hold(id | COPY, peer, post, Fate::Passes);
        }
        self.hold(id, peer, post, fate);
        true
    }

    fn submit(&mut self) {
        self.network.submit();
    }

    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>)) {
        self.polls += 1;
        let (polls, now, fails, network) = (self.polls, Instant::now(), &mut self.fails, &mut self.network);
        self.held.retain(|held| {
            if held.due > polls || held.at > now {
                return true;
            }
            match held.fate {
                Fate::FailsUndone(failure) => hear(Event::Failed(held.id, failure)),
                Fate::IsLost => hear(Event::Done(held.id)),
                fate => {
                    if !network.post(held.id, held.peer, held.post.lend()) {
                        return true;
                    }
                    if let Fate::FailsDone(failure) = fate {
                        fails.insert(held.id, failure);
                    }
                }
            }
            false
        });
        network.poll(&mut |event| match event {
            Event::Done(id) | Event::Failed(id, _) if id & COPY != 0 => {}
            Event::Done(id) | Event::Fetched(id, _) if fails.contains_key(&id) => {
                fails.remove(&id).into_iter().for_each(|failure| hear(Event::Failed(id, failure)));
            }
            event => hear(event),
        });
    }

    fn reconnect(&mut self, peer: Pe) -> Reconnect {
        self.broken.remove(&peer);
        self.network.reconnect(peer)
    }
}
