//! `congruent perf`: times an operation over a sweep of sizes, and checks what it moved.
//!
//! Flags, columns and bandwidths are those of nccl-tests, so that results line up.

mod case;
mod collective;
mod keep;
mod measure;
mod moe;
mod one_sided;
mod pattern;
mod places;
mod plot;
mod report;
mod sizes;
mod sweep;
mod table;
mod values;
mod ways;
mod wire;
mod words;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use congruent_collectives::{Collective, Datatype, Op};

use crate::failure::Failure;
use collective::Wanted;
use keep::KeepArgs;
use moe::MoeArgs;
use one_sided::{MoveArgs, Movement};
use sizes::SizeArgs;
use sweep::{Plan, Swept};
use ways::WayArgs;
use words::WordOperation;

/// Time an operation, size by size, with the columns of nccl-tests
#[derive(clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Operation {
    /// The combination of all PEs' buffers, at all
    AllReduce {
        #[command(flatten)]
        operator: Operator,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Each PE's part of the combination of all buffers
    ReduceScatter {
        #[command(flatten)]
        operator: Operator,
        #[command(flatten)]
        call: CallArgs,
    },
    /// The combination of all PEs' buffers, at one
    Reduce {
        #[command(flatten)]
        operator: Operator,
        #[command(flatten)]
        root: Root,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Every PE's buffer, at all
    AllGather(CallArgs),
    /// One PE's buffer to all
    Broadcast {
        #[command(flatten)]
        root: Root,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Every PE's buffer, at one
    Gather {
        #[command(flatten)]
        root: Root,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Each PE's part of one PE's buffer
    Scatter {
        #[command(flatten)]
        root: Root,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Each PE's part of each PE's buffer
    AllToAll(CallArgs),
    /// The same with parts of different lengths
    #[command(name = "all-to-all-v")]
    AllToAllV(CallArgs),
    /// All-gather of buffers of different lengths
    #[command(name = "all-gather-v")]
    AllGatherV(CallArgs),
    /// Each PE sends to the next and receives from the one before, at once
    SendRecv(CallArgs),
    /// Each PE's tokens to experts on all PEs, by expert, and the weighted sums of answers back; an expert answers what it is given. Each
    /// round is four launches
    Moe(MoeArgs),
    /// Put from PE 0 to PE 1, or with --all from each PE to the next, completed once after the last round
    Put(MoveArgs),
    /// Get by PE 0 from PE 1, or with --all by each PE from the next
    Get(MoveArgs),
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
  congruent perf broadcast --algo ring --proto ll    what the selector would not take
  congruent perf all-gather --plot all-gather.svg    every algorithm and protocol, as a picture
  congruent perf all-reduce --tune table.csv         and as a table for CONGRUENT_TUNING
  congruent perf all-reduce --graph                  as host calls, replayed as a CUDA graph
  congruent perf moe -t 1,32,128 -k 8 --experts 64   dispatch and combine of tokens
  congruent perf put -p 8 --all --blocks 16          all PEs put at once
  congruent perf ping-pong -b 8 -e 8                 latency of put with signal
  congruent run -n 4 -- congruent perf all-reduce    4 PEs as processes";

/// What every collective takes.
#[derive(clap::Args)]
pub(super) struct CallArgs {
    /// Type of the elements
    #[arg(short, long, value_name = "TYPE", value_parser = datatype(), default_value = Datatype::F32.name())]
    datatype: Datatype,
    #[command(flatten)]
    ways: WayArgs,
    #[command(flatten)]
    keep: KeepArgs,
    /// Time calls of the host, each a launch, captured as a graph of 20 and replayed, instead of rounds within one kernel
    #[arg(long)]
    graph: bool,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    blocks: Blocks,
    #[command(flatten)]
    common: Common,
}

/// What reductions take.
#[derive(clap::Args)]
pub(super) struct Operator {
    /// Operator; premul-sum multiplies by 2
    #[arg(short = 'o', long = "op", value_name = "OP", value_parser = operator(), default_value = Op::Sum.name())]
    op: Op,
}

/// What a collective with a root takes.
#[derive(clap::Args)]
pub(super) struct Root {
    /// The PE that gives or gets all
    #[arg(short = 'r', long, value_name = "PE", default_value_t = 0)]
    root: usize,
}

fn datatype() -> impl TypedValueParser<Value = Datatype> {
    let names = PossibleValuesParser::new(Datatype::ALL.iter().map(|one| one.name()));
    names.try_map(|name| Datatype::named(&name).ok_or("no such type"))
}

fn operator() -> impl TypedValueParser<Value = Op> {
    let names = PossibleValuesParser::new(Op::ALL.iter().map(|one| one.name()));
    names.try_map(|name| Op::named(&name).ok_or("no such operator"))
}

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
    use Collective::{
        AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        SendRecv,
    };
    let Swept { wrong, .. } = match operation {
        Operation::AllReduce { operator, call } => call.run(AllReduce, operator.op, 0),
        Operation::ReduceScatter { operator, call } => call.run(ReduceScatter, operator.op, 0),
        Operation::Reduce { operator, root, call } => call.run(Reduce, operator.op, root.root),
        Operation::AllGather(call) => call.run(AllGather, Op::Sum, 0),
        Operation::Broadcast { root, call } => call.run(Broadcast, Op::Sum, root.root),
        Operation::Gather { root, call } => call.run(Gather, Op::Sum, root.root),
        Operation::Scatter { root, call } => call.run(Scatter, Op::Sum, root.root),
        Operation::AllToAll(call) => call.run(AllToAll, Op::Sum, 0),
        Operation::AllToAllV(call) => call.run(AllToAllV, Op::Sum, 0),
        Operation::AllGatherV(call) => call.run(AllGatherV, Op::Sum, 0),
        Operation::SendRecv(call) => call.run(SendRecv, Op::Sum, 0),
        Operation::Moe(args) => moe::run(args),
        Operation::Put(args) => one_sided::run(Movement::Put, args),
        Operation::Get(args) => one_sided::run(Movement::Get, args),
        Operation::PingPong { sizes, common } => one_sided::run_ping_pong(sizes, common),
        Operation::PutValue { common } => words::run(WordOperation::Put, common),
        Operation::FetchAdd { common } => words::run(WordOperation::FetchAdd, common),
        Operation::Barrier { blocks, common } => words::run_barrier(blocks.blocks, common),
    }?;
    // The rows have told which and how many.
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl CallArgs {
    /// Runs the sweep of a collective, with an operator where it reduces and a root where it has one.
    fn run(&self, collective: Collective, op: Op, root: usize) -> Result<Swept, Failure> {
        let each = self.ways.each() || self.keep.each();
        let wanted = Wanted { collective, datatype: self.datatype, op, root, ways: &self.ways, each };
        let kept = self.keep.read()?;
        let element = self.datatype.size() as u64;
        let any = Plan {
            collective: true,
            graph: self.graph,
            blocks: self.blocks.blocks,
            plot: self.keep.plot.as_deref(),
            ..Plan::new(collective.name(), &self.common, 4, &[])
        };
        let parts = if places::has_parts(collective) { u64::from(any.settle_pes()?) } else { 1 };
        let sizes = self.sizes.sweep(8, 64 << 20, element, element * parts)?;
        let swept = sweep::run(Plan { sizes: &sizes, ..any }, |world, plan| collective::case(world, plan, &wanted))?;
        if let Some(document) = &swept.document {
            self.keep.keep(document, collective, kept)?;
        }
        Ok(swept)
    }
}

#[cfg(test)]
mod tests {
    use super::Common;

    /// What is usual, with blocks of so many threads.
    pub(super) fn common(threads: u32) -> Common {
        Common { pes: None, iters: None, warmup: 1, check: 1, threads, width: None, json: false }
    }
}
