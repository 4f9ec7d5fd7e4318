//! What two threads cost each other, to which a route through a thread is held.
#![allow(clippy::disallowed_types, reason = "two threads share words, and no PE does")]

use std::hint::spin_loop;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, yield_now};
use std::time::Instant;

use rustix::io::{Errno, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Times in nanoseconds, each the least of five tries.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// From a store of one thread to the load by another that polls, each on a core of its own.
    pub hop: f64,
    /// From a thread that yields to another on the same core.
    pub turn: f64,
}

const TRIES: usize = 5;

/// After so many looks the other thread counts as gone.
const MOST_LOOKS: u64 = 1 << 28;

/// A word on a line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Threads {
    /// Measures two threads that take so many turns. `None` where this process may use one core only.
    ///
    /// # Errors
    /// Where the system binds no thread to a core, or one of them does not come.
    pub fn measure(turns: u64) -> Result<Option<Self>> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        let (Some(first), Some(second)) = (cores.next(), cores.next()) else { return Ok(None) };
        let least = |cores, wait: fn()| {
            (0..TRIES).try_fold(f64::INFINITY, |least, _| Ok(ping_pong(cores, turns, wait)?.min(least)))
        };
        Ok(Some(Self { hop: least([first, second], spin_loop)?, turn: least([first; 2], yield_now)? }))
    }
}

/// Half the round trip of a word between threads on these cores, which call `wait` until it has come.
fn ping_pong(cores: [usize; 2], turns: u64, wait: fn()) -> Result<f64> {
    let words = [Line::default(), Line::default()];
    let take_turns = |side: usize| {
        let mut core = CpuSet::new();
        core.set(cores[side]);
        sched_setaffinity(None, &core)?;
        let started = Instant::now();
        for turn in 1..=turns {
            if side == 1 {
                words[0].await_turn(turn, wait)?;
            }
            words[side].0.store(turn, Ordering::Release);
            if side == 0 {
                words[1].await_turn(turn, wait)?;
            }
        }
        Ok(started.elapsed().as_nanos() as f64 / (2 * turns) as f64)
    };
    thread::scope(|scope| {
        let sides = [scope.spawn(|| take_turns(0)), scope.spawn(|| take_turns(1))];
        let [ours, theirs] = sides.map(|side| side.join().unwrap_or_else(|panic| resume_unwind(panic)));
        theirs.and(ours)
    })
}

impl Line {
    fn await_turn(&self, turn: u64, wait: fn()) -> Result<()> {
        for _ in 0..MOST_LOOKS {
            if self.0.load(Ordering::Acquire) == turn {
                return Ok(());
            }
            wait();
        }
        Err(Errno::TIMEDOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_where_there_are_two_cores() {
        if let Some(Threads { hop, turn }) = Threads::measure(100).unwrap() {
            assert!(hop.is_finite() && hop > 0.0 && turn.is_finite() && turn > 0.0, "{hop} {turn}");
        }
    }
}
