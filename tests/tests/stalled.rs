//! A PE that stalls or dies in the middle of a collective, for each algorithm: the others are told, and soon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::thread;
use std::time::{Duration, Instant};

use congruent::collectives::{Algorithm, Layout, Op, PlanView, Protocol, Sum, direct, one_shot, recursive, tree};
use congruent::device::abi::FaultKind;
use congruent::device::{Sym, kernels};
use congruent::{Comm, Error, Grid, LaunchError, Stream, SymVec, World, WorldFailure};
use processes::{Pe, Port, alone, is_pe, myself, say, seat};

const NPES: u32 = 3;
/// How long a wait may take.
const DEADLINE: Duration = Duration::from_millis(150);
/// How much later everybody knows, where other programs take the cores away.
const LOADED: Duration = Duration::from_secs(3);
/// How long a job of processes may take to start, or to end after a kill.
const PATIENCE: Duration = Duration::from_secs(30);
/// The PE that stalls.
const STALLED: u32 = 1;
/// Collectives before that.
const ROUNDS: usize = 3;

/// Calls a collective of what there is.
type Enqueue = fn(&Comm, &Stream, &SymVec<f32>, &SymVec<f32>) -> Result<(), LaunchError>;

fn all_reduce(comm: &Comm, stream: &Stream, dst: &SymVec<f32>, src: &SymVec<f32>) -> Result<(), LaunchError> {
    comm.all_reduce(stream, dst.view(), src.view(), Op::Sum)
}

fn all_to_all(comm: &Comm, stream: &Stream, dst: &SymVec<f32>, src: &SymVec<f32>) -> Result<(), LaunchError> {
    comm.all_to_all(stream, dst.view(), src.view())
}

fn broadcast_from_the_last(
    comm: &Comm,
    stream: &Stream,
    dst: &SymVec<f32>,
    src: &SymVec<f32>,
) -> Result<(), LaunchError> {
    comm.broadcast(stream, dst.view(), src.view(), comm.size() - 1)
}

/// All call some, then one does not.
fn stalled(width: u32, (algorithm, protocol): (Algorithm, Protocol), enqueue: Enqueue) {
    let program = |world: &mut World| {
        let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (dst, src) = (world.alloc::<f32>(3000)?, world.alloc::<f32>(3000)?);
        comm.force(algorithm, protocol);
        for _ in 0..ROUNDS {
            enqueue(&comm, &stream, &dst, &src)?;
        }
        world.synchronize(&stream)?;
        world.barrier()?;
        let from = Instant::now();
        let told = if world.pe().raw() == STALLED {
            // It calls nothing, and learns what came of that.
            loop {
                match world.check() {
                    Err(told) => break told,
                    Ok(()) if from.elapsed() > PATIENCE => panic!("nobody missed PE {STALLED}"),
                    Ok(()) => thread::sleep(Duration::from_millis(1)),
                }
            }
        } else {
            enqueue(&comm, &stream, &dst, &src)?;
            world.synchronize(&stream).unwrap_err()
        };
        Ok::<_, Error>((told, from.elapsed()))
    };
    let told = World::builder().width(width).deadline(DEADLINE).heap(16 << 20).local(NPES as usize, program).unwrap();
    let case = format!("{algorithm} over {protocol} at width {width}");
    let mut faults = 0;
    for (pe, (told, took)) in (0..).zip(told) {
        assert!(took >= DEADLINE / 2 && took < DEADLINE + LOADED, "{case}: PE {pe} was told after {took:?}");
        match told {
            WorldFailure::Fault(fault) => {
                assert_eq!((fault.kind, fault.pe), (FaultKind::Timeout, pe), "{case}: {fault}");
                assert_ne!(pe, STALLED, "{case}: {fault}");
                assert!(fault.peer.is_some_and(|peer| peer != pe), "{case}: {fault}");
                // What the other one sent has come.
                assert!(algorithm != Algorithm::ONE_SHOT || fault.peer == Some(STALLED), "{case}: {fault}");
                faults += 1;
            }
            WorldFailure::Aborted { by, reason, .. } => {
                assert_ne!(by, STALLED, "{case}: {reason}");
                assert!(reason.contains(&format!("PE {by}, block 0")), "{case}: {reason}");
            }
            other => panic!("{case}: PE {pe} was told {other:?}"),
        }
    }
    assert!(faults > 0, "{case}: the first to give up says why");
}

macro_rules! stalls {
    ($($name:ident: $algorithm:ident, $protocol:ident, $enqueue:ident;)*) => {$(
        #[test]
        fn $name() {
            for width in [1, 4] {
                stalled(width, (Algorithm::$algorithm, Protocol::$protocol), $enqueue);
            }
        }
    )*};
}

stalls! {
    stalled_in_a_ring: RING, Ll, all_reduce;
    stalled_in_one_shot: ONE_SHOT, Ll, all_reduce;
    stalled_in_direct: DIRECT, Simple, all_reduce;
    stalled_in_trees: TREE, Simple, all_reduce;
    stalled_in_trees_over_ll: TREE, Ll, all_reduce;
    stalled_in_recursive: RECURSIVE, Simple, all_reduce;
    stalled_in_a_broadcast: TREE, Simple, broadcast_from_the_last;
    stalled_in_an_all_to_all: DIRECT, Simple, all_to_all;
    stalled_in_bruck: BRUCK, Simple, all_to_all;
}

kernels! {
    /// One all-reduce after the other, in one exchange each.
    pub fn one_shots(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            one_shot::all_reduce(&mut plan.over(Protocol::Ll).enter(block, ctx), dst, src, Sum);
        }
    }

    /// One all-reduce after the other, each member reading from all.
    pub fn directs(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            direct::all_reduce(&mut plan.enter(block, ctx), dst, src, Sum);
        }
    }

    /// One all-reduce after the other, along trees.
    pub fn trees(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            tree::all_reduce(&mut plan.enter(block, ctx), dst, src, Sum);
        }
    }

    /// One all-reduce after the other, between partners.
    pub fn recursives(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            recursive::all_reduce(&mut plan.enter(block, ctx), dst, src, Sum);
        }
    }

    /// One all-to-all after the other.
    pub fn all_to_alls(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            direct::all_to_all(&mut plan.enter(block, ctx), dst, src);
        }
    }
}

/// What the PEs of a job of processes are busy with.
#[derive(Clone, Copy)]
enum Work {
    OneShots,
    Directs,
    Trees,
    Recursives,
    AllToAlls,
}

fn works(work: Work) -> Result<(), Error> {
    let mut world = World::builder().heap(8 << 20).build()?;
    let (dst, src) = (world.alloc::<f32>(3000)?, world.alloc::<f32>(3000)?);
    let (plan, stream) = (world.plan(Layout::new(world.team(), 1))?, world.stream()?);
    let (args, one) = ((dst.view(), src.view(), plan.view()), Grid::one(32));
    match work {
        Work::OneShots => world.launch(&stream, one_shots, one, args)?,
        Work::Directs => world.launch(&stream, directs, one, args)?,
        Work::Trees => world.launch(&stream, trees, one, args)?,
        Work::Recursives => world.launch(&stream, recursives, one, args)?,
        Work::AllToAlls => world.launch(&stream, all_to_alls, one, args)?,
    }
    say("READY");
    Ok(world.synchronize(&stream)?)
}

/// A PE's program: works until it is told that the job has ended, and says what it was told.
fn pe(work: Work) {
    let told = works(work);
    match told.as_ref().err().and_then(Error::world_failure) {
        Some(WorldFailure::PeerFailed { pe, .. }) => say(&format!("TOLD PE {pe}")),
        _ => say(&format!("TOLD something else: {told:?}")),
    }
}

/// Kills a PE of a job in the middle of its collectives; all others name it.
fn killed(test: &str, work: Work) {
    if is_pe() {
        return pe(work);
    }
    let _alone = alone();
    for victim in [0, NPES - 1] {
        let port = Port::reserve();
        let mut pes: Vec<Pe> = (0..NPES).map(|pe| Pe::start(seat(myself(test), &port, pe, NPES))).collect();
        for pe in &mut pes {
            pe.hear("READY", PATIENCE);
        }
        thread::sleep(Duration::from_millis(20));
        pes[victim as usize].child.kill().unwrap();
        let killed = Instant::now();
        for (_, pe) in (0..).zip(&mut pes).filter(|(pe, _)| *pe != victim) {
            assert_eq!(pe.hear("TOLD", PATIENCE), format!("PE {victim}"), "the PE that was killed");
            assert!(pe.child.wait().unwrap().success(), "a survivor ends in order");
        }
        assert!(killed.elapsed() < LOADED, "{test}: all knew after {:?}", killed.elapsed());
    }
}

macro_rules! kills {
    ($($name:ident: $work:ident;)*) => {$(
        #[test]
        fn $name() {
            killed(stringify!($name), Work::$work);
        }
    )*};
}

kills! {
    killed_in_one_shot: OneShots;
    killed_in_direct: Directs;
    killed_in_trees: Trees;
    killed_in_recursive: Recursives;
    killed_in_an_all_to_all: AllToAlls;
}
