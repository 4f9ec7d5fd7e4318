//! Jobs whose PEs pass data around a ring through their proxies for as long as that goes well.
#![allow(dead_code, reason = "each suite uses its own part")]

use std::env;
use std::time::{Duration, Instant};

use congruent::device::{Semaphore, Sym, kernels};
use congruent::{Error, Grid, World};

use crate::processes::{Pe, Port, alone, myself, say, seat};

/// How long a test waits for a word, on a busy machine whose processors may be emulated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How often a PE says that it is under way: one of so many rounds.
const SAYS: u64 = 20;
/// After how many rounds PEs are done; unset, never.
const ROUNDS: &str = "CONGRUENT_TEST_ROUNDS";

kernels! {
    /// Puts to the next PE and waits for what the one before puts here.
    pub fn pass(block, ctx, dst: Sym<u64>, src: Sym<u64>, arrived: Sym<Semaphore>) {
        let world = ctx.world();
        ctx.put_signal(block, dst.at(world.next()), src, arrived.at(world.next()).post());
        ctx.wait(block, arrived.from_rank(world.prev()), 1);
    }
}

fn rounds() -> Result<(), Error> {
    let mut world = World::builder().build()?;
    let (dst, src) = (world.alloc::<u64>(5000)?, world.alloc::<u64>(5000)?);
    let (arrived, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    let before = (world.pe().index() + world.npes() - 1) % world.npes();
    let last = env::var(ROUNDS).ok().and_then(|last| last.parse().ok()).unwrap_or(u64::MAX);
    for round in 1..=last {
        src.fill(round << 8 | world.pe().index() as u64)?;
        world.run(&stream, pass, Grid::one(32), (dst.view(), src.view(), arrived.view()))?;
        let expected = round << 8 | before as u64;
        if let Some(wrong) = dst.to_vec()?.into_iter().find(|&word| word != expected) {
            panic!("round {round}: {wrong:#x} instead of {expected:#x}");
        }
        // Until every PE has looked, nothing new may come.
        world.barrier()?;
        if round % SAYS == 0 {
            say(&format!("UNDER WAY {round}"));
        }
    }
    Ok(())
}

/// What a PE of such a job does, until it is done or something is lost: then it says how it ended.
pub(crate) fn pass_on() {
    let ended = rounds().map_or_else(|error| error.to_string().replace('\n', " "), |()| "well".to_owned());
    say(&format!("ENDED {ended}"));
}

/// A PE of a job on several hosts, the first of which has this address, that is done after so many rounds.
pub(crate) fn start_one(test: &str, address: &str, pe: u32, npes: u32, rounds: u64, set: &[(&str, &str)]) -> Pe {
    let mut command = myself(test);
    command
        .env("CONGRUENT_MACHINE", "cpu")
        .env("CONGRUENT_PE", pe.to_string())
        .env("CONGRUENT_NPES", npes.to_string())
        .env("CONGRUENT_RENDEZVOUS", format!("{address}:29500"))
        .env("CONGRUENT_JOB_TOKEN", test)
        .env(ROUNDS, rounds.to_string())
        .envs(set.iter().copied());
    Pe::start(command)
}

/// PEs that are under way.
pub(crate) struct Job {
    pes: Vec<Pe>,
    deadline: Duration,
    _port: Port,
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl Job {
    /// Starts PEs that reach each other through their proxies, with these variables, and whose kernels wait for so long at most.
    pub(crate) fn start(test: &str, npes: u32, set: &[(&str, &str)], deadline: Duration) -> Self {
        let (_alone, port) = (alone(), Port::reserve());
        let start = |pe| {
            let mut command = seat(myself(test), &port, pe, npes);
            command.env("CONGRUENT_MACHINE", "cpu").env("CONGRUENT_P2P_DISABLE", "1").envs(set.iter().copied());
            command.env("CONGRUENT_DEADLINE_MS", deadline.as_millis().to_string());
            Pe::start(command)
        };
        let mut job = Self { pes: (0..npes).map(start).collect(), deadline, _port: port, _alone };
        job.goes_on();
        job
    }

    /// Waits until every PE has done some rounds more.
    pub(crate) fn goes_on(&mut self) {
        for pe in &mut self.pes {
            pe.hear_all();
            (0..2).for_each(|_| drop(pe.hear("UNDER WAY", PATIENCE)));
        }
    }

    /// Kills a PE: the others say which it was, and do not wait longer than they may.
    pub(crate) fn lose(mut self, lost: usize) {
        self.pes[lost].child.kill().unwrap();
        let killed = Instant::now();
        for (pe, process) in self.pes.iter_mut().enumerate().filter(|&(pe, _)| pe != lost) {
            let said = process.hear("ENDED", PATIENCE);
            assert!(said.contains(&format!("PE {lost}")), "PE {pe}: {said}");
        }
        assert!(killed.elapsed() < 2 * self.deadline, "{:?}", killed.elapsed());
    }
}
