//! Two PEs of one process, joined by an RDMA device and nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use congruent_heap::Pe;
use congruent_heap::abi::{self, Context};
use congruent_transports::{Access, Atomic, Event, Failure, Memory, Network, Post, Reconnect, Verbs, VerbsOptions};

/// Words of each heap.
pub(crate) const WORDS: usize = 1 << 13;
/// How long a test waits for something, by an emulated processor.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections are given up soon.
const OPTIONS: VerbsOptions<'_> = VerbsOptions { hca: None, turn: 0, gid_index: None, timeout: 12, retries: 3 };

/// Nobody but the device accesses the heaps.
#[derive(Debug)]
struct Untouched;

impl Access for Untouched {
    unsafe fn copy(&self, _to: *mut u8, _from: *const u8, _bytes: usize) -> Result<(), String> {
        Err("no proxy is here".into())
    }
    unsafe fn load(&self, _from: *const u8, _bytes: usize) -> Result<u64, String> {
        Err("no proxy is here".into())
    }
    unsafe fn store(&self, _to: *mut u8, _bytes: usize, _value: u64) -> Result<(), String> {
        Err("no proxy is here".into())
    }
    unsafe fn atomic(&self, _at: *mut u8, _atomic: Atomic) -> Result<u64, String> {
        Err("no proxy is here".into())
    }
    unsafe fn wake(&self, _sleepers: *const u8, _word: *const u8) {}
}

/// Both, and what each has heard.
pub(crate) struct TwoEnds {
    // Closed before the heaps that are registered with it.
    ends: [Verbs; 2],
    heaps: Box<[u64]>,
    /// With what atomics gave.
    ended: [HashMap<u64, Result<u64, Failure>>; 2],
    messages: [Vec<Vec<u8>>; 2],
    posted: u64,
}

impl TwoEnds {
    /// Joined by the cards that they give each other, of which PE 0 gets PE 1's after `change`. Word i of PE p is p << 32 | i.
    pub(crate) fn joined(change: impl Fn(&mut Vec<u8>)) -> Self {
        let words = |pe: u64| (0..WORDS as u64).map(move |word| pe << 32 | word);
        let mut heaps: Box<[u64]> = words(0).chain(words(1)).collect();
        let base = heaps.as_mut_ptr().expose_provenance() as u64;
        let mut ends = [0, 1].map(|pe| {
            let context = Context {
                base,
                stride: WORDS as u64 * 8,
                heap_bytes: WORDS as u64 * 8,
                control: 0,
                routes: 0,
                ring: 0,
                deadline_ns: abi::NO_DEADLINE,
                world_sync: 0,
                pe,
                npes: 2,
                block_slots: 1,
                version: abi::VERSION,
                multicast: 0,
                windows: 0,
                launch: 0,
                rings: 0,
                log2_slots: 0,
            };
            // SAFETY: the heaps stay where they are until both ends are closed. Words are looked at when all that was posted has ended.
            unsafe { Verbs::open(Memory::new(context, Arc::new(Untouched)), &OPTIONS).unwrap() }
        });
        let mut cards = ends.each_ref().map(|end| end.card()).to_vec();
        ends[1].connect(&cards).unwrap();
        change(&mut cards[1]);
        ends[0].connect(&cards).unwrap();
        Self { ends, heaps, ended: Default::default(), messages: Default::default(), posted: 0 }
    }

    /// Posts something from a PE to the other.
    pub(crate) fn post(&mut self, from: usize, post: Post<'_>) -> u64 {
        let id = self.keep(from, post);
        self.ends[from].submit();
        id
    }

    /// Posts something from a PE to itself.
    pub(crate) fn post_to_own(&mut self, pe: usize, post: Post<'_>) -> u64 {
        let id = self.keep_to(pe, pe, post);
        self.ends[pe].submit();
        id
    }

    /// The same, to be given to the device with what is posted next.
    pub(crate) fn keep(&mut self, from: usize, post: Post<'_>) -> u64 {
        self.keep_to(from, 1 - from, post)
    }

    fn keep_to(&mut self, from: usize, to: usize, post: Post<'_>) -> u64 {
        self.posted += 1;
        assert!(self.ends[from].post(self.posted, Pe::new(to as u32), post), "there is room");
        self.posted
    }

    /// Hears what one has to tell.
    pub(crate) fn poll(&mut self, pe: usize) {
        let (ended, messages) = (&mut self.ended[pe], &mut self.messages[pe]);
        self.ends[pe].poll(&mut |event| match event {
            Event::Done(id) => assert!(ended.insert(id, Ok(0)).is_none(), "{id} has ended twice"),
            Event::Fetched(id, old) => assert!(ended.insert(id, Ok(old)).is_none(), "{id} has ended twice"),
            Event::Failed(id, failure) => assert!(ended.insert(id, Err(failure)).is_none(), "{id} has ended twice"),
            Event::Messages(message) => messages.push(message.to_vec()),
            Event::Arrived(number) => panic!("nobody asked to be told of {number}"),
        });
    }

    /// How many messages have come to a PE that were not looked at.
    pub(crate) fn messages_so_far(&self, pe: usize) -> usize {
        self.messages[pe].len()
    }

    pub(crate) fn poll_both(&mut self) {
        (0..2).for_each(|pe| self.poll(pe));
    }

    /// How something that a PE has posted ends.
    pub(crate) fn end_of(&mut self, pe: usize, id: u64) -> Result<(), Failure> {
        self.value_of(pe, id).map(drop)
    }

    /// The same, with what an atomic gave.
    pub(crate) fn value_of(&mut self, pe: usize, id: u64) -> Result<u64, Failure> {
        let start = Instant::now();
        loop {
            self.poll_both();
            if let Some(ended) = self.ended[pe].get(&id) {
                return *ended;
            }
            assert!(start.elapsed() < PATIENCE, "PE {pe}: {id} does not end");
        }
    }

    /// The next message that comes to a PE.
    pub(crate) fn message(&mut self, pe: usize) -> Vec<u8> {
        let start = Instant::now();
        while self.messages[pe].is_empty() {
            self.poll_both();
            assert!(start.elapsed() < PATIENCE, "no message comes to PE {pe}");
        }
        self.messages[pe].remove(0)
    }

    /// Asks one to connect anew.
    pub(crate) fn reconnect(&mut self, pe: usize) -> Reconnect {
        self.ends[pe].reconnect(Pe::new(1 - pe as u32))
    }

    /// Connects both anew.
    pub(crate) fn renew(&mut self) {
        let start = Instant::now();
        while [0, 1].map(|pe| self.reconnect(pe)) != [Reconnect::Done; 2] {
            self.poll_both();
            assert!(start.elapsed() < PATIENCE, "they are not connected anew");
        }
    }

    /// A word of a heap.
    pub(crate) fn word(&self, pe: usize, word: usize) -> u64 {
        // SAFETY: nothing is under way to it. The device has written it, which the compiler does not know.
        unsafe { self.heaps.as_ptr().add(pe * WORDS + word).read_volatile() }
    }
}
