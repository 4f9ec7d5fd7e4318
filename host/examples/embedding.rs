//! An embedding table that is spread over the PEs: each PE fetches the rows that its tokens name, and sums them.
//!
//! The table is too large for one PE, so row `i` of `n` PEs is on PE `i % n`. A kernel gets a row where it is; nobody
//! there has to do anything, and no PE needs to know before who asks for what.
//!
//! The lesson: ask for all before you wait for one. Inside `ctx.nonblocking` a get begins and does not wait, and at the
//! closing brace all of them are complete. So a bag of rows takes as long as its slowest row. The same kernel does it
//! one by one for comparison. Where loads reach the other PEs that makes little difference; through a proxy each row
//! would take a round trip.
//!
//! Run it with `cargo run --release --example embedding -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/embedding`; with `CONGRUENT_P2P_DISABLE=1` it goes through proxies.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::{SmallFloat, bf16};
use congruent::{Chunked, Grid, World};
use congruent_example_kernels::embedding::{Eight, Table, embed};
use congruent_example_kernels::gups::random;

/// Sums rows of an embedding table, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Rows of the table on each PE
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rows: u32,
    /// Numbers of a row, a multiple of eight
    #[arg(long, default_value_t = 256, value_parser = width)]
    width: u32,
    /// Bags of each PE
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(..=1 << 16))]
    bags: u32,
    /// Rows that are summed for each bag
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1 << 10))]
    bag: u32,
    /// Blocks of a launch
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Rows are moved eight numbers at a time.
fn width(given: &str) -> std::result::Result<u32, String> {
    let width = given.parse().map_err(|error| format!("{error}"))?;
    let fits = (8..=1 << 16).contains(&width) && width % 8 == 0;
    if fits { Ok(width) } else { Err("give a multiple of 8, from 8 to 65536".to_owned()) }
}

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// A number of 24 bits that looks like chance.
fn chance(seed: u64, i: u64) -> u32 {
    (random(seed << 32 | i) >> 40) as u32
}

/// Number `j` of a row of the table, between -1 and 1.
fn number(id: u32, j: usize) -> bf16 {
    bf16::narrow(chance(id.into(), j as u64) as f32 / (1 << 23) as f32 - 1.0)
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes) = (world.pe().index() as u32, world.npes() as u32);
    let (width, bag, eights) = (args.width as usize, args.bag as usize, args.width as usize / 8);
    let rows = world.alloc::<Eight>(args.rows as usize * eights)?;
    let row = |id| (0..eights).map(move |i| Eight::from_fn(|j| number(id, 8 * i + j)));
    rows.write(0, &(0..args.rows).flat_map(|i| row(i * npes + pe)).collect::<Vec<_>>())?;
    let fetched = world.alloc::<Eight>(args.blocks as usize * bag * eights)?;
    let table = Table { rows: rows.view(), fetched: fetched.view(), width: eights as u32, bag: args.bag };

    // A bag may name a row twice, and rows of this PE.
    let names = args.bags as u64 * bag as u64;
    let mine: Vec<u32> = (0..names).map(|i| chance(1 << 20 | u64::from(pe), i) % (args.rows * npes)).collect();
    let (mut ids, mut sums) = (world.buffer::<u32>(mine.len())?, world.buffer::<Eight>(args.bags as usize * eights)?);
    ids.write(0, &mine)?;
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, 128));
    let mut took = [Duration::ZERO; 2];
    for (together, took) in took.iter_mut().enumerate() {
        sums.fill(Eight::from_fn(|_| bf16::narrow(f32::NAN)))?;
        // All tables are filled.
        world.barrier()?;
        let started = Instant::now();
        world.run(&stream, embed, grid, (table, &ids, Chunked::new(&mut sums, eights), together as u32))?;
        *took = started.elapsed();
        let found = sums.to_vec()?;
        for (i, (found, ids)) in found.chunks(eights).zip(mine.chunks(bag)).enumerate() {
            for (j, &found) in found.iter().flat_map(|eight| &eight.0).enumerate() {
                let right = bf16::narrow(ids.iter().fold(0.0, |sum, &id| sum + number(id, j).widen()));
                if found.to_bits() != right.to_bits() {
                    return Err(format!("PE {pe}: number {j} of bag {i} is {found}, not {right}").into());
                }
            }
        }
    }
    // Nobody ends while another one still gets rows.
    world.barrier()?;
    if pe == 0 {
        let [single, together] = took;
        println!(
            "{} bags of {bag} rows of {width} numbers on each of {npes} PEs, of a table of {} rows ({})",
            args.bags,
            args.rows * npes,
            world.machine()
        );
        println!("every sum on every PE is that of the rows, bit for bit");
        println!("row after row {single:?}, a bag together {together:?}");
    }
    Ok(())
}
