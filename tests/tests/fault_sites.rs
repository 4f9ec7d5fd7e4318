//! A wait in vain names the line of the program that waits, whatever in the library does the waiting.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(missing_docs, reason = "these kernels are each one call, as their names say")]

use std::time::Duration;

use congruent::collectives::{
    Layout, Op, Operation, PlanView, Protocol, Sum, barrier, bruck, direct, multimem, one_shot, recursive, ring, tree,
};
use congruent::device::{Group, Kernel, Semaphore, Signal, Sym, Thread, kernels};
use congruent::{Error, Fault, Grid, LaunchError, SymVec, World, WorldFailure};

const NPES: usize = 3;
const DEADLINE: Duration = Duration::from_millis(40);
/// The PE that waits in vain.
const WAITER: u32 = 1;
/// Its rank, for what has a root.
const ME: usize = WAITER as usize;
const HERE: &str = "tests/tests/fault_sites.rs";

/// What the kernels take.
struct Words {
    semaphore: SymVec<Semaphore>,
    signals: SymVec<Signal>,
    whole: SymVec<f32>,
    part: SymVec<f32>,
}

kernels! {
    pub fn wait(block, ctx, semaphore: Sym<Semaphore>, _signals: Sym<Signal>) {
        ctx.wait(block, semaphore, 1);
    }
    pub fn wait_by_a_thread(block, ctx, semaphore: Sym<Semaphore>, _signals: Sym<Signal>) {
        if block.leader() {
            ctx.wait(&Thread, semaphore, 2);
        }
    }
    pub fn wait_by_a_warp(block, ctx, semaphore: Sym<Semaphore>, _signals: Sym<Signal>) {
        ctx.wait(&block.warp(), semaphore, 3);
    }
    pub fn wait_at_least(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_at_least(block, signals.elem(1), 1);
    }
    pub fn wait_all(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_all(block, signals, 1);
    }
    pub fn wait_any(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_any(block, signals, 1);
    }
    pub fn wait_equal(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_equal(block, signals.elem(0), 7);
    }
    pub fn wait_each(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_each(block, signals.len(), |i| Some((signals.elem(i).into(), 1)));
    }
    pub fn wait_some(block, ctx, _semaphore: Sym<Semaphore>, signals: Sym<Signal>) {
        ctx.wait_some(block, signals.len(), |i| Some((signals.elem(i).into(), 1)), |_| {});
    }
    pub fn sync(block, ctx, _semaphore: Sym<Semaphore>, _signals: Sym<Signal>) {
        ctx.sync(block, &ctx.world());
    }
    pub fn team_barrier(block, ctx, _semaphore: Sym<Semaphore>, _signals: Sym<Signal>) {
        ctx.barrier(block, &ctx.world());
    }

    /// Waits until the launch is ended from outside; not for ever.
    pub fn until_ended(block, ctx, semaphore: Sym<Semaphore>) {
        for _ in 0..1000 {
            if ctx.try_wait(block, semaphore, 1, Duration::from_millis(10)).is_ok() {
                return;
            }
        }
    }
}

/// Kernels that make one call each, over the whole world: on the buffer with a part for each member, and on the part.
macro_rules! calls {
    ($($name:ident($coll:ident, $whole:ident, $part:ident) $call:expr;)*) => {
        kernels! {$(
            pub fn $name(block, ctx, $whole: Sym<f32>, $part: Sym<f32>, plan: PlanView) {
                let $coll = &mut plan.enter(block, ctx);
                $call;
            }
        )*}
    };
}

calls! {
    ring_all_reduce(c, w, _p) ring::all_reduce(c, w, w, Sum);
    ring_reduce_scatter(c, w, p) ring::reduce_scatter(c, p, w, Sum);
    ring_all_gather(c, w, p) ring::all_gather(c, w, p);
    ring_broadcast(c, w, _p) ring::broadcast(c, w, w, 0);
    ring_reduce(c, w, _p) ring::reduce(c, w, w, Sum, ME);
    tree_all_reduce(c, w, _p) tree::all_reduce(c, w, w, Sum);
    tree_reduce(c, w, _p) tree::reduce(c, w, w, Sum, ME);
    tree_broadcast(c, w, _p) tree::broadcast(c, w, w, 0);
    recursive_all_reduce(c, w, _p) recursive::all_reduce(c, w, w, Sum);
    recursive_reduce_scatter(c, w, p) recursive::reduce_scatter(c, p, w, Sum);
    recursive_all_gather(c, w, p) recursive::all_gather(c, w, p);
    direct_all_reduce(c, w, _p) direct::all_reduce(c, w, w, Sum);
    direct_reduce_scatter(c, w, p) direct::reduce_scatter(c, p, w, Sum);
    direct_reduce(c, w, _p) direct::reduce(c, w, w, Sum, ME);
    direct_all_gather(c, w, p) direct::all_gather(c, w, p);
    direct_broadcast(c, w, _p) direct::broadcast(c, w, w, 0);
    direct_scatter(c, w, p) direct::scatter(c, p, w, 0);
    direct_gather(c, w, p) direct::gather(c, w, p, ME);
    direct_all_to_all(c, w, _p) direct::all_to_all(c, w, w);
    bruck_all_to_all(c, w, _p) bruck::all_to_all(c, w, w);
    plan_barrier(c, _w, _p) barrier(c);
}

calls! {
    one_shot_all_reduce(c, w, _p) one_shot::all_reduce(c, w, w, Sum);
    one_shot_reduce_scatter(c, w, p) one_shot::reduce_scatter(c, p, w, Sum);
    one_shot_all_gather(c, w, p) one_shot::all_gather(c, w, p);
    one_shot_all_to_all(c, w, _p) one_shot::all_to_all(c, w, w);
}

calls! {
    multimem_all_reduce(c, w, _p) multimem::all_reduce(c, w, w, Sum);
    multimem_reduce_scatter(c, w, p) multimem::reduce_scatter(c, p, w, Sum);
    multimem_all_gather(c, w, p) multimem::all_gather(c, w, p);
    multimem_broadcast(c, w, _p) multimem::broadcast(c, w, w, 0);
}

/// The fault of PE 1, which alone does `what`, while the others wait for its end.
fn fault(what: impl Fn(&mut World, &Words) -> Result<WorldFailure, Error> + Sync) -> Fault {
    let program = |world: &mut World| {
        let words = Words {
            semaphore: world.alloc(1)?,
            signals: world.alloc(2)?.named("halo"),
            whole: world.alloc(3000)?,
            part: world.alloc(1000)?,
        };
        if world.pe().raw() == WAITER {
            return Ok(Some(what(world, &words)?));
        }
        let plan = world.plan(Layout::new(world.team(), 1))?;
        let stream = world.stream()?;
        world.run(&stream, until_ended, Grid::one(32), (words.semaphore.view(),)).unwrap_err();
        drop(plan);
        Ok::<_, Error>(None)
    };
    let told = World::builder().deadline(DEADLINE).multicast(true).heap(16 << 20).local(NPES, program).unwrap();
    match told.into_iter().flatten().next() {
        Some(WorldFailure::Fault(fault)) => fault,
        other => panic!("no fault: {other:?}"),
    }
}

/// The number of the one line that has this text.
fn line_with(text: &str) -> usize {
    let source = include_str!("fault_sites.rs").lines().zip(1..);
    let lines: Vec<usize> = source.filter(|(line, _)| line.contains(text)).map(|(_, number)| number).collect();
    // The call of this function has it too, further down.
    lines[0]
}

/// The fault names the kernel, the line of its source that waits, and a line that launched it.
fn names<K: Kernel>(_kernel: K, fault: &Fault, waits: &str) {
    assert_eq!(fault.kernel, Some(K::NAME), "{fault}");
    let at = fault.at.as_deref().unwrap();
    assert!(at.starts_with(&format!("{HERE}:{}:", line_with(waits))), "{} is at {at}", K::NAME);
    assert!(fault.launched_at.as_deref().unwrap().starts_with(HERE), "{fault}");
    let text = fault.to_string();
    assert!(text.contains(&format!("in kernel {} at {at}", K::NAME)), "{text}");
}

#[test]
fn of_a_wait_in_a_kernel() {
    macro_rules! each {
        ($($kernel:ident: $waits:literal;)*) => {$(
            let found = fault(|world: &mut World, words: &Words| {
                let _plan = world.plan(Layout::new(world.team(), 1))?;
                let stream = world.stream()?;
                world.launch(&stream, $kernel, Grid::one(32), (words.semaphore.view(), words.signals.view()))?;
                Ok(world.synchronize(&stream).unwrap_err())
            });
            names($kernel, &found, $waits);
        )*};
    }
    each! {
        wait: "ctx.wait(block, semaphore, 1)";
        wait_by_a_thread: "ctx.wait(&Thread, semaphore, 2)";
        wait_by_a_warp: "ctx.wait(&block.warp(), semaphore, 3)";
        wait_at_least: "ctx.wait_at_least(block,";
        wait_all: "ctx.wait_all(block,";
        wait_any: "ctx.wait_any(block,";
        wait_equal: "ctx.wait_equal(block,";
        wait_each: "ctx.wait_each(block,";
        wait_some: "ctx.wait_some(block,";
        sync: "ctx.sync(block,";
        team_barrier: "ctx.barrier(block,";
    }
}

fn of_calls<K: Kernel<Args = (Sym<f32>, Sym<f32>, PlanView)>>(kernel: K, protocols: &[Protocol]) {
    for &protocol in protocols {
        let found = fault(|world: &mut World, words: &Words| {
            let plan = world.plan(Layout::new(world.team(), 1))?;
            let stream = world.stream()?;
            let args = (words.whole.view(), words.part.view(), plan.view().over(protocol));
            world.launch(&stream, kernel, Grid::one(32), args)?;
            Ok(world.synchronize(&stream).unwrap_err())
        });
        names(kernel, &found, &format!("    {}(c, ", K::NAME));
    }
}

#[test]
fn of_a_call_in_a_kernel() {
    macro_rules! each {
        ($protocols:expr; $($kernel:ident)*) => {$(of_calls($kernel, &$protocols);)*};
    }
    each! { [Protocol::Simple, Protocol::Ll, Protocol::Ll128];
        ring_all_reduce ring_reduce_scatter ring_all_gather ring_broadcast ring_reduce
        tree_all_reduce tree_reduce tree_broadcast
        recursive_all_reduce recursive_reduce_scatter recursive_all_gather
    }
    each! { [Protocol::Simple];
        direct_all_reduce direct_reduce_scatter direct_reduce direct_all_gather direct_broadcast direct_scatter
        direct_gather direct_all_to_all bruck_all_to_all plan_barrier
        multimem_all_reduce multimem_reduce_scatter multimem_all_gather multimem_broadcast
    }
    each! { [Protocol::Ll, Protocol::Ll128];
        one_shot_all_reduce one_shot_reduce_scatter one_shot_all_gather one_shot_all_to_all
    }
}

/// The fault names the object as the program made it, and which element of it.
#[test]
fn of_the_object_that_is_awaited() {
    let waits = |world: &mut World, words: &Words| {
        let _plan = world.plan(Layout::new(world.team(), 1))?;
        let stream = world.stream()?;
        world.launch(&stream, wait_at_least, Grid::one(32), (words.semaphore.view(), words.signals.view()))?;
        Ok(world.synchronize(&stream).unwrap_err())
    };
    let text = fault(waits).to_string();
    let made = format!("made at {HERE}:{}:", line_with(".named(\"halo\")"));
    assert!(text.contains(&format!("for element 1 of `halo` (SymVec<Signal>, 2 elements, {made}")), "{text}");
}

/// Of a wait in a collective it tells what is awaited, and in which operations both PEs are.
#[test]
fn of_collectives_that_differ() {
    let told = World::builder().deadline(DEADLINE).heap(16 << 20).local(2, |world| {
        let (whole, part) = (world.alloc::<f32>(3000)?, world.alloc::<f32>(1500)?);
        let plan = world.plan(Layout::new(world.team(), 1))?.named("sums");
        let stream = world.stream()?;
        world.barrier()?;
        let args = (whole.view(), part.view(), plan.view());
        match world.pe().raw() {
            0 => world.launch(&stream, direct_all_gather, Grid::one(32), args)?,
            _ => world.launch(&stream, ring_all_reduce, Grid::one(32), args)?,
        }
        Ok::<_, Error>(world.synchronize(&stream).unwrap_err())
    });
    let faults: Vec<Fault> = told
        .unwrap()
        .into_iter()
        .filter_map(|failure| match failure {
            WorldFailure::Fault(fault) => Some(fault),
            _ => None,
        })
        .collect();
    assert!(!faults.is_empty());
    for fault in faults {
        let does = |pe| [Operation::AllGatherDirect, Operation::AllReduceRing][pe as usize];
        assert_eq!(fault.operation, Some(does(fault.pe)), "{fault}");
        assert_eq!((fault.peer, fault.peer_operation), (Some(1 - fault.pe), Some(does(1 - fault.pe))), "{fault}");
        let text = fault.to_string();
        let awaited = match fault.pe {
            0 => "the barrier with rank 1 (simple, slot 0) of `sums`",
            _ => "the arrival of a chunk of rank 0 (simple, slot 0) of `sums`",
        };
        assert!(text.contains(awaited), "{text}");
        assert_eq!(fault.chunk, (fault.pe == 1).then_some(1), "{text}");
        assert!(text.contains("PE 0 is in all-gather direct") && text.contains("PE 1 is in all-reduce ring"), "{text}");
    }
}

/// A call on a stream is named by its own line, and not by one of the library's kernel.
#[test]
fn of_a_call_on_a_stream() {
    let fault = fault(|world: &mut World, words: &Words| {
        let _plan = world.plan(Layout::new(world.team(), 1))?;
        let stream = world.stream()?;
        world.wait_at_least(&stream, words.signals.view(), 1)?; // waits
        Ok(world.synchronize(&stream).unwrap_err())
    });
    assert_eq!((fault.kernel, fault.launched_at.as_deref()), (Some("wait_at_least"), None));
    assert!(fault.at.unwrap().starts_with(&format!("{HERE}:{}:", line_with("?; // waits"))));

    let told = World::builder().deadline(DEADLINE).heap(64 << 20).local(2, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (numbers, semaphore) = (world.alloc::<f32>(1000)?, world.alloc::<Semaphore>(1)?);
        if world.pe().raw() == 0 {
            let waits = world.run(&stream, until_ended, Grid::one(32), (semaphore.view(),));
            let Err(LaunchError::World(told)) = waits else { panic!("{waits:?}") };
            return Ok(told);
        }
        comm.all_reduce(&stream, numbers.view(), numbers.view(), Op::Sum)?; // reduces
        Ok::<_, Error>(world.synchronize(&stream).unwrap_err())
    });
    let told = told.unwrap();
    let WorldFailure::Fault(fault) = &told[1] else { panic!("{told:?}") };
    let at = format!("{HERE}:{}:", line_with("?; // reduces"));
    assert!(fault.at.as_deref().unwrap().starts_with(&at), "{fault}");
    assert!(told[0].to_string().contains(&at), "the others hear it too: {}", told[0]);
}
