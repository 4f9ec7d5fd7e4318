//! The proxied route beside programs that compute: its waits neither hold the cores nor lose them for long.
//!
//! With `CONGRUENT_TEST_LOAD` set the times are judged as they should be on an idle machine; otherwise with much patience.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::disallowed_types, reason = "ends the busy threads")]

use std::env;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use congruent::World;
use congruent_tests::conformance::ordering;

const NPES: usize = 4;
/// Threads of a job that may run at once: each PE's kernel and its proxy.
const OURS: f64 = 2.0 * NPES as f64;
/// Pairs of runs; the fastest of each kind counts.
const PAIRS: usize = 3;
/// How much more than it should be a ratio may be where nobody vouches for the machine.
const PATIENCE: f64 = 8.0;

/// How long a family of conformance takes over the proxied route.
fn timed() -> Duration {
    let started = Instant::now();
    World::builder().proxied(true).width(1).heap(32 << 20).local(NPES, ordering).unwrap();
    started.elapsed()
}

/// The same while `others` threads compute.
fn timed_beside(others: usize) -> Duration {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        // A failure, too, ends the others.
        let took = scope.spawn(timed).join();
        over.store(true, Ordering::Relaxed);
        took.unwrap()
    })
}

#[test]
fn beside_busy_threads_the_proxied_route_takes_its_share() {
    let others = thread::available_parallelism().unwrap().get();
    let (mut quiet, mut beside) = (Duration::MAX, Duration::MAX);
    for _ in 0..PAIRS {
        quiet = quiet.min(timed());
        beside = beside.min(timed_beside(others));
    }
    let ratio = beside.as_secs_f64() / quiet.as_secs_f64();
    // Twice what fair shares of the cores would give.
    let most = 2.0 * (others as f64 + OURS) / OURS;
    println!(
        "\nMEASURED {quiet:?} alone, {beside:?} beside {others} busy threads: {ratio:.2} times, of at most {most:.2}"
    );
    let judged = env::var_os("CONGRUENT_TEST_LOAD").is_some();
    assert!(ratio < if judged { most } else { PATIENCE * most }, "{ratio:.2} times");
}
