//! Our side of the comparison: PEs as processes, in-kernel loops; two PEs have a core each.
//!
//! `compare ours PES REPEATS MAX_BYTES` does what the C peers do: it starts its PEs and prints one sample a line. What each
//! work is, `compare/sample.h` says. `compare candidates PES REPEATS MAX_BYTES` times every way to do an all-reduce, and
//! `compare checked PES REPEATS MAX_BYTES` calls of the host with and without checked mode; `compare fused PES REPEATS MAX_BYTES`
//! a norm behind an all-reduce, fused and apart.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use congruent::bootstrap::{Bootstrap, Launcher};
use congruent::collectives::{Collective, Layout, Op};
use congruent::device::{Kernel, Semaphore};
use congruent::{Arguments, Comm, CommOptions, Grid, Plan, Stream, SymVec, World, fixed_kernels};
use congruent_example_kernels::gups;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::candidates::{self, Timed};
use crate::proxied;
use crate::sample::{Sample, Work};
use crate::{checked, fused};

/// The smallest buffer of the bulk works.
const SMALLEST_BULK: u64 = 64 << 10;

/// The sizes of collectives other than all-reduce, of which two are those of all-reduce among PEs that share cores.
const SIZES: [u64; 3] = [1 << 10, 64 << 10, 4 << 20];
const SHARED_CORES: [u64; 2] = [1 << 10, 1 << 20];

/// The tables that are updated by chance, and how often each PE does so.
const TABLES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
const UPDATES: u64 = 1 << 18;

/// The longest loop.
const MOST_ROUNDS: u64 = 20_000;

/// The word on the command line that calls this.
pub const WORD: &str = "ours";

/// Starts the PEs, or is one of them, where the command line's first word says so.
pub fn main() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked = words
        .first()
        .filter(|word| [WORD, candidates::WORD, checked::WORD, fused::WORD, proxied::WORD].contains(&word.as_str()))?;
    let done = match Bootstrap::from_env() {
        Ok(bootstrap) if bootstrap.job().launcher == Launcher::None => launch(&words),
        Ok(_) => measure(asked, &words).map(|()| ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    };
    Some(done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    }))
}

fn launch(words: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let [_, npes, _, _] = words else { return Err(USAGE.into()) };
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    command.extend(words.iter().map(Into::into));
    let args =
        congruent_program::run::Args { npes: Some(npes.parse()?), command, ..congruent_program::run::Args::default() };
    Ok(congruent_program::run::run(&args)?)
}

const USAGE: &str = "usage: compare ours|candidates|checked|fused|proxied PES REPEATS MAX_BYTES";

fn measure(asked: &str, words: &[String]) -> Result<(), Box<dyn Error>> {
    let [_, _, repeats, max_bytes] = words else { return Err(USAGE.into()) };
    let (repeats, max_bytes) = (repeats.parse::<u32>()?, max_bytes.parse::<u64>()?);
    let mut world = World::builder().heap(3 * max_bytes + (64 << 20)).build()?;
    // The selector counts the cores that a PE may use, so communicators are made before the PE is bound to one.
    let [comm, unchecked] = [true, false]
        .map(|check| world.comm_with(world.team(), CommOptions { check: Some(check), ..CommOptions::default() }));
    let (comm, unchecked) = (comm?, unchecked?);
    if world.npes() == 2 {
        // Threads that a stream makes from here on inherit the core.
        let mut core = CpuSet::new();
        core.set(world.pe().index());
        sched_setaffinity(None, &core)?;
    }
    let mut ours = Ours {
        dst: world.alloc(max_bytes as usize)?,
        src: world.alloc(max_bytes as usize)?,
        word: world.alloc(1)?,
        turn: world.alloc(1)?,
        slowest: world.alloc(1)?,
        times: world.alloc(MOST_ROUNDS as usize)?,
        plan: world.plan(Layout::new(world.team(), 1))?,
        comm,
        unchecked,
        stream: world.stream()?,
        world,
    };
    // The first repeat warms caches and pages, and is not told.
    for repeat in 0..=repeats {
        match asked {
            candidates::WORD => ours.candidates(max_bytes, repeat > 0)?,
            checked::WORD => ours.checked(repeat > 0)?,
            fused::WORD => fused::repeat(&ours, repeat > 0)?,
            proxied::WORD => ours.proxied(max_bytes, repeat > 0)?,
            _ => {
                match ours.world.npes() {
                    2 => ours.repeat(max_bytes, repeat > 0)?,
                    _ => ours.shared_cores(max_bytes, repeat > 0)?,
                }
                ours.tokens(repeat > 0)?;
            }
        }
    }
    Ok(())
}

/// One PE of our side.
pub(crate) struct Ours {
    pub(crate) dst: SymVec<u8>,
    pub(crate) src: SymVec<u8>,
    word: SymVec<u64>,
    turn: SymVec<Semaphore>,
    slowest: SymVec<f64>,
    times: SymVec<u64>,
    pub(crate) plan: Plan,
    pub(crate) comm: Comm,
    pub(crate) unchecked: Comm,
    pub(crate) stream: Stream,
    pub(crate) world: World,
}

impl Ours {
    /// All works of two PEs.
    fn repeat(&self, max_bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        let (dst, src) = (|bytes: u64| self.dst.slice(..bytes as usize), |bytes: u64| self.src.slice(..bytes as usize));
        let tell = |work, bytes, ns| self.tell(told, work, bytes, ns);
        let n = self.rounds(8);
        tell(Work::PutValue, 8, self.time(n, fixed_kernels::perf_put_value, (self.word.view(), n))?);
        tell(Work::FetchAdd, 8, self.time(n, fixed_kernels::perf_fetch_add, (self.word.view(), n))?);
        tell(Work::Put, 8, self.time(n, fixed_kernels::perf_put, (dst(8)?, src(8)?, 1, n))?);
        for bytes in TABLES.into_iter().filter(|&bytes| bytes <= max_bytes) {
            let (table, first) = (dst(bytes)?.cast(), self.world.pe().index() as u64 * UPDATES);
            tell(Work::Gups, bytes, self.time(UPDATES, gups::update, (table, first, UPDATES))?);
        }
        let round_trip = self.time(n, fixed_kernels::perf_ping_pong, (dst(8)?, src(8)?, self.turn.view(), n))?;
        tell(Work::SendRecv, 8, round_trip / 2.0);
        tell(Work::Barrier, 0, self.time(n, fixed_kernels::perf_barrier, (n,))?);
        for bytes in quadrupled(SMALLEST_BULK, max_bytes) {
            let n = self.rounds(bytes);
            tell(Work::Put, bytes, self.time(n, fixed_kernels::perf_put, (dst(bytes)?, src(bytes)?, 1, n))?);
            tell(Work::PutBoth, bytes, self.time(n, fixed_kernels::perf_put, (dst(bytes)?, src(bytes)?, 2, n))?);
        }
        self.all_reduces(quadrupled(4, max_bytes), told)?;
        self.other_collectives(max_bytes, told)
    }

    /// Puts through proxies, each of which returns when it has arrived.
    fn proxied(&self, max_bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        for bytes in [8].into_iter().chain(quadrupled(SMALLEST_BULK, max_bytes)) {
            let (n, dst, src) =
                (self.rounds(bytes), self.dst.slice(..bytes as usize)?, self.src.slice(..bytes as usize)?);
            self.tell(told, Work::Put, bytes, self.time(n, proxied::puts, (dst, src, n))?);
        }
        if max_bytes >= proxied::TOKEN as u64 {
            let n = 20;
            let ns = self.time(n, proxied::tokens, (self.dst.view(), self.src.view(), n))?;
            self.tell(told, Work::Tokens, proxied::TOKEN as u64, ns / proxied::TOKENS as f64);
        }
        let (n, dst, src) = (self.rounds(8), self.dst.slice(..8)?, self.src.slice(..8)?);
        let round_trip = self.time(n, fixed_kernels::perf_ping_pong, (dst, src, self.turn.view(), n))?;
        self.tell(told, Work::SendRecv, 8, round_trip / 2.0);
        self.time(n, proxied::round_trips, (dst, src, self.turn.view(), self.times.slice(..n as usize)?))?;
        let mut times = self.times.to_vec()?;
        times.truncate(n as usize);
        times.sort_unstable();
        self.tell(told, Work::SendRecvLate, 8, times[times.len() * 99 / 100] as f64 / 2.0);
        Ok(())
    }

    /// The works of PEs that share cores.
    fn shared_cores(&self, max_bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        let n = self.rounds(0);
        self.tell(told, Work::Barrier, 0, self.time(n, fixed_kernels::perf_barrier, (n,))?);
        self.all_reduces(SHARED_CORES.into_iter().filter(|&bytes| bytes <= max_bytes), told)?;
        self.other_collectives(max_bytes, told)
    }

    fn all_reduces(&self, sizes: impl Iterator<Item = u64>, told: bool) -> Result<(), Box<dyn Error>> {
        sizes.into_iter().try_for_each(|bytes| self.work(Work::AllReduce, Collective::AllReduce, bytes, told))
    }

    fn other_collectives(&self, max_bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        for (work, collective) in [
            (Work::Broadcast, Collective::Broadcast),
            (Work::AllGather, Collective::AllGather),
            (Work::ReduceScatter, Collective::ReduceScatter),
            (Work::AllToAll, Collective::AllToAll),
        ] {
            for bytes in SIZES.into_iter().filter(|&bytes| bytes <= max_bytes) {
                self.work(work, collective, bytes, told)?;
            }
        }
        Ok(())
    }

    /// Times a collective as it is chosen. What is not told is checked.
    fn work(&self, work: Work, collective: Collective, bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        let way = self.chosen(collective, bytes)?;
        if !told {
            self.check(collective, way, bytes)?;
        }
        self.tell(told, work, bytes, self.collective(collective, way, bytes, self.rounds(bytes))?);
        Ok(())
    }

    /// Times every way to do an all-reduce, at each size.
    fn candidates(&self, max_bytes: u64, told: bool) -> Result<(), Box<dyn Error>> {
        for bytes in quadrupled(4, max_bytes) {
            let chosen = self.chosen(Collective::AllReduce, bytes)?;
            let call = self.circumstances(Collective::AllReduce, bytes);
            for way in self.comm.selector().candidates(Collective::AllReduce, &call) {
                if !told {
                    self.check(Collective::AllReduce, way, bytes)?;
                }
                let ns = self.collective(Collective::AllReduce, way, bytes, self.rounds(bytes))?;
                let (algorithm, protocol) = (way.0.to_string(), way.1.to_string());
                self.print(told, &Timed { bytes, algorithm, protocol, chosen: way == chosen, ns });
            }
        }
        Ok(())
    }

    /// Times all-reduces as calls of the host, with checked mode and without. In one run, because only their ratio tells anything.
    fn checked(&self, told: bool) -> Result<(), Box<dyn Error>> {
        for bytes in checked::SIZES {
            let (dst, src) =
                (self.dst.slice(..bytes as usize)?.cast::<f32>(), self.src.slice(..bytes as usize)?.cast());
            let n = self.rounds(bytes).min(2000);
            for (comm, checked) in [(&self.comm, true), (&self.unchecked, false)] {
                let calls = || Ok((0..n).try_for_each(|_| comm.all_reduce(&self.stream, dst, src, Op::Sum))?);
                self.print(told, &checked::Timed { bytes, checked, ns: self.clocked(n, calls)? });
            }
        }
        Ok(())
    }

    pub(crate) fn tell(&self, told: bool, work: Work, bytes: u64, ns: f64) {
        self.print(told, &Sample { work, pes: self.world.npes() as u32, bytes, ns });
    }

    /// One line, by one PE.
    pub(crate) fn print(&self, told: bool, sample: &impl Serialize) {
        if told && self.world.pe().index() == 0 {
            println!("{}", serde_json::to_string(sample).unwrap_or_default());
        }
    }

    /// Runs a kernel that repeats something `n` times on all PEs; the time of one, on the slowest PE.
    pub(crate) fn time<K: Kernel>(
        &self,
        n: u64,
        kernel: K,
        args: impl Arguments<K::Args>,
    ) -> Result<f64, Box<dyn Error>> {
        self.clocked(n, || Ok(self.world.launch(&self.stream, kernel, Grid::one(256), args)?))
    }

    /// The time of one of `n` things that `enqueue` puts on the stream of all PEs, on the slowest PE.
    pub(crate) fn clocked(
        &self,
        n: u64,
        enqueue: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        let world = &self.world;
        self.comm.barrier(&self.stream)?;
        world.synchronize(&self.stream)?;
        let started = Instant::now();
        enqueue()?;
        world.synchronize(&self.stream)?;
        self.slowest.fill(started.elapsed().as_nanos() as f64 / n as f64)?;
        self.comm.all_reduce(&self.stream, self.slowest.view(), self.slowest.view(), Op::Max)?;
        world.synchronize(&self.stream)?;
        Ok(self.slowest.to_vec()?[0])
    }

    /// Loop length: a quarter of a gibibyte of traffic, within bounds, as the C peers have it.
    pub(crate) fn rounds(&self, bytes: u64) -> u64 {
        let most = if self.world.npes() > 2 { 500 } else { MOST_ROUNDS };
        ((256 << 20) / bytes.max(1)).clamp(4, most)
    }
}

/// Every fourth power of two from `smallest` on.
fn quadrupled(smallest: u64, max_bytes: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(smallest), |bytes| Some(bytes * 4)).take_while(move |&bytes| bytes <= max_bytes)
}
