//! What is kept of a sweep besides its table: a plot, and the times that the selector chooses by.

use std::path::{Path, PathBuf};

use congruent_collectives::{Algorithm, Collective, Protocol};

use super::plot::{self, Point, Series};
use super::report::{Document, Line};
use crate::failure::Failure;
use congruent::select::{Measured, TuningTable};

/// Where it goes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KeepArgs {
    /// Measure every algorithm and protocol, and draw them as an SVG picture, again after each row
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// Measure every algorithm and protocol, and write the times to a table for CONGRUENT_TUNING; a table that is there keeps
    /// its other rows
    #[arg(long, value_name = "FILE")]
    tune: Option<PathBuf>,
}

impl KeepArgs {
    /// Whether each algorithm and protocol is needed.
    pub(super) fn each(&self) -> bool {
        self.plot.is_some() || self.tune.is_some()
    }

    /// The rows of the tuning table that is to be completed. Read before anything is measured, so that a table that cannot
    /// be read costs no time.
    pub(super) fn read(&self) -> Result<Vec<Measured>, Failure> {
        let Some(path) = &self.tune else { return Ok(Vec::new()) };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Failure::Failed(format!("cannot read the table '{}': {error}", path.display()))),
        };
        let table = TuningTable::parse(&text).map_err(|(line, problem)| {
            Failure::Failed(format!("'{}', line {line}: {problem}; name another file", path.display()))
        })?;
        Ok(table.rows().to_vec())
    }

    /// Draws and writes what is asked for; `kept` is what [`read`](Self::read) gave.
    pub(super) fn keep(&self, document: &Document, collective: Collective, kept: Vec<Measured>) -> Result<(), Failure> {
        if let Some(path) = &self.tune {
            let table = TuningTable::new(merged(kept, measured(document, collective)));
            table.write(path).map_err(|error| Failure::Failed(error.to_string()))?;
        }
        match &self.plot {
            Some(path) => draw(path, document),
            None => Ok(()),
        }
    }
}

/// Draws a sweep.
pub(super) fn draw(path: &Path, document: &Document) -> Result<(), Failure> {
    plot::draw(path, &title(document), &series(document))
}

/// Draws what there is of a sweep that will have `rows`, so that it is kept wherever the sweep is stopped or fails.
pub(super) fn draw_so_far(path: &Path, document: &Document, rows: usize) {
    let title = format!("{}\nthe first {} of {rows} measurements", title(document), document.rows.len());
    plot::draw_so_far(path, &title, &series(document));
}

fn title(document: &Document) -> String {
    let heading = &document.heading;
    let labels = heading.labels;
    let of = if labels.redop == "none" {
        labels.datatype.to_owned()
    } else {
        format!("{} of {}", labels.redop, labels.datatype)
    };
    format!(
        "{}, {} PEs\n{of}, {}, {} cores, PEs as {}, {} blocks",
        heading.operation, heading.pes, heading.machine, heading.cores, heading.started_as, heading.blocks
    )
}

/// A line of the plot for each algorithm and protocol.
fn series(document: &Document) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for line in &document.rows {
        let label = format!("{} {}", line.path.algorithm, line.path.protocol);
        let half = &line.out_of_place;
        let point =
            Point { bytes: line.size, seconds: half.time_us / 1e6, busbw: half.busbw, chosen: line.path.chosen };
        match series.iter_mut().find(|one| one.label == label) {
            Some(one) => one.points.push(point),
            None => series.push(Series { label, points: vec![point] }),
        }
    }
    series
}

/// The table's rows of a sweep.
fn measured(document: &Document, collective: Collective) -> Vec<Measured> {
    let heading = &document.heading;
    let row = |line: &Line| {
        Some(Measured {
            machine: heading.tuning_machine.clone()?,
            collective,
            members: heading.pes,
            up_to_bytes: line.size,
            algorithm: Algorithm::named(line.path.algorithm)?,
            protocol: Protocol::named(line.path.protocol)?,
            blocks: heading.blocks,
            // A tenth of a nanosecond is more than a clock tells.
            ns: (line.out_of_place.time_us * 1e4).round().max(1.0) / 10.0,
        })
    };
    document.rows.iter().filter_map(row).collect()
}

/// The new rows in place of those for the same calls, whatever their size; the others stay.
fn merged(mut kept: Vec<Measured>, new: Vec<Measured>) -> Vec<Measured> {
    let calls = |row: &Measured| (row.machine.clone(), row.collective, row.members, row.blocks);
    kept.retain(|row| !new.iter().any(|new| calls(new) == calls(row)));
    kept.extend(new);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_times_replace_those_of_the_same_calls_only() {
        let row = |members, up_to_bytes, ns| Measured {
            machine: "cpu".into(),
            collective: Collective::AllReduce,
            members,
            up_to_bytes,
            algorithm: Algorithm::RING,
            protocol: Protocol::Simple,
            blocks: 1,
            ns,
        };
        let merged = merged(vec![row(2, 8, 1.0), row(4, 8, 2.0), row(2, 64, 3.0)], vec![row(2, 16, 4.0)]);
        assert_eq!(merged, [row(4, 8, 2.0), row(2, 16, 4.0)]);
    }
}
