//! Giga-updates per second: words by chance, of a table that is spread over the PEs, change by remote atomics.
//!
//! This is RandomAccess of the HPC Challenge: every PE goes through random numbers, and the word of the table that a
//! number means becomes its exclusive or with the number. Here no update may be lost, where the HPC Challenge allows one
//! of a hundred, since an update is one atomic operation.
//!
//! The lesson: do not ask for what you do not need. One kernel calls `xor`, which sends an update and goes on. The other
//! calls `fetch_xor`, and waits for each old value. Both do the same updates, so the second one undoes the first: in the
//! end the table is what it was.
//!
//! Run it with `cargo run --release --example gups -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/gups`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::{Grid, World};
use congruent_example_kernels::gups::{fetch_and_update, random, target, update};

/// Updates words by chance, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Words of each PE, as a power of two
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(..=28))]
    log2_words: u32,
    /// Updates by each PE
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    updates: u64,
    /// Blocks of a launch
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// What the table of a PE is before the first update and after the last.
fn start(pe: usize, words: usize) -> Vec<u64> {
    (pe as u64 * words as u64..).take(words).collect()
}

/// What the table of a PE is when all updates of all PEs are done.
fn updated(pe: usize, npes: usize, words: usize, updates: u64) -> Vec<u64> {
    let mut table = start(pe, words);
    for random in (0..npes as u64 * updates).map(random) {
        let (at, word) = target(random, npes, words);
        if at == pe {
            table[word] ^= random;
        }
    }
    table
}

fn check(when: &str, pe: usize, found: &[u64], expected: &[u64]) -> Result<()> {
    match found.iter().zip(expected).position(|(found, right)| found != right) {
        Some(at) => Err(format!("PE {pe}: {when}, word {at} is {:#x}, not {:#x}", found[at], expected[at]).into()),
        None => Ok(()),
    }
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes, words) = (world.pe().index(), world.npes(), 1 << args.log2_words);
    let (table, odd) = (world.alloc::<u64>(words)?, world.alloc::<u64>(1)?);
    table.write(0, &start(pe, words))?;
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, 128));
    let (first, count) = (pe as u64 * args.updates, args.updates);

    world.barrier()?;
    let started = Instant::now();
    world.run(&stream, update, grid, (table.view(), first, count))?;
    let sent = started.elapsed();
    check("updated", pe, &table.to_vec()?, &updated(pe, npes, words, count))?;

    world.barrier()?;
    let started = Instant::now();
    world.run(&stream, fetch_and_update, grid, (table.view(), first, count, odd.view()))?;
    let awaited = started.elapsed();
    check("updated twice", pe, &table.to_vec()?, &start(pe, words))?;

    world.barrier()?;
    if pe == 0 {
        let rate = |took: Duration| npes as f64 * count as f64 / took.as_secs_f64() / 1e9;
        println!("{count} updates by each of {npes} PEs, of {words} words on each ({})", world.machine());
        println!("sent: {:.4} giga-updates per second", rate(sent));
        println!("awaited: {:.4} giga-updates per second", rate(awaited));
        println!("no update was lost on any PE, and done twice they leave the table as it was");
    }
    Ok(())
}
