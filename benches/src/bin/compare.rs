//! Runs every peer and prints our times beside theirs.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::iter::successors;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use congruent_benches::candidates::{self, REQUIRED, choices, share};
use congruent_benches::peer::{self, BEST_MPI, Effort, OURS, PeerError, is_mpi, peers};
use congruent_benches::roofline::{ROOFLINE, roofline};
use congruent_benches::sample::{Sample, Summaries, fastest, summarize};
use congruent_benches::table::{Row, Verdict, render, rows};
use congruent_benches::{checked, compute, fused, ours, proxied};

/// Compares with MPI libraries and with memcpy: two processes on a core each, and four that share the cores.
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
    /// Run only the peers whose names contain this; `libfabric` for puts through proxies, which nothing else measures.
    #[arg(long)]
    only: Option<String>,
    /// Also write every sample to this file, by peer.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Some(status) = ours::main() {
        return status;
    }
    let arguments = Arguments::parse();
    let (samples, skipped, broken) = measure(&arguments);
    if let Some(path) = &arguments.json
        && let Err(error) = write_json(path, &samples)
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }

    let mut rows = compare(&samples);
    println!("{}", render(&mut rows, arguments.judged()));
    println!("our collectives run in a kernel, where members compare no calls, and MPI's compare none");
    println!("ratio is theirs / ours (median of repeats): above 1, {OURS} is faster");
    let count = |verdict| rows.iter().filter(|row| row.verdict() == verdict).count();
    let (pass, fail, not_measured) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::NotMeasured));
    match arguments.judged() {
        true => print!("{pass} promises kept, {fail} broken, {not_measured} not measured; "),
        false => print!("few repeats of small sizes, which are not judged; "),
    }
    println!("{skipped} runs skipped, {broken} failed\n");
    let (chosen_well, broken) = choose(&arguments, broken);
    let broken = cost_of_checks(&arguments, broken);
    let (computes_well, broken) = computing(&arguments, broken);
    let (saves, broken) = fusing(&arguments, broken);
    let (is_kept, broken) = through_proxies(&arguments, broken);
    let fail =
        fail + usize::from(!chosen_well) + usize::from(!computes_well) + usize::from(!saves) + usize::from(!is_kept);
    if broken > 0 || (fail > 0 && arguments.judged()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// PEs of the jobs to compare.
const JOBS: [u32; 2] = [2, 4];

impl Arguments {
    fn effort(&self, pes: u32) -> Effort {
        match self.smoke {
            true => Effort { pes, repeats: 1, max_bytes: 4 << 10 },
            false => Effort { pes, repeats: self.repeats, max_bytes: self.max_bytes },
        }
    }

    /// Whether times are held to promises.
    fn judged(&self) -> bool {
        !self.smoke
    }

    fn asks_for(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|part| name.contains(part))
    }
}

/// The samples of every peer that could run, how many runs were skipped, since there is no such peer here, and how many failed.
fn measure(arguments: &Arguments) -> (BTreeMap<String, Vec<Sample>>, usize, usize) {
    let mut samples: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    let (mut skipped, mut broken) = (0, 0);
    for pes in JOBS {
        for peer in peers().iter().filter(|peer| arguments.asks_for(peer.name()) && (pes == 2 || peer.scales())) {
            eprintln!("measuring {} with {pes} PEs ...", peer.name());
            match peer.run(arguments.effort(pes)) {
                Ok(measured) => samples.entry(peer.name().to_owned()).or_default().extend(measured),
                Err(PeerError::Elsewhere) => {
                    eprintln!("!!! SKIPPED {} with {pes} PEs: {}", peer.name(), PeerError::Elsewhere);
                    skipped += 1;
                }
                Err(error) => {
                    eprintln!("!!! {} with {pes} PEs is not compared: {}", peer.name(), with_causes(&error));
                    broken += 1;
                }
            }
        }
    }
    (samples, skipped, broken)
}

fn compare(samples: &BTreeMap<String, Vec<Sample>>) -> Vec<Row> {
    let summaries: BTreeMap<&str, Summaries> =
        samples.iter().map(|(name, samples)| (name.as_str(), summarize(samples))).collect();
    let limit = roofline(summaries.values());
    let best = fastest(summaries.iter().filter(|(name, _)| is_mpi(name)).map(|(_, theirs)| theirs));
    let none = Summaries::new();
    let ours = summaries.get(OURS).unwrap_or(&none);
    let others = summaries.iter().filter(|(name, _)| **name != OURS).map(|(name, theirs)| (*name, theirs));
    others.chain([(BEST_MPI, &best), (ROOFLINE, &limit)]).flat_map(|(name, theirs)| rows(ours, name, theirs)).collect()
}

/// Prints how good the selector's choices are. Whether they are good enough, and how many runs failed with this one.
fn choose(arguments: &Arguments, broken: usize) -> (bool, usize) {
    if !arguments.asks_for(OURS) {
        return (true, broken);
    }
    eprintln!("measuring every way of an all-reduce ...");
    let Some(timed) = told("every way of an all-reduce", peer::candidates(arguments.effort(2))) else {
        return (false, broken + 1);
    };
    let choices = choices(&timed);
    let share = share(&choices);
    println!("{}", candidates::render(&choices));
    println!("{}\n", candidates::sentence(share, arguments.judged()));
    (share >= REQUIRED, broken)
}

/// Prints what checked mode costs, which is not judged. How many runs failed with this one.
fn cost_of_checks(arguments: &Arguments, broken: usize) -> usize {
    if !arguments.asks_for(OURS) {
        return broken;
    }
    eprintln!("measuring calls that are compared ...");
    let Some(timed) = told("calls that are compared", peer::checked(arguments.effort(2))) else {
        return broken + 1;
    };
    println!("{}", checked::render(&checked::costs(&timed)));
    println!("checked, members compare their calls before anything moves: so it is by default on the CPU machine");
    broken
}

/// Prints how fast kernels compute on memory of their own. Whether that is fast enough, and how many runs failed with this one.
fn computing(arguments: &Arguments, broken: usize) -> (bool, usize) {
    if !arguments.asks_for(OURS) {
        return (true, broken);
    }
    eprintln!("measuring a loop in a kernel and in plain Rust ...");
    let effort = arguments.effort(1);
    match compute::measure(effort.repeats, effort.max_bytes) {
        Ok(timed) => {
            println!("{}", compute::render(&timed));
            (timed.iter().all(compute::Timed::is_kept), broken)
        }
        Err(error) => {
            eprintln!("!!! a loop in a kernel: not measured: {error}");
            (false, broken + 1)
        }
    }
}

/// Prints what fusing saves. Whether that is enough, and how many runs failed with this one.
fn fusing(arguments: &Arguments, broken: usize) -> (bool, usize) {
    if !arguments.asks_for(OURS) {
        return (true, broken);
    }
    eprintln!("measuring a norm behind an all-reduce ...");
    let Some(timed) = told("a norm behind an all-reduce", peer::fused(arguments.effort(2))) else {
        return (false, broken + 1);
    };
    let savings = fused::savings(&timed);
    println!("{}", fused::render(&savings));
    println!("at least 1.30 and 1.10 up to 64 KiB, and 1.00 above");
    (savings.iter().all(fused::Saving::is_kept), broken)
}

/// Prints what puts through proxies cost. Whether that is what is promised, and how many runs failed with this one.
fn through_proxies(arguments: &Arguments, broken: usize) -> (bool, usize) {
    // Takes minutes where cores are few, since each proxy polls: by its name only.
    if arguments.only.is_none() || !arguments.asks_for(proxied::LIBFABRIC) {
        return (true, broken);
    }
    eprintln!("measuring puts through proxies ...");
    let Some(mut measured) = told("puts through proxies", proxied::measure(arguments.effort(2))) else {
        return (false, broken + 1);
    };
    println!("{}", measured.table(arguments.judged()));
    match measured.sentence(arguments.judged()) {
        Ok(sentence) => println!("{sentence}"),
        Err(error) => eprintln!("!!! {error}"),
    }
    (measured.is_kept(), broken)
}

/// What a run of our own side gave; says why where it gave nothing.
fn told<T>(what: &str, run: Result<T, PeerError>) -> Option<T> {
    run.inspect_err(|error| eprintln!("!!! {what}: not measured: {}", with_causes(error))).ok()
}

fn write_json(path: &PathBuf, samples: &BTreeMap<String, Vec<Sample>>) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    serde_json::to_writer_pretty(&mut file, samples)?;
    Ok(writeln!(file)?)
}

fn with_causes(error: &dyn Error) -> String {
    successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
