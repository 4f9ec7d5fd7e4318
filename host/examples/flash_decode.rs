//! Flash-decoding: one query in each head meets the keys of a sequence that is spread over the PEs, in one kernel.
//!
//! When a model writes one token after the other, there is one query and a long past. Each PE has a stretch of the past
//! and computes a partial answer over it. A softmax is over all keys, but partial answers can be joined: with each go the
//! largest score and the sum of the weights, and the joined answer is their mean by weight.
//!
//! The lesson: send as soon as it is computed, and wait as late as possible. A block sends the partial answer of each
//! head to the PE that has the head, and first then waits for what others have sent for its own heads. What is sent is
//! small, 272 bytes for a head, so there are two banks and no answer ever waits for room.
//!
//! Run it with `cargo run --release --example flash_decode -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/flash_decode`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::Signal;
use congruent::{Chunked, Grid, World};
use congruent_example_kernels::attention::{Answer, FOURS, Four, Row, exact_answer, numbers, rows};
use congruent_example_kernels::flash_decode::{Decode, flash_decode};

/// How long the past is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Keys and values of the first PE, in each head; each further PE has one less, or none
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Heads of each PE
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    heads: u32,
    /// Blocks of a launch, and their threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// The same
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=128))]
    threads: u32,
    /// Answers in a row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
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

/// Keys and values of a PE, those of each head behind those of the head before.
fn past(pe: usize, heads: usize, args: &Args) -> [Vec<Row>; 2] {
    let count = heads * (args.keys as usize).saturating_sub(pe);
    [1, 2].map(|kind| rows(kind << 20 | pe as u64, count))
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes, mine) = (world.pe().index(), world.npes(), args.heads as usize);
    let heads = mine * npes;
    let (computed, gathered) = (world.alloc::<Answer>(heads)?, world.alloc::<Answer>(2 * heads)?);
    let arrived = world.alloc::<Signal>(heads)?;
    let pasts: Vec<_> = (0..npes).map(|pe| past(pe, heads, args)).collect();
    let (mut keys, mut values) = (world.buffer::<Row>(pasts[me][0].len())?, world.buffer::<Row>(pasts[me][1].len())?);
    keys.write(0, &pasts[me][0])?;
    values.write(0, &pasts[me][1])?;
    let (mut queries, mut answers) = (world.buffer::<Row>(heads)?, world.buffer::<Four>(mine * FOURS)?);
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, args.threads));
    let (mut took, mut farthest) = (Duration::ZERO, 0.0_f64);
    for turn in 1..=u64::from(args.turns) {
        // All PEs have the same queries, of all heads.
        let asked = rows(turn, heads);
        queries.write(0, &asked)?;
        let decode = Decode { computed: computed.view(), gathered: gathered.view(), arrived: arrived.view(), turn };
        let lent = (decode, &queries, &keys, &values, Chunked::new(&mut answers, FOURS));
        let started = Instant::now();
        world.run(&stream, flash_decode, grid, lent)?;
        took += started.elapsed();

        for (i, found) in answers.to_vec()?.chunks(FOURS).enumerate() {
            let head = i * npes + me;
            let met = pasts.iter().flat_map(|[keys, values]| {
                let count = keys.len() / heads;
                keys[head * count..][..count].iter().zip(&values[head * count..][..count])
            });
            for (found, right) in numbers(found).zip(exact_answer(&asked[head], met)) {
                farthest = farthest.max((found - right).abs());
                if (found - right).abs() > TOLERANCE || found.is_nan() {
                    return Err(format!("PE {me}, head {head}: {found}, not {right}").into());
                }
            }
        }
    }
    world.barrier()?;
    if me == 0 {
        let past: usize = pasts.iter().map(|[keys, _]| keys.len() / heads).sum();
        println!("{heads} heads over {past} keys on {npes} PEs ({})", world.machine());
        println!(
            "every answer is within {TOLERANCE:e} of one in f64, at most {farthest:.1e} off; {:?} each time",
            took / args.turns
        );
    }
    Ok(())
}
