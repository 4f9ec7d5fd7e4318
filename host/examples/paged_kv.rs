//! A cache of keys and values in pages, filled by one PE for another: a server that computes prompts apart from answers.
//!
//! Each PE computes the keys and values of a prompt for the next PE, which answers queries with them. The cache of a
//! layer is in pages anywhere in the next PE's memory, as its table says. In a real server some PEs compute prompts and
//! others answer; here each does both, so that none is idle.
//!
//! The lesson: a signal for each layer. A page is put where it is needed as soon as it is computed, and counted by the
//! signal of its layer. So the first layers are answered while the last ones are still computed and sent, and nobody
//! waits for a whole prompt. One signal goes back, and counts the layers that are done with. A page may belong to
//! another layer in the next prompt, so nothing is written again before all layers are.
//!
//! Run it with `cargo run --release --example paged_kv -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/paged_kv`.

use std::array::from_fn;
use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::{Pack, Signal};
use congruent::{Chunked, Grid, World};
use congruent_example_kernels::attention::{FOURS, Four, Row, WIDTH, exact_answer, numbers, rows};
use congruent_example_kernels::paged_kv::{PAGE, Page, Pages, prefill_and_decode};

/// How long a prompt is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Pages of a prompt in each layer, of 16 tokens
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pages: u32,
    /// Layers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1 << 10))]
    layers: u32,
    /// Blocks of a launch, and their threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// The same
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=128))]
    threads: u32,
    /// Prompts in a row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How far an answer may be from one that is computed in f64.
const TOLERANCE: f64 = 1e-5;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// Of each layer, where its pages are in the memory of a PE, which has half as many again as it uses: in an order that
/// looks like chance, and another one for each prompt.
fn table(pe: usize, turn: u64, pages: usize) -> Vec<u32> {
    let mut free: Vec<_> = (0..room(pages) as u32).collect();
    free.sort_by_key(|&page| {
        (u64::from(page) << 32 | turn << 16 | pe as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
    });
    free.truncate(pages);
    free
}

fn room(pages: usize) -> usize {
    pages + pages.div_ceil(2)
}

/// The prompt for a PE.
fn prompt(pe: usize, turn: u64, args: &Args) -> Vec<Row> {
    rows(turn << 12 | pe as u64, args.pages as usize * PAGE)
}

/// The matrices of keys and then of values of each layer.
fn weights(layers: usize) -> Vec<Row> {
    let sixteenth = |row: Row| row.map(|four| Pack::from_fn(|j| four[j] / 16.0));
    rows(1 << 30, 2 * layers * WIDTH).into_iter().map(sixteenth).collect()
}

/// What a matrix makes of tokens.
fn products(matrix: &[Row], tokens: &[Row]) -> Vec<Row> {
    let number = |row: &Row, token: &Row| numbers(row).zip(numbers(token)).map(|(a, b)| a * b).sum::<f64>() as f32;
    tokens.iter().map(|token| from_fn(|d| Pack::from_fn(|j| number(&matrix[4 * d + j], token)))).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes, layers, pages) = (world.pe().index(), world.npes(), args.layers as usize, args.pages as usize);
    let all = layers * pages;
    let (cache, computed) = (world.alloc::<Page>(room(all))?, world.alloc::<Page>(args.blocks as usize)?);
    let (ready, done) = (world.alloc::<Signal>(layers)?, world.alloc::<Signal>(1)?);
    let matrices = weights(layers);
    let (mut model, mut tokens) = (world.buffer::<Row>(matrices.len())?, world.buffer::<Row>(pages * PAGE)?);
    model.write(0, &matrices)?;
    let (mut mine, mut theirs) = (world.buffer::<u32>(all)?, world.buffer::<u32>(all)?);
    let (mut queries, mut answers) = (world.buffer::<Row>(layers)?, world.buffer::<Four>(layers * FOURS)?);
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, args.threads));
    let (mut took, mut farthest) = (Duration::ZERO, 0.0_f64);
    for turn in 0..u64::from(args.turns) {
        let next = (me + 1) % npes;
        tokens.write(0, &prompt(next, turn, args))?;
        mine.write(0, &table(me, turn, all))?;
        theirs.write(0, &table(next, turn, all))?;
        let asked = rows(2 << 30 | turn << 12 | me as u64, layers);
        queries.write(0, &asked)?;
        let cache = Pages { pages: cache.view().cast(), ready: ready.view(), done: done.view(), turn };
        let lent =
            (cache, computed.view(), &tokens, &model, &theirs, &mine, &queries, Chunked::new(&mut answers, FOURS));
        let started = Instant::now();
        world.run(&stream, prefill_and_decode, grid, lent)?;
        took += started.elapsed();

        let prompt = prompt(me, turn, args);
        for (layer, found) in answers.to_vec()?.chunks(FOURS).enumerate() {
            let [keys, values] = [0, 1].map(|of| products(&matrices[(2 * layer + of) * WIDTH..][..WIDTH], &prompt));
            for (found, right) in numbers(found).zip(exact_answer(&asked[layer], keys.iter().zip(&values))) {
                farthest = farthest.max((found - right).abs());
                if (found - right).abs() > TOLERANCE || found.is_nan() {
                    return Err(format!("PE {me}, prompt {turn}, layer {layer}: {found}, not {right}").into());
                }
            }
        }
    }
    world.barrier()?;
    if me == 0 {
        let tokens = pages * PAGE;
        println!("prompts of {tokens} tokens in {layers} layers, for each of {npes} PEs ({})", world.machine());
        println!(
            "every answer is within {TOLERANCE:e} of one in f64, at most {farthest:.1e} off; {:?} for a prompt",
            took / args.turns
        );
    }
    Ok(())
}
