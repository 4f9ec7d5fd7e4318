//! `congruent perf`: times an operation over a sweep of sizes, and checks what it moved.
//!
//! Flags, columns and bandwidths are those of nccl-tests, so that results line up.

mod all_reduce;
mod case;
mod measure;
mod one_sided;
mod pattern;
#[cfg_attr(not(test), expect(dead_code, reason = "nothing is drawn until the sweep takes `--plot`"))]
mod plot;
mod report;
mod sizes;
mod sweep;
mod table;
mod words;

use std::process::ExitCode;

use crate::cli::failure::Failure;
use all_reduce::Choice;
use one_sided::Movement;
use sizes::SizeArgs;
use words::WordOperation;

/// Time an operation, size by size, with the columns of nccl-tests
#[derive(clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Operation {
    /// All-reduce over all PEs, out of place and in place
    AllReduce {
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        blocks: Blocks,
        #[command(flatten)]
        common: Common,
    },
    /// Put from PE 0 to PE 1, completed once after the last round
    Put {
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Get by PE 0 from PE 1
    Get {
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Single values of 8 bytes, put by one thread of PE 0 to a word of PE 1
    PutValue {
        #[command(flatten)]
        common: Common,
    },
    /// Atomic additions by one thread of PE 0 to a word of PE 1, each awaiting its result
    FetchAdd {
        #[command(flatten)]
        common: Common,
    },
    /// A message to and fro between PE 0 and PE 1 with its signal; the time is half a round trip
    PingPong {
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        common: Common,
    },
    /// The barrier of all PEs; moves no data, so there is nothing to check
    Barrier {
        #[command(flatten)]
        blocks: Blocks,
        #[command(flatten)]
        common: Common,
    },
}

const EXAMPLES: &str = "\
Examples:
  congruent perf all-reduce                          4 PEs as threads, 8 B to 64 MiB
  congruent perf all-reduce -p 8 -b 1K -e 1M -f 4    8 PEs, fewer sizes
  congruent perf all-reduce -d half -o max           another type and operator
  congruent perf ping-pong -b 8 -e 8                 latency of put with signal
  congruent run -n 4 -- congruent perf all-reduce    4 PEs as processes";

/// What every operation takes.
#[derive(clap::Args)]
pub(super) struct Common {
    /// PEs, each a thread of this process [default: 4, or 2 for operations of two PEs; from the launcher in a job]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pes: Option<u32>,
    /// Timed rounds of each row [default: as many as take about 150 ms]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Rounds before the timed ones
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", value_name = "N", default_value_t = 1)]
    warmup: u64,
    /// Check the data after each row: 1 yes, 0 no
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Threads of a block; the CPU machine makes of them what its width allows
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Lanes of a warp on the CPU machine: 1 is fastest, 32 most like a GPU [default: CONGRUENT_CPU_WIDTH, or 1]
    #[arg(long, value_name = "LANES", value_parser = clap::value_parser!(u32).range(1..=32))]
    width: Option<u32>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// How many blocks, for operations that blocks share.
#[derive(clap::Args)]
pub(super) struct Blocks {
    /// Blocks of each launch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
}

/// Runs the operation on this process's PEs; PE 0 prints.
pub(super) fn run(operation: &Operation) -> Result<ExitCode, Failure> {
    let wrong = match operation {
        Operation::AllReduce { choice, sizes, blocks, common } => {
            all_reduce::run(*choice, sizes, blocks.blocks, common)
        }
        Operation::Put { sizes, common } => one_sided::run(Movement::Put, sizes, common),
        Operation::Get { sizes, common } => one_sided::run(Movement::Get, sizes, common),
        Operation::PingPong { sizes, common } => one_sided::run(Movement::PingPong, sizes, common),
        Operation::PutValue { common } => words::run(WordOperation::Put, common),
        Operation::FetchAdd { common } => words::run(WordOperation::FetchAdd, common),
        Operation::Barrier { blocks, common } => words::run_barrier(blocks.blocks, common),
    }?;
    // The rows have told which and how many.
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
