//! A layer of a mixture of experts in one kernel: tokens travel to their experts, are multiplied by two matrices of each, and the weighted sum
//! of the answers travels back.
//!
//! The lesson: a program that has its experts' weights calls one function between dispatch and combine, and no launch, no copy and no meeting of
//! blocks is between the two products. Rows are multiplied where they have come, a tile of the second product begins when the tiles that it
//! reads are there, and what is answered goes back while the rest is computed.
//!
//! Routes change with every launch: counts are uneven, one expert has no token, and another one has a token of nearly every choice. The
//! program computes the same by the steps that a program would write without that function, in launches of their own, and compares the bits;
//! and it compares with sums in `f64`.
//!
//! Run it with `cargo run --release --example moe_experts -- --pes 4`, or with `congruent run -n 4 target/release/examples/moe_experts`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::collectives::moe::MoeConfig;
use congruent::device::{SmallFloat, bf16};
use congruent::fused::experts::ExpertsShape;
use congruent::fused::gemm::{Eight, SHARED_F32, THREADS};
use congruent::{Grid, World};
use congruent_example_kernels::moe_experts::{
    Routed, answer_by_experts, first_layers, second_layers, send_answers, tokens_by_expert,
};

/// Micro-batches: one by one kernel, the other one by steps.
const BATCHES: u32 = 2;

/// How large the layer is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// The most tokens of a PE
    #[arg(long, default_value_t = 72, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Experts on all PEs together
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(2..))]
    experts: u32,
    /// Experts of a token
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=8))]
    top_k: u32,
    /// Groups of eight numbers of a token
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
    /// Groups of eight numbers of an answer
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    answer_groups: u32,
    /// Groups of eight numbers between an expert's layers
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    inner_groups: u32,
    /// Blocks of a launch
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// Routes, one after the other
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// A number that looks like chance.
fn chance(of: u32, i: u32) -> u32 {
    let bits = (of.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0xc2b2_ae35);
    (bits ^ bits >> 15).wrapping_mul(0x27d4_eb2f) >> 8
}

/// So many groups of numbers between -0.5 and 0.5.
fn numbers(of: u32, groups: u32) -> Vec<Eight> {
    let number = |i| bf16::narrow((chance(of, i) % 256) as f32 / 256.0 - 0.5);
    (0..groups).map(|group| Eight::from_fn(|i| number(8 * group + i as u32))).collect()
}

/// Both layers of an expert.
fn layers(expert: u32, args: &Args) -> [Vec<Eight>; 2] {
    let (inner, outer) = (8 * args.inner_groups, 8 * args.answer_groups);
    [numbers(1000 + expert, inner * args.groups), numbers(2000 + expert, outer * args.inner_groups)]
}

/// The choices of a PE's tokens in a turn: each an expert, or -1, and its weight. Nearly every token has expert `turn`, and none has the one
/// before it, of experts in a ring.
fn choices(pe: u32, turn: u32, args: &Args) -> Vec<(i32, f32)> {
    let tokens = args.tokens - chance(pe, turn) % (args.tokens.div_ceil(3));
    let (popular, empty) = (turn % args.experts, (turn + args.experts - 1) % args.experts);
    let mut all = Vec::new();
    for token in 0..tokens {
        let seed = (pe * 64 + turn) * 4096 + token;
        let mut of_token: Vec<u32> = Vec::new();
        for k in 0..args.top_k {
            let expert =
                if k == token % args.top_k && token % 16 != 5 { popular } else { chance(seed, k) % args.experts };
            let there = expert != empty && !of_token.contains(&expert);
            let weight = chance(seed, 100 + k) as f32 / (1 << 24) as f32;
            all.push(if there { (expert as i32, weight) } else { (-1, 0.0) });
            of_token.push(expert);
        }
    }
    all
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes) = (world.pe().raw(), world.npes() as u32);
    let (groups, inner_groups, answer_groups) = (args.groups, args.inner_groups, args.answer_groups);
    let top_k = args.top_k.min(args.experts);
    let config = MoeConfig::new(args.tokens, args.experts, top_k)
        .payload(16 * groups)
        .output(16 * answer_groups)
        .micro_batches(BATCHES)
        .blocks(args.blocks + 1);
    let moe = world.moe(world.team(), config)?.named("experts");
    let memory = world.plan(ExpertsShape::new(config, npes, 8 * inner_groups)?)?.named("memory of experts");
    let most = config.most_rows(npes, 1) as usize;

    let (tokens, width) = (args.tokens as usize, 8 * answer_groups as usize);
    let x = world.alloc::<bf16>(tokens * 8 * groups as usize)?;
    let experts = world.alloc::<i32>(tokens * top_k as usize)?;
    let weights = world.alloc::<f32>(tokens * top_k as usize)?;
    let ys = world.alloc::<bf16>(BATCHES as usize * tokens * width)?;
    let mine: Vec<_> = config.experts_of(pe, npes).map(|expert| layers(expert, args)).collect();
    let [first, second] = [0, 1].map(|layer| mine.iter().flat_map(|layers| layers[layer].clone()).collect::<Vec<_>>());
    let (mut up, mut down) = (world.buffer::<Eight>(first.len())?, world.buffer::<Eight>(second.len())?);
    up.write(0, &first)?;
    down.write(0, &second)?;
    // What the steps compute in.
    let rows = world.alloc::<Eight>(most * groups as usize)?;
    let (hidden, answers) = (world.alloc::<Eight>(most * inner_groups as usize)?, world.alloc::<f32>(most * width)?);

    let stream = world.stream()?;
    // Bits do not depend on the number of blocks.
    let [one, steps] =
        [args.blocks, args.blocks + 1].map(|blocks| Grid::new(blocks, THREADS as u32).with_shared(SHARED_F32 as u32));
    let others = Grid::new(args.blocks, 128);
    let of_pe = numbers(pe, args.tokens * groups);
    x.write(0, bytemuck::cast_slice(&of_pe))?;
    let all: Vec<_> = (0..args.experts).map(|expert| layers(expert, args)).collect();
    let mut took = [Duration::ZERO; 2];
    let mut rows_of_experts = 0;
    for turn in 0..args.turns {
        let chosen = choices(pe, turn, args);
        let count = chosen.len() / top_k as usize;
        rows_of_experts += chosen.iter().filter(|(expert, _)| *expert >= 0).count();
        experts.write(0, &chosen.iter().map(|choice| choice.0).collect::<Vec<_>>())?;
        weights.write(0, &chosen.iter().map(|choice| choice.1).collect::<Vec<_>>())?;
        ys.fill(bf16::narrow(f32::NAN))?;
        world.barrier()?;
        // Micro-batches change places.
        let batches = [turn % BATCHES, (turn + 1) % BATCHES].map(|index| Routed {
            x: x.view(),
            experts: experts.view(),
            weights: weights.view(),
            y: ys.view().chunk(index as usize, BATCHES as usize),
            index,
            count: count as u32,
        });
        let started = Instant::now();
        world.launch(&stream, answer_by_experts, one, (moe.view(), batches[0], memory.view(), &up, &down))?;
        world.synchronize(&stream)?;
        took[0] += started.elapsed();
        let (started, index) = (Instant::now(), batches[1].index);
        world.launch(&stream, tokens_by_expert, others, (moe.view(), batches[1], rows.view()))?;
        world.launch(
            &stream,
            first_layers,
            steps,
            (moe.view(), index, rows.view(), &up, hidden.view().cast(), groups),
        )?;
        world.launch(
            &stream,
            second_layers,
            steps,
            (moe.view(), index, hidden.view(), &down, answers.view(), inner_groups),
        )?;
        world.launch(&stream, send_answers, others, (moe.view(), batches[1], answers.view().cast()))?;
        world.synchronize(&stream)?;
        took[1] += started.elapsed();
        for batch in 0..BATCHES {
            if let Some(refusal) = moe.refusal(batch as usize)? {
                return Err(refusal.to_string().into());
            }
        }

        let found = ys.to_vec()?;
        let [fused, stepped] = batches.map(|batch| &found[batch.index as usize * tokens * width..][..count * width]);
        for (token, (fused, stepped)) in fused.chunks(width).zip(stepped.chunks(width)).enumerate() {
            let choices = &chosen[token * top_k as usize..][..top_k as usize];
            let x = &of_pe[token * groups as usize..][..groups as usize];
            for (column, (sum, bound)) in summed(x, choices, &all, args).into_iter().enumerate() {
                let (fused, stepped) = (fused[column], stepped[column]);
                let place = || format!("PE {pe}, turn {turn}, token {token}, column {column}");
                if fused.to_bits() != stepped.to_bits() {
                    return Err(format!("{}: {fused} by one kernel, {stepped} by steps", place()).into());
                }
                let within = (f64::from(fused.widen()) - sum).abs() <= bound;
                // One that is no number is not within.
                if !within {
                    return Err(format!("{}: {fused}, which is not within {bound} of {sum}", place()).into());
                }
            }
        }
    }
    let rows = world.exchange("rows of experts", &rows_of_experts.to_string())?;
    if pe == 0 {
        let rows: usize = rows.iter().map(|rows| rows.parse().unwrap_or(0)).sum();
        let [one, steps] = took.map(|took| took / args.turns);
        println!(
            "{rows} rows of {} numbers for {} experts of {} numbers in between, on {npes} PEs ({})",
            8 * groups,
            args.experts,
            8 * inner_groups,
            world.machine()
        );
        println!(
            "every sum has the bits of the steps one by one, and is that of f64 but for roundings; in one launch {one:?}, by steps {steps:?}"
        );
    }
    Ok(())
}

/// What comes of a token, in `f64`, and how far off roundings may be: each of three is by 2^-9 of the magnitude that it rounds at most, and
/// twice that is granted, for sums in `f32`.
fn summed(x: &[Eight], choices: &[(i32, f32)], experts: &[[Vec<Eight>; 2]], args: &Args) -> Vec<(f64, f64)> {
    let dot = |row: &[Eight], x: &[f64]| -> [f64; 2] {
        let products = row.iter().flat_map(|eight| eight.0).zip(x).map(|(a, b)| f64::from(a.widen()) * b);
        products.fold([0.0; 2], |[sum, magnitude], product| [sum + product, magnitude + product.abs()])
    };
    let x: Vec<f64> = x.iter().flat_map(|eight| eight.0).map(|x| x.widen().into()).collect();
    let mut all = vec![(0.0, 1e-30); 8 * args.answer_groups as usize];
    for &(expert, weight) in choices.iter().filter(|(expert, _)| *expert >= 0) {
        let [up, down] = &experts[expert as usize];
        let hidden = up.chunks(args.groups as usize).map(|row| dot(row, &x)[0]);
        let hidden: Vec<f64> = hidden.map(|sum| sum / (1.0 + (-sum).exp())).collect();
        for (sum, row) in all.iter_mut().zip(down.chunks(args.inner_groups as usize)) {
            let [answer, magnitude] = dot(row, &hidden).map(|answer| f64::from(weight) * answer);
            *sum = (sum.0 + answer, sum.1 + 3.0 * magnitude / 256.0);
        }
    }
    all
}
