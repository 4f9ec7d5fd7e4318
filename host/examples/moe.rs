//! Layers of a mixture of experts: each token travels to the PEs that have its experts, and the sum of what they answer travels back.
//!
//! Each PE has some tokens, of several numbers, and some of the experts, which are matrices. In every layer a router chooses a few
//! experts for each token. The tokens of a PE are two micro-batches: while one is on its way, the other is computed.
//!
//! The lesson: sending and receiving are steps of their own, so what a program does between them is its own business: here a launch each,
//! and no launch waits for a PE but those that receive. The host puts all layers on the stream and waits once.
//!
//! Routes are kept until tokens are routed anew. So the gradients of what the last layer gave, which are taken to be what it gave, go to its
//! experts with nothing counted again, and the tokens' gradients come back; the router's choices and weights count as given.
//!
//! The order of every sum is said, so all results are compared with what this PE computes by itself, bit for bit.
//!
//! Run it with `cargo run --release --example moe -- --pes 4`, or with `congruent run -n 4 target/release/examples/moe`.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use congruent::collectives::moe::MoeConfig;
use congruent::device::bf16;
use congruent::{Grid, World};
use congruent_example_kernels::moe::{
    Batch, HIDDEN, TOP_K, choose, choose_experts, compute_answers, dot, dot_column, send_gradients, send_tokens,
    sum_answers,
};

/// Micro-batches.
const BATCHES: usize = 2;

/// Sends tokens through layers of experts on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Tokens of each micro-batch of a PE
    #[arg(long, default_value_t = 48)]
    tokens: u32,
    /// Experts on all PEs together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(TOP_K as i64..))]
    experts: u32,
    /// Layers, one or more
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    layers: u32,
    /// Blocks of each launch
    #[arg(long, default_value_t = 2)]
    blocks: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// A number between -0.5 and 0.5, which looks like chance.
fn number(of: u32, i: u32) -> f32 {
    let bits = (of.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0xc2b2_ae35);
    ((bits >> 16) % 1024) as f32 / 1024.0 - 0.5
}

/// Number `i` of a token.
fn token(pe: u32, batch: u32, i: u32) -> bf16 {
    bf16::from_f32(number(7 * pe + batch + 1, i))
}

/// An expert's matrix.
fn matrix(expert: u32) -> Vec<f32> {
    (0..(HIDDEN * HIDDEN) as u32).map(|i| number(1000 + expert, i) / 8.0).collect()
}

/// A router.
fn router(experts: u32) -> Vec<f32> {
    (0..experts * HIDDEN as u32).map(|i| number(500, i)).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes, tokens) = (world.pe().raw(), world.npes() as u32, args.tokens as usize);
    let config = MoeConfig::new(args.tokens, args.experts, TOP_K as u32)
        .payload(2 * HIDDEN as u32)
        .output(2 * HIDDEN as u32)
        .micro_batches(BATCHES as u32)
        .blocks(args.blocks);
    let moe = world.moe(world.team(), config)?.named("experts");
    let own = config.experts_of(pe, npes);
    let most = args.experts.div_ceil(npes) as usize;
    let (xs, ys) = (world.alloc::<bf16>(BATCHES * tokens * HIDDEN)?, world.alloc::<bf16>(BATCHES * tokens * HIDDEN)?);
    let gradients = world.alloc::<bf16>(BATCHES * tokens * HIDDEN)?;
    let experts = world.alloc::<i32>(BATCHES * tokens * TOP_K)?;
    let weights = world.alloc::<f32>(BATCHES * tokens * TOP_K)?;
    let answers = world.alloc::<f32>(BATCHES * most * npes as usize * tokens * HIDDEN)?;
    let served = world.alloc::<u64>(1)?;
    let numbers: Vec<bf16> =
        (0..BATCHES as u32).flat_map(|b| (0..(tokens * HIDDEN) as u32).map(move |i| token(pe, b, i))).collect();
    xs.write(0, &numbers)?;
    let matrices: Vec<f32> = own.clone().flat_map(matrix).collect();
    let (mut kept, mut routes) = (world.buffer(matrices.len())?, world.buffer(args.experts as usize * HIDDEN)?);
    kept.write(0, &matrices)?;
    routes.write(0, &router(args.experts))?;

    let (stream, grid, view) = (world.stream()?, Grid::new(args.blocks, 64), moe.view());
    world.barrier()?;
    let started = Instant::now();
    let mut last = Vec::new();
    for layer in 0..args.layers {
        // What a layer gives is what the next one takes.
        let (x, y) = if layer.is_multiple_of(2) { (xs.view(), ys.view()) } else { (ys.view(), xs.view()) };
        let batches: Vec<Batch> = (0..BATCHES)
            .map(|b| Batch {
                x: x.chunk(b, BATCHES),
                experts: experts.view().chunk(b, BATCHES),
                weights: weights.view().chunk(b, BATCHES),
                answers: answers.view().chunk(b, BATCHES).slice(..own.len() * npes as usize * tokens * HIDDEN),
                y: y.chunk(b, BATCHES),
                index: b as u32,
                tokens: args.tokens,
            })
            .collect();
        for batch in &batches {
            world.launch(&stream, choose_experts, grid, (*batch, &routes))?;
            world.launch(&stream, send_tokens, grid, (view, *batch))?;
        }
        for batch in &batches {
            world.launch(&stream, compute_answers, grid, (view, *batch, &kept, served.view()))?;
            world.launch(&stream, sum_answers, grid, (view, *batch))?;
        }
        last = batches;
    }
    for (b, batch) in last.iter().enumerate() {
        let dx = gradients.view().chunk(b, BATCHES);
        world.launch(&stream, send_gradients, grid, (view, *batch, &kept, batch.y, dx))?;
    }
    world.synchronize(&stream)?;
    let elapsed = started.elapsed();
    if let Some(refusal) = (0..BATCHES).find_map(|batch| moe.refusal(batch).transpose()) {
        return Err(refusal?.to_string().into());
    }

    let result = if args.layers.is_multiple_of(2) { xs.to_vec()? } else { ys.to_vec()? };
    let of_tokens = gradients.to_vec()?;
    for (at, (found, start)) in result.chunks(HIDDEN).zip(numbers.chunks(HIDDEN)).enumerate() {
        let x = (1..args.layers).fold(start.to_vec(), |x, _| layer(&x, &config, npes));
        let y = layer(&x, &config, npes);
        if found != y || of_tokens[at * HIDDEN..(at + 1) * HIDDEN] != gradient(&x, &y, &config, npes) {
            return Err(format!("PE {pe}: token {at}, or its gradient, is not what one PE alone computes").into());
        }
    }
    let served = served.to_vec()?[0];
    for line in world.exchange("what experts served", &format!("PE {pe}: experts {own:?} served {served} tokens"))? {
        if pe == 0 {
            println!("{line}");
        }
    }
    if pe == 0 {
        let each = elapsed.as_secs_f64() * 1e6 / f64::from(args.layers + 1);
        println!(
            "{} layers of {} tokens on {npes} PEs and one backward ({}): {each:.0} us for each, {} KiB of heap for each PE's exchange",
            args.layers,
            npes * BATCHES as u32 * args.tokens,
            world.machine(),
            config.bytes(npes, world.is_proxied()) >> 10,
        );
        println!("every token on every PE, and its gradient, is what one PE alone computes, bit for bit");
    }
    Ok(())
}

/// A layer for one token, on one PE: the sums are in the order that an exchange has.
fn layer(x: &[bf16], config: &MoeConfig, npes: u32) -> Vec<bf16> {
    let value = |i: usize| x[i].to_f32();
    let answer = |expert: i32, weight: f32| {
        matrix(expert as u32).chunks(HIDDEN).map(|row| weight * dot(row, value)).collect::<Vec<f32>>()
    };
    summed(x, x, config, npes, answer)
}

/// The gradient of a token that the layer was given, where `dy` is that of what it gave.
fn gradient(x: &[bf16], dy: &[bf16], config: &MoeConfig, npes: u32) -> Vec<bf16> {
    let answer = |expert: i32, weight: f32| {
        let matrix = matrix(expert as u32);
        (0..HIDDEN).map(|i| dot_column(&matrix, i, weight, |row| dy[row].to_f32())).collect::<Vec<f32>>()
    };
    summed(x, dy, config, npes, answer)
}

/// What comes back from the experts of token `x`, and what is added. `answer` is what an expert gives with a weight, as an exchange adds it.
fn summed(
    x: &[bf16],
    added: &[bf16],
    config: &MoeConfig,
    npes: u32,
    answer: impl Fn(i32, f32) -> Vec<f32>,
) -> Vec<bf16> {
    let experts: u32 = (0..npes).map(|pe| config.experts_of(pe, npes).len() as u32).sum();
    let chosen = choose(&router(experts), |i| x[i].to_f32());
    let owner = |expert: i32| (0..npes).find(|&pe| config.experts_of(pe, npes).contains(&(expert as u32)));
    let mut sums: Vec<f32> = Vec::new();
    for (k, (first, _)) in chosen.iter().enumerate() {
        let pe = owner(*first);
        // What one PE answers to a token is one row, rounded, at the place of the first choice that is there.
        if chosen[..k].iter().any(|(before, _)| owner(*before) == pe) {
            continue;
        }
        let mut row = [0.0; HIDDEN];
        for (expert, weight) in chosen.iter().filter(|(expert, _)| owner(*expert) == pe) {
            for (sum, number) in row.iter_mut().zip(answer(*expert, *weight)) {
                *sum += number;
            }
        }
        let rounded = row.iter().map(|&sum| bf16::from_f32(sum).to_f32());
        sums = if sums.is_empty() { rounded.collect() } else { sums.iter().zip(rounded).map(|(a, b)| a + b).collect() };
    }
    sums.iter().zip(added).map(|(sum, more)| bf16::from_f32(sum + more.to_f32())).collect()
}
