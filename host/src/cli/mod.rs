//! The commands of the `congruent` program.

mod failure;
mod perf;
pub mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use failure::Failure;

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
  congruent doctor                       what this machine can do, and what it lacks

Exit codes: 0 success, 1 failure, 2 wrong usage.";

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Perf(perf::Operation),
    Run(run::Args),
}

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let done = match Program::parse().command {
        Command::Perf(operation) => perf::run(&operation),
        Command::Run(args) => run::run(&args).map_err(Failure::from),
    };
    done.unwrap_or_else(|failure| failure.report())
}
