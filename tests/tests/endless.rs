//! Kernels that nothing ends: loops of their own that wait without a pause.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "a test; it ends its kernels by a flag of the process"
)]

mod processes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use congruent::collectives::Op;
use congruent::device::{Signal, Sym, kernels};
use congruent::{Error, Grid, World, WorldFailure};
use processes::{alone, is_pe, myself};

const DEADLINE: Duration = Duration::from_millis(200);

/// Ends the kernels at last.
static OVER: AtomicBool = AtomicBool::new(false);

kernels! {
    /// Waits for what nobody stores, and neither waits nor pauses by the library.
    pub fn spin(_block, ctx, word: Sym<u32>) {
        while ctx.load(word, 0) == 0 && !OVER.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the other PE, as it should.
    pub fn wait(block, ctx, signal: Sym<Signal>) {
        ctx.wait_at_least(block, signal, 1);
    }
}

/// A PE alone with such a kernel, for five deadlines.
fn spins() {
    let settings = World::builder().deadline(DEADLINE).heap(8 << 20);
    let ends = settings.local(1, |world| {
        let (word, stream) = (world.alloc::<u32>(1)?, world.stream()?);
        world.barrier()?;
        world.launch(&stream, spin, Grid::one(1), (word.view(),))?;
        thread::spawn(|| {
            thread::sleep(5 * DEADLINE);
            OVER.store(true, Ordering::Relaxed);
        });
        world.synchronize(&stream)?;
        Ok::<_, Error>(())
    });
    ends.unwrap();
}

#[test]
fn a_kernel_that_runs_for_longer_than_the_deadline_is_named() {
    if is_pe() {
        return spins();
    }
    let _alone = alone();
    let output = myself("a_kernel_that_runs_for_longer_than_the_deadline_is_named").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let line = include_str!("endless.rs").lines().position(|line| line.contains("spin, Grid::one(1)")).unwrap() + 1;
    let named: Vec<&str> = said.lines().filter(|line| line.contains("longer than the deadline of 200ms")).collect();
    let begins = format!("congruent: PE 0: kernel spin, launched at tests/tests/endless.rs:{line}:");
    // After one deadline, and after two; the next would be after four and a while.
    assert!((2..=3).contains(&named.len()) && named.iter().all(|line| line.starts_with(&begins)), "{said}");
    assert!(named.iter().all(|line| line.contains("ctx.pause()")), "{said}");
}

/// A call on a virtual GPU that takes long, and waits for nobody.
fn copies_for_long() {
    const LEN: usize = 4 << 20;
    let settings = World::builder().deadline(Duration::from_millis(20)).heap(64 << 20);
    let ends = settings.local(1, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (dst, src) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?);
        comm.all_reduce(&stream, dst.view(), src.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        Ok::<_, Error>(())
    });
    ends.unwrap();
}

#[test]
fn a_stream_of_a_gpu_that_takes_longer_than_the_deadline_is_named_by_its_first_launch() {
    const TEST: &str = "a_stream_of_a_gpu_that_takes_longer_than_the_deadline_is_named_by_its_first_launch";
    if is_pe() {
        return copies_for_long();
    }
    let _alone = alone();
    let output = myself(TEST).env("CONGRUENT_MACHINE", "virtual").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let line =
        include_str!("endless.rs").lines().position(|line| line.contains("comm.all_reduce(&stream")).unwrap() + 1;
    let named =
        said.lines().find(|line| line.contains("longer than the deadline of 20ms")).unwrap_or_else(|| panic!("{said}"));
    let begins = "congruent: PE 0: kernel all_reduce";
    let place = format!(", launched at tests/tests/endless.rs:{line}:");
    assert!(named.starts_with(begins) && named.contains(&place) && named.contains(", or what came after it"), "{said}");
}

#[test]
fn a_world_that_failed_does_not_wait_for_ever_for_a_kernel() {
    let _alone = alone();
    let settings = World::builder().deadline(DEADLINE).heap(8 << 20);
    let ends = settings.local(2, |world| {
        let (word, semaphore, stream) = (world.alloc::<u32>(1)?, world.alloc::<Signal>(1)?, world.stream()?);
        world.barrier()?;
        let started = Instant::now();
        if world.pe().raw() == 0 {
            world.launch(&stream, spin, Grid::one(1), (word.view(),))?;
        } else {
            world.launch(&stream, wait, Grid::one(1), (semaphore.view(),))?;
        }
        let told = world.synchronize(&stream).unwrap_err();
        Ok::<_, Error>((told, started.elapsed()))
    });
    // Here the kernel still runs, on memory that is kept for it.
    let ends = ends.unwrap();
    OVER.store(true, Ordering::Relaxed);
    assert!(matches!(ends[0].0, WorldFailure::Aborted { by: 1, .. }), "{ends:?}");
    assert!(matches!(ends[1].0, WorldFailure::Fault(_)), "{ends:?}");
    assert!(ends[0].1 < Duration::from_secs(20) && ends[1].1 < Duration::from_secs(5), "{ends:?}");
}
