//! A PE that is killed: the others name it, soon, and nothing of the job is left.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use congruent::collectives::{Layout, PlanView, Sum, ring};
use congruent::device::{Semaphore, Sym, kernels};
use congruent::{Error, Grid, World, WorldFailure};
use congruent_tests::{program, skip};
use processes::{Pe, Port, alone, is_pe, myself, say, seat};

const NPES: u32 = 3;
/// How long a survivor may take to report, from the kill on; the median of the survivors of some jobs.
const SOON: Duration = Duration::from_millis(250);
/// The same for each of them, on a machine that is busy with other things.
const LOADED: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

kernels! {
    /// Puts, and waits for nobody.
    pub fn puts(block, ctx, numbers: Sym<f32>) {
        while !ctx.aborted() {
            ctx.put(block, numbers.at(ctx.world().next()), numbers);
        }
    }

    /// Waits for what never comes.
    pub fn waits(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.wait(block, semaphore.from_rank(ctx.world().next()), 1);
    }

    /// One barrier after the other.
    pub fn barriers(block, ctx) {
        while !ctx.aborted() {
            ctx.barrier(block, &ctx.world());
        }
    }

    /// One all-reduce after the other.
    pub fn all_reduces(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        while !ctx.aborted() {
            ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
        }
    }
}

/// What the PEs are busy with.
#[derive(Clone, Copy)]
enum Work {
    Puts,
    Waits,
    Barriers,
    AllReduces,
}

/// A PE's program: works until it is told that the job has ended, and says when it was told and what.
fn pe(work: Work) {
    let told = works(work);
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    match told.as_ref().err().and_then(Error::world_failure) {
        Some(WorldFailure::PeerFailed { pe, .. }) => say(&format!("TOLD {at} {pe}")),
        _ => say(&format!("TOLD something else: {told:?}")),
    }
}

fn works(work: Work) -> Result<(), Error> {
    let mut world = World::builder().heap(8 << 20).build()?;
    let (numbers, semaphore, plan) =
        (world.alloc::<f32>(4000)?, world.alloc::<Semaphore>(1)?, world.plan(Layout::new(world.team(), 1))?);
    let stream = world.stream()?;
    let one = Grid::one(32);
    match work {
        Work::Puts => world.launch(&stream, puts, one, (numbers.view(),))?,
        Work::Waits => world.launch(&stream, waits, one, (semaphore.view(),))?,
        Work::Barriers => world.launch(&stream, barriers, one, ())?,
        Work::AllReduces => world.launch(&stream, all_reduces, one, (numbers.view(), plan.view()))?,
    }
    say(&format!("READY PE {} is process {}.", world.pe().raw(), std::process::id()));
    Ok(world.synchronize(&stream)?)
}

/// Kills each PE of a job in turn, and checks what the others say and when.
fn killed_while(test: &str, work: Work) {
    if is_pe() {
        return pe(work);
    }
    let _alone = alone();
    let mut took = Vec::new();
    for victim in 0..NPES {
        let port = Port::reserve();
        let mut pes: Vec<Pe> = (0..NPES).map(|pe| Pe::start(seat(myself(test), &port, pe, NPES))).collect();
        for pe in &mut pes {
            pe.hear("READY", PATIENCE);
        }
        std::thread::sleep(Duration::from_millis(20));
        let heaps = heaps_of(pes.iter().map(|pe| pe.child.id()));
        assert!(!heaps.is_empty(), "the job has shared memory while it runs");
        let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        pes[victim as usize].child.kill().unwrap();
        for (_, pe) in (0..).zip(&mut pes).filter(|(pe, _)| *pe != victim) {
            let told = pe.hear("TOLD", PATIENCE);
            let (at, lost) = told.split_once(' ').unwrap();
            let at: u64 = at.parse().unwrap_or_else(|_| panic!("{told}"));
            assert_eq!(lost, victim.to_string(), "names the PE that was killed");
            took.push(Duration::from_nanos(at).saturating_sub(killed));
        }
        for (_, pe) in (0..).zip(&mut pes).filter(|(pe, _)| *pe != victim) {
            assert!(pe.child.wait().unwrap().success(), "a survivor ends in order");
        }
        assert!(!pes[victim as usize].child.wait().unwrap().success());
        nothing_is_left(&heaps);
    }
    took.sort();
    println!("{test}: from the kill to the survivors' reports: {took:?}");
    assert!(took[took.len() / 2] < SOON, "{took:?}");
    assert!(took[took.len() - 1] < LOADED, "{took:?}");
}

#[test]
fn killed_while_putting() {
    killed_while("killed_while_putting", Work::Puts);
}

#[test]
fn killed_while_waiting() {
    killed_while("killed_while_waiting", Work::Waits);
}

#[test]
fn killed_in_a_barrier() {
    killed_while("killed_in_a_barrier", Work::Barriers);
}

#[test]
fn killed_in_an_all_reduce() {
    killed_while("killed_in_an_all_reduce", Work::AllReduces);
}

#[test]
fn killed_under_the_launcher() {
    const TEST: &str = "killed_under_the_launcher";
    if is_pe() {
        return pe(Work::AllReduces);
    }
    let Some(launcher) = program() else { return skip(TEST, "no `congruent` program could be built") };
    let _alone = alone();
    for victim in 0..NPES {
        let program = myself(TEST);
        let mut command = Command::new(&launcher);
        command.args(["run", "-n", &NPES.to_string(), "--"]).arg(program.get_program()).args(program.get_args());
        command.env("CONGRUENT_TEST_PE", "1").env_remove("RUST_BACKTRACE");
        let mut job = Pe::start(command);
        let mut processes = vec![0; NPES as usize];
        for _ in 0..NPES {
            let ready = job.hear("READY PE", PATIENCE);
            let (pe, process) = ready.trim_end_matches('.').split_once(" is process ").unwrap();
            processes[pe.parse::<usize>().unwrap()] = process.parse::<u32>().unwrap();
        }
        let heaps = heaps_of(processes.iter().copied());
        assert!(!heaps.is_empty(), "the job has shared memory while it runs");
        let killed = Instant::now();
        let kill = Command::new("kill").args(["-9", &processes[victim as usize].to_string()]).status();
        assert!(kill.unwrap().success());
        for _ in 1..NPES {
            let told = job.hear("TOLD", PATIENCE);
            assert!(told.ends_with(&format!(" {victim}")), "PE {victim} was killed, but: {told}");
        }
        let status = job.child.wait().unwrap();
        assert!(killed.elapsed() < LOADED, "the launcher took {:?}", killed.elapsed());
        assert_eq!(status.code(), Some(128 + 9), "the victim's end is the job's");
        let complaints = job.complaints();
        assert!(complaints.contains(&format!("PE {victim} failed")), "{complaints}");
        for process in processes {
            assert!(!is_running(process), "process {process} is left");
        }
        nothing_is_left(&heaps);
    }
}

fn is_running(process: u32) -> bool {
    // The state stands after the name, which is in parentheses; a zombie no longer runs.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The shared memory that processes have mapped: as device and inode, which tell it from that of other jobs.
fn heaps_of(processes: impl IntoIterator<Item = u32>) -> BTreeSet<String> {
    let maps = processes.into_iter().filter_map(|process| fs::read_to_string(format!("/proc/{process}/maps")).ok());
    let heaps: Vec<String> = maps.flat_map(|maps| maps.lines().filter_map(heap_in).collect::<Vec<_>>()).collect();
    heaps.into_iter().collect()
}

/// A line of maps: `address permissions offset device inode name`.
fn heap_in(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_heap = fields.get(5)?.contains("memfd:congruent") || fields[5].starts_with("/dev/shm/congruent");
    is_heap.then(|| format!("{} {}", fields[3], fields[4]))
}

/// That no process of this machine maps that memory any more, and none is named in a place that outlives processes.
fn nothing_is_left(heaps: &BTreeSet<String>) {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mapped = heaps_of(processes);
    assert!(mapped.is_disjoint(heaps), "{mapped:?} still mapped, of {heaps:?}");
    let named = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let named: Vec<_> = named.filter(|name| name.to_string_lossy().contains("congruent")).collect();
    assert!(named.is_empty(), "{named:?} in /dev/shm");
}
