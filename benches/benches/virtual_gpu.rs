//! How fast virtual GPUs execute PTX: instructions of lanes in a second on one core, and what an all-reduce takes.
//!
//! Each row is a process of its own, which is this program again: PEs are its threads, and one engine runs the kernels of all. Its
//! time is what its thread had of a core, so that other programs cost little. Lanes that pass by an instruction count, those of
//! other places do not.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;
use std::{env, fmt, fs};

use congruent::collectives::Op;
use congruent::{CommOptions, Grid, World, fixed_kernels};
use congruent_virtual_driver::congruentVirtualExecuted;
use rustix::time::{ClockId, clock_gettime};

/// Floats of a PE's buffer.
const FLOATS: usize = 16 << 10;

/// How many all-reduces are counted.
const ROUNDS: u32 = 3;

/// The word on the command line of a row's process; how many PEs there are is behind it.
const WORD: &str = "row";

/// What is checked beside addresses, as the virtual driver's settings have it, and how many million instructions of lanes there have
/// to be in a second.
const CHECKS: [(&str, &str, f64); 4] = [
    ("nothing more", "", 100.0),
    ("races", "races=1", 30.0),
    ("weak memory", "weak=1", 5.0),
    ("races and weak memory", "races=1,weak=1", 5.0),
];

/// All ways to do an all-reduce but those of links; LL128 needs what hardware promises.
const WAYS: [(&str, &[&str]); 5] = [
    ("ring", &["simple", "ll", "ll128"]),
    ("tree", &["simple", "ll", "ll128"]),
    ("direct", &["simple"]),
    ("recursive", &["simple", "ll", "ll128"]),
    ("one-shot", &["ll", "ll128"]),
];

/// The longest that an all-reduce of eight PEs may take with nothing more checked.
const LONGEST: f64 = 1.0;

/// One all-reduce: what it was for the engine, and for those who waited for it.
struct Row {
    /// Instructions of lanes.
    executed: f64,
    /// Seconds of the engine's thread.
    engine: f64,
    /// Seconds by the clock.
    clock: f64,
    /// Seconds of a core until a first world stood, and a second one of the same process.
    starts: [f64; 2],
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executed, engine, clock, starts: [first, second] } = self;
        write!(f, "{executed} {engine} {clock} {first} {second}")
    }
}

impl FromStr for Row {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [executed, engine, clock, first, second] = numbers[..] else {
            return Err(format!("not a row: {text}").into());
        };
        Ok(Self { executed, engine, clock, starts: [first, second] })
    }
}

/// Seconds that the engine's thread had of a core.
fn engine() -> f64 {
    let time = |task: PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let times = fs::read_to_string(task.join("schedstat")).ok().filter(|_| name.trim() == "virtual GPUs")?;
        times.split(' ').next()?.parse::<f64>().ok()
    };
    // Other threads may end meanwhile.
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| time(task.path())).sum::<f64>() / 1e9
}

/// Seconds of a core that all threads of this process had so far.
fn process() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds of a core until a world stands and has run a small kernel, and is gone again.
fn start(pes: usize) -> Result<f64, congruent::Error> {
    let began = process();
    World::builder().local(pes, |world| {
        let stream = world.stream()?;
        world.run(&stream, fixed_kernels::perf_barrier, Grid::one(32), (1,))?;
        Ok::<_, congruent::Error>(())
    })?;
    Ok(process() - began)
}

/// What a row's process does: an all-reduce that nobody counts, and some that are.
fn measure(pes: usize) -> Result<Row, Box<dyn Error>> {
    let starts = [start(pes)?, start(pes)?];
    let rows = World::builder().local(pes, |world| {
        let comm = world.comm_with(world.team(), CommOptions { check: Some(false), ..CommOptions::default() })?;
        let (src, dst, stream) = (world.alloc::<f32>(FLOATS)?, world.alloc::<f32>(FLOATS)?, world.stream()?);
        src.fill(1.0)?;
        let mut all = |rounds: u32| {
            world.barrier()?;
            let began = (Instant::now(), engine(), congruentVirtualExecuted());
            for _ in 0..rounds {
                comm.all_reduce(&stream, dst.view(), src.view(), Op::Sum)?;
            }
            world.synchronize(&stream)?;
            world.barrier()?;
            let each = |amount: f64| amount / f64::from(rounds);
            Ok::<_, congruent::Error>(Row {
                executed: each((congruentVirtualExecuted() - began.2) as f64),
                engine: each(engine() - began.1),
                clock: each(began.0.elapsed().as_secs_f64()),
                starts,
            })
        };
        all(1)?;
        let row = all(ROUNDS)?;
        let right = dst.to_vec()?.iter().all(|&sum| sum == pes as f32);
        assert!(right, "a sum is wrong");
        Ok::<_, congruent::Error>(row)
    })?;
    rows.into_iter().next().ok_or_else(|| "no PE".into())
}

/// Starts a row's process.
fn row(pes: usize, settings: &str, algorithm: &str, protocol: &str) -> Result<Row, Box<dyn Error>> {
    let output = Command::new(env::current_exe()?)
        .args([WORD, &pes.to_string()])
        .env("CONGRUENT_MACHINE", "virtual")
        .env("CONGRUENT_VIRTUAL_DRIVER", settings)
        .env("CONGRUENT_ALGO", algorithm)
        .env("CONGRUENT_PROTO", protocol)
        .env("CONGRUENT_LL128_ENABLE", if protocol == "ll128" { "1" } else { "0" })
        .stderr(Stdio::inherit())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    // What the machine has to say comes first.
    said.lines().last().unwrap_or_default().parse()
}

fn verdict(holds: bool) -> &'static str {
    if holds { "pass" } else { "FAIL" }
}

/// Prints one row of a table in Markdown.
fn print(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

fn head(names: &[&str]) {
    print(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    print(&vec!["---".to_owned(); names.len()]);
}

fn speeds() -> Result<(), Box<dyn Error>> {
    println!("All-reduce of {FLOATS} floats, 4 PEs:\n");
    head(&["checked", "all-reduce", "M instructions of lanes", "engine", "M a second", "required", "verdict"]);
    for (checked, settings, required) in CHECKS {
        for (algorithm, protocol) in [("ring", "simple"), ("one-shot", "ll")] {
            let Row { executed, engine, .. } = row(4, settings, algorithm, protocol)?;
            let speed = executed / engine / 1e6;
            print(&[
                checked.to_owned(),
                format!("{algorithm} {protocol}"),
                format!("{:.2}", executed / 1e6),
                format!("{:.1} ms", engine * 1e3),
                format!("{speed:.1}"),
                format!("{required:.0}"),
                verdict(speed >= required).to_owned(),
            ]);
        }
    }
    Ok(())
}

fn ways() -> Result<(), Box<dyn Error>> {
    println!("\nAll-reduce of {FLOATS} floats, 8 PEs, with nothing more checked:\n");
    head(&["all-reduce", "M instructions of lanes", "engine", "by the clock", "start", "again", "required", "verdict"]);
    for (algorithm, protocols) in WAYS {
        for protocol in protocols {
            let Row { executed, engine, clock, starts: [first, second] } = row(8, "", algorithm, protocol)?;
            print(&[
                format!("{algorithm} {protocol}"),
                format!("{:.2}", executed / 1e6),
                format!("{:.1} ms", engine * 1e3),
                format!("{:.1} ms", clock * 1e3),
                format!("{first:.2} s"),
                format!("{second:.2} s"),
                format!("{LONGEST:.0} s"),
                verdict(engine <= LONGEST).to_owned(),
            ]);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [word, pes] = &words[..]
        && word == WORD
    {
        println!("{}", measure(pes.parse()?)?);
        return Ok(());
    }
    speeds()?;
    ways()
}
