//! Two PEs bounce a counter, in one kernel each, with no host in between.
//!
//! The lesson: data and the signal that announces it travel together (`put_signal`), and a `Semaphore` remembers by itself
//! how often it was waited for, so the kernel is launched twice without a reset.
//!
//! Run it on two threads with `cargo run --release --example ping_pong`, or on two processes with
//! `congruent run -n 2 target/release/examples/ping_pong`.

use std::time::Instant;

use congruent::device::{Group, Semaphore, Sym, kernels};
use congruent::{Error, Grid};

kernels! {
    /// Bounces `ball` between PE 0 and PE 1; each adds 1 before it sends the ball on.
    pub fn ping_pong(block, ctx, ball: Sym<u64>, turn: Sym<Semaphore>, rounds: u64) {
        let team = ctx.world();
        let (peer, first) = (team.next(), team.me().index() == 0);
        for _ in 0..rounds {
            if !first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
            if block.leader() {
                ctx.store(ball, 0, ctx.load(ball, 0) + 1);
            }
            block.sync();
            ctx.put_signal(block, ball.at(peer), ball, turn.at(peer).post());
            if first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
        }
    }
}

const ROUNDS: u64 = 100_000;

fn main() -> Result<(), Error> {
    congruent::run(2, |world| {
        let ball = world.alloc::<u64>(1)?;
        let turn = world.alloc::<Semaphore>(1)?;
        let stream = world.stream()?;
        for launch in 1..=2 {
            let started = Instant::now();
            world.run(&stream, ping_pong, Grid::one(32), (ball.view(), turn.view(), ROUNDS))?;
            let half = started.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64;
            if world.pe().index() == 0 {
                println!("launch {launch}: the ball says {}, {half:.0} ns each way", ball.to_vec()?[0]);
                assert_eq!(ball.to_vec()?[0], 2 * ROUNDS * launch);
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
