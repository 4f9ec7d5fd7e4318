//! The conformance suite on the CUDA machine, over the driver that this machine has. Where it has no GPU, each test says
//! so and passes.
//!
//! `CONGRUENT_PTX` names the PTX of the test kernels, which is compiled here if it is unset; `CONGRUENT_TEST_PES=1,2` has
//! families run with these numbers of PEs alone. All PEs take the GPUs that there are in turns.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::env;
use std::ffi::OsString;
use std::process::exit;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use congruent::device::Semaphore;
use congruent::device::abi::FaultKind;
use congruent::{BuildError, CudaError, Error, Grid, MachineKind, Stream, World, WorldFailure};
use congruent_build::Builder;
use congruent_test_kernels::By;
use congruent_test_kernels::collectives::delay;
use congruent_test_kernels::signals::posts;
use congruent_tests::conformance::{self, CONFORMS, MEASURED, cuda_processes, cuda_threads, is_child};
use congruent_tests::{repository, skip};

/// Why no test can run here, if none can. A GPU that is there and does not work is a failure, not a reason.
static MISSING: LazyLock<Option<String>> = LazyLock::new(|| {
    let world = World::builder().machine(MachineKind::Cuda).heap(2 << 20);
    match world.local(1, |_| Ok::<_, Error>(())) {
        Ok(_) => None,
        Err(Error::Build(BuildError::Cuda(error @ (CudaError::NoLibrary { .. } | CudaError::NoDevice)))) => {
            Some(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
});

/// Where children find the PTX of the test kernels.
static PTX: LazyLock<Vec<(&'static str, OsString)>> = LazyLock::new(|| {
    if env::var_os("CONGRUENT_PTX").is_some() {
        return Vec::new();
    }
    let out = env::current_exe().unwrap().parent().unwrap().join("gpu-ptx");
    let built = Builder::new(repository().join("tests/kernels")).out_dir(out).build().unwrap();
    built.into_iter().map(|file| ("CONGRUENT_PTX", file.path.into())).collect()
});

/// With how many PEs.
fn numbers() -> Vec<usize> {
    let list = env::var("CONGRUENT_TEST_PES").unwrap_or_else(|_| "1,2,4,8".to_owned());
    list.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

/// Whether a test can run here; says why, if it cannot.
fn can_run(test: &str) -> bool {
    if is_child() {
        return true;
    }
    if let Some(why) = &*MISSING {
        skip(test, why);
    }
    MISSING.is_none()
}

macro_rules! families {
    ($how:ident, $run:ident: $($family:ident)*) => {
        mod $how {
            use super::*;
            $(
                #[test]
                fn $family() {
                    let test = concat!(stringify!($how), "::", stringify!($family));
                    if can_run(test) {
                        $run(test, conformance::$family, &numbers(), || PTX.clone());
                    }
                }
            )*

            #[test]
            fn mixed() {
                let test = concat!(stringify!($how), "::mixed");
                if can_run(test) {
                    $run(test, a_thousand, &numbers(), || PTX.clone());
                }
            }
        }
    };
}

families! { threads, cuda_threads: rma signals ordering atomics teams groups bulk direct collectives in_kernel flags protocols streams }
families! { processes, cuda_processes: rma signals ordering atomics teams groups bulk direct collectives in_kernel flags protocols streams }

/// A thousand collectives, and the host waits once.
fn a_thousand(world: &mut World) -> Result<(), Error> {
    conformance::mixed(world, 80, 1000)
}

/// Longer than anything that a job that works takes to end.
const LATE: Duration = Duration::from_secs(20);

/// From one look at the world or at a stream to the next, where what is between them is measured.
const LOOK: Duration = Duration::from_micros(20);

/// Looks at the world until it has failed or the stream is idle.
fn look(world: &World, stream: &Stream) {
    while world.check().is_ok() && !stream.is_idle() {
        sleep(LOOK);
    }
}

/// Says how long the stream of a PE still runs, from when its host hears that another PE has failed.
fn tell_how_long(world: &World, stream: &Stream, failure: &str) {
    let heard = Instant::now();
    while !stream.is_idle() && heard.elapsed() < LATE {
        sleep(LOOK);
    }
    let (us, pes, pe) = (heard.elapsed().as_secs_f64() * 1e6, world.npes(), world.pe());
    println!("\n{MEASURED}{us:.1} us from hearing of {failure} to the end of the kernel, {pes} PEs, {pe}");
}

/// The last PE waits in a barrier that nobody else comes to, until its deadline; the others wait until they hear of it.
fn deadline(world: &mut World) -> Result<(), Error> {
    let (stream, turn, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(3)?);
    let waits = world.npes() - 1;
    // The kernel is loaded, on every PE, before time counts.
    world.run(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
    world.barrier()?;
    let launched = Instant::now();
    if world.pe().index() == waits {
        world.launch(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
        let ended = world.synchronize(&stream).unwrap_err();
        assert!(matches!(&ended, WorldFailure::Fault(fault) if fault.kind == FaultKind::Timeout), "{ended:?}");
    } else {
        // Waits that end by themselves, one after the other: none of them is the first to fail.
        while launched.elapsed() < LATE && world.check().is_ok() {
            let _hears_of_it = world.launch(&stream, delay, Grid::one(32), (turn.view(), 50_000));
            look(world, &stream);
        }
        tell_how_long(world, &stream, "a deadline");
        let ended = world.check().unwrap_err();
        assert!(matches!(&ended, WorldFailure::Aborted { by, .. } if *by as usize == waits), "{ended:?}");
    }
    assert!(launched.elapsed() < LATE, "ended after {:?}", launched.elapsed());
    Ok(())
}

/// The last PE ends without a word, while the others wait for it in a kernel.
fn dead(world: &mut World) -> Result<(), Error> {
    let (stream, turn, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(3)?);
    world.run(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
    world.barrier()?;
    let last = world.npes() - 1;
    if world.pe().index() == last {
        // The others are in their kernels by then.
        sleep(Duration::from_millis(500));
        println!("{CONFORMS}");
        exit(0);
    }
    let launched = Instant::now();
    world.launch(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
    look(world, &stream);
    tell_how_long(world, &stream, "a dead PE");
    let ended = world.synchronize(&stream).unwrap_err();
    assert!(matches!(&ended, WorldFailure::PeerFailed { pe, .. } if *pe as usize == last), "{ended:?}");
    assert!(launched.elapsed() < LATE, "ended after {:?}", launched.elapsed());
    Ok(())
}

mod faults {
    use super::*;

    /// With a deadline that is soon over.
    fn hasty() -> Vec<(&'static str, OsString)> {
        [&PTX[..], &[("CONGRUENT_DEADLINE_MS", "500".into())]].concat()
    }

    #[test]
    fn deadline_of_threads() {
        if can_run("faults::deadline_of_threads") {
            cuda_threads("faults::deadline_of_threads", deadline, &[2, 4], hasty);
        }
    }

    #[test]
    fn deadline_of_processes() {
        if can_run("faults::deadline_of_processes") {
            cuda_processes("faults::deadline_of_processes", deadline, &[2, 4], hasty);
        }
    }

    #[test]
    fn dead_process() {
        if can_run("faults::dead_process") {
            cuda_processes("faults::dead_process", dead, &[2, 4], || PTX.clone());
        }
    }
}
