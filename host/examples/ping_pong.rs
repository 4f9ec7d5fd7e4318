//! Two PEs bounce a counter, in one kernel each, with no host in between.
//!
//! The lesson: data and the signal that announces it travel together (`put_signal`), and a `Semaphore` remembers by itself
//! how often it was waited for, so the kernel is launched twice without a reset.
//!
//! Run it on two threads with `cargo run --release --example ping_pong`, or on two processes with
//! `congruent run -n 2 target/release/examples/ping_pong`.

use std::time::Instant;

use clap::Parser;
use congruent::device::Semaphore;
use congruent::{Error, Grid};
use congruent_example_kernels::ping_pong::ping_pong;

/// Lets two PEs bounce a counter.
#[derive(Parser)]
struct Args {
    /// How often in a launch, there and back
    #[arg(long, default_value_t = 100_000)]
    rounds: u64,
}

fn main() -> Result<(), Error> {
    let Args { rounds } = Args::parse();
    congruent::run(2, |world| {
        let ball = world.alloc::<u64>(1)?;
        let turn = world.alloc::<Semaphore>(1)?;
        let stream = world.stream()?;
        for launch in 1..=2 {
            let started = Instant::now();
            world.run(&stream, ping_pong, Grid::one(32), (ball.view(), turn.view(), rounds))?;
            let half = started.elapsed().as_nanos() as f64 / (2 * rounds) as f64;
            if world.pe().index() == 0 {
                println!("launch {launch}: the ball says {}, {half:.0} ns each way", ball.to_vec()?[0]);
                assert_eq!(ball.to_vec()?[0], 2 * rounds * launch);
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
