//! What `perf` prints: nccl-tests' columns row by row, or one JSON document.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::case::{Case, Labels, Path};
use super::keep;
use super::measure::{Effort, Measured, Mode};
use super::sweep::Plan;
use super::table;
use crate::failure::Failure;
use crate::output::print;
use congruent::World;
use congruent::tunables::Key;

/// What was run, and on what.
#[derive(Debug, Serialize)]
pub(super) struct Heading {
    pub(super) version: &'static str,
    pub(super) operation: &'static str,
    pub(super) machine: String,
    pub(super) cores: usize,
    pub(super) pes: usize,
    pub(super) started_as: &'static str,
    pub(super) heap_bytes: u64,
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) mode: Mode,
    /// Whether every PE moves bytes at once, where otherwise one does.
    pub(super) all: bool,
    pub(super) iters: Option<u64>,
    pub(super) warmup_iters: u64,
    pub(super) check: bool,
    /// The machine as tuning tables name it.
    pub(super) tuning_machine: Option<String>,
    #[serde(flatten)]
    pub(super) labels: Labels,
}

#[derive(Debug, Serialize)]
pub(super) struct Document {
    #[serde(flatten)]
    pub(super) heading: Heading,
    pub(super) rows: Vec<Line>,
    pub(super) out_of_bounds_values: Option<u64>,
    pub(super) average_bus_bandwidth: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) size: u64,
    pub(super) count: u64,
    #[serde(flatten)]
    pub(super) path: Path,
    pub(super) out_of_place: Half,
    pub(super) in_place: Option<Half>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Half {
    pub(super) time_us: f64,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    pub(super) wrong: Option<u64>,
    pub(super) rounds: u64,
}

/// Prints as the rows come.
pub(super) struct Report {
    document: Document,
    json: bool,
    /// How many there will be.
    rows: usize,
    /// On standard error, and only where that is a terminal.
    bar: ProgressBar,
    /// The first failure to print; nothing is printed after it.
    printed: Result<(), Failure>,
}

impl Heading {
    pub(super) fn new(world: &World, plan: &Plan<'_>, effort: &Effort, case: &dyn Case) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            operation: plan.operation,
            machine: world.machine(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            pes: world.npes(),
            started_as: if world.in_process() { "threads" } else { "processes" },
            heap_bytes: world.tunables().get(Key::Heap),
            blocks: plan.blocks,
            threads: plan.common.threads,
            mode: effort.mode,
            all: plan.all,
            iters: effort.iters,
            warmup_iters: effort.warmup,
            check: effort.check,
            tuning_machine: case.tuning_machine(),
            labels: case.labels(),
        }
    }
}

impl Report {
    /// Prints the heading.
    pub(super) fn start(heading: Heading, rows: usize, json: bool) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} sizes, {elapsed}");
        let bar = ProgressBar::new(rows as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let document = Document { heading, rows: Vec::new(), out_of_bounds_values: None, average_bus_bandwidth: 0.0 };
        let mut report = Self { document, json, rows, bar, printed: Ok(()) };
        if !json {
            report.print(&table::heading(&report.document.heading));
        }
        report
    }

    /// Prints a row.
    pub(super) fn row(
        &mut self,
        case: &dyn Case,
        size: u64,
        path: Path,
        out_of_place: Measured,
        in_place: Option<Measured>,
    ) {
        let line = Line {
            size,
            count: size / self.document.heading.labels.unit,
            path,
            out_of_place: Half::new(case, size, out_of_place),
            in_place: in_place.map(|measured| Half::new(case, size, measured)),
        };
        if !self.json {
            let above = self.document.rows.last();
            let gap = if above.is_some_and(|above| above.size >= size) { "#\n" } else { "" };
            self.print(&(gap.to_owned() + &table::row(&self.document.heading, &line)));
        }
        self.document.rows.push(line);
        self.bar.inc(1);
    }

    /// Draws what there is so far, should no more come.
    pub(super) fn draw_so_far(&self, path: &std::path::Path) {
        keep::draw_so_far(path, &self.document, self.rows);
    }

    /// Whether everything so far could be printed.
    pub(super) fn is_printed(&self) -> bool {
        self.printed.is_ok()
    }

    /// Prints the footer, or the document, and gives the document.
    pub(super) fn finish(mut self) -> Result<Document, Failure> {
        self.bar.finish_and_clear();
        let halves = || self.document.rows.iter().flat_map(|row| [Some(row.out_of_place), row.in_place]).flatten();
        let count = halves().count().max(1);
        self.document.average_bus_bandwidth = halves().map(|half| half.busbw).sum::<f64>() / count as f64;
        self.document.out_of_bounds_values = halves().map(|half| half.wrong).sum();
        let text = if self.json {
            serde_json::to_string_pretty(&self.document)? + "\n"
        } else {
            table::footer(&self.document)
        };
        self.print(&text);
        self.printed.map(|()| self.document)
    }

    fn print(&mut self, text: &str) {
        if self.printed.is_ok() {
            self.printed = self.bar.suspend(|| print(text));
        }
    }
}

impl Half {
    fn new(case: &dyn Case, size: u64, measured: Measured) -> Self {
        let algbw = size as f64 / measured.seconds / 1e9;
        Self {
            time_us: measured.seconds * 1e6,
            algbw,
            busbw: algbw * case.bus_factor(),
            wrong: measured.wrong,
            rounds: measured.rounds,
        }
    }
}
