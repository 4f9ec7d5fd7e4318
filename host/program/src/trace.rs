//! `congruent trace`: what the traces of a job say, and one trace of all of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use congruent::trace::{TraceEvent, lost, read};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::output::print;

/// Say what took how long in the traces of a job, and make one trace of several
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  CONGRUENT_TRACE=trace.json congruent run -n 4 -- ./my-program    a trace of each process: trace.json, trace.json.pe1, ...
  congruent trace trace.json*                                      what took how long, of all PEs together
  congruent trace trace.json* --merge all.json                     one trace of all of them, for https://ui.perfetto.dev

Traces of several hosts have the clocks of these.")]
pub(super) struct Args {
    /// Files that CONGRUENT_TRACE wrote: one for each process of a job
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write one trace of all of them
    #[arg(long, value_name = "FILE")]
    merge: Option<PathBuf>,
}

/// A file, as far as it becomes part of another.
#[derive(Deserialize)]
struct Lines<'a> {
    #[serde(rename = "traceEvents", borrow)]
    events: Vec<&'a RawValue>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let texts = args.files.iter().map(|path| text(path)).collect::<Result<Vec<_>, _>>()?;
    let (mut events, mut missing) = (Vec::new(), 0);
    for (path, text) in args.files.iter().zip(&texts) {
        let of = |error| Failure::Failed(format!("{}: {error}", path.display()));
        events.extend(read(text).map_err(of)?);
        missing += lost(text).map_err(of)?;
    }
    if let Some(to) = &args.merge {
        merge(&texts, missing, to)?;
    }
    print(&table(&events))?;
    if missing > 0 {
        print(&format!("{missing} events are missing: a process keeps the first million; trace a shorter run\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))
}

/// Events stay as they are, to the digit: PEs of different files are different processes of the trace.
fn merge(texts: &[String], lost: u64, to: &Path) -> Result<(), Failure> {
    let files = texts.iter().map(|text| serde_json::from_str::<Lines<'_>>(text)).collect::<Result<Vec<_>, _>>()?;
    let events: Vec<_> = files.iter().flat_map(|file| file.events.iter().map(|event| event.get())).collect();
    let write = || {
        let mut out = BufWriter::new(fs::File::create(to)?);
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"lost_events\":{lost}}},\"traceEvents\":[")?;
        for (i, event) in events.iter().enumerate() {
            write!(out, "{}\n{event}", if i > 0 { "," } else { "" })?;
        }
        out.write_all(b"\n]}\n")?;
        out.flush()
    };
    write().map_err(|error| Failure::Failed(format!("cannot write {}: {error}", to.display())))
}

/// What took how long: most of all first.
fn table(events: &[TraceEvent]) -> String {
    let mut names: BTreeMap<&str, (Vec<u64>, Vec<u32>)> = BTreeMap::new();
    for event in events {
        let (times, pes) = names.entry(&event.name).or_default();
        times.push(event.duration_ns());
        pes.push(event.pe);
    }
    let mut rows: Vec<_> =
        names.into_iter().map(|(name, (times, pes))| (times.iter().sum::<u64>(), name, times, pes)).collect();
    rows.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["what", "PEs", "times", "all (us)", "median (us)", "longest (us)"]);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    for (all, name, mut times, mut pes) in rows {
        times.sort_unstable();
        pes.sort_unstable();
        pes.dedup();
        let longest = times.last().copied().unwrap_or(0);
        let numbers =
            [pes.len().to_string(), times.len().to_string(), us(all), us(times[times.len() / 2]), us(longest)];
        table.add_row([name.to_owned()].into_iter().chain(numbers));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
