//! A PE that is killed or stopped in any operation is missed by all the others, and soon.
//!
//! Each operation loses one PE of a job each way. With `CONGRUENT_TEST_KILLS=200` as many PEs are killed, and a quarter as many are
//! stopped, at random points of operations in turn, and the times are judged: then nothing else should need the cores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{array, env};

use congruent::collectives::{Op, Parts};
use congruent::device::{Semaphore, Sym, World as WorldTag, kernels};
use congruent::{Comm, Error, Grid, Stream, SymVec, World, WorldFailure};
use congruent_tests::conformance::few_shapes;
use processes::{Pe, Port, alone, is_pe, myself, say, seat};

const NPES: u32 = 3;
/// The longest wait of a kernel, in jobs of which a PE is stopped, and of host calls, whose clock has whole seconds.
const DEADLINE: Duration = Duration::from_secs(1);
const HOST_DEADLINE: Duration = Duration::from_secs(4);
/// How much later than a kill, or than the deadline after a stop, the survivors know: 99 of 100 of them.
const SOON: Duration = Duration::from_millis(250);
/// The same for each of them, on a machine that is busy with other things.
const LOADED: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// Elements of a member's part.
const PART: usize = 1000;
/// Which operation the PEs of a job go on with.
const OPERATION: &str = "CONGRUENT_TEST_OPERATION";

kernels! {
    /// Puts to the next PE and waits for what the one before puts here.
    pub fn puts(block, ctx, dst: Sym<f32>, src: Sym<f32>, arrived: Sym<Semaphore>) {
        let world = ctx.world();
        ctx.put_signal(block, dst.at(world.next()), src, arrived.at(world.next()).post());
        ctx.wait(block, arrived.from_rank(world.prev()), 1);
    }

    /// Gets from the next PE and meets the others.
    pub fn gets(block, ctx, dst: Sym<f32>, src: Sym<f32>) {
        ctx.get(block, dst, src.at(ctx.world().next()));
        ctx.barrier(block, &ctx.world());
    }

    /// Posts to the next PE and waits for a post.
    pub fn waits(block, ctx, posted: Sym<Semaphore>) {
        let world = ctx.world();
        ctx.notify(block, posted.at(world.next()).post());
        ctx.wait(block, posted.from_rank(world.prev()), 1);
    }

    /// Meets the others.
    pub fn barriers(block, ctx) {
        ctx.barrier(block, &ctx.world());
    }
}

/// A PE's world and what operations work on.
struct Site {
    comm: Comm,
    stream: Stream,
    long: SymVec<f32>,
    other: SymVec<f32>,
    lists: SymVec<u64>,
    semaphore: SymVec<Semaphore>,
    world: World,
}

impl Site {
    fn new() -> Result<Self, Error> {
        let mut world = World::builder().heap(32 << 20).build()?;
        let (npes, len) = (world.npes(), PART * world.npes());
        let lists = world.alloc::<u64>(2 * npes)?;
        let starts = (0..npes).map(|i| (i * PART) as u64);
        lists.write(0, &(0..npes).map(|_| PART as u64).chain(starts).collect::<Vec<_>>())?;
        Ok(Self {
            comm: world.comm(world.team())?,
            stream: world.stream()?,
            long: world.alloc(len)?,
            other: world.alloc(len)?,
            lists,
            semaphore: world.alloc(1)?,
            world,
        })
    }

    /// A part of each buffer.
    fn parts(&self) -> [Sym<f32>; 2] {
        [self.long.view().slice(..PART), self.other.view().slice(..PART)]
    }

    fn lists(&self) -> Parts {
        let npes = self.world.npes();
        Parts::new(self.lists.view().slice(..npes), self.lists.view().slice(npes..))
    }

    fn send_recv(&self) -> Result<(), Error> {
        let ([from, to], n, me) = (self.parts(), self.comm.size(), self.comm.rank());
        Ok(self.comm.group(&self.stream, |group| {
            self.comm.send(group, from, (me + 1) % n)?;
            self.comm.recv(group, to, (me + n - 1) % n)
        })?)
    }

    /// Does an operation once, and waits until it is done.
    fn once(&mut self, operation: &str) -> Result<(), Error> {
        let Self { comm, stream, long, other, semaphore, .. } = &*self;
        let ([part, _], long, other, one) = (self.parts(), long.view(), other.view(), Grid::one(32));
        match operation {
            "all-reduce" => comm.all_reduce(stream, other, long, Op::Sum)?,
            "reduce-scatter" => comm.reduce_scatter(stream, part, other, Op::Sum)?,
            "reduce" => comm.reduce(stream, other, long, Op::Sum, 1)?,
            "all-gather" => comm.all_gather(stream, other, part)?,
            "broadcast" => comm.broadcast(stream, other, long, 1)?,
            "gather" => comm.gather(stream, other, part, 1)?,
            "scatter" => comm.scatter(stream, part, other, 1)?,
            "all-to-all" => comm.all_to_all(stream, other, long)?,
            "all-to-all-v" => comm.all_to_all_v(stream, other, long, self.lists(), self.lists())?,
            "all-gather-v" => comm.all_gather_v(stream, other, part, self.lists())?,
            "send-recv" => self.send_recv()?,
            "put" => self.world.launch(stream, puts, one, (other, long, semaphore.view()))?,
            "get" => self.world.launch(stream, gets, one, (other, long))?,
            "wait" => self.world.launch(stream, waits, one, (semaphore.view(),))?,
            "barrier" => self.world.launch(stream, barriers, one, ())?,
            "alloc" => drop(self.world.alloc::<u8>(1000)?),
            "split" => drop(self.world.split::<WorldTag>(Some(self.world.pe().raw() % 2), 0)?),
            other => panic!("no operation {other}"),
        }
        Ok(self.world.synchronize(&self.stream)?)
    }
}

/// All that a PE may be lost in; the last two are host calls.
const OPERATIONS: [&str; 17] = [
    "all-reduce",
    "reduce-scatter",
    "reduce",
    "all-gather",
    "broadcast",
    "gather",
    "scatter",
    "all-to-all",
    "all-to-all-v",
    "all-gather-v",
    "send-recv",
    "put",
    "get",
    "wait",
    "barrier",
    "alloc",
    "split",
];

fn is_host_call(operation: &str) -> bool {
    ["alloc", "split"].contains(&operation)
}

/// A PE's program: goes on with an operation until it fails, and says when and how it did.
fn pe() {
    let operation = env::var(OPERATION).unwrap();
    let mut site = Site::new().unwrap();
    site.once(&operation).unwrap();
    say("READY");
    let error = loop {
        if let Err(error) = site.once(&operation) {
            break error;
        }
    };
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let ended = error.to_string().contains("the job has ended");
    let told = match error.world_failure() {
        Some(WorldFailure::PeerFailed { pe, .. }) => format!("PE {pe} failed"),
        Some(WorldFailure::Fault(_) | WorldFailure::Aborted { .. }) => "too late".to_owned(),
        // The end of the job is the world's failure, also in the words of a call that was under way.
        None if matches!(&error, Error::Alloc(_) | Error::Split(_)) && !ended => "too late".to_owned(),
        _ => format!("something else: {error:?}"),
    };
    say(&format!("TOLD {at} {told}"));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Kill,
    Stop,
}

impl Loss {
    fn signal(self, process: u32) {
        let signal = if self == Self::Kill { "-KILL" } else { "-STOP" };
        assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
    }
}

/// Runs a job in which PE `victim` is lost `after` all have begun. Gives how much later than they may the others were told.
fn lose(test: &str, loss: Loss, operation: &str, victim: u32, after: Duration) -> [Duration; NPES as usize - 1] {
    let port = Port::reserve();
    let mut pes: [Pe; NPES as usize] = array::from_fn(|pe| {
        let mut command = seat(myself(test), &port, pe as u32, NPES);
        command.env(OPERATION, operation);
        if loss == Loss::Stop && !is_host_call(operation) {
            command.env("CONGRUENT_DEADLINE_MS", DEADLINE.as_millis().to_string());
        }
        if loss == Loss::Stop && is_host_call(operation) {
            command.env("CONGRUENT_BOOTSTRAP_DEADLINE", HOST_DEADLINE.as_secs().to_string());
        }
        Pe::start(command)
    });
    for pe in &mut pes {
        pe.hear("READY", PATIENCE);
    }
    sleep(after);
    let lost = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    loss.signal(pes[victim as usize].child.id());
    let (due, expected) = match loss {
        Loss::Kill => (lost, format!("PE {victim} failed")),
        Loss::Stop if is_host_call(operation) => (lost + HOST_DEADLINE, "too late".to_owned()),
        Loss::Stop => (lost + DEADLINE, "too late".to_owned()),
    };
    let mut survivors = (0..).zip(&mut pes).filter(|(pe, _)| *pe != victim);
    array::from_fn(|_| {
        let (pe, survivor) = survivors.next().unwrap();
        let heard = survivor.hear("TOLD", PATIENCE);
        let (at, told) = heard.split_once(' ').unwrap();
        assert_eq!(told, expected, "PE {pe}, when PE {victim} was lost by {loss:?} in {operation}");
        let at = Duration::from_nanos(at.parse().unwrap());
        assert!(survivor.child.wait().unwrap().success(), "a survivor ends in order");
        at.saturating_sub(due)
    })
}

/// Loses a PE in each operation, or as many as were asked for, and judges how soon the others know.
fn each_is_missed(test: &str, loss: Loss, part: usize) {
    if is_pe() {
        return pe();
    }
    let asked: Option<usize> = env::var("CONGRUENT_TEST_KILLS").ok().map(|kills| kills.parse().unwrap());
    // Where few shapes are enough, so is every third operation.
    let step = if asked.is_none() && few_shapes() { 3 } else { 1 };
    let jobs = asked.map_or(OPERATIONS.len().div_ceil(step), |kills| kills.div_ceil(part));
    let _alone = alone();
    // Any numbers do, and the same ones show the same again.
    let mut random = jobs as u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut late: Vec<Duration> = OPERATIONS
        .iter()
        .step_by(step)
        .cycle()
        .take(jobs)
        .flat_map(|operation| {
            lose(test, loss, operation, next(NPES.into()) as u32, Duration::from_micros(next(30_000)))
        })
        .collect();
    late.sort();
    let percentile = |percent: usize| late[(late.len() * percent).div_ceil(100) - 1];
    let (median, most, last) = (percentile(50), percentile(99), percentile(100));
    println!(
        "\nMEASURED {jobs} PEs lost by {loss:?}: half of the others knew after {median:?}, 99 % after {most:?}, all after {last:?}"
    );
    assert!(last < LOADED, "{late:?}");
    assert!(asked.is_none() || most < SOON, "{late:?}");
}

#[test]
fn a_pe_that_is_killed_in_any_operation_is_missed() {
    each_is_missed("a_pe_that_is_killed_in_any_operation_is_missed", Loss::Kill, 1);
}

#[test]
fn a_pe_that_is_stopped_in_any_operation_is_missed() {
    each_is_missed("a_pe_that_is_stopped_in_any_operation_is_missed", Loss::Stop, 4);
}
