//! Timing and checking half a row.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::case::{Case, Row, Work};
use crate::failure::Failure;
use congruent::{Graph, Stream, World};

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Timed rounds; without it, as many as take about [`BUDGET`].
    pub(super) iters: Option<u64>,
    /// Rounds before them.
    pub(super) warmup: u64,
    /// Whether to check the data.
    pub(super) check: bool,
    pub(super) mode: Mode,
}

/// How rounds are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// One after the other in one kernel.
    Kernel,
    /// Each a launch, as a call of the host makes it, [`CALLS`] of them in a graph that is replayed.
    Graph,
}

/// Rounds in a graph.
const CALLS: u64 = 20;

/// Graphs that a stream is given before the host waits for them: fewer kernels than fill the queue of a driver, in which a PE
/// would wait with what others may need to launch theirs.
const IN_FLIGHT: u64 = 32;

/// What half a row gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Timed rounds.
    pub(super) rounds: u64,
    /// Of one message, by the slowest PE.
    pub(super) seconds: f64,
    /// Wrong elements of all PEs; `None` where they were not checked.
    pub(super) wrong: Option<u64>,
}

/// What the timed rounds of half a row take, where their number is free: two halves of 24 sizes stay under 20 seconds.
const BUDGET: Duration = Duration::from_millis(150);

/// What one launch takes of it. Where cores are shared, times of a round differ by a factor of 50 from one moment to the
/// next, so the budget is looked at between short launches and not only planned.
const SLICE: Duration = Duration::from_millis(30);

/// Enough that one late wake-up does not make the result, even where a round takes longer than the budget.
const FEWEST: u64 = 3;

/// Half a row, ready to be run.
struct Timed<'a> {
    case: &'a dyn Case,
    row: Row,
    stream: &'a Stream,
    /// [`CALLS`] rounds, where rounds are launches. It goes after an exchange, when no PE is within a kernel: a driver may wait for
    /// the GPU then.
    graph: Option<Graph>,
}

impl<'a> Timed<'a> {
    fn new(world: &World, stream: &'a Stream, case: &'a dyn Case, row: Row, mode: Mode) -> Result<Self, Failure> {
        let graph = match mode {
            Mode::Kernel => None,
            Mode::Graph => Some(captured(world, stream, case, row)?),
        };
        Ok(Self { case, row, stream, graph })
    }

    /// As many rounds, or the next number that can be run.
    fn whole(&self, rounds: u64) -> u64 {
        if self.graph.is_some() { rounds.div_ceil(CALLS).saturating_mul(CALLS) } else { rounds }
    }

    fn launch(&self, world: &World, rounds: u64) -> Result<(), Failure> {
        let Some(graph) = &self.graph else { return self.case.launch(world, self.stream, self.row, rounds) };
        for launched in 1..=rounds / CALLS {
            graph.launch(self.stream)?;
            if launched % IN_FLIGHT == 0 {
                world.synchronize(self.stream)?;
            }
        }
        Ok(())
    }

    /// Times `rounds` rounds, by the slowest PE, from when all PEs are there. In a kernel that is one launch, spread over the
    /// rounds.
    ///
    /// # Collective
    fn time(&self, world: &mut World, rounds: u64) -> Result<Duration, Failure> {
        world.barrier()?;
        let started = Instant::now();
        self.launch(world, rounds)?;
        world.synchronize(self.stream)?;
        let mine = started.elapsed().as_nanos() as u64;
        let slowest = exchange(world, "times of perf", mine)?.max().unwrap_or(mine);
        Ok(Duration::from_nanos(slowest.max(1)))
    }
}

/// [`CALLS`] rounds as a graph.
fn captured(world: &World, stream: &Stream, case: &dyn Case, row: Row) -> Result<Graph, Failure> {
    let mut launched = Ok(());
    let graph = world.capture(stream, |stream| {
        launched = (0..CALLS).try_for_each(|_| case.launch(world, stream, row, 1));
        Ok(())
    });
    launched?;
    Ok(graph?)
}

/// Times and checks half a row.
///
/// # Collective
pub(super) fn measure(
    world: &mut World,
    stream: &Stream,
    case: &dyn Case,
    row: Row,
    effort: Effort,
) -> Result<Measured, Failure> {
    let timed = Timed::new(world, stream, case, row, effort.mode)?;
    // Rounds that only warm up or are counted do what is measured: tokens without experts would be refused.
    case.prepare(row)?;
    let rounds = match effort.iters {
        Some(rounds) => {
            if effort.warmup > 0 {
                timed.time(world, timed.whole(effort.warmup))?;
            }
            rounds
        }
        None => {
            let first = timed.whole(effort.warmup.max(1));
            // Once before: the first launch loads the kernel, which may take longer than all rounds that are measured.
            timed.time(world, first)?;
            calibrate(first, |rounds| timed.time(world, timed.whole(rounds)))?
        }
    };
    let rounds = timed.whole(rounds);
    // `time` begins with a barrier, so no PE writes to buffers that are still being filled.
    case.prepare(row)?;
    let mut work = Work { launches: 0, rounds };
    let mut elapsed = Duration::ZERO;
    loop {
        elapsed += timed.time(world, rounds)?;
        work.launches += 1;
        if effort.iters.is_some() || (elapsed >= BUDGET && work.total() >= FEWEST) {
            break;
        }
    }
    let wrong = if effort.check { check(world, timed, work)? } else { None };
    let seconds = elapsed.as_secs_f64() / (work.total() * case.messages()) as f64;
    Ok(Measured { rounds: work.total(), seconds, wrong })
}

/// Checks what the timed rounds left. Where rounds build on each other (an all-reduce in place sums sums, which leaves the
/// exact numbers after a few), one more round on fresh data is checked in their place: the same kernel, with the same plan.
fn check(world: &mut World, timed: Timed<'_>, work: Work) -> Result<Option<u64>, Failure> {
    let Timed { case, row, .. } = timed;
    let work = if case.repeats(row) { work } else { Work { launches: 1, rounds: 1 } };
    if !case.repeats(row) {
        case.prepare(row)?;
        Timed { graph: None, ..timed }.time(world, work.rounds)?;
    }
    // `time` ended with an exchange, so every PE's part of the work is done.
    let mine = case.wrong(row, work)?;
    let all = exchange(world, "wrong elements of perf", mine.unwrap_or(0))?.sum();
    Ok(mine.map(|_| all))
}

/// How many rounds take about a [`SLICE`], found with ever more of them. Every PE sees the same times and so finds the same.
fn calibrate(first: u64, mut time: impl FnMut(u64) -> Result<Duration, Failure>) -> Result<u64, Failure> {
    let mut rounds = first;
    loop {
        let share = SLICE.as_secs_f64() / time(rounds)?.as_secs_f64();
        if share <= 8.0 {
            return Ok(((rounds as f64 * share) as u64).max(1));
        }
        // Short runs are mostly launch, so they promise less than they keep.
        rounds = (rounds as f64 * (share / 4.0).min(16.0)) as u64;
    }
}

/// Gives every PE's number to every PE.
///
/// # Collective
pub(super) fn exchange(world: &mut World, what: &str, mine: u64) -> Result<impl Iterator<Item = u64> + use<>, Failure> {
    let all = world.exchange(what, &mine.to_string())?;
    let numbers: Result<Vec<u64>, _> = all.iter().map(|number| number.parse()).collect();
    let numbers = numbers.map_err(|_| Failure::Failed(format!("a PE sent something else than {what}")))?;
    Ok(numbers.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_finds_the_rounds_that_fill_a_slice() {
        for round in [1e-9, 1e-6, 1e-3, 0.02] {
            let launch = 5e-5;
            let timed = |rounds: u64| Ok(Duration::from_secs_f64(launch + rounds as f64 * round));
            let rounds = calibrate(1, timed).unwrap();
            let total = rounds as f64 * round;
            assert!((0.02..0.04).contains(&total), "{rounds} rounds of {round} s");
        }
        assert_eq!(calibrate(1, |_| Ok(Duration::from_secs(5))).unwrap(), 1);
    }
}
