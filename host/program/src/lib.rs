//! The commands of the `congruent` program.

mod doctor;
mod failure;
mod info;
mod litmus;
mod new;
mod output;
mod perf;
mod ptx;
pub mod run;
mod topo;
mod topology;
mod trace;
mod verify;

use std::env;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use congruent::{Builder, MachineKind, World};
use failure::Failure;

/// A world of what there is, which the commands name themselves: none warns that it is the CPU.
fn world() -> Builder {
    let is_asked = env::var_os("CONGRUENT_MACHINE").is_some();
    if is_asked { World::builder() } else { World::builder().machine(MachineKind::Auto) }
}

/// GPU-initiated communication in Rust: measure it, look at machines, start jobs, check kernels.
#[derive(Parser)]
#[command(name = "congruent", version, max_term_width = 100, after_help = EXAMPLES)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  congruent perf all-reduce              bandwidth of an all-reduce over 4 PEs, 8 B to 64 MiB
  congruent run -n 4 -- ./my-program     start 4 PEs of a program on this machine
  congruent new halo                     a program with kernels, to start from
  congruent doctor                       what this machine can do, and what it lacks

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const RUN_EXAMPLES: &str = "\
Examples:
  congruent run -n 4 -- ./my-program --its-own-flag
  congruent run -n 2 --label -- congruent info
  congruent run --hosts a:4,b:4 -- ./my-program     PEs 0 to 3 on host a, 4 to 7 on b, by ssh
  congruent run --virtual 2x4 -- ./my-program   on two virtual GPUs, four PEs on each
  congruent run --virtual 2x4 --seeds 1000 --races -- ./my-program   1,000 times, looking for races
  congruent run --virtual 2x4 --seed 17 --replay congruent.record -- ./my-program   one of them again

With --hosts: the program, and congruent, are at the same path on every host, and the job runs in the same folder. ssh may not ask:
it needs a key, and to know the hosts' keys, that of this one among them if it is in the list. The PEs meet at the first host, by the address that its name in the list stands for there, or the one that
ssh has reached, or the one that leads to another host. CONGRUENT_* variables go along, others by -x; no PE reads the standard input.

Exit codes: 0 if all PEs succeed, else that of the first that failed (128 and its number for a signal).
With --seeds: 0 if no seed shows a mistake, 1 if one does.";

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Perf(perf::Operation),
    /// Start the PEs of a job as processes, here or on several hosts, and end them together
    #[command(after_help = RUN_EXAMPLES)]
    Run(run::Args),
    New(new::Args),
    Info(info::Args),
    Doctor(doctor::Args),
    Topo(topo::Args),
    Trace(trace::Args),
    Ptx(ptx::Args),
    Verify(verify::Args),
    Litmus(litmus::Args),
    /// One host's share of a job that `congruent run --hosts` starts
    #[command(name = run::SHARE, hide = true)]
    RunShare,
}

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let done = match Program::parse().command {
        Command::Perf(operation) => perf::run(&operation),
        Command::Run(args) => run::run(&args).map_err(Failure::from),
        Command::New(args) => new::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Ptx(args) => ptx::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Litmus(args) => litmus::run(&args),
        Command::RunShare => return run::run_share(),
    };
    done.unwrap_or_else(|failure| failure.report())
}
