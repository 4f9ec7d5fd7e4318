//! A PE that is killed or stopped in any operation is missed by all the others, and soon.
//!
//! Each operation loses one PE of a job each way. With `CONGRUENT_TEST_KILLS=200` as many PEs are killed, and a quarter as many are
//! stopped, at random points of operations in turn, and the times are judged: then nothing else should need the cores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{array, env};

use congruent::collectives::moe::{Added, MoeConfig, MoeView, Tokens};
use congruent::collectives::norm::{self, NormRows};
use congruent::collectives::{Layout, Op, Parts, PlanView};
use congruent::device::{Group, Semaphore, Signal, Slice, Sym, World as WorldTag, kernels};
use congruent::{Buffer, Comm, Error, Grid, Moe, Plan, RowsByExpert, Stream, SymVec, World, WorldFailure};
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
/// Tokens of a member, their numbers, and how many experts each has.
const TOKENS: usize = 16;
const HIDDEN: usize = 4;
const TOP_K: usize = 2;
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

    /// Stores values at the next PE one by one and meets the others.
    pub fn values(block, ctx, dst: Sym<f32>) {
        for i in block.strided(dst.len()) {
            ctx.put_value(dst.elem(i).at(ctx.world().next()), i as f32);
        }
        ctx.barrier(block, &ctx.world());
    }

    /// Counts at the next PE, in each way that gives the old value, and meets the others.
    pub fn atomics(block, ctx, counts: Sym<u64>) {
        let next = ctx.world().next();
        for i in block.strided(counts.len()) {
            let old = ctx.fetch_add(counts.elem(i).at(next), 1);
            let old = ctx.swap(counts.elem(i).at(next), old);
            let _lost = ctx.compare_exchange(counts.elem(i).at(next), old, 0);
        }
        ctx.barrier(block, &ctx.world());
    }

    /// Puts every second element to the next PE and meets the others.
    pub fn strided_puts(block, ctx, dst: Sym<f32>, src: Sym<f32>) {
        ctx.put_strided(block, dst.at(ctx.world().next()), 2, src, 2, src.len() / 2);
        ctx.barrier(block, &ctx.world());
    }

    /// Gets every second element from the next PE and meets the others.
    pub fn strided_gets(block, ctx, dst: Sym<f32>, src: Sym<f32>) {
        ctx.get_strided(block, dst, 2, src.at(ctx.world().next()), 2, src.len() / 2);
        ctx.barrier(block, &ctx.world());
    }

    /// Sums rows and normalizes them.
    pub fn norms(block, ctx, plan: PlanView, src: Sym<f32>, residual: Sym<f32>, weights: Slice<f32>) {
        let rows = NormRows { dst: src, src, residual, weights, epsilon: 1.0 };
        norm::all_reduce(&mut plan.enter(block, ctx), rows);
    }

    /// Sends tokens to experts, which give them back.
    pub fn experts_answer(
        block, ctx, moe: MoeView, x: Sym<f32>, experts: Sym<i32>, weights: Sym<f32>, y: Sym<f32>,
    ) {
        let moe = moe.enter(block, ctx);
        let tokens = Tokens {
            count: TOKENS,
            payload: x.cast::<u8>(),
            scales: Sym::empty(),
            experts: |i| ctx.load(experts, i),
            weights: |i| ctx.load(weights, i),
        };
        let sent = moe.dispatch_send(moe.idle(0), &tokens);
        let Ok(received) = moe.dispatch_recv(sent) else { return };
        let combining = moe.combine_send::<f32, _>(received, |row, _k| {
            let x = row.payload().cast::<f32>();
            move |i| ctx.load(x, i)
        });
        let _idle = moe.combine_recv(combining, y, Added::Nothing);
    }
}

/// A PE's world and what operations work on.
struct Site {
    comm: Comm,
    stream: Stream,
    long: SymVec<f32>,
    other: SymVec<f32>,
    lists: SymVec<u64>,
    counts: SymVec<u64>,
    semaphore: SymVec<Semaphore>,
    signal: SymVec<Signal>,
    /// How often the signal was sent.
    sent: u64,
    plan: Plan,
    scales: Buffer<f32>,
    moe: Moe,
    experts: SymVec<i32>,
    weights: SymVec<f32>,
    by_expert: SymVec<f32>,
    starts: SymVec<u32>,
    world: World,
}

impl Site {
    fn new() -> Result<Self, Error> {
        let mut world = World::builder().heap(32 << 20).build()?;
        let (npes, len) = (world.npes(), PART * world.npes());
        let lists = world.alloc::<u64>(2 * npes)?;
        let starts = (0..npes).map(|i| (i * PART) as u64);
        lists.write(0, &(0..npes).map(|_| PART as u64).chain(starts).collect::<Vec<_>>())?;
        let config = MoeConfig::new(TOKENS as u32, npes as u32, TOP_K as u32);
        let config = config.payload(4 * HIDDEN as u32).output(4 * HIDDEN as u32);
        let experts = world.alloc(TOKENS * TOP_K)?;
        experts.write(0, &[0, npes as i32 - 1].repeat(TOKENS))?;
        Ok(Self {
            comm: world.comm(world.team())?,
            stream: world.stream()?,
            long: world.alloc(len)?,
            other: world.alloc(len)?,
            lists,
            counts: world.alloc(PART)?,
            semaphore: world.alloc(1)?,
            signal: world.alloc(1)?,
            sent: 0,
            plan: world.plan(Layout::new(world.team(), 1))?,
            scales: world.buffer(PART)?,
            moe: world.moe(world.team(), config)?,
            experts,
            weights: world.alloc(TOKENS * TOP_K)?,
            by_expert: world.alloc(config.most_rows(npes as u32, 1) as usize * HIDDEN)?,
            starts: world.alloc(npes + 1)?,
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

    /// Sends tokens to experts, which give them back, by calls on the stream.
    fn token_calls(&self) -> Result<(), Error> {
        let Self { stream, experts, weights, by_expert, starts, .. } = self;
        let [x, y] = self.tokens();
        let (experts, weights) = (experts.view(), weights.view());
        let tokens = Tokens { count: TOKENS, payload: x.cast(), scales: Sym::empty(), experts, weights };
        let rows =
            RowsByExpert { payload: by_expert.view().cast(), scales: Sym::empty(), starts: starts.view(), align: 1 };
        let received = self.moe.idle(0)?.dispatch_send(stream, &tokens)?.dispatch_recv(stream, rows)?;
        let combining = received.combine_send(stream, by_expert.view())?;
        Ok(combining.combine_recv(stream, y, Added::Nothing).map(drop)?)
    }

    /// A token's numbers for each token, in each buffer.
    fn tokens(&self) -> [Sym<f32>; 2] {
        self.parts().map(|part| part.slice(..TOKENS * HIDDEN))
    }

    /// Puts to the next PE and waits for what the one before puts here, on the stream.
    fn stream_put(&mut self) -> Result<(), Error> {
        self.sent += 1;
        let Self { world, stream, long, other, signal, sent, .. } = self;
        let (pe, npes) = (world.pe().raw(), world.npes() as u32);
        let (next, prev) = (world.rank((pe + 1) % npes)?, world.rank((pe + npes - 1) % npes)?);
        world.put(stream, other.view().at(next), long.view())?;
        world.notify(stream, signal.view().at(next).set(*sent))?;
        Ok(world.wait_at_least(stream, signal.view().from_rank(prev), *sent)?)
    }

    /// Does an operation once, and waits until it is done.
    fn once(&mut self, operation: &str) -> Result<(), Error> {
        // What takes the world, or a count, to itself.
        match operation {
            "alloc" => drop(self.world.alloc::<u8>(1000)?),
            "split" => drop(self.world.split::<WorldTag>(Some(self.world.pe().raw() % 2), 0)?),
            "world-barrier" => self.world.barrier()?,
            "stream-put" => self.stream_put()?,
            _ => self.enqueue(operation)?,
        }
        Ok(self.world.synchronize(&self.stream)?)
    }

    fn enqueue(&self, operation: &str) -> Result<(), Error> {
        let Self { comm, stream, long, other, semaphore, world, .. } = self;
        let ([part, rows], long, other, one) = (self.parts(), long.view(), other.view(), Grid::one(32));
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
            "comm-barrier" => comm.barrier(stream)?,
            "put" => world.launch(stream, puts, one, (other, long, semaphore.view()))?,
            "get" => world.launch(stream, gets, one, (other, long))?,
            "wait" => world.launch(stream, waits, one, (semaphore.view(),))?,
            "barrier" => world.launch(stream, barriers, one, ())?,
            "put-value" => world.launch(stream, values, one, (part,))?,
            "atomics" => world.launch(stream, atomics, one, (self.counts.view(),))?,
            "put-strided" => world.launch(stream, strided_puts, one, (other, long))?,
            "get-strided" => world.launch(stream, strided_gets, one, (other, long))?,
            "norm" => world.launch(stream, norms, one, (self.plan.view(), part, rows, &self.scales))?,
            "tokens" => {
                let ([x, y], moe) = (self.tokens(), self.moe.view());
                world.launch(stream, experts_answer, one, (moe, x, self.experts.view(), self.weights.view(), y))?;
            }
            "token-calls" => self.token_calls()?,
            other => panic!("no operation {other}"),
        }
        Ok(())
    }
}

/// All that a PE may be lost in; the last three are host calls.
const OPERATIONS: [&str; 27] = [
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
    "comm-barrier",
    "tokens",
    "token-calls",
    "norm",
    "put",
    "get",
    "wait",
    "barrier",
    "put-value",
    "atomics",
    "put-strided",
    "get-strided",
    "stream-put",
    "alloc",
    "split",
    "world-barrier",
];

fn is_host_call(operation: &str) -> bool {
    ["alloc", "split", "world-barrier"].contains(&operation)
}

/// A PE's program: goes on with an operation until it fails, and says when and how it did.
fn pe() {
    let operation = env::var(OPERATION).unwrap();
    let mut site = Site::new().unwrap();
    site.once(&operation).unwrap();
    assert_eq!(site.moe.refusal(0).unwrap(), None, "tokens went all the way");
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
        None if matches!(&error, Error::Alloc(_) | Error::Split(_) | Error::Collective(_)) && !ended => {
            "too late".to_owned()
        }
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
    let operations = OPERATIONS.iter().step_by(step).cycle().take(jobs);
    let losses: Vec<_> = operations
        .map(|operation| (*operation, next(NPES.into()) as u32, Duration::from_micros(next(30_000))))
        .collect();
    // Survivors of a stop wait and compute nothing, so that a job beside them does no harm where times are not judged.
    let at_once = if asked.is_none() && loss == Loss::Stop { 3 } else { 1 };
    let mut late = Vec::new();
    for losses in losses.chunks(at_once) {
        thread::scope(|scope| {
            let jobs: Vec<_> = losses
                .iter()
                .map(|&(operation, victim, after)| scope.spawn(move || lose(test, loss, operation, victim, after)))
                .collect();
            late.extend(jobs.into_iter().flat_map(|job| job.join().unwrap()));
        });
    }
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
