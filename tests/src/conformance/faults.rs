//! PEs that do not do what the others wait for: who is told what, and how soon.

use std::process::exit;
use std::thread::sleep;
use std::time::{Duration, Instant};

use congruent::device::Semaphore;
use congruent::device::abi::FaultKind;
use congruent::{Error, Grid, Stream, World, WorldFailure};
use congruent_test_kernels::By;
use congruent_test_kernels::collectives::delay;
use congruent_test_kernels::signals::posts;

use super::machines::{CONFORMS, MEASURED};

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
pub fn deadline(world: &mut World) -> Result<(), Error> {
    let (stream, turn, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(3)?);
    let waits = world.npes() - 1;
    // What takes long is to load the module, which this kernel is in: nobody waits in one until all have.
    world.run(&stream, delay, Grid::one(32), (turn.view(), 0))?;
    world.barrier()?;
    // The kernel is loaded, on every PE, before time counts.
    world.run(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
    world.barrier()?;
    let launched = Instant::now();
    if world.pe().index() == waits {
        world.launch(&stream, posts, Grid::one(32), (turn.view(), told.view(), 1, By::Block))?;
        let ended = world.synchronize(&stream);
        assert!(matches!(&ended, Err(WorldFailure::Fault(fault)) if fault.kind == FaultKind::Timeout), "{ended:?}");
    } else {
        // Waits that end by themselves, one after the other: none of them is the first to fail.
        while launched.elapsed() < LATE && world.check().is_ok() {
            let _hears_of_it = world.launch(&stream, delay, Grid::one(32), (turn.view(), 50_000));
            look(world, &stream);
        }
        tell_how_long(world, &stream, "a deadline");
        let ended = world.check();
        assert!(matches!(&ended, Err(WorldFailure::Aborted { by, .. }) if *by as usize == waits), "{ended:?}");
    }
    assert!(launched.elapsed() < LATE, "ended after {:?}", launched.elapsed());
    Ok(())
}

/// The last PE ends without a word, while the others wait for it in a kernel.
pub fn dead(world: &mut World) -> Result<(), Error> {
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
    let ended = world.synchronize(&stream);
    assert!(matches!(&ended, Err(WorldFailure::PeerFailed { pe, .. }) if *pe as usize == last), "{ended:?}");
    assert!(launched.elapsed() < LATE, "ended after {:?}", launched.elapsed());
    Ok(())
}
