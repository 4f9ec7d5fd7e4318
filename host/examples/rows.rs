//! Softmax and RMSNorm of the rows of a matrix, in place: a block for each row, and no unsafe code.
//!
//! The lesson: the type of the argument says who has which elements. `RowsMut` gives a block whole rows, and a thread
//! some elements of each: the same ones in every loop. So a thread writes its elements in one loop and reads them in
//! the next, and no sync is needed between the two. What takes the whole row, its largest number or a sum, is a
//! `reduce` of the block. Every thread takes part in that, even one that has no element. An element is four numbers, a `Pack`,
//! which one access moves; the host lends the buffer so by `Packed`.
//!
//! The rows are this PE's own, so they are in a buffer and not in symmetric memory. The order of a sum depends on how
//! many threads there are. So the result is compared with one in `f64`, within a bound that holds for every order.
//!
//! Run it with `cargo run --release --example rows -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/rows`.

use std::error::Error;

use clap::Parser;
use congruent::{Chunked, Grid, Packed, World};
use congruent_example_kernels::rows::{EPSILON, rms_norm, softmax};

/// Computes softmax and RMSNorm of rows, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Rows of each PE
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    rows: u32,
    /// Numbers in a row, a multiple of four
    #[arg(long, default_value_t = 1000, value_parser = width)]
    width: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Rows are read and written four numbers at a time.
fn width(given: &str) -> std::result::Result<u32, String> {
    let width = given.parse().map_err(|error| format!("{error}"))?;
    let fits = (4..=1 << 16).contains(&width) && width % 4 == 0;
    if fits { Ok(width) } else { Err("give a multiple of 4, from 4 to 65536".to_owned()) }
}

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// A number between -1 and 1 that looks like chance.
fn number(seed: u64, i: usize) -> f32 {
    let bits = (seed << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (bits.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The softmax of a row.
fn softmax_of(row: &[f32]) -> Vec<f64> {
    let most = row.iter().fold(f64::NEG_INFINITY, |most, &x| most.max(x.into()));
    let powers: Vec<f64> = row.iter().map(|&x| (f64::from(x) - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

/// The RMSNorm of a row.
fn rms_norm_of(row: &[f32], weights: &[f32]) -> Vec<f64> {
    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    row.iter().zip(weights).map(|(&x, &weight)| f64::from(x) * scale * f64::from(weight)).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, width) = (world.pe().index(), args.width as usize);
    let count = args.rows as usize * width;
    // Rows from -10 to 10, each 50 above the one before: e to the power of what is in the third one overflows.
    let start: Vec<f32> = (0..count).map(|i| 50.0 * (i / width % 20) as f32 + 10.0 * number(pe as u64, i)).collect();
    let weights: Vec<f32> = (0..width).map(|i| 1.0 + 0.5 * number(1 << 20, i)).collect();
    let (stream, grid) = (world.stream()?, Grid::new(4, 128));
    let (mut soft, mut norm, mut scales) = (world.buffer(count)?, world.buffer(count)?, world.buffer(width)?);
    soft.write(0, &start)?;
    norm.write(0, &start)?;
    scales.write(0, &weights)?;
    world.launch(&stream, softmax, grid, (Chunked::new(Packed::new(&mut soft), width / 4),))?;
    world.launch(&stream, rms_norm, grid, (Chunked::new(Packed::new(&mut norm), width / 4), Packed::new(&scales)))?;

    // In units of 2^-24: a sum of numbers of one sign is off by less than one for each of them. The rest is less than
    // 64: an exponent is a difference of up to 20, whose rounding counts as 20 in a power, and again in the sum.
    let allowed = (width + 64) as f64 / f64::from(1 << 24);
    let off = |name: &str, found: &[f32], expected: &dyn Fn(&[f32]) -> Vec<f64>| -> Result<f64> {
        let mut most = 0.0_f64;
        for (row, (found, start)) in found.chunks(width).zip(start.chunks(width)).enumerate() {
            for (i, (&found, right)) in found.iter().zip(expected(start)).enumerate() {
                let off = (f64::from(found) - right).abs();
                if off.is_nan() || off > allowed * right.abs() {
                    return Err(format!("PE {pe}: {name} of row {row} has {found} at {i}, not {right}").into());
                }
                most = most.max(off / right.abs());
            }
        }
        Ok(most)
    };
    let softmax_off = off("softmax", &soft.to_vec()?, &softmax_of)?;
    let norm_off = off("RMSNorm", &norm.to_vec()?, &|row| rms_norm_of(row, &weights))?;
    world.barrier()?;
    if pe == 0 {
        println!("{} rows of {width} numbers on each of {} PEs ({})", args.rows, world.npes(), world.machine());
        println!(
            "softmax is what f64 gives on every PE; on PE 0 within {softmax_off:.1e} of it, {allowed:.1e} allowed"
        );
        println!("RMSNorm is what f64 gives on every PE; on PE 0 within {norm_off:.1e} of it, {allowed:.1e} allowed");
    }
    Ok(())
}
