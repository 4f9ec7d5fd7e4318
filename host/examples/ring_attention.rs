//! Attention over a sequence that is too long for one PE: queries, keys and values of each stretch are on one PE, and keys and values go
//! around the ring of PEs until every query has met all of them, in one kernel.
//!
//! The lesson: what comes next travels while the present is computed with. A block sends a head's keys and values on before it
//! computes with them, into the other of two banks; a signal tells the next PE that they are there, and another one tells the PE before that its
//! bank is free. A softmax over all keys needs no second pass: with each partial answer goes the largest score so far and the sum of
//! weights, and both are corrected when a larger score comes.
//!
//! Run it with `cargo run --release --example ring_attention -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/ring_attention`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::Signal;
use congruent::{Grid, World};
use congruent_example_kernels::attention::{Answer, Row, exact_answer, numbers, rows};
use congruent_example_kernels::ring_attention::{Ring, ring_attention};

/// How long the sequence is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 2)]
    pes: usize,
    /// Queries, keys and values of each PE, in each head
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Heads
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    heads: u32,
    /// A query meets no key behind it
    #[arg(long)]
    causal: bool,
    /// Blocks of a launch, and their threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// The same
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=128))]
    threads: u32,
    /// Times in a row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How far an answer may be from one that is computed in f64.
const TOLERANCE: f64 = 2e-6;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// Queries, keys or values of a PE in a turn, all heads after one another.
fn rows_of(kind: u32, turn: u32, pe: usize, args: &Args) -> Vec<Row> {
    let seed = (kind << 24 | turn << 12) as u64 | pe as u64;
    rows(seed, (args.heads * args.rows) as usize)
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes) = (world.pe().index(), world.npes());
    let (count, heads) = (args.rows as usize, args.heads as usize);
    let all = heads * count;
    let banks = world.alloc::<Row>(4 * all)?;
    let (arrived, done) = (world.alloc::<Signal>(heads)?, world.alloc::<Signal>(heads)?);
    let (stream, mut queries) = (world.stream()?, world.buffer::<Row>(all)?);
    let mut answers = world.buffer::<Answer>(all)?;
    let (mut took, mut farthest) = (Duration::ZERO, 0.0_f64);
    for turn in 0..args.turns {
        let [mine, keys, values] = [0, 1, 2].map(|kind| rows_of(kind, turn, me, args));
        queries.write(0, &mine)?;
        for head in 0..heads {
            banks.write(2 * head * count, &keys[head * count..][..count])?;
            banks.write((2 * head + 1) * count, &values[head * count..][..count])?;
        }
        let ring = Ring {
            banks: banks.view(),
            arrived: arrived.view(),
            done: done.view(),
            turn: turn.into(),
            causal: args.causal.into(),
        };
        let lent = (ring, &queries, answers.chunks_mut(count));
        let started = Instant::now();
        world.launch(&stream, ring_attention, Grid::new(args.blocks, args.threads), lent)?;
        world.synchronize(&stream)?;
        took += started.elapsed();

        let found = answers.to_vec()?;
        let theirs: Vec<_> = (0..npes).map(|pe| [1, 2].map(|kind| rows_of(kind, turn, pe, args))).collect();
        for (at, (query, found)) in mine.iter().zip(&found).enumerate() {
            let (head, i) = (at / count, at % count);
            let met = theirs.iter().enumerate().flat_map(|(pe, [keys, values])| {
                let last = if !args.causal || pe < me {
                    count
                } else if pe == me {
                    i + 1
                } else {
                    0
                };
                let part = head * count..head * count + last;
                keys[part.clone()].iter().zip(&values[part])
            });
            for (found, right) in numbers(&found.values).zip(exact_answer(query, met)) {
                farthest = farthest.max((found - right).abs());
                if (found - right).abs() > TOLERANCE || found.is_nan() {
                    return Err(format!("PE {me}, head {head}, query {i}: {found}, not {right}").into());
                }
            }
        }
    }
    world.barrier()?;
    if me == 0 {
        let kind = if args.causal { "causal attention" } else { "attention" };
        println!("{kind} over {} rows in {heads} heads on {npes} PEs ({})", npes * count, world.machine());
        println!(
            "every answer is within {TOLERANCE:e} of one in f64, at most {farthest:.1e} off; {:?} each time",
            took / args.turns
        );
    }
    Ok(())
}
