//! Our side of the comparison: two PEs as processes, each on a core of its own, in-kernel loops.
//!
//! `compare ours REPEATS MAX_BYTES` does what the C peers do: it starts its two PEs and prints one sample a line. What each
//! work is, `compare/sample.h` says.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use congruent::bootstrap::{Bootstrap, Launcher};
use congruent::collectives::{Layout, Op, Protocol, Reduction};
use congruent::device::{Kernel, Semaphore};
use congruent::{Comm, Grid, Plan, Stream, SymVec, World, cli, kernels};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::sample::{Sample, Work};

/// The smallest buffer of the bulk works.
const SMALLEST_BULK: u64 = 64 << 10;

/// The largest all-reduce that goes in one exchange; larger ones are read and written once.
const ONE_SHOT: u64 = 16 << 10;

/// The word on the command line that calls this.
pub const WORD: &str = "ours";

/// Starts the PEs, or is one of them.
pub fn main() -> ExitCode {
    let done = match Bootstrap::from_env() {
        Ok(bootstrap) if bootstrap.job().launcher == Launcher::None => launch(),
        Ok(_) => measure().map(|()| ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn launch() -> Result<ExitCode, Box<dyn Error>> {
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    command.extend(std::env::args_os().skip(1));
    Ok(cli::run::run(&cli::run::Args { npes: 2, label: false, command })?)
}

fn measure() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [repeats, max_bytes] = &arguments[..] else { return Err("usage: compare ours REPEATS MAX_BYTES".into()) };
    let (repeats, max_bytes) = (repeats.parse::<u32>()?, max_bytes.parse::<u64>()?);
    let mut world = World::builder().heap(3 * max_bytes + (16 << 20)).build()?;
    // Threads that a stream makes from here on inherit the core.
    let mut core = CpuSet::new();
    core.set(world.pe().index());
    sched_setaffinity(None, &core)?;
    let ours = Ours {
        dst: world.alloc(max_bytes as usize)?,
        src: world.alloc(max_bytes as usize)?,
        word: world.alloc(1)?,
        turn: world.alloc(1)?,
        slowest: world.alloc(1)?,
        plan: world.plan(Layout::new(world.team(), 1))?,
        comm: world.comm(world.team())?,
        stream: world.stream()?,
        world,
    };
    // The first repeat warms caches and pages, and is not told.
    for repeat in 0..=repeats {
        ours.repeat(max_bytes, repeat > 0)?;
    }
    Ok(())
}

struct Ours {
    dst: SymVec<u8>,
    src: SymVec<u8>,
    word: SymVec<u64>,
    turn: SymVec<Semaphore>,
    slowest: SymVec<f64>,
    plan: Plan,
    comm: Comm,
    stream: Stream,
    world: World,
}

impl Ours {
    fn repeat(&self, max_bytes: u64, tell: bool) -> Result<(), Box<dyn Error>> {
        let tell = |work, bytes, ns| {
            if tell && self.world.pe().index() == 0 {
                println!("{}", serde_json::to_string(&Sample { work, bytes, ns }).unwrap_or_default());
            }
        };
        let (dst, src) = (|bytes: u64| self.dst.slice(..bytes as usize), |bytes: u64| self.src.slice(..bytes as usize));
        let n = rounds(8);
        tell(Work::PutValue, 8, self.time(n, kernels::perf_put_value, (self.word.view(), n))?);
        tell(Work::FetchAdd, 8, self.time(n, kernels::perf_fetch_add, (self.word.view(), n))?);
        tell(Work::Put, 8, self.time(n, kernels::perf_put, (dst(8)?, src(8)?, n))?);
        let round_trip = self.time(n, kernels::perf_ping_pong, (dst(8)?, src(8)?, self.turn.view(), n))?;
        tell(Work::SendRecv, 8, round_trip / 2.0);
        tell(Work::Barrier, 0, self.time(n, kernels::perf_barrier, (n,))?);
        let sizes = |smallest| {
            std::iter::successors(Some(smallest), |bytes| Some(bytes * 4)).take_while(|&bytes| bytes <= max_bytes)
        };
        for bytes in sizes(SMALLEST_BULK) {
            let n = rounds(bytes);
            tell(Work::Put, bytes, self.time(n, kernels::perf_put, (dst(bytes)?, src(bytes)?, n))?);
            tell(Work::PutBoth, bytes, self.time(n, kernels::perf_put_both, (dst(bytes)?, src(bytes)?, n))?);
        }
        for bytes in sizes(4) {
            let n = rounds(bytes);
            self.check_all_reduce(bytes)?;
            tell(Work::AllReduce, bytes, self.all_reduce(bytes, n)?);
        }
        Ok(())
    }

    /// Runs a kernel that repeats something `n` times on both PEs; the time of one, on the slower PE.
    fn time<K: Kernel>(&self, n: u64, kernel: K, args: K::Args) -> Result<f64, Box<dyn Error>> {
        let world = &self.world;
        self.comm.barrier(&self.stream)?;
        world.synchronize(&self.stream)?;
        let started = Instant::now();
        world.run(&self.stream, kernel, Grid::one(256), args)?;
        self.slowest.fill(started.elapsed().as_nanos() as f64 / n as f64);
        self.comm.all_reduce(&self.stream, self.slowest.view(), self.slowest.view(), Op::Max)?;
        world.synchronize(&self.stream)?;
        Ok(self.slowest.to_vec()[0])
    }

    /// The time of one of `n` all-reduces of f32.
    fn all_reduce(&self, bytes: u64, n: u64) -> Result<f64, Box<dyn Error>> {
        let (dst, src) = (self.dst.slice(..bytes as usize)?, self.src.slice(..bytes as usize)?);
        let sum = Reduction::new::<f32>(Op::Sum, None).ok_or("there is no sum of f32")?;
        let args = |protocol| (self.world.team(), dst, src, sum, 0, self.plan.view().over(protocol), n);
        if bytes <= ONE_SHOT {
            self.time(n, kernels::all_reduce_one_shot, args(Protocol::Ll))
        } else {
            self.time(n, kernels::all_reduce_direct, args(Protocol::Simple))
        }
    }

    /// One all-reduce of known numbers must give their sum in the first and the last element.
    fn check_all_reduce(&self, bytes: u64) -> Result<(), Box<dyn Error>> {
        let count = bytes as usize / 4;
        let pattern: Vec<u8> = (0..count).flat_map(|i| ((i % 7) as f32).to_ne_bytes()).collect();
        self.src.write(0, &pattern)?;
        self.all_reduce(bytes, 1)?;
        for i in [0, count - 1] {
            let mut word = [0; 4];
            self.dst.read(i * 4, &mut word)?;
            if f32::from_ne_bytes(word) != 2.0 * (i % 7) as f32 {
                return Err(format!("all-reduce of {bytes} bytes: element {i} is {}", f32::from_ne_bytes(word)).into());
            }
        }
        Ok(())
    }
}

/// Loop length: a quarter of a gibibyte of traffic, within bounds, as the C peers have it.
fn rounds(bytes: u64) -> u64 {
    ((256 << 20) / bytes.max(1)).clamp(4, 20_000)
}
