//! Waits that never come: who is told what, where, and how soon.
//!
//! PE 1 of three runs a kernel that waits in vain, while the others wait without a deadline of their own until they hear
//! that the job is over. At width 1 and at width 32: there other lanes of the block wait for the one that waits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::process::Command;
use std::time::{Duration, Instant};

use congruent::collectives::{Layout, PlanView, Sum, ring};
use congruent::device::abi::{FaultKind, SyncLayout};
use congruent::device::{Group, Kernel, Semaphore, Signal, Sym, kernels};
use congruent::{Arguments, Error, Fault, Grid, LaunchError, Plan, SymVec, World, WorldFailure};

const DEADLINE: Duration = Duration::from_millis(120);
/// How much later than its deadline a wait may end.
const SLACK: Duration = Duration::from_millis(50);
/// The same where other programs take the cores away.
const LOADED: Duration = Duration::from_secs(3);
const WIDTHS: [u32; 2] = [1, 32];
/// Waits that are timed are repeated, and the median counts.
const ROUNDS: usize = 3;
/// The PE that waits in vain, and its neighbours.
const WAITER: u32 = 1;
const NEXT: u32 = 2;
const PREVIOUS: u32 = 0;

kernels! {
    /// Waits for a post.
    pub fn wait(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.wait(block, semaphore.from_rank(ctx.world().next()), 7);
    }

    /// Waits for a post, without saying from whom.
    pub fn wait_for_anyone(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.wait(block, semaphore, 1);
    }

    /// Waits for a signal to reach 5, when it is 3.
    pub fn wait_at_least(block, ctx, signals: Sym<Signal>) {
        let signal = signals.elem(1);
        ctx.notify(block, signal.at(ctx.world().me()).set(3));
        ctx.wait_at_least(block, signal.from_rank(ctx.world().prev()), 5);
    }

    /// Waits for all signals, of which the last never comes.
    pub fn wait_all(block, ctx, signals: Sym<Signal>) {
        let me = ctx.world().me();
        for i in 0..signals.len() - 1 {
            ctx.notify(block, signals.elem(i).at(me).set(2));
        }
        ctx.wait_all(block, signals, 2);
    }

    /// Waits for any signal, of which none comes.
    pub fn wait_any(block, ctx, signals: Sym<Signal>) {
        ctx.wait_any(block, signals, 9);
    }

    /// A barrier that the others do not come to.
    pub fn barrier(block, ctx) {
        ctx.barrier(block, &ctx.world());
    }

    /// An all-reduce that not everyone takes part in.
    pub fn all_reduce(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
    }

    /// Waits, in small portions that cannot fault, until the launch is ended from outside; not for ever.
    pub fn until_ended(block, ctx, semaphore: Sym<Semaphore>) {
        for _ in 0..1000 {
            if ctx.try_wait(block, semaphore, 1, Duration::from_millis(10)).is_ok() {
                return;
            }
        }
    }

    /// Tries to wait for longer than the deadline, then posts to itself and takes it: `1` and `2` say that both went so.
    pub fn try_and_take(block, ctx, semaphore: Sym<Semaphore>, results: Sym<u32>) {
        let failed = ctx.try_wait(block, semaphore, 1, Duration::from_millis(200)).is_err();
        ctx.notify(block, semaphore.at(ctx.world().me()).post());
        let taken = ctx.try_wait(block, semaphore, 1, Duration::from_secs(5)).is_ok();
        if block.leader() {
            ctx.store(results, 0, u32::from(failed) + 2 * u32::from(taken));
        }
    }
}

/// What the kernels wait on.
struct Words {
    semaphore: SymVec<Semaphore>,
    signals: SymVec<Signal>,
    numbers: SymVec<f32>,
    plan: Plan,
}

impl Words {
    fn new(world: &mut World) -> Result<Self, Error> {
        Ok(Self {
            semaphore: world.alloc(1)?,
            signals: world.alloc(4)?,
            numbers: world.alloc(1000)?,
            plan: world.plan(Layout::new(world.team(), 1))?,
        })
    }
}

/// What came of a wait in vain.
struct Outcome {
    /// What PE 1 was told.
    fault: Fault,
    /// What the fault reads like.
    text: String,
    /// From the launch until `synchronize` said so.
    took: Duration,
    /// Where the words are that it should name: as the case says, and the world's barrier.
    offset: u64,
    world_sync: u64,
}

/// Runs `kernel` on PE 1 of `npes` while the others wait for the end, and checks what they are told.
fn once<K: Kernel>(
    npes: usize,
    width: u32,
    kernel: K,
    case: &(impl Fn(&Words) -> (K::Args, u64) + Sync),
) -> Option<Outcome>
where
    K::Args: Arguments<K::Args>,
{
    let program = |world: &mut World| {
        let words = Words::new(world)?;
        let stream = world.stream()?;
        world.barrier()?;
        if world.pe().raw() != WAITER {
            world.launch(&stream, until_ended, Grid::one(32), (words.semaphore.view(),))?;
            let told = world.synchronize(&stream).unwrap_err();
            let WorldFailure::Aborted { by: WAITER, reason, waited } = &told else {
                panic!("not PE {WAITER}'s end: {told:?}")
            };
            assert!(reason.contains(&format!("PE {WAITER}, block 0")), "{reason}");
            assert_eq!(*waited, None, "it only tries to wait");
            assert_eq!(world.check(), Err(told));
            return Ok(None);
        }
        let (args, offset) = case(&words);
        let launched = Instant::now();
        world.launch(&stream, kernel, Grid::one(32), args)?;
        let told = world.synchronize(&stream).unwrap_err();
        let took = launched.elapsed();
        let WorldFailure::Fault(fault) = &told else { panic!("no fault: {told:?}") };
        let world_sync = world.team().sync().offset();
        same_failure_everywhere(world, &told)?;
        Ok::<_, Error>(Some(Outcome { fault: fault.clone(), text: told.to_string(), took, offset, world_sync }))
    };
    let outcomes = World::builder().width(width).deadline(DEADLINE).heap(8 << 20).local(npes, program).unwrap();
    outcomes.into_iter().flatten().next()
}

/// Everything that can be asked of a world that has failed tells why it has.
fn same_failure_everywhere(world: &mut World, failure: &WorldFailure) -> Result<(), Error> {
    let stream = world.stream()?;
    assert_eq!(world.check().as_ref(), Err(failure));
    assert_eq!(world.synchronize(&stream).as_ref(), Err(failure));
    let launched = world.launch(&stream, barrier, Grid::one(1), ());
    assert!(matches!(&launched, Err(LaunchError::World(told)) if told == failure), "{launched:?}");
    let collectives: [Result<(), Error>; 4] = [
        world.alloc::<u8>(1).map(drop).map_err(Error::from),
        world.split::<congruent::device::World>(Some(0), 0).map(drop).map_err(Error::from),
        world.comm(world.team()).map(drop).map_err(Error::from),
        world.barrier().map_err(Error::from),
    ];
    for told in collectives {
        assert_eq!(told.as_ref().err().and_then(Error::world_failure), Some(failure), "{told:?}");
    }
    Ok(())
}

/// Repeats a wait in vain and checks what every repetition must show; gives the last one, for what is special about it.
fn in_vain<K: Kernel>(npes: usize, width: u32, kernel: K, case: impl Fn(&Words) -> (K::Args, u64) + Sync) -> Outcome
where
    K::Args: Arguments<K::Args>,
{
    let mut outcomes: Vec<Outcome> = (0..ROUNDS).map(|_| once(npes, width, kernel, &case).unwrap()).collect();
    for Outcome { fault, took, .. } in &outcomes {
        assert_eq!((fault.kind, fault.pe, fault.block), (FaultKind::Timeout, WAITER, 0));
        assert_eq!(fault.kernel, Some(K::NAME));
        assert!(fault.at.is_some() && fault.launched_at.is_some() && fault.object.is_some(), "{fault}");
        let waited = Duration::from_millis(fault.waited_ms);
        assert!(waited >= DEADLINE && *took >= DEADLINE, "ended early: {fault}");
        assert!(*took < DEADLINE + LOADED, "took {took:?}");
    }
    outcomes.sort_by_key(|outcome| outcome.took);
    let median = outcomes.swap_remove(ROUNDS / 2);
    println!("{} at width {width}: {:?} after its deadline", K::NAME, median.took - DEADLINE);
    assert!(median.took < DEADLINE + SLACK, "{} took {:?}", K::NAME, median.took);
    median
}

#[test]
fn a_post_that_never_comes() {
    for width in WIDTHS {
        let told = in_vain(3, width, wait, |words| ((words.semaphore.view(),), words.semaphore.view().offset()));
        let Fault { offset, expected, seen, peer, thread, .. } = told.fault;
        assert_eq!((offset, expected, seen), (told.offset + Semaphore::POSTED, 7, 0));
        assert_eq!((peer, thread), (Some(NEXT), 0));
        for part in ["PE 1, block 0, thread 0", "to reach 7; it is 0", "PE 2 was to notify it", "CONGRUENT_DEADLINE_MS"]
        {
            assert!(told.text.contains(part), "{}", told.text);
        }
    }
}

#[test]
fn a_post_from_nobody_in_particular() {
    for width in WIDTHS {
        let told =
            in_vain(3, width, wait_for_anyone, |words| ((words.semaphore.view(),), words.semaphore.view().offset()));
        assert_eq!((told.fault.offset, told.fault.peer), (told.offset + Semaphore::POSTED, None));
        assert!(told.text.contains("from_rank"), "says how to learn more: {}", told.text);
    }
}

#[test]
fn a_signal_that_stays_too_low() {
    for width in WIDTHS {
        let case = |words: &Words| ((words.signals.view(),), words.signals.view().elem(1).offset());
        let Outcome { fault, offset, .. } = in_vain(3, width, wait_at_least, case);
        assert_eq!((fault.offset, fault.expected, fault.seen, fault.peer), (offset, 5, 3, Some(PREVIOUS)));
    }
}

#[test]
fn one_signal_of_several() {
    for width in WIDTHS {
        let case = |words: &Words| ((words.signals.view(),), words.signals.view().elem(3).offset());
        let Outcome { fault, offset, .. } = in_vain(3, width, wait_all, case);
        assert_eq!((fault.offset, fault.expected, fault.seen, fault.peer), (offset, 2, 0, None));
        assert_eq!(fault.thread, if width == 1 { 0 } else { 3 }, "the lane whose signal it was");
    }
}

#[test]
fn none_of_several_signals() {
    for width in WIDTHS {
        let case = |words: &Words| ((words.signals.view(),), words.signals.view().offset());
        let Outcome { fault, offset, .. } = in_vain(3, width, wait_any, case);
        assert_eq!((fault.offset, fault.expected, fault.seen, fault.peer), (offset, 9, 0, None));
    }
}

#[test]
fn a_barrier_that_the_others_do_not_come_to() {
    for width in WIDTHS {
        let told = in_vain(3, width, barrier, |_| ((), 0));
        let peer = told.fault.peer.unwrap();
        assert!([PREVIOUS, NEXT].contains(&peer), "{}", told.text);
        assert_eq!(told.fault.offset, told.world_sync + SyncLayout::new(3).word(0, peer), "the word of that peer");
        assert_eq!((told.fault.expected, told.fault.seen), (1, 0));
    }
}

#[test]
fn a_barrier_of_more_than_signal_each_other_directly() {
    let told = in_vain(9, 1, barrier, |_| ((), 0));
    assert_eq!(told.fault.peer, Some(PREVIOUS), "the first round of the dissemination: {}", told.text);
    assert_eq!(told.fault.offset, told.world_sync + SyncLayout::new(9).word(0, 0));
}

#[test]
fn an_all_reduce_that_the_others_do_not_join() {
    for width in WIDTHS {
        let case = |words: &Words| ((words.numbers.view(), words.plan.view()), 0);
        let Outcome { fault, .. } = in_vain(3, width, all_reduce, case);
        assert_eq!((fault.peer, fault.expected, fault.seen), (Some(PREVIOUS), 1, 0));
    }
}

/// All but one PE of four take part. Who expires first is a matter of luck, but each names the neighbour that it waited for, and so
/// what all of them say leads to the one that is missing.
#[test]
fn an_all_reduce_that_one_pe_does_not_join() {
    const ABSENT: u32 = 3;
    for width in WIDTHS {
        let told = World::builder().width(width).deadline(DEADLINE).heap(8 << 20).local(4, |world| {
            let words = Words::new(world)?;
            let stream = world.stream()?;
            world.barrier()?;
            match world.pe().raw() {
                ABSENT => world.launch(&stream, until_ended, Grid::one(32), (words.semaphore.view(),))?,
                _ => world.launch(&stream, all_reduce, Grid::one(32), (words.numbers.view(), words.plan.view()))?,
            }
            Ok::<_, Error>(world.synchronize(&stream).unwrap_err())
        });
        let told = told.unwrap();
        for (pe, failure) in (0..).zip(&told) {
            match failure {
                WorldFailure::Fault(fault) => {
                    assert_ne!(pe, ABSENT);
                    assert_eq!((fault.pe, fault.peer), (pe, Some((pe + 3) % 4)), "its left neighbour: {fault}");
                }
                WorldFailure::Aborted { by, waited, .. } => {
                    assert!(matches!(told[*by as usize], WorldFailure::Fault(_)), "{told:?}");
                    let waited = waited.as_ref().and_then(|fault| fault.peer);
                    assert_eq!(waited, (pe != ABSENT).then_some((pe + 3) % 4), "{failure:?}");
                    assert_eq!(
                        pe != ABSENT,
                        failure.to_string().contains(&format!("; meanwhile PE {pe}")),
                        "{failure}"
                    );
                }
                other => panic!("PE {pe}: {other:?}"),
            }
        }
        assert!(told.iter().any(|failure| matches!(failure, WorldFailure::Fault(_))), "{told:?}");
    }
}

#[test]
fn try_wait_gives_up_without_a_fault_and_takes_nothing() {
    for width in WIDTHS {
        // The budget counts, not the deadline, which is shorter.
        let settings = World::builder().width(width).deadline(Duration::from_millis(20)).heap(8 << 20);
        let results = settings.local(2, |world| {
            let semaphore = world.alloc::<Semaphore>(1)?;
            let results = world.alloc::<u32>(1)?;
            let stream = world.stream()?;
            let started = Instant::now();
            world.run(&stream, try_and_take, Grid::one(32), (semaphore.view(), results.view()))?;
            assert!(started.elapsed() >= Duration::from_millis(200));
            world.check()?;
            Ok::<_, Error>(results.to_vec()?[0])
        });
        assert_eq!(results.unwrap(), [3, 3], "gave up, then took the one post there was");
    }
}

/// All wait, the one that gives up among them.
#[test]
fn who_aborts_ends_the_waits_of_all() {
    const WHY: &str = "the input ends too early";
    for width in WIDTHS {
        let began = Instant::now();
        let world = World::builder().heap(8 << 20).width(width).deadline(Duration::from_secs(60));
        let told = world.local(3, |world| {
            let (words, stream) = (Words::new(world)?, world.stream()?);
            world.launch(&stream, wait, Grid::one(32), (words.semaphore.view(),))?;
            // All have launched; who leaves this late may hear of the end in it.
            let _met = world.barrier();
            if world.pe().raw() == WAITER {
                world.abort(WHY);
                world.abort("the first reason stays");
            }
            let told = world.synchronize(&stream);
            let launched = world.launch(&stream, barrier, Grid::one(1), ()).map_err(|error| error.to_string());
            Ok::<_, Error>((told, launched))
        });
        for (told, launched) in told.unwrap() {
            assert!(
                matches!(&told, Err(WorldFailure::Aborted { by: WAITER, reason, .. }) if reason == WHY),
                "{told:?}"
            );
            assert!(launched.unwrap_err().starts_with("PE 1 gave up: the input ends too early"));
        }
        assert!(began.elapsed() < LOADED, "took {:?}", began.elapsed());
    }
}

/// A program that enqueues on and on hears at once that another PE has given up; what its kernel waited for is told with that.
#[test]
fn who_enqueues_is_told_what_its_kernel_waited_for() {
    let told = World::builder().heap(8 << 20).local(2, |world| {
        let (signal, words, stream) = (world.alloc::<Signal>(1)?, world.alloc::<u32>(8)?, world.stream()?);
        if world.pe().raw() == 0 {
            std::thread::sleep(DEADLINE);
            world.abort("it has had enough");
            return Ok(None);
        }
        world.wait_at_least(&stream, signal.view().from_rank(world.rank(0)?), 7)?;
        let failure = loop {
            match world.copy(&stream, words.view().slice(..4), words.view().slice(4..)) {
                Ok(()) => std::thread::sleep(Duration::from_micros(100)),
                Err(LaunchError::World(failure)) => break failure,
                Err(other) => panic!("{other}"),
            }
        };
        Ok::<_, Error>(Some(failure))
    });
    let Some(failure) = &told.unwrap()[1] else { panic!("PE 1 was told nothing") };
    let WorldFailure::Aborted { by: 0, waited: Some(waited), .. } = failure else { panic!("{failure}") };
    assert_eq!((waited.peer, waited.expected), (Some(0), 7), "{failure}");
}

#[test]
fn the_world_after_a_failed_one_works() {
    in_vain(3, 1, wait, |words| ((words.semaphore.view(),), 0));
    let sums = World::builder().heap(8 << 20).local(3, |world| {
        let words = Words::new(world)?;
        let stream = world.stream()?;
        words.numbers.fill(1.0)?;
        world.run(&stream, all_reduce, Grid::one(32), (words.numbers.view(), words.plan.view()))?;
        world.run(&stream, barrier, Grid::one(32), ())?;
        Ok::<_, Error>(words.numbers.to_vec()?.iter().all(|&sum| sum == 3.0))
    });
    assert_eq!(sums.unwrap(), [true; 3]);
}

#[test]
fn the_deadline_of_the_environment_holds() {
    const TEST: &str = "the_deadline_of_the_environment_holds";
    if std::env::var_os("CONGRUENT_TEST_CHILD").is_some() {
        let told = congruent::local(1, |world| {
            let words = Words::new(world)?;
            let stream = world.stream()?;
            world.run(&stream, wait_for_anyone, Grid::one(1), (words.semaphore.view(),))?;
            Ok::<_, Error>(())
        });
        println!("TOLD {}", told.unwrap_err());
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env("CONGRUENT_TEST_CHILD", "1")
        .env("CONGRUENT_DEADLINE_MS", "70")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let waited = said.split("waited ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|ms| ms.parse().ok());
    let waited: u64 = waited.unwrap_or_else(|| panic!("no fault: {said}"));
    assert!((70..70 + LOADED.as_millis() as u64).contains(&waited), "{said}");
}
