//! A sweep: one world, one case, every size.

use congruent_collectives::{Layout, Shape};
use congruent_device::{Sym, TeamView, World as WorldTag, abi};

use super::Common;
use super::case::{Case, Row};
use super::measure::{Effort, Mode, exchange, measure};
use super::pattern::GUARD;
use super::report::{Document, Heading, Report};
use crate::failure::Failure;
use congruent::bootstrap::{Bootstrap, Launcher};
use congruent::tunables::Key;
use congruent::{STREAMS, Tunables, World};

/// What to run, and on what.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) operation: &'static str,
    pub(super) common: &'a Common,
    /// PEs where neither user nor launcher says.
    pub(super) pes: u32,
    /// The fewest PEs that make sense.
    pub(super) fewest_pes: u32,
    /// Ascending.
    pub(super) sizes: &'a [u64],
    pub(super) blocks: u32,
    /// Whether it needs a plan and a communicator.
    pub(super) collective: bool,
    /// Whether every PE moves bytes at once, where otherwise one does.
    pub(super) all: bool,
    /// Whether rounds are launches of a graph.
    pub(super) graph: bool,
    /// Bytes of heap that it needs besides two buffers.
    pub(super) more_heap: u64,
    /// Where a picture of it goes.
    pub(super) plot: Option<&'a std::path::Path>,
}

impl<'a> Plan<'a> {
    /// An operation of one block, on any number of PEs.
    pub(super) fn new(operation: &'static str, common: &'a Common, pes: u32, sizes: &'a [u64]) -> Self {
        let (collective, all, graph, more_heap) = (false, false, false, 0);
        Self { operation, common, pes, fewest_pes: 1, sizes, blocks: 1, collective, all, graph, more_heap, plot: None }
    }

    /// The longest message.
    pub(super) fn longest(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// How many PEs there will be.
    pub(super) fn settle_pes(&self) -> Result<u32, Failure> {
        let bootstrap = Bootstrap::from_env()?;
        let job = bootstrap.job();
        let pes = match self.common.pes {
            Some(pes) if job.launcher != Launcher::None && pes != job.npes => {
                return Err(Failure::Usage(format!("-p {pes}: the launcher started {} PEs; leave -p out", job.npes)));
            }
            Some(pes) => pes,
            None if job.launcher != Launcher::None => job.npes,
            None => self.pes,
        };
        if pes < self.fewest_pes {
            let Self { operation, fewest_pes, .. } = self;
            return Err(Failure::Usage(format!("{operation} is between PEs: give {fewest_pes} or more, not {pes}")));
        }
        Ok(pes)
    }

    /// Room for two buffers of the longest message, what guards them, the world's own words, and where it is a collective a
    /// plan and a communicator's.
    fn heap(&self, pes: u32) -> Result<u64, Failure> {
        let tunables = Tunables::from_env()?;
        // A launcher's PEs may be on several hosts, which all have to find alike.
        let is_launched = Bootstrap::from_env()?.job().launcher != Launcher::None;
        // Where peers are proxied, communicators take the most scratch that they ever do, and the heap is as large as they want it for that.
        let (scratch, least) =
            if is_launched || tunables.get(Key::P2pDisable) == 1 { (4 << 20, 128 << 20) } else { (0, 0) };
        let slots = tunables.get(Key::MaxBlocks) as u32;
        let sync = abi::SyncLayout::new(pes).words(slots) * size_of::<u64>() as u64;
        let buffer = self.longest() + (GUARD * size_of::<u64>()) as u64;
        let plans = if self.collective {
            let team = TeamView::<WorldTag>::strided(0, 1, pes, 0, Sym::empty());
            let needs =
                Layout::new(team, self.blocks * (STREAMS + 1)).buffer(tunables.get(Key::BuffSize).max(scratch)).needs();
            // On several hosts it may have levels, which take less than one with the scratch that is usual.
            let levels = if pes < 4 { 0 } else { 8 << 20 };
            (needs.scratch + needs.signals * size_of::<u64>()) as u64 * 9 / 8 + levels
        } else {
            0
        };
        let all = 2 * buffer + sync + plans + self.more_heap * 9 / 8 + (4 << 20);
        Ok(if self.collective { all.max(least) } else { all })
    }
}

/// How a sweep ended.
pub(super) struct Swept {
    /// Wrong elements of all PEs.
    pub(super) wrong: u64,
    /// What was measured, on PE 0.
    pub(super) document: Option<Document>,
}

/// Runs the sweep on the case that `make` makes. PE 0 prints.
pub(super) fn run(
    plan: Plan<'_>,
    make: impl Fn(&mut World, &Plan<'_>) -> Result<Box<dyn Case>, Failure> + Sync,
) -> Result<Swept, Failure> {
    let pes = plan.settle_pes()?;
    let mut builder = crate::world().heap(plan.heap(pes)?);
    if let Some(width) = plan.common.width {
        builder = builder.width(width);
    }
    let ended = builder.run(pes as usize, |world| {
        let case = make(world, &plan)?;
        sweep(world, &plan, &*case)
    })?;
    match ended.into_iter().next() {
        None => Ok(Swept { wrong: 0, document: None }),
        Some(Ended { wrong, report: None }) => Ok(Swept { wrong, document: None }),
        Some(Ended { wrong, report: Some(printed) }) => Ok(Swept { wrong, document: Some(printed?) }),
    }
}

/// How a sweep ended on a PE.
struct Ended {
    /// Wrong elements of all PEs.
    wrong: u64,
    /// PE 0's: what it printed, or that it could not. That is no error of the sweep: all PEs end it together, in order.
    report: Option<Result<Document, Failure>>,
}

fn sweep(world: &mut World, plan: &Plan<'_>, case: &dyn Case) -> Result<Ended, Failure> {
    let common = plan.common;
    let mode = if plan.graph { Mode::Graph } else { Mode::Kernel };
    let effort = Effort { iters: common.iters, warmup: common.warmup, check: common.check == 1, mode };
    let labels = case.labels();
    let rows = case.rows(plan.sizes)?;
    let stream = world.stream()?;
    let heading = Heading::new(world, plan, &effort, case);
    let mut report = (world.pe().index() == 0).then(|| Report::start(heading, rows.len(), common.json));
    let mut wrong = 0;
    for row in rows {
        let path = case.path(world, row);
        let mut half = |in_place| measure(world, &stream, case, Row { in_place, ..row }, effort);
        let out_of_place = half(false)?;
        let in_place = if labels.in_place { Some(half(true)?) } else { None };
        wrong += out_of_place.wrong.unwrap_or(0) + in_place.and_then(|half| half.wrong).unwrap_or(0);
        if let Some(report) = &mut report {
            report.row(case, row.size, path, out_of_place, in_place);
            plan.plot.inspect(|path| report.draw_so_far(path));
        }
        let unread = report.as_ref().is_some_and(|report| !report.is_printed());
        if exchange(world, "output of perf", u64::from(unread))?.sum::<u64>() > 0 {
            break;
        }
    }
    Ok(Ended { wrong, report: report.map(Report::finish) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::case::{Labels, Path, Work};
    use crate::perf::tests::common;
    use congruent::Stream;
    use std::cell::Cell;

    /// Moves nothing, fails at one size, and is launched with buffers of the row only.
    struct Failing(u64, Cell<u64>);

    impl Case for Failing {
        fn labels(&self) -> Labels {
            Labels::ONE_SIDED
        }

        fn path(&self, world: &World, row: Row) -> Path {
            Path::one_sided(world, "simple", row.size)
        }

        fn prepare(&self, row: Row) -> Result<(), Failure> {
            self.1.set(row.size);
            if row.size == self.0 { Err(Failure::Failed("no more".to_owned())) } else { Ok(()) }
        }

        fn launch(&self, _: &World, _: &Stream, row: Row, _: u64) -> Result<(), Failure> {
            assert_eq!(self.1.get(), row.size, "warming up, too");
            Ok(())
        }

        fn wrong(&self, _: Row, _: Work) -> Result<Option<u64>, Failure> {
            Ok(None)
        }
    }

    #[test]
    fn a_sweep_that_fails_leaves_the_plot_of_what_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let (common, sizes) = (Common { iters: Some(1), ..common(1) }, [8, 16, 32, 64]);
        let plan = Plan { plot: Some(&file), ..Plan::new("put", &common, 2, &sizes) };
        let failed = run(plan, |_, _| Ok(Box::new(Failing(32, Cell::new(0)))));
        assert!(failed.is_err_and(|failure| failure.to_string().contains("no more")));
        let picture = std::fs::read_to_string(&file).unwrap();
        assert!(picture.contains("the first 2 of 4 measurements"), "{picture}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
