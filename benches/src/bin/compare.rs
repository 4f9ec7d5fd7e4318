//! Runs every peer and prints our times beside theirs.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::iter::successors;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use congruent_benches::ours;
use congruent_benches::peer::{Effort, OURS, peers};
use congruent_benches::sample::{Sample, Summaries, summarize};
use congruent_benches::table::{Row, Verdict, render, rows};

/// Compares with Open MPI and with memcpy, two processes on two cores.
#[derive(Parser)]
struct Arguments {
    /// Few repeats of small sizes: shows that everything runs; the times mean nothing and are not judged.
    #[arg(long, conflicts_with_all = ["repeats", "max_bytes"])]
    smoke: bool,
    /// Repeats of each work and size.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// The largest buffer, in bytes.
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(8..=64 << 20))]
    max_bytes: u64,
    /// Run only the peers whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// Also write every sample to this file, by peer.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == ours::WORD) {
        return ours::main();
    }
    let arguments = Arguments::parse();
    let (samples, broken) = measure(&arguments);
    if let Some(path) = &arguments.json
        && let Err(error) = write_json(path, &samples)
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }

    let mut rows = compare(&samples);
    println!("{}", render(&mut rows));
    let count = |verdict| rows.iter().filter(|row| row.verdict() == verdict).count();
    let (pass, fail, not_measured) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::NotMeasured));
    println!("ratio is theirs / ours (median of repeats): above 1, {OURS} is faster");
    println!("{pass} promises kept, {fail} broken, {not_measured} not measured; {broken} peers could not run");
    if broken > 0 || (fail > 0 && !arguments.smoke) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The samples of every peer that could run, and how many could not.
fn measure(arguments: &Arguments) -> (BTreeMap<String, Vec<Sample>>, usize) {
    let effort = match arguments.smoke {
        true => Effort { repeats: 2, max_bytes: 64 << 10 },
        false => Effort { repeats: arguments.repeats, max_bytes: arguments.max_bytes },
    };
    let mut samples = BTreeMap::new();
    let mut broken = 0;
    for peer in peers() {
        if arguments.only.as_ref().is_some_and(|part| !peer.name().contains(part)) {
            continue;
        }
        eprintln!("measuring {} ...", peer.name());
        match peer.run(effort) {
            Ok(measured) => {
                samples.insert(peer.name().to_owned(), measured);
            }
            Err(error) => {
                eprintln!("!!! {} is not compared: {}", peer.name(), with_causes(&error));
                broken += 1;
            }
        }
    }
    (samples, broken)
}

fn compare(samples: &BTreeMap<String, Vec<Sample>>) -> Vec<Row> {
    let ours = samples.get(OURS).map_or_else(Summaries::new, |samples| summarize(samples));
    let others = samples.iter().filter(|(name, _)| *name != OURS);
    others.flat_map(|(name, samples)| rows(&ours, name, &summarize(samples))).collect()
}

fn write_json(path: &PathBuf, samples: &BTreeMap<String, Vec<Sample>>) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    serde_json::to_writer_pretty(&mut file, samples)?;
    Ok(writeln!(file)?)
}

fn with_causes(error: &dyn Error) -> String {
    successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
