use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::memory::tests::heaps;
use crate::{Atomic, Exchange, Faults, Faulty, InProcess, Signal};

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
    /// Writes whose sources may be overwritten, of all PEs.
    local: Vec<u64>,
    /// Whether every signal is expected to be answered soon.
    expects: bool,
    _heaps: Vec<u64>,
}

impl Job {
    fn new(npes: u32, patience: Duration, faults: Faults, fails: Option<(Pe, Failure)>) -> Self {
        Self::over(npes, patience, faults, fails, Reach::Data)
    }

    /// The same, of networks that do this to heaps.
    fn over(npes: u32, patience: Duration, faults: Faults, fails: Option<(Pe, Failure)>, reach: Reach) -> Self {
        let mut words = vec![0; npes as usize * HEAP as usize / 8];
        let memories: Vec<_> = (0..npes).map(|pe| heaps(&mut words, npes, pe)).collect();
        let exchange = Arc::new(Exchange::new(npes));
        let shell = |memory: &Memory| {
            // SAFETY: all heaps are there.
            let network = unsafe { InProcess::new(memory.clone(), Arc::clone(&exchange)) };
            let mut network = Faulty::new(network, memory.pe(), faults);
            fails.iter().for_each(|&(peer, failure)| network.fail_next(peer, failure));
            Shell::new(Box::new(network), memory.clone(), patience, reach)
        };
        let shells = memories.iter().map(shell).collect();
        let expects = faults.seed % 2 == 1;
        Self { memories, shells, ended: vec![Vec::new(); npes as usize], local: Vec::new(), expects, _heaps: words }
    }

    fn start(&mut self, pe: usize, ticket: u64, peer: u32, operation: Operation) {
        self.shells[pe].start(ticket, Pe::new(peer), operation).unwrap();
    }

    fn poll(&mut self, pe: usize) {
        if self.expects {
            self.shells[pe].book.peers.iter_mut().for_each(|peer| peer.quick = QUICK);
        }
        let ended = &mut self.ended[pe];
        self.shells[pe].poll(&mut |ticket, progress| match progress {
            Progress::Local => self.local.push(ticket),
            Progress::Ended(reply) => ended.push((ticket, reply)),
        });
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
    Faults { seed: 0, delay: 0, wire: Duration::ZERO, one_of: 0, in_order: false, tells_arrivals: false }
}

fn wrong(seed: u64) -> Faults {
    Faults { one_of: 20, tells_arrivals: false, ..Faults::seeded(seed) }
}

/// The networks that a seed stands for: with no order, by messages alone and not, one that tells of arrivals, and one that keeps order.
fn networks(seed: u64) -> [(Faults, Reach); 4] {
    let [tells, keeps_order] =
        [Faults { tells_arrivals: true, ..wrong(seed) }, Faults { in_order: true, ..wrong(seed) }];
    [(wrong(seed), Reach::Data), (wrong(seed), Reach::Nothing), (tells, Reach::Data), (keeps_order, Reach::Data)]
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
    for (faults, reach) in (0..40).flat_map(networks) {
        let mut job = Job::over(3, Duration::MAX, faults, None, reach);
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
                    assert_eq!(job.word(peer, MARKS + FURTHER + 8 * round), round + 1, "{faults:?}");
                }
            }
        });
        for peer in [1, 2] {
            assert_eq!([SIGNAL, COUNT].map(|at| job.word(peer, at)), [ROUNDS; 2], "{faults:?}");
            let of_peer = |ticket: u64| ticket >= 3000 && ticket % 10 == u64::from(peer);
            let replies = job.ended[0].iter().filter(|(ticket, _)| of_peer(*ticket));
            let replies: Vec<_> = replies.map(|(_, reply)| reply.clone().unwrap()).collect();
            assert_eq!(replies, (0..ROUNDS).collect::<Vec<_>>(), "{faults:?}");
        }
    }
}

/// Signals alone go beside bulk writes, but before the signals of those that were asked for later; each once.
#[test]
fn signals_alone_are_not_overtaken_by_the_signals_of_bulk_writes() {
    for (faults, reach) in (0..40).flat_map(networks) {
        let mut job = Job::over(2, Duration::MAX, faults, None, reach);
        for round in 0..ROUNDS {
            let mark = MARKS + 8 * round;
            job.memories[0].store(Pe::new(0), mark, 8, round + 1).unwrap();
            let alone = Some(Signal { offset: COUNT, value: 1, set: false });
            job.start(0, 2 * round, 1, Operation::Write { remote: 0, local: 0, bytes: 0, then: alone });
            job.start(0, 2 * round + 1, 1, write(mark + 8 - FROM));
        }
        job.poll_until(2 * ROUNDS as usize, |job| {
            let done = job.word(1, SIGNAL);
            assert!((done..=ROUNDS).contains(&job.word(1, COUNT)), "{faults:?}");
            for round in 0..done {
                assert_eq!(job.word(1, MARKS + FURTHER + 8 * round), round + 1, "{faults:?}");
            }
        });
        assert_eq!([SIGNAL, COUNT].map(|at| job.word(1, at)), [ROUNDS; 2], "{faults:?}");
    }
}

/// Small puts by themselves, whose source is overwritten as soon as it may be, between all else and after pauses of every length: what comes
/// after one finds its data, and is not found by it.
#[test]
fn small_writes_keep_their_place() {
    /// What small puts write, and long ones at last, and what long ones with signals write at last.
    const WORD: u64 = FROM + FURTHER + 24_000;
    const LAST: u64 = FROM + FURTHER + LONG - 8;
    const LONG: u64 = 9000;
    // So that the numbers of messages come again.
    const ROUNDS: u64 = 4 * WINDOW as u64;
    for (seed, (faults, reach)) in (0..40).flat_map(|seed| networks(seed).map(|network| (seed, network))) {
        let mut job = Job::over(2, Duration::MAX, faults, None, reach);
        let mut chance = seed;
        let mut draw = |below: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % below
        };
        // By signal, what the words were when it was asked for.
        let (mut said, mut written, seen) = (vec![[0, 0]], [0, 0], Cell::new(0));
        let look = |job: &Job, said: &[[u64; 2]]| {
            let (signal, now) = (job.word(1, SIGNAL), [WORD, LAST].map(|at| job.word(1, at)));
            let least = said.get(signal as usize).copied().unwrap_or([u64::MAX; 2]);
            // Writes that are under way together, where there is order, are all done again where one fails.
            let stays = now[0] >= seen.replace(now[0]) || faults.in_order;
            let is_late = stays && now[0] >= least[0] && now[1] >= least[1];
            assert!(is_late, "{reach:?}, {faults:?}: {now:?} after {seen:?}, signal {signal} of {said:?}");
        };
        let mut asked = 0;
        for round in 1..=ROUNDS {
            let (put, then) = (asked, Some(Signal { offset: SIGNAL, value: 1, set: false }));
            let puts = draw(4) > 0;
            if puts {
                job.memories[0].store(Pe::new(0), FROM, 8, 2 * round).unwrap();
                job.start(0, put, 1, Operation::Write { remote: WORD, local: FROM, bytes: 8, then: None });
                written[0] = 2 * round;
                asked += 1;
            }
            for _ in 0..draw(4) {
                (0..2).for_each(|pe| job.poll(pe));
                look(&job, &said);
            }
            let behind = match draw(8) {
                0 => Some(Operation::Write { remote: 0, local: 0, bytes: 0, then }),
                1 => {
                    // What an earlier one still reads may be later, too.
                    job.memories[0].store(Pe::new(0), FROM + LONG, 8, round).unwrap();
                    written[1] = round;
                    Some(Operation::Write { remote: FROM + FURTHER, local: FROM + 8, bytes: LONG, then })
                }
                2 => {
                    job.memories[0].store(Pe::new(0), FROM + 2 * LONG - 8, 8, 2 * round + 1).unwrap();
                    written[0] = 2 * round + 1;
                    let remote = WORD + 8 - LONG;
                    Some(Operation::Write { remote, local: FROM + LONG, bytes: LONG, then: None })
                }
                3 => Some(add(1)),
                _ => None,
            };
            let is_long = matches!(behind, Some(Operation::Write { then: None, .. }));
            if let Some(operation) = behind {
                job.start(0, asked, 1, operation);
                asked += 1;
                if matches!(operation, Operation::Write { then: Some(_), .. }) {
                    said.push(written);
                }
            }
            // Until the sources may be overwritten, and longer.
            let awaits = draw(3);
            let awaits_all = is_long || awaits == 0;
            let began = Instant::now();
            let is_read =
                |job: &Job| !puts || job.local.contains(&put) || job.ended[0].iter().any(|(ticket, _)| *ticket == put);
            while !is_read(&job) || awaits_all && job.ended[0].len() < asked as usize {
                (0..2).for_each(|pe| job.poll(pe));
                look(&job, &said);
                assert!(began.elapsed() < Duration::from_secs(20), "{faults:?}, {reach:?}");
            }
            for _ in 0..if awaits == 1 { draw(30) } else { 0 } {
                (0..2).for_each(|pe| job.poll(pe));
                look(&job, &said);
            }
        }
        job.poll_until(asked as usize, |job| look(job, &said));
        assert!(job.ended[0].iter().all(|(_, ended)| ended.is_ok()), "{faults:?}");
        let left = [SIGNAL, WORD, LAST].map(|at| job.word(1, at));
        assert_eq!(left, [said.len() as u64 - 1, written[0], written[1]], "{faults:?}, {reach:?}");
    }
}

/// A put by itself is complete without its peer's doing, where the network keeps order or tells of arrivals.
#[test]
fn a_small_write_takes_no_message() {
    for [in_order, tells_arrivals] in [[true, false], [false, true], [false, false]] {
        let mut job = Job::new(2, Duration::MAX, Faults { in_order, tells_arrivals, ..fine() }, None);
        job.memories[0].store(Pe::new(0), FROM, 8, 7).unwrap();
        for ticket in 0..3 {
            job.start(0, ticket, 1, Operation::Write { remote: FROM, local: FROM, bytes: 8, then: None });
            // PE 1 does not poll.
            (0..4).for_each(|_| job.poll(0));
        }
        let by_network = in_order || tells_arrivals;
        assert_eq!((job.ended[0].len(), job.word(1, FROM)), if by_network { (3, 7) } else { (0, 0) });
        assert_eq!(job.local.len() + job.ended[0].len(), if by_network { 6 } else { 3 });
        job.start(0, 3, 1, write(0));
        job.poll_until(4, |_| ());
        assert_eq!(job.word(1, SIGNAL), 1);
    }
}

/// Whoever overwrites a source once it may does not change what arrives, though it may have to be sent again.
#[test]
fn what_arrives_is_what_was_there_when_its_source_was_told_to_be_read() {
    // So that what is told by the low bits of numbers comes again.
    const ROUNDS: u64 = 3 * WINDOW as u64;
    for (faults, reach) in (0..8).flat_map(networks) {
        let mut job = Job::over(2, Duration::MAX, faults, None, reach);
        for round in 0..ROUNDS {
            let bytes = [8, 9000, 8192, 9000][round as usize % 4];
            let ends = [FROM, FROM + bytes - 8];
            let put = |job: &Job, value| ends.map(|at| job.memories[0].store(Pe::new(0), at, 8, value).unwrap());
            put(&job, round + 1);
            job.start(0, round, 1, write(bytes));
            let began = Instant::now();
            while !job.local.contains(&round) && job.ended[0].len() as u64 <= round {
                (0..2).for_each(|pe| job.poll(pe));
                assert!(began.elapsed() < Duration::from_secs(60), "{faults:?}");
            }
            put(&job, u64::MAX);
            job.poll_until(round as usize + 1, |_| {});
            assert_eq!(job.word(1, SIGNAL), round + 1, "{faults:?}");
            assert_eq!(ends.map(|at| job.word(1, at + FURTHER)), [round + 1; 2], "{bytes} bytes, {faults:?}");
        }
        // Those that fail and are written again are told of when they end.
        assert!(job.local.len() as u64 > ROUNDS / 2, "{faults:?}");
    }
}

/// A read sees what was written before it, and not what is written after it; as long ones too, which take several messages or one transfer.
#[test]
fn reads_and_writes_of_one_peer_keep_their_order() {
    const BYTES: u64 = 10_000;
    /// Where PE 0 keeps the words of each round that it writes, and those that it reads.
    const SENT: u64 = 4096;
    const READ: u64 = SENT + 8 * ROUNDS;
    /// What changes at PE 1: the end of what is read.
    const LAST: u64 = FROM + BYTES - 8;
    for (faults, reach) in (0..20).flat_map(networks) {
        let mut job = Job::over(2, Duration::MAX, faults, None, reach);
        for round in 0..ROUNDS {
            let (sent, read) = (SENT + 8 * round, READ + 8 * round);
            job.memories[0].store(Pe::new(0), sent, 8, round + 1).unwrap();
            job.start(0, round, 1, Operation::Write { remote: LAST, local: sent, bytes: 8, then: None });
            job.start(0, 100 + round, 1, Operation::Read { remote: FROM, local: FROM, bytes: BYTES });
            job.start(0, 200 + round, 1, Operation::Read { remote: LAST, local: read, bytes: 8 });
        }
        job.poll_until(3 * ROUNDS as usize, |_| ());
        assert!(job.ended[0].iter().all(|(_, ended)| ended == &Ok(0)));
        for round in 0..ROUNDS {
            assert_eq!(job.word(0, READ + 8 * round), round + 1, "{faults:?}, {reach:?}");
        }
        assert_eq!(job.word(0, LAST), ROUNDS, "{faults:?}, {reach:?}");
    }
}

/// Data and signal are posted together where the network keeps order, and a round trip apart where it does not.
#[test]
fn a_signal_goes_with_its_data_where_that_keeps_order_or_tells_that_it_is_there() {
    for [in_order, tells_arrivals] in [[true, false], [false, true], [false, false]] {
        let mut job = Job::new(2, Duration::MAX, Faults { in_order, tells_arrivals, ..fine() }, None);
        job.start(0, 1, 1, write(15_000));
        // What is posted once the network was looked at goes out at the next poll.
        [0, 1].into_iter().for_each(|pe| job.poll(pe));
        assert_eq!(job.word(1, SIGNAL), u64::from(in_order || tells_arrivals));
        job.poll_until(1, |_| ());
        assert_eq!(job.word(1, SIGNAL), 1);
    }
}

/// Where an answer is expected, the acknowledgement waits for it, but not beyond the next poll.
#[test]
fn an_answer_brings_the_acknowledgement() {
    for answers in [true, false] {
        let mut job = Job::new(2, Duration::MAX, fine(), None);
        job.expects = true;
        job.start(0, 1, 1, write(8));
        [0, 0, 1].into_iter().for_each(|pe| job.poll(pe));
        assert_eq!(job.word(1, SIGNAL), 1);
        let posted = |job: &Job| job.shells[1].book.next_id;
        assert_eq!(posted(&job), 0, "nothing is sent yet");
        if answers {
            job.start(1, 2, 0, write(8));
        }
        [1, 1, 0].into_iter().for_each(|pe| job.poll(pe));
        assert_eq!(posted(&job), 1, "one message, whether it is the answer or not");
        assert_eq!(job.ended[0], [(1, Ok(0))], "it acknowledges");
        assert_eq!(job.word(0, SIGNAL), u64::from(answers));
    }
}

/// Where none is expected, it is sent at once; and once none has come in time, none is expected.
#[test]
fn nobody_waits_for_an_answer_that_is_not_expected() {
    let mut job = Job::new(2, Duration::MAX, fine(), None);
    job.shells[1].book.peers[0].quick = QUICK;
    for (round, acknowledgements) in [(0, 0), (1, 2), (2, 3)] {
        job.start(0, round, 1, write(8));
        [0, 0, 1].into_iter().for_each(|pe| job.poll(pe));
        assert_eq!(job.shells[1].book.next_id, acknowledgements, "in round {round}");
        [1, 0].into_iter().for_each(|pe| job.poll(pe));
    }
}

/// Who has seen the signal of a write may put something else there, which no second write undoes.
#[test]
fn what_was_signalled_is_not_written_again() {
    const BYTES: u64 = EAGER as u64 + 8;
    const TAKEN: u64 = u64::MAX;
    let ends = |slot: u64| FROM + FURTHER + (slot + 1) * BYTES - 8;
    for faults in (0..400).map(|seed| Faults { one_of: 6, in_order: true, ..wrong(seed) }) {
        let mut job = Job::new(2, Duration::MAX, faults, None);
        for slot in 0..2 {
            job.memories[0].store(Pe::new(0), FROM + (slot + 1) * BYTES - 8, 8, slot + 1).unwrap();
            let (remote, local) = (FROM + FURTHER + slot * BYTES, FROM + slot * BYTES);
            let then = Some(Signal { offset: SIGNAL, value: 1, set: false });
            job.start(0, slot, 1, Operation::Write { remote, local, bytes: BYTES, then });
        }
        let taken = Cell::new(0);
        job.poll_until(2, |job| {
            (0..taken.get()).for_each(|slot| assert_eq!(job.word(1, ends(slot)), TAKEN, "{faults:?}"));
            for slot in taken.get()..job.word(1, SIGNAL) {
                assert_eq!(job.word(1, ends(slot)), slot + 1, "{faults:?}");
                job.memories[0].store(Pe::new(1), ends(slot), 8, TAKEN).unwrap();
                taken.set(slot + 1);
            }
        });
        assert!(job.ended[0].iter().all(|(_, ended)| ended == &Ok(0)), "{faults:?}: {:?}", job.ended[0]);
        assert_eq!([SIGNAL, ends(0), ends(1)].map(|at| job.word(1, at)), [2, TAKEN, TAKEN], "{faults:?}");
    }
}

/// Each waits for what the other one reads to it.
#[test]
fn two_that_read_of_each_other_both_get_it() {
    for reach in [Reach::Data, Reach::Nothing] {
        let mut job = Job::over(2, Duration::MAX, fine(), None, reach);
        for pe in [0, 1] {
            job.memories[pe].store(Pe::new(pe as u32), FROM, 8, pe as u64 + 7).unwrap();
            job.start(pe, 1, 1 - pe as u32, Operation::Read { remote: FROM, local: FROM + FURTHER, bytes: 9000 });
        }
        let began = Instant::now();
        while job.ended.iter().any(Vec::is_empty) {
            (0..2).for_each(|pe| job.poll(pe));
            assert!(began.elapsed() < Duration::from_secs(20), "{reach:?}: {:?}", job.ended);
        }
        assert_eq!([0, 1].map(|pe| job.word(pe, FROM + FURTHER)), [8, 7]);
    }
}

#[test]
fn who_leaves_stays_for_the_others() {
    for seed in 0..20 {
        let mut job =
            Job::over(3, Duration::MAX, wrong(seed), None, if seed % 2 == 1 { Reach::Nothing } else { Reach::Data });
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

fn nic(atomic: Atomic) -> Operation {
    Operation::NicAtomic { remote: COUNT, atomic }
}

fn nic_add(value: u64) -> Operation {
    nic(Atomic { op: AtomicOp::Add, kind: NumberKind::Unsigned, bytes: 8, value, expected: 0 })
}

/// All PEs add to a word of one of them, that one too: by the network, or where one network has no atomics by that PE.
#[test]
fn atomics_of_networks_count_whoever_asks() {
    const ROUNDS: u64 = 20;
    for (seed, reach) in
        (0..6).flat_map(|seed| [Reach::Atomics, Reach::Data, Reach::Nothing].map(|reach| (seed, reach)))
    {
        let faults = Faults { one_of: 0, ..Faults::seeded(seed) };
        let mut job = Job::over(3, Duration::MAX, faults, None, reach);
        for pe in 0..3 {
            (0..ROUNDS).for_each(|round| job.start(pe, round, 1, nic_add(1)));
            let swap = Atomic {
                op: AtomicOp::CompareExchange,
                kind: NumberKind::Unsigned,
                bytes: 8,
                value: 7,
                expected: 1 << 40,
            };
            job.start(pe, ROUNDS, 1, nic(swap));
        }
        let began = Instant::now();
        while job.ended.iter().any(|ended| ended.len() <= ROUNDS as usize) {
            (0..3).for_each(|pe| job.poll(pe));
            assert!(began.elapsed() < Duration::from_secs(20), "{reach:?}, seed {seed}: {:?}", job.ended);
        }
        let old = |pe: usize| {
            job.ended[pe].iter().filter(|(ticket, _)| *ticket < ROUNDS).map(|(_, old)| *old.as_ref().unwrap())
        };
        let mut all: Vec<_> = (0..3).flat_map(old).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * ROUNDS), "{reach:?}, seed {seed}: {:?}", job.ended);
        assert_eq!(job.word(1, COUNT), 3 * ROUNDS);
        let by_messages = job.shells[0].book.peers[1].first > 0;
        assert_eq!(by_messages, reach < Reach::Atomics, "{reach:?}");
    }
}

/// What comes after a put finds its data, and what comes before one is done before.
#[test]
fn atomics_of_networks_keep_their_place() {
    for seed in 0..20 {
        let faults = Faults { one_of: 0, ..Faults::seeded(seed) };
        let mut job = Job::over(2, Duration::MAX, faults, None, Reach::Atomics);
        for (ticket, bytes) in (0..).zip([8, 20_000, 8]) {
            job.start(0, 2 * ticket, 1, write(bytes));
            job.start(0, 2 * ticket + 1, 1, nic_add(1));
        }
        job.poll_until(6, |job| {
            let (count, signal) = (job.word(1, COUNT), job.word(1, SIGNAL));
            assert!(count <= signal && signal <= count + 1, "seed {seed}: {signal} writes, {count} atomics");
        });
    }
}

/// An atomic of the network's that fails is done once or not at all, and who asked for it is told that nobody knows.
#[test]
fn a_failed_atomic_of_a_network_is_not_done_again() {
    let mut job = Job::over(3, Duration::MAX, fine(), Some((Pe::new(1), Failure::Reset)), Reach::Atomics);
    job.start(0, 1, 1, nic_add(1));
    job.start(0, 2, 1, nic_add(1));
    job.start(0, 3, 2, nic_add(1));
    job.start(0, 4, 1, add(1));
    job.poll_until(4, |_| ());
    let ends: BTreeMap<_, _> = job.ended[0].iter().cloned().collect();
    let unknown = TransportError::Unknown { peer: Pe::new(1), remote: COUNT, why: Failure::Reset.to_string() };
    assert_eq!(ends[&1], Err(unknown));
    assert_eq!((&ends[&2], &ends[&3]), (&Ok(0), &Ok(0)));
    assert!(ends[&4].is_ok());
    assert_eq!(job.word(1, COUNT), 2);
    assert_eq!(job.shells[0].state(Pe::new(1)), PeerState::Up);
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
    let write = Header { kind: Kind::Write, bytes: 8, ..job.shells[0].book.header(Pe::new(1)) };
    let message = [&write.encode()[..], &[7; 8]].concat();
    assert_eq!(Header::decode(&message), Some((write, &[7; 8][..], &[][..])));
    for cut in 0..message.len() {
        assert_eq!(Header::decode(&message[..cut]), None, "{cut} bytes");
    }
    for (at, byte) in [(0, 0), (0, 12), (1, 3), (2, 8), (3, 4), (32, 9)] {
        let mut changed = message.clone();
        changed[at] = byte;
        assert_eq!(Header::decode(&changed), None, "byte {at} is {byte}");
    }
    // Of two that are sent together, the first.
    let both = [&message[..], &message[..Header::BYTES]].concat();
    assert_eq!(Header::decode(&both), Some((write, &[7; 8][..], &message[..Header::BYTES])));
    // From no PE; and from a peer, to a place that no heap has.
    job.shells[1].book.receive_all(&Header { from: 9, bytes: 0, ..write }.encode());
    assert_eq!(job.shells[1].state(Pe::new(0)), PeerState::Up);
    let outside = Header { kind: Kind::Store, remote: u64::MAX - 7, ..write };
    job.shells[1].book.receive_all(&outside.encode());
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
        nic(Atomic { op: AtomicOp::Swap, kind: NumberKind::Unsigned, bytes: 8, value: 0, expected: 0 }),
        nic(Atomic { op: AtomicOp::Add, kind: NumberKind::Float, bytes: 8, value: 0, expected: 0 }),
        nic(Atomic { op: AtomicOp::Add, kind: NumberKind::Unsigned, bytes: 4, value: 0, expected: 0 }),
    ] {
        let refused = job.shells[0].start(0, Pe::new(1), operation);
        assert!(matches!(refused, Err(TransportError::Malformed { .. })), "{operation:?}: {refused:?}");
    }
}
