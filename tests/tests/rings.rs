//! The rings between kernels and their proxy: under load at every size, with peers that are slow or never answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use congruent::device::abi::FaultKind;
use congruent::device::{Group, Pe, Signal, Sym, Thread, kernels};
use congruent::{Error, Grid, World, WorldFailure};
use congruent_transports::{Local, Operation, PeerState, Progress, Signal as Then, Transport, TransportError};

kernels! {
    /// Each thread marks every peer in each round with its name and the round, counts there, and fetches a count of its own. Threads
    /// are in no step: the more of them there are, the more some pause between rounds.
    pub fn flood(block, ctx, mark: Sym<Signal>, count: Sym<u64>, wrong: Sym<u64>, rounds: u32) {
        let world = ctx.world();
        let (me, producer) = (world.me().index(), ctx.block_index() * block.size() + block.rank());
        for round in 0..rounds as u64 {
            for peer in world.ranks().filter(|peer| peer.index() != me) {
                ctx.notify(&Thread, mark.at(peer).set((producer as u64) << 32 | round));
                ctx.add(count.elem(0).at(peer), 1);
                if round % 5 == producer as u64 % 5 {
                    let own = 1 + me * ctx.blocks() * block.size() + producer;
                    let before = ctx.fetch_add(count.elem(own).at(peer), 1);
                    if before != round / 5 {
                        ctx.store(wrong, producer, 1 + round);
                    }
                }
            }
            for _ in 0..(producer % 3) * 4 {
                ctx.pause();
            }
        }
        ctx.quiet(block);
    }

    /// More values to PE 1 than a ring holds, and one to PE 2, which alone is waited for.
    pub fn puts_to_two(block, ctx, words: Sym<u64>, many: u32) {
        let world = ctx.world();
        if block.leader() {
            for _ in 0..many {
                ctx.put_value(words.elem(0).at(world.rank(1)), 7);
                ctx.add(words.elem(1).at(world.rank(1)), 1);
            }
            ctx.put_value(words.elem(0).at(world.rank(2)), 7);
        }
        ctx.quiet_to(block, world.rank(2));
    }

    /// Waits for what went to one PE.
    pub fn quiet_to_one(block, ctx, pe: u32) {
        ctx.quiet_to(block, ctx.world().rank(pe as usize));
    }
}

/// A network that looks at what it is asked for, and that is slow to PE 1.
struct Network {
    local: Local,
    /// The round of the next mark, for each peer and thread.
    marks: HashMap<(u32, u64), u64>,
    /// How much later operations on PE 1 begin; never, where there is none.
    delay: Option<Duration>,
    asked: VecDeque<(Instant, u64, Pe, Operation)>,
}

impl Network {
    fn over(local: Local, delay: Option<Duration>) -> Box<dyn Transport> {
        Box::new(Self { local, marks: HashMap::new(), delay, asked: VecDeque::new() })
    }

    fn watched(local: Local) -> Box<dyn Transport> {
        Self::over(local, Some(Duration::ZERO))
    }

    fn slow(local: Local) -> Box<dyn Transport> {
        Self::over(local, Some(LATE))
    }

    fn dead(local: Local) -> Box<dyn Transport> {
        Self::over(local, None)
    }
}

impl Transport for Network {
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError> {
        if let Operation::Write { then: Some(Then { value, set: true, .. }), .. } = operation {
            let (producer, round) = (value >> 32, value & u64::from(u32::MAX));
            let next = self.marks.entry((peer.raw(), producer)).or_default();
            if round != *next {
                let why = format!("thread {producer} asked for round {round}, expected {next}");
                return Err(TransportError::Unreachable { peer, why });
            }
            *next += 1;
        }
        match self.delay {
            Some(delay) if peer.raw() == 1 && !delay.is_zero() => {
                self.asked.push_back((Instant::now() + delay, ticket, peer, operation));
                Ok(())
            }
            None if peer.raw() == 1 => Ok(()),
            _ => self.local.start(ticket, peer, operation),
        }
    }

    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        while let Some((_, ticket, peer, operation)) = self.asked.pop_front_if(|asked| asked.0 <= Instant::now()) {
            self.local.start(ticket, peer, operation).unwrap();
        }
        self.local.poll(tell)
    }

    fn state(&self, peer: Pe) -> PeerState {
        self.local.state(peer)
    }
}

/// Every request arrives once and in its thread's order, with its own reply, at every size of rings: with fewer slots than threads, and
/// with more.
#[test]
fn nothing_is_lost_doubled_or_reordered_at_any_size() {
    const NPES: usize = 3;
    const BLOCKS: u32 = 5;
    const ROUNDS: u32 = 60;
    for (log2_rings, log2_slots) in (0..=6).map(|slots| (slots % 3, slots)) {
        for (width, lanes) in [(1, 1), (4, 4)] {
            let threads = (BLOCKS * lanes) as usize;
            let program = |world: &mut World| {
                let (mark, stream) = (world.alloc::<Signal>(1)?, world.stream()?);
                let (count, wrong) = (world.alloc::<u64>(1 + NPES * threads)?, world.alloc::<u64>(threads)?);
                world.barrier()?;
                let args = (mark.view(), count.view(), wrong.view(), ROUNDS);
                world.run(&stream, flood, Grid::new(BLOCKS, 32), args)?;
                world.barrier()?;
                assert_eq!(wrong.to_vec()?, vec![0; threads], "replies in {log2_slots}");
                Ok::<_, Error>((world.pe().index(), count.to_vec()?))
            };
            let settings = World::builder().width(width).heap(4 << 20).deadline(Duration::from_secs(60));
            let settings = settings.proxied_over(Network::watched).rings(log2_rings, log2_slots);
            for (pe, counts) in settings.local(NPES, program).unwrap() {
                let case = format!("2^{log2_rings} rings of 2^{log2_slots}, width {width}, at PE {pe}");
                let others = NPES as u64 - 1;
                assert_eq!(counts[0], others * threads as u64 * u64::from(ROUNDS), "{case}: counted");
                let (own, theirs): (Vec<_>, Vec<_>) =
                    counts[1..].iter().enumerate().partition(|(at, _)| at / threads == pe);
                assert!(own.iter().all(|(_, count)| **count == 0), "{case}: {own:?}");
                assert!(theirs.iter().all(|(_, count)| **count == u64::from(ROUNDS / 5)), "{case}: {theirs:?}");
            }
        }
    }
}

/// How late PE 1 is.
const LATE: Duration = Duration::from_millis(400);

#[test]
fn a_slow_peer_holds_up_nobody_elses_quiet() {
    const MANY: u32 = 1000;
    let program = |world: &mut World| {
        let (words, stream) = (world.alloc::<u64>(2)?, world.stream()?);
        world.barrier()?;
        let began = Instant::now();
        let mut times = (Duration::ZERO, Duration::ZERO);
        if world.pe().raw() == 0 {
            world.run(&stream, puts_to_two, Grid::one(32), (words.view(), MANY))?;
            times.0 = began.elapsed();
            world.run(&stream, quiet_to_one, Grid::one(32), (1,))?;
            times.1 = began.elapsed();
        }
        world.barrier()?;
        Ok::<_, Error>((times, words.to_vec()?))
    };
    let settings = World::builder().heap(4 << 20).proxied_over(Network::slow).rings(0, 4);
    let found = settings.local(3, program).unwrap();
    let (to_two, to_one) = found[0].0;
    assert!(to_two < LATE, "PE 2 was waited for for {to_two:?}, and PE 1 is {LATE:?} late");
    assert!(to_one >= LATE, "PE 1 was not waited for: {to_one:?}");
    assert_eq!([&found[1].1, &found[2].1], [&[7, u64::from(MANY)], &[7, 0]]);
}

#[test]
fn a_peer_that_never_answers_is_named_and_the_others_are_served() {
    let program = |world: &mut World| {
        let (words, stream) = (world.alloc::<u64>(2)?, world.stream()?);
        world.barrier()?;
        if world.pe().raw() > 0 {
            let began = Instant::now();
            // Served, though PE 1 answers nothing.
            while world.pe().raw() == 2 && words.to_vec()?[0] != 7 {
                assert!(began.elapsed() < Duration::from_secs(30), "PE 2 is not served");
            }
            return Ok(None);
        }
        world.run(&stream, puts_to_two, Grid::one(32), (words.view(), 10))?;
        world.launch(&stream, quiet_to_one, Grid::one(32), (1,))?;
        Ok::<_, Error>(Some(world.synchronize(&stream).unwrap_err()))
    };
    let settings = World::builder().heap(4 << 20).deadline(Duration::from_millis(300)).proxied_over(Network::dead);
    let told = settings.local(3, program).unwrap().swap_remove(0);
    let Some(WorldFailure::Fault(fault)) = told else { panic!("{told:?}") };
    assert_eq!((fault.kind, fault.peer), (FaultKind::Proxy, Some(1)), "{fault}");
}
