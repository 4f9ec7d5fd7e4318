//! Faults injected into one of several virtual GPUs while the library's own PTX runs: every PE ends with the error that is
//! documented, within its deadline, in the time of the devices, of which no second takes a second.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::time::{Duration, Instant};

use congruent::collectives::{Algorithm, Op, Protocol};
use congruent::{AllocError, Error, World, WorldFailure};
use processes::{alone, is_pe, myself, say};

const NPES: usize = 2;
/// Elements of the sum.
const LEN: usize = 64;
/// What the library is told; far longer than a case takes.
const DEADLINE: Duration = Duration::from_secs(600);
/// How long after it somebody may give up, by the clock of the devices, which goes on in leaps.
const LATE: Duration = Duration::from_secs(10);
/// How long a case takes at most, on a busy machine.
const SOON: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

/// Sums by packets. What the PE has to say of it: `right`, `wrong` and how many elements, or its failure.
fn sum(world: &mut World) -> Result<String, Error> {
    let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (sums, mine) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?);
    mine.fill(world.pe().raw() + 1)?;
    comm.force(Algorithm::ONE_SHOT, Protocol::Ll);
    comm.all_reduce(&stream, sums.view(), mine.view(), Op::Sum)?;
    if let Err(failure) = world.synchronize(&stream) {
        return Ok(format!("{} {failure}", kind(&failure)));
    }
    Ok(match sums.to_vec()?.into_iter().filter(|&sum| sum != 3).count() {
        0 => "right".to_owned(),
        wrong => format!("wrong {wrong}"),
    })
}

fn kind(failure: &WorldFailure) -> &'static str {
    match failure {
        WorldFailure::Fault(_) => "Fault",
        WorldFailure::Aborted { .. } => "Aborted",
        WorldFailure::Device { .. } => "Device",
        WorldFailure::PeerFailed { .. } => "PeerFailed",
        _ => "another",
    }
}

/// Runs the PEs of a case; each says what it was told.
fn tell(run: fn(&mut World) -> Result<String, Error>) {
    let told = |world: &mut World| {
        let told = run(world)?;
        say(&format!("TOLD {} {}", world.pe().raw(), told.replace('\n', " ")));
        Ok::<_, Error>(())
    };
    // A world that failed says so at its end, too.
    let _ended = World::builder().heap(8 * MIB).heap_max(32 * MIB).deadline(DEADLINE).run(NPES, told);
}

/// What the PEs of a job are told on virtual GPUs of these settings.
fn told(test: &str, settings: &str) -> [String; NPES] {
    let _alone = alone();
    let start = Instant::now();
    let mut pes = myself(test);
    pes.env("CONGRUENT_MACHINE", "virtual")
        .env("CONGRUENT_VIRTUAL_DRIVER", format!("leap=300,patience=5000,{settings}"));
    let output = pes.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(start.elapsed() < SOON, "{:?}: {said}", start.elapsed());
    [0, 1].map(|pe| {
        let told = said.lines().find_map(|line| line.strip_prefix(&format!("TOLD {pe} ")));
        told.unwrap_or_else(|| panic!("{settings}: PE {pe} was told nothing:\n{said}")).to_owned()
    })
}

/// Whether a PE gave up waiting for PE 1, at its deadline.
fn has_waited(told: &str) -> bool {
    let waited = told.split(' ').skip_while(|word| *word != "waited").nth(1).and_then(|ms| ms.parse().ok());
    let within = (DEADLINE..DEADLINE + LATE).contains(&Duration::from_millis(waited.unwrap_or(0)));
    told.starts_with("Fault PE 0, ") && within && told.contains("PE 1 was to notify it")
}

#[test]
fn a_device_that_stops_ends_all() {
    const TEST: &str = "a_device_that_stops_ends_all";
    if is_pe() {
        return tell(sum);
    }
    let ends = |step: u32| told(TEST, &format!("halt=1:{step}"));
    // In its first kernel; among the packets of the sum; when it has sent them all; never.
    for step in [20, 500] {
        let [waits, stopped] = ends(step);
        assert!(has_waited(&waits), "after {step}: {waits}");
        assert!(stopped.starts_with("Aborted PE 0 gave up: "), "after {step}: {stopped}");
    }
    let late: Vec<_> = [1000, 1500, 2000].map(ends).into_iter().filter(|[waits, _]| waits == "right").collect();
    let is_timeout = |told: &str| told.starts_with("Device ") && told.contains("CUDA_ERROR_LAUNCH_TIMEOUT");
    assert!(late.iter().any(|[_, stopped]| is_timeout(stopped)), "{late:?}");
    assert_eq!(ends(1 << 30), ["right", "right"]);
}

/// Of each eight bytes of a packet four are a flag. Nothing else guards the data: the memory and the links are relied on.
#[test]
fn a_flag_that_is_wrong_is_waited_for_and_data_that_is_wrong_is_seen_by_nobody() {
    const TEST: &str = "a_flag_that_is_wrong_is_waited_for_and_data_that_is_wrong_is_seen_by_nobody";
    if is_pe() {
        return tell(sum);
    }
    // Somewhere here are the packets.
    let ends = |bit: u32| [400, 500, 600].map(|step| told(TEST, &format!("flip=1:{step}:{bit}")));
    let ends = [0, 40].map(ends).concat();
    let is_documented = |told: &String| has_waited(told) || ["right", "wrong 1"].contains(&&**told);
    assert!(ends.iter().all(|[told, _]| is_documented(told)), "{ends:?}");
    assert!(ends.iter().any(|[told, _]| has_waited(told)), "{ends:?}");
    assert!(ends.iter().any(|told| told == &["wrong 1", "right"]), "{ends:?}");
}

#[test]
fn slow_devices_and_late_wake_ups_end_well() {
    if is_pe() {
        return tell(sum);
    }
    for settings in ["late=0", "late=1,late=0,schedule=random,seed=5", "schedule=behind:0", "schedule=behind:1"] {
        assert_eq!(told("slow_devices_and_late_wake_ups_end_well", settings), ["right", "right"], "{settings}");
    }
}

/// Memory that is not there when a heap is to grow: all PEs hear of it, and the heaps are as good as before.
#[test]
fn an_allocation_that_fails_leaves_all_as_it_was() {
    if is_pe() {
        return tell(|world| match world.alloc::<u8>(16 << 20) {
            Err(AllocError::Grow { error, .. }) => Ok(format!("{}, then {error}", sum(world)?)),
            other => Ok(format!("grown: {}", other.is_ok())),
        });
    }
    let settings = "fail=cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY";
    for told in told("an_allocation_that_fails_leaves_all_as_it_was", settings) {
        assert!(told.starts_with("right, then ") && told.contains("bytes of device memory were asked for"), "{told}");
    }
}
