//! A histogram of the keys of all PEs, by remote atomics: its bins are spread over the PEs.
//!
//! A thread adds to a bin where the bin is. Nobody needs the old value, so it calls `add` and not `fetch_add`, and does
//! not wait for the other PE. The barrier at the end of the kernel waits for the additions of all PEs. So the host may
//! read this PE's bins when this PE's kernel is complete.
//!
//! The lesson: count near, then add far. One kernel sends an addition for each key. The other counts in the shared
//! memory of its block first, and then sends one addition for each bin that is not empty. However many keys there are,
//! a block sends no more additions than there are bins.
//!
//! Run it with `cargo run --release --example histogram -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/histogram`.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use congruent::{Grid, World};
use congruent_example_kernels::histogram::{BINS, count_each, count_in_blocks};

/// Blocks of a launch.
const BLOCKS: u32 = 2;

/// Counts keys in bins that are spread over several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Keys of each PE
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(..=1 << 26))]
    keys: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// The keys of a PE: they look like chance, and small ones are the most frequent.
fn keys(pe: usize, count: u32) -> Vec<u32> {
    let mix = |i: u64| ((pe as u64) << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let bits = (0..u64::from(count)).map(|i| mix(i).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    bits.map(|bits| (((bits >> 52) * (bits >> 40 & 0xfff)) >> 12) as u32).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes) = (world.pe().index(), world.npes());
    let mine = keys(pe, args.keys);
    let mut kept = world.buffer::<u32>(mine.len())?;
    kept.write(0, &mine)?;
    // An array for each kernel, so that nobody has to empty one while another PE may add to it. They begin with zeros.
    let room = BINS.div_ceil(npes);
    let (each, blocks) = (world.alloc::<u64>(room)?, world.alloc::<u64>(room)?);
    let (stream, grid) = (world.stream()?, Grid::new(BLOCKS, 128));
    world.barrier()?;
    let started = Instant::now();
    world.run(&stream, count_each, grid, (&kept, each.view()))?;
    let with_each = started.elapsed();
    let started = Instant::now();
    world.run(&stream, count_in_blocks, grid, (&kept, blocks.view()))?;
    let with_blocks = started.elapsed();

    let mut expected = vec![0_u64; room];
    for key in (0..npes).flat_map(|pe| keys(pe, args.keys)) {
        let bin = key as usize % BINS;
        if bin % npes == pe {
            expected[bin / npes] += 1;
        }
    }
    for (how, found) in [("an addition for each key", each.to_vec()?), ("counts of blocks", blocks.to_vec()?)] {
        if let Some(at) = (0..room).find(|&at| found[at] != expected[at]) {
            let (bin, found, right) = (at * npes + pe, found[at], expected[at]);
            return Err(format!("PE {pe}: by {how}, bin {bin} has {found} keys, not {right}").into());
        }
    }
    world.barrier()?;
    if pe == 0 {
        let (keys, most) = (args.keys, BLOCKS as usize * BINS);
        println!("{keys} keys of each of {npes} PEs in {BINS} bins ({})", world.machine());
        println!("an addition for each key: {keys} of a PE, in {with_each:?}");
        println!("counts of blocks: {} additions of a PE at most, in {with_blocks:?}", most.min(mine.len()));
        println!("every bin on every PE has what the host counts, both ways");
    }
    Ok(())
}
