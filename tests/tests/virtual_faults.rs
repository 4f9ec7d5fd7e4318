//! What goes wrong on the CUDA machine while kernels run, over the virtual driver: who is told what, and how
//! soon; and that whatever happened, every PE ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(
    clippy::disallowed_types,
    reason = "kernels of the virtual driver run in this process, and tell tests by host atomics"
)]

mod processes;
mod virtual_support;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use congruent::device::{Group, Semaphore, Signal, Sym, kernels};
use congruent::{AccessError, Error, Grid, LaunchError, World, WorldFailure};
use processes::{Pe, Port, alone, is_pe, myself, say, seat};
use virtual_support::{borrow_default, declare, ends, entry, on_virtual};

const NPES: u32 = 3;
const DEADLINE: Duration = Duration::from_millis(120);
/// How much later everybody knows, on a machine that is busy with other things.
const LOADED: Duration = Duration::from_secs(4);
/// Longer than any case may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a kernel may go on after the world has failed (`host/src/shared.rs`).
const GRACE: Duration = Duration::from_secs(5);
/// The PE to which something happens.
const UNLUCKY: u32 = 1;

/// Kernels that have come to their last line.
static ENDED: AtomicU32 = AtomicU32::new(0);

kernels! {
    /// Waits for what never comes.
    pub fn wait(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.wait(block, semaphore.from_rank(ctx.world().next()), 7);
    }

    /// Goes on until it hears that the job is over.
    pub fn until_aborted(_block, ctx) {
        while !ctx.aborted() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// As an access of memory that is not there.
    pub fn trap(_block, _ctx) {
        virtual_support::trap();
    }

    /// A mistake of a program's own: an index past the end.
    pub fn past_the_end(_block, ctx, numbers: Sym<u64>) {
        ctx.store(numbers, numbers.len(), 1);
    }

    /// Looks neither at the deadline nor at the abort word for so long, and then writes to the heap.
    pub fn sleep(block, ctx, numbers: Sym<u64>, milliseconds: u64) {
        thread::sleep(Duration::from_millis(milliseconds));
        if block.leader() {
            ctx.store(numbers, 0, milliseconds);
        }
        ENDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a PE's program came to.
type Program = fn(&mut World) -> Result<WorldFailure, Error>;

/// How a PE was told: the kind of failure, and its text.
type Told = BTreeMap<u32, (String, String)>;

/// This test binary again, on the virtual driver.
fn again(test: &str) -> Command {
    let entries =
        [entry::<wait>(), entry::<until_aborted>(), entry::<trap>(), entry::<past_the_end>(), entry::<sleep>()];
    let mut command = on_virtual(myself(test), "");
    command
        .env("CONGRUENT_PTX", declare(test, &entries))
        .env("CONGRUENT_DEADLINE_MS", DEADLINE.as_millis().to_string());
    command
}

/// Runs a program as a PE, or as all PEs on threads, and says what each was told.
fn run(program: Program) {
    let said = |world: &mut World| {
        let told = program(world);
        let pe = world.pe();
        let (kind, text) = match (&told, world.check()) {
            (Ok(failure), _) => (kind(failure), failure.to_string()),
            // The others' failure may come before this PE is where it would wait for it.
            (Err(_), Err(failure)) => (kind(&failure), failure.to_string()),
            (Err(error), Ok(())) => ("Error", error.to_string()),
        };
        say(&format!("TOLD {pe} {kind} {}", text.replace('\n', " ")));
        told.map(drop)
    };
    // What it returns is what the PEs have said.
    let _said = World::builder().heap(8 << 20).run(NPES as usize, said);
    say("DONE");
}

fn kind(failure: &WorldFailure) -> &'static str {
    match failure {
        WorldFailure::Fault(_) => "Fault",
        WorldFailure::Aborted { .. } => "Aborted",
        WorldFailure::Device { .. } => "Device",
        WorldFailure::PeerFailed { .. } => "PeerFailed",
        WorldFailure::KernelPanicked { .. } => "KernelPanicked",
        _ => "another",
    }
}

/// What the PEs of a job were told: threads of one process, or processes.
fn told(test: &str, threads: bool) -> (Told, Duration) {
    let commands = if threads {
        vec![again(test)]
    } else {
        let port = Port::reserve();
        (0..NPES).map(|pe| seat(again(test), &port, pe, NPES)).collect()
    };
    let mut told = Told::new();
    let mut longest = Duration::ZERO;
    for end in ends(commands, PATIENCE) {
        assert!(end.succeeded && end.said.contains("DONE"), "{test}, threads: {threads}: {end:?}");
        longest = longest.max(end.took);
        for line in end.said.lines().filter_map(|line| line.strip_prefix("TOLD PE ").or(line.strip_prefix("TOLD "))) {
            let mut words = line.splitn(3, ' ');
            let (pe, kind, text) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            told.insert(pe.parse().unwrap(), (kind.to_owned(), text.to_owned()));
        }
    }
    assert_eq!(told.len(), NPES as usize, "{test}, threads: {threads}: {told:?}");
    (told, longest)
}

fn assert_others(told: &Told, expected: &str, part: &str) {
    for (pe, (kind, text)) in told.iter().filter(|(pe, _)| **pe != UNLUCKY) {
        assert_eq!(kind, expected, "PE {pe}: {text}");
        assert!(text.contains(part), "PE {pe}: {text}");
    }
}

/// The fault of a wait that passes its deadline names the word, the values and the PE that is late.
fn waits_in_vain(world: &mut World) -> Result<WorldFailure, Error> {
    let (semaphore, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    world.barrier()?;
    match world.pe().raw() {
        UNLUCKY => world.launch(&stream, wait, Grid::one(32), (semaphore.view(),))?,
        _ => world.launch(&stream, until_aborted, Grid::one(32), ())?,
    }
    Ok(world.synchronize(&stream).unwrap_err())
}

#[test]
fn a_deadline_in_a_wait_is_a_fault_there_and_an_abort_elsewhere() {
    if is_pe() {
        return run(waits_in_vain);
    }
    let _alone = alone();
    for threads in [true, false] {
        let (told, took) = told("a_deadline_in_a_wait_is_a_fault_there_and_an_abort_elsewhere", threads);
        let (kind, text) = &told[&UNLUCKY];
        assert_eq!(kind, "Fault", "{text}");
        for part in ["PE 1, block 0, thread 0 waited 1", "to reach 7; it is 0", "PE 2 was to notify it"] {
            assert!(text.contains(part), "{text}");
        }
        assert_others(&told, "Aborted", "PE 1 gave up: PE 1, block 0");
        assert!(took >= DEADLINE && took < DEADLINE + LOADED, "{took:?}");
    }
}

/// A stream of somebody else's, the default one, waits for what never comes: the host can do all else meanwhile, and hears of it.
fn default_stream_waits_in_vain(world: &mut World) -> Result<WorldFailure, Error> {
    let (flag, numbers, stream) = (world.alloc::<Signal>(1)?, world.alloc::<u64>(9)?, world.stream()?);
    world.barrier()?;
    if world.pe().raw() != UNLUCKY {
        world.launch(&stream, until_aborted, Grid::one(32), ())?;
        return Ok(world.synchronize(&stream).unwrap_err());
    }
    let borrowed = borrow_default(world)?;
    let next = world.rank(UNLUCKY + 1)?;
    world.wait_at_least(&borrowed, flag.view().from_rank(next), 7)?;
    numbers.write(0, &[3; 9])?;
    let mut found = [0; 9];
    numbers.read(0, &mut found)?;
    assert_eq!(found, [3; 9]);
    let told = world.synchronize(&borrowed).unwrap_err();
    assert!(borrowed.is_idle(), "the stream waits still");
    Ok(told)
}

#[test]
fn a_wait_on_the_default_stream_meets_its_deadline() {
    const TEST: &str = "a_wait_on_the_default_stream_meets_its_deadline";
    if is_pe() {
        return run(default_stream_waits_in_vain);
    }
    let _alone = alone();
    for threads in [true, false] {
        let (told, took) = told(TEST, threads);
        let (kind, text) = &told[&UNLUCKY];
        assert_eq!(kind, "Fault", "{text}");
        for part in ["PE 1, block 0, thread 0 waited 1", "to reach 7; it is 0", "PE 2 was to notify it"] {
            assert!(text.contains(part), "{text}");
        }
        assert_others(&told, "Aborted", "PE 1 gave up: PE 1, block 0");
        assert!(took >= DEADLINE && took < DEADLINE + LOADED, "{took:?}");
    }
}

/// A program that gives up, for a reason of its own, while the others' kernels run.
fn gives_up(world: &mut World) -> Result<WorldFailure, Error> {
    let stream = world.stream()?;
    if world.pe().raw() != UNLUCKY {
        world.launch(&stream, until_aborted, Grid::one(32), ())?;
    }
    world.barrier()?;
    if world.pe().raw() == UNLUCKY {
        return Err(Error::Launch(LaunchError::EmptyGrid { blocks: 0, threads: 9 }));
    }
    Ok(world.synchronize(&stream).unwrap_err())
}

#[test]
fn an_abort_reaches_the_kernels_of_the_other_pes() {
    if is_pe() {
        return run(gives_up);
    }
    let _alone = alone();
    for threads in [true, false] {
        let (told, took) = told("an_abort_reaches_the_kernels_of_the_other_pes", threads);
        assert_eq!(told[&UNLUCKY].0, "Error");
        assert_others(&told, "Aborted", &format!("PE 1 gave up: {}", told[&UNLUCKY].1));
        assert!(took < LOADED, "{took:?}");
    }
}

/// A kernel that traps takes its context with it: the PEs of a process share that.
fn traps(world: &mut World) -> Result<WorldFailure, Error> {
    let (numbers, stream) = (world.alloc::<u64>(3)?, world.stream()?);
    if world.pe().raw() != UNLUCKY {
        world.launch(&stream, until_aborted, Grid::one(32), ())?;
    }
    world.barrier()?;
    if world.pe().raw() == UNLUCKY {
        world.launch(&stream, trap, Grid::one(32), ())?;
    }
    let told = world.synchronize(&stream).unwrap_err();
    // It is known for good: nothing is launched any more, and everything tells the same.
    assert_eq!(world.check(), Err(told.clone()));
    let launched = world.launch(&stream, trap, Grid::one(32), ());
    assert!(matches!(&launched, Err(LaunchError::World(again)) if *again == told), "{launched:?}");
    if world.pe().raw() == UNLUCKY {
        // Its memory went with the context: no zeros in place of what was there.
        assert_eq!(numbers.to_vec(), Err(AccessError::World(told.clone())));
        assert_eq!(numbers.fill(1), Err(AccessError::World(told.clone())));
    }
    Ok(told)
}

#[test]
fn a_kernel_that_traps_is_a_failed_device() {
    if is_pe() {
        return run(traps);
    }
    let _alone = alone();
    for threads in [true, false] {
        let (told, took) = told("a_kernel_that_traps_is_a_failed_device", threads);
        let (kind, text) = &told[&UNLUCKY];
        if threads {
            // Whoever looks first finds the context lost, and the others may hear of that before they look.
            for (kind, text) in told.values() {
                assert!(["Device", "Aborted"].contains(&kind.as_str()), "{kind}: {text}");
                assert!(text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
            }
            assert!(told.values().any(|(kind, _)| kind == "Device"), "{told:?}");
        } else {
            assert_eq!(kind, "Device", "{text}");
            assert!(text.contains("the GPU of PE 1 failed") && text.contains("end this process"), "{text}");
            assert_others(&told, "Aborted", "CUDA_ERROR_LAUNCH_FAILED");
        }
        assert!(took < LOADED, "{took:?}");
    }
}

/// A kernel that is given what it must refuse, and a context that others share.
fn refuses(world: &mut World) -> Result<WorldFailure, Error> {
    let (numbers, stream) = (world.alloc::<u64>(3)?, world.stream()?);
    if world.pe().raw() != UNLUCKY {
        world.launch(&stream, until_aborted, Grid::one(32), ())?;
    }
    world.barrier()?;
    if world.pe().raw() == UNLUCKY {
        world.launch(&stream, past_the_end, Grid::new(2, 32), (numbers.view(),))?;
    }
    let told = world.synchronize(&stream).unwrap_err();
    assert_eq!(world.check(), Err(told.clone()));
    // The context lives, and its memory with it.
    assert_eq!(numbers.to_vec(), Ok(vec![0; 3]));
    Ok(told)
}

#[test]
fn a_kernel_that_panics_leaves_its_context_alive() {
    if is_pe() {
        return run(refuses);
    }
    let _alone = alone();
    for threads in [true, false] {
        let (told, took) = told("a_kernel_that_panics_leaves_its_context_alive", threads);
        let (kind, text) = &told[&UNLUCKY];
        assert_eq!(kind, "KernelPanicked", "{text}");
        assert!(text.starts_with("kernel past_the_end panicked on PE 1, block "), "{text}");
        assert!(text.ends_with("symmetric index out of bounds"), "{text}");
        assert_others(&told, "Aborted", "PE 1 gave up: kernel past_the_end panicked");
        assert!(took < LOADED, "{took:?}");
    }
}

/// PE 1's kernel sleeps for longer than anybody waits, while PE 0 misses its deadline.
fn oversleeps(world: &mut World) -> Result<WorldFailure, Error> {
    let (semaphore, numbers, stream) = (world.alloc::<Semaphore>(1)?, world.alloc::<u64>(1)?, world.stream()?);
    world.barrier()?;
    let asleep = GRACE.as_millis() as u64 + 2500;
    match world.pe().raw() {
        UNLUCKY => world.launch(&stream, sleep, Grid::one(32), (numbers.view(), asleep))?,
        0 => world.launch(&stream, wait, Grid::one(32), (semaphore.view(),))?,
        _ => world.launch(&stream, until_aborted, Grid::one(32), ())?,
    }
    let launched = Instant::now();
    let told = world.synchronize(&stream).unwrap_err();
    if world.pe().raw() == UNLUCKY {
        let took = launched.elapsed();
        assert!(took >= GRACE && took < Duration::from_millis(asleep), "gave the kernel up after {took:?}");
        assert_eq!(ENDED.load(Ordering::SeqCst), 0, "it sleeps still");
    }
    Ok(told)
}

/// Given up, the kernel still has its memory: it writes there after its world is gone, and the process lives on.
#[test]
fn a_kernel_that_never_notices_is_given_up_and_keeps_its_memory() {
    if is_pe() {
        run(oversleeps);
        let sleeper = std::env::var("CONGRUENT_PE").is_ok_and(|pe| pe == UNLUCKY.to_string());
        if sleeper {
            wait_until("the kernel writes to its heap", || ENDED.load(Ordering::SeqCst) == 1);
            thread::sleep(Duration::from_millis(20));
        }
        return;
    }
    let _alone = alone();
    let (told, took) = told("a_kernel_that_never_notices_is_given_up_and_keeps_its_memory", false);
    assert_eq!(told[&0].0, "Fault", "{told:?}");
    assert_eq!((told[&1].0.as_str(), told[&2].0.as_str()), ("Aborted", "Aborted"), "{told:?}");
    assert!(took >= GRACE && took < GRACE + LOADED, "{took:?}");
}

fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(began.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A PE whose process is killed while everybody's kernels run.
fn works(world: &mut World) -> Result<WorldFailure, Error> {
    let (semaphore, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    world.launch(&stream, wait, Grid::one(32), (semaphore.view(),))?;
    say("READY");
    Ok(world.synchronize(&stream).unwrap_err())
}

#[test]
fn a_killed_process_is_a_failed_peer() {
    const TEST: &str = "a_killed_process_is_a_failed_peer";
    if is_pe() {
        return run(works);
    }
    let _alone = alone();
    for victim in [0, NPES - 1] {
        let port = Port::reserve();
        let start = |pe| {
            let mut command = seat(again(TEST), &port, pe, NPES);
            command.env("CONGRUENT_DEADLINE_MS", PATIENCE.as_millis().to_string());
            Pe::start(command)
        };
        let mut pes: Vec<Pe> = (0..NPES).map(start).collect();
        for pe in &mut pes {
            pe.hear("READY", PATIENCE);
        }
        pes[victim as usize].child.kill().unwrap();
        let killed = Instant::now();
        for (_, pe) in (0..).zip(&mut pes).filter(|(pe, _)| *pe != victim) {
            let told = pe.hear("TOLD", PATIENCE);
            assert!(told.contains(&format!("PeerFailed PE {victim} failed")), "PE {victim} was killed, but: {told}");
            assert!(pe.child.wait().unwrap().success(), "a survivor ends in order");
        }
        assert!(killed.elapsed() < LOADED, "all knew after {:?}", killed.elapsed());
    }
}

/// Worlds wait for their launches, those of several streams, and streams that outlive their world still run.
#[test]
fn a_world_that_is_dropped_waits_for_its_launches() {
    const TEST: &str = "a_world_that_is_dropped_waits_for_its_launches";
    if is_pe() {
        World::builder().heap(8 << 20).local(2, in_flight).unwrap();
        assert_eq!(ENDED.load(Ordering::SeqCst), 2 * 6);
        return say("DONE");
    }
    let _alone = alone();
    let end = ends(vec![again(TEST)], PATIENCE).remove(0);
    assert!(end.succeeded && end.said.contains("DONE"), "{end:?}");
}

fn in_flight(world: &mut World) -> Result<(), Error> {
    let numbers = world.alloc::<u64>(1)?;
    for _ in 0..2 {
        // Dropping a stream waits for it, dropping the world for those that are left.
        let stream = world.stream()?;
        world.launch(&stream, sleep, Grid::one(32), (numbers.view(), 30))?;
        world.launch(&stream, sleep, Grid::one(32), (numbers.view(), 30))?;
        drop(stream);
    }
    let outliving = world.stream()?;
    for _ in 0..2 {
        world.launch(&outliving, sleep, Grid::one(32), (numbers.view(), 30))?;
    }
    Ok(())
}

/// Worlds one after the other leave nothing behind in their process.
#[test]
fn many_worlds_leave_nothing_behind() {
    const TEST: &str = "many_worlds_leave_nothing_behind";
    if is_pe() {
        worlds(3);
        thread::sleep(Duration::from_millis(200));
        let before = remains();
        worlds(20);
        let left = || {
            let now = remains();
            now.0 > before.0 || now.1 > before.1 || now.2 > before.2
        };
        // Monitors look once more before they end.
        let began = Instant::now();
        while left() && began.elapsed() < LOADED {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!left(), "threads, descriptors, mappings: {:?} and now {:?}", before, remains());
        return say("DONE");
    }
    let _alone = alone();
    let end = ends(vec![again(TEST)], PATIENCE).remove(0);
    assert!(end.succeeded && end.said.contains("DONE"), "{end:?}");
}

fn worlds(count: u32) {
    for _ in 0..count {
        let made = World::builder().heap(8 << 20).local(2, |world| {
            let (numbers, stream) = (world.alloc::<u64>(1)?, world.stream()?);
            world.run(&stream, sleep, Grid::one(32), (numbers.view(), 1))?;
            assert_eq!(numbers.to_vec()?, [1]);
            Ok::<_, Error>(())
        });
        made.unwrap();
    }
}

/// How many threads, descriptors and mapped files this process has.
fn remains() -> (usize, usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    // Anonymous mappings come and go with stacks and allocations; device memory is a file in memory.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter(|line| line.contains("memfd:")).count();
    (count("/proc/self/task"), count("/proc/self/fd"), files)
}
