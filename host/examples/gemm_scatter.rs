//! The second half of a layer whose weights are divided among the PEs: each PE has some of the numbers of every row and the weights for
//! these, so that what it multiplies is a part of every sum. Each PE sums the rows that it owns (a reduce-scatter), or all PEs get all sums
//! (an all-reduce).
//!
//! The lesson: send a tile as soon as it is computed, and sum in an order that does not depend on what comes first. The product begins with
//! the rows of the next PE and ends with this PE's own, so that all that others need is on its way by then, and no PE is sent to by all at
//! once. Partial products have a slot for each PE that sends, and are added in the order of the PEs, in `f32`, and rounded once: the sums
//! have the same bits in every run, with any number of blocks. An addition by the network or in the order of arrival has not.
//!
//! The program runs the same kernel in two launches as well, one that multiplies and one that sends and sums, and prints how long either way
//! takes.
//!
//! Run it with `cargo run --release --example gemm_scatter -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/gemm_scatter`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::{Signal, SmallFloat, bf16};
use congruent::fused::gemm::{Eight, SHARED_F32, THREADS, tiles};
use congruent::{Grid, World};
use congruent_example_kernels::gemm::{exact_product, numbers};
use congruent_example_kernels::gemm_scatter::{Sums, gemm_scatter};

/// How large the layer is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 3)]
    pes: usize,
    /// Rows that each PE sums
    #[arg(long, default_value_t = 130, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Columns of the result
    #[arg(long, default_value_t = 140, value_parser = clap::value_parser!(u32).range(1..))]
    columns: u32,
    /// Numbers of a row that each PE has
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    width: u32,
    /// Blocks of a launch
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// Products in a row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// What a PE has of all rows, and its weights. Of three PEs the products of the first two are large and cancel each other. The third's, which
/// are small, are rounded off where they are not added behind both.
fn factors(pe: usize, rows: usize, args: &Args, turn: usize) -> [Vec<Eight>; 2] {
    let (width, seed) = (args.width as usize, turn + pe % 3 / 2);
    let scale = [262144.0, -262144.0, 1.0][pe % 3];
    let mut weights = numbers(args.columns as usize, width, 1000 + seed);
    weights.iter_mut().for_each(|eight| *eight = Eight::from_fn(|i| bf16::narrow(scale * eight[i].widen())));
    [numbers(rows, width, seed), weights]
}

/// What a plain loop computes: partial products are exact, and their sums in the order of the PEs.
fn expected(npes: usize, rows: usize, args: &Args, turn: usize) -> Vec<bf16> {
    let (groups, mut sums) = (args.width.div_ceil(8) as usize, vec![0.0; rows * args.columns as usize]);
    for pe in 0..npes {
        let [x, weights] = factors(pe, rows, args, turn);
        let products = x.chunks(groups).flat_map(|x| weights.chunks(groups).map(move |y| exact_product(x, y)));
        sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
    }
    sums.into_iter().map(bf16::narrow).collect()
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes, columns) = (world.pe().index(), world.npes(), args.columns as usize);
    let mine = args.rows as usize * columns;
    let (rows, groups) = (npes * args.rows as usize, args.width.div_ceil(8) as usize);
    let partials = world.alloc::<f32>(3 * npes * mine)?;
    let arrived = world.alloc::<Signal>(npes * tiles(args.rows, args.columns) as usize)?;
    let (y, given) = (world.alloc::<bf16>(npes * mine)?, world.alloc::<Signal>(npes * args.blocks as usize)?);
    let (mut x, mut weights) = (world.buffer::<Eight>(rows * groups)?, world.buffer::<Eight>(columns * groups)?);
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, THREADS as u32).with_shared(SHARED_F32 as u32));

    let mut sums = Sums {
        partials: partials.view(),
        arrived: arrived.view(),
        y: y.view(),
        given: given.view(),
        turn: 0,
        rows: args.rows,
        multiplies: 1,
        scatters: 1,
        gathers: 0,
    };
    let mut took = [Duration::ZERO; 3];
    for turn in 0..args.turns as usize {
        let [ours, factor] = factors(me, rows, args, turn);
        x.write(0, &ours)?;
        weights.write(0, &factor)?;
        let expected = expected(npes, rows, args, turn);
        for (way, took) in took.iter_mut().enumerate() {
            // What is multiplied and scattered in each launch. The last way gathers, too: then all rows are right here, and so they have
            // the same bits on all PEs.
            let launches = &[&[[1, 1]][..], &[[1, 0], [0, 1]], &[[1, 1]]][way];
            sums = Sums { turn: sums.turn + 1, gathers: (way == 2).into(), ..sums };
            y.fill(bf16::narrow(0.0))?;
            world.barrier()?;
            let started = Instant::now();
            for &[multiplies, scatters] in *launches {
                let sums = Sums { multiplies, scatters, ..sums };
                world.launch(&stream, gemm_scatter, grid, (sums, &x, &weights, groups as u32))?;
            }
            world.synchronize(&stream)?;
            *took += started.elapsed();
            let range = if way == 2 { 0..npes * mine } else { me * mine..(me + 1) * mine };
            for (i, (found, right)) in y.to_vec()?.into_iter().zip(&expected).enumerate() {
                if range.contains(&i) && found.to_bits() != right.to_bits() {
                    let (row, column) = (i / columns, i % columns);
                    return Err(format!("PE {me}, row {row}, column {column}: {found}, not {right}").into());
                }
            }
        }
    }
    world.barrier()?;
    if me == 0 {
        let [one, two, all] = took.map(|took| took / args.turns);
        println!(
            "{rows} rows of {} numbers times {columns} columns, of each row {} on each of {npes} PEs ({})",
            npes * args.width as usize,
            args.width,
            world.machine()
        );
        println!(
            "every sum has the bits of a plain loop's in the order of the PEs; scattered in one launch {one:?}, in two {two:?}, on all \
             PEs in one {all:?}"
        );
    }
    Ok(())
}
