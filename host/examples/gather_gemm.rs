//! A layer whose weights are divided among the PEs: each PE multiplies the rows of all by its part of the weights, in one kernel that
//! gathers the rows too.
//!
//! The lesson: a product need not wait until all rows are there. Every block sends its part of this PE's rows, each with a signal, and
//! multiplies what is there already; it waits for the rows of another PE only when their turn comes. The PE before this one sends here
//! first, so its rows are multiplied first. The sends are in a scope that ends behind the product, so that nobody waits until a proxy has
//! done with them. The program runs the same kernel in two launches as well, one that gathers and one that
//! multiplies, and prints how long either way takes.
//!
//! Run it with `cargo run --release --example gather_gemm -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/gather_gemm`.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::device::{Signal, SmallFloat, bf16};
use congruent::fused::gemm::{Eight, SHARED, THREADS};
use congruent::{Grid, World};
use congruent_example_kernels::gather_gemm::{Rows, gather_gemm};
use congruent_example_kernels::gemm::{exact_product, numbers};

/// How large the layer is.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 2)]
    pes: usize,
    /// Rows of each PE
    #[arg(long, default_value_t = 130, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Columns of the result that each PE computes
    #[arg(long, default_value_t = 140, value_parser = clap::value_parser!(u32).range(1..))]
    columns: u32,
    /// Numbers in a row
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

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes) = (world.pe().index(), world.npes());
    let (count, columns, width) = (args.rows as usize, args.columns as usize, args.width as usize);
    let groups = width.div_ceil(8);
    let all = world.alloc::<Eight>(npes * count * groups)?;
    let sent = world.alloc::<Signal>(npes * args.blocks as usize)?;
    let mine = numbers(columns, width, 1000 + me);
    let mut weights = world.buffer::<Eight>(mine.len())?;
    weights.write(0, &mine)?;
    let (stream, mut y) = (world.stream()?, world.buffer::<bf16>(npes * count * columns)?);
    let grid = Grid::new(args.blocks, THREADS as u32).with_shared(SHARED as u32);

    let mut rows = Rows { all: all.view(), sent: sent.view(), turn: 0, gathers: 1, multiplies: 1 };
    let mut took = [Duration::ZERO; 2];
    for turn in 0..args.turns as usize {
        // The rows of a turn are others than those of the turn before.
        let seed = |pe| turn * npes + pe;
        for (way, took) in took.iter_mut().enumerate() {
            all.write(me * count * groups, &numbers(count, width, seed(me)))?;
            y.fill(bf16::narrow(0.0))?;
            world.barrier()?;
            rows.turn += 1;
            let started = Instant::now();
            for [gathers, multiplies] in [&[[1, 1]][..], &[[1, 0], [0, 1]]][way] {
                let rows = Rows { gathers: *gathers, multiplies: *multiplies, ..rows };
                world.launch(&stream, gather_gemm, grid, (rows, &weights, &mut y, groups as u32))?;
            }
            world.synchronize(&stream)?;
            *took += started.elapsed();
            let theirs = (0..npes).flat_map(|pe| numbers(count, width, seed(pe)));
            let theirs: Vec<_> = theirs.collect();
            let expected =
                theirs.chunks(groups).flat_map(|x| mine.chunks(groups).map(move |y| bf16::narrow(exact_product(x, y))));
            for (i, (found, right)) in y.to_vec()?.into_iter().zip(expected).enumerate() {
                if found != right {
                    let (row, column) = (i / columns, i % columns);
                    return Err(format!("PE {me}, row {row}, column {column}: {found}, not {right}").into());
                }
            }
        }
    }
    world.barrier()?;
    if me == 0 {
        let [one, two] = took.map(|took| took / args.turns);
        println!(
            "{} rows of {width} numbers times {columns} columns on each of {npes} PEs ({})",
            npes * count,
            world.machine()
        );
        println!("every product on every PE is what a plain loop computes; in one launch {one:?}, in two {two:?}");
    }
    Ok(())
}
