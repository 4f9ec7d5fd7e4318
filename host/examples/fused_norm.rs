//! Layers of a network whose matrices are divided among PEs, with all of a layer in one kernel.
//!
//! In a layer each token, a row of numbers, is normalized, multiplied by a matrix, and added to what it was. Each PE has some of the
//! matrix's columns, so it multiplies some of a row's numbers, and has a partial sum of every result. The partial sums of all PEs, the
//! token itself and the norm that begins the next layer are one call inside the kernel that has multiplied.
//!
//! The lesson: a block may go on with rows that it has just computed. It computes the rows that it will sum, so no block waits for
//! another one of its PE, and nothing is launched between product, exchange and norm.
//!
//! The order of the sums over PEs is said, so tokens have the same bits on every PE; what one PE computes alone differs from them by
//! the last bits of a norm only.
//!
//! Run it with `cargo run --release --example fused_norm -- --pes 4`, or with `congruent run -n 4 target/release/examples/fused_norm`.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use congruent::collectives::{Algorithm, Collective, Datatype, Layout, Op, Protocol};
use congruent::{Grid, World};
use congruent_example_kernels::fused_norm::{EPSILON, HIDDEN, columns, multiply_sum_and_norm, partial};

/// Blocks of a launch.
const BLOCKS: u32 = 2;

/// Runs tokens through layers that are divided among several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Tokens, the same on every PE
    #[arg(long, default_value_t = 24)]
    tokens: usize,
    /// Layers
    #[arg(long, default_value_t = 6)]
    layers: usize,
}

/// Numbers between -1 and 1 that look like chance.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mix = |i: u64| {
        (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    (0..count as u64).map(|i| (mix(i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let whole = args.tokens * HIDDEN;
    let start = numbers(1, whole);
    let (normed, partials, tokens) = (world.alloc(whole)?, world.alloc(whole)?, world.alloc(whole)?);
    tokens.write(0, &start)?;
    normed.write(0, &start)?;
    let mut weights = world.buffer(HIDDEN)?;
    weights.fill(1.0)?;
    let mut matrices = Vec::new();
    for layer in 0..args.layers {
        let mut matrix = world.buffer(HIDDEN * HIDDEN)?;
        matrix.write(0, &numbers(2 + layer as u64, HIDDEN * HIDDEN))?;
        matrices.push(matrix);
    }
    // The host knows how an all-reduce of so many bytes goes fastest: in one shot of packets, or otherwise.
    let comm = world.comm(world.team())?;
    let choice = comm.chosen(Collective::AllReduce, 4 * whole as u64, Some((Op::Sum, Datatype::F32)))?;
    let protocol = if choice.algorithm == Algorithm::ONE_SHOT { choice.protocol } else { Protocol::Simple };
    let plan = world.plan(Layout::new(world.team(), BLOCKS))?;
    world.barrier()?;

    let (stream, started) = (world.stream()?, Instant::now());
    for matrix in &matrices {
        let args = (plan.view().over(protocol), normed.view(), partials.view(), tokens.view(), matrix, &weights);
        world.launch(&stream, multiply_sum_and_norm, Grid::new(BLOCKS, 64), args)?;
    }
    world.synchronize(&stream)?;
    let took = started.elapsed();

    // The last bits of a norm depend on how many threads sum squares.
    let (found, ends) = (tokens.to_vec()?, normed.to_vec()?);
    let alone = alone(args, world.npes(), start);
    let off = found.iter().zip(&alone).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
    if off > 1e-4 {
        return Err(format!("PE {} is off by {off} from what it computes alone", world.pe()).into());
    }
    let bits = world.alloc::<u64>(2)?;
    let sum = |all: &[f32]| all.iter().fold(0_u64, |sum, x| sum.rotate_left(5) ^ u64::from(x.to_bits()));
    let mine = [sum(&found), sum(&ends)];
    bits.write(0, &mine)?;
    comm.all_reduce(&stream, bits.view(), bits.view(), Op::Max)?;
    world.synchronize(&stream)?;
    if bits.to_vec()? != mine {
        return Err(format!("PE {} has other bits than another PE", world.pe()).into());
    }
    if world.pe().index() == 0 {
        println!(
            "{} layers of {} tokens on {} PEs ({}), {:.1} us each over {protocol}",
            args.layers,
            args.tokens,
            world.npes(),
            world.machine(),
            took.as_secs_f64() * 1e6 / args.layers as f64
        );
        println!("every token has the same bits on every PE, and is what one PE alone computes");
    }
    Ok(world.barrier()?)
}

/// All layers, with the partial sums of so many PEs added in their order.
fn alone(args: &Args, pes: usize, mut tokens: Vec<f32>) -> Vec<f32> {
    let mut normed = tokens.clone();
    for layer in 0..args.layers {
        let matrix = numbers(2 + layer as u64, HIDDEN * HIDDEN);
        for (token, normed) in tokens.chunks_mut(HIDDEN).zip(normed.chunks_mut(HIDDEN)) {
            for (i, token) in token.iter_mut().enumerate() {
                let row = &matrix[i * HIDDEN..(i + 1) * HIDDEN];
                let partial = |pe| partial(row, columns(pe, pes), |j| normed[j]);
                *token += (1..pes).fold(partial(0), |sum, pe| sum + partial(pe));
            }
            let squares: f32 = token.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares / HIDDEN as f32 + EPSILON).sqrt();
            for (normed, token) in normed.iter_mut().zip(&*token) {
                *normed = token * scale;
            }
        }
    }
    tokens
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}
