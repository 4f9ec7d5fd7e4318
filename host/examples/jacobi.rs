//! Heat spreads over a plate until nothing moves: thousands of halo exchanges in one kernel, with no host step.
//!
//! Each PE has some rows of the plate and, above and below them, a copy of its neighbours' nearest row (the halo). A step
//! computes the two outermost rows first, sends them to the neighbours, computes the rest while they travel, and then waits
//! for the neighbours' own.
//!
//! The lesson: two planes are back-pressure enough. A neighbour's row of step `s` goes to the plane that step `s` writes. I
//! last read that plane's halo in step `s - 1`, to compute the very row that I sent to that neighbour in that step, and the
//! neighbour waited for that row before it began step `s`. So nothing is overwritten that is still to be read, and no
//! further signal says so. By the same argument rows are slices to the kernel, and what it stores goes four cells at a time: nobody
//! else accesses them meanwhile.
//!
//! Whether the plate has come to rest is an all-reduce inside the kernel, every so many steps. The result is compared with
//! a sequential solve, bit for bit.
//!
//! Run it with `cargo run --release --example jacobi -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/jacobi`.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use congruent::collectives::Layout;
use congruent::device::{Pack, Semaphore};
use congruent::{Grid, World};
use congruent_example_kernels::jacobi::{Four, Plate, Rest, fours, jacobi, mean};

/// Solves Laplace's equation on a plate whose upper rim is hot, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Rows of the plate, at least one for each PE
    #[arg(long, default_value_t = 97)]
    rows: u32,
    /// Columns of the plate
    #[arg(long, default_value_t = 131)]
    columns: u32,
    /// The plate is at rest when no cell moves by more than this in a step
    #[arg(long, default_value_t = 1e-5)]
    tolerance: f32,
    /// Look at that every so many steps
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Most steps
    #[arg(long, default_value_t = 20_000)]
    limit: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| solve(world, &args))?;
    Ok(())
}

fn solve(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes) = (world.pe().index() as u32, world.npes() as u32);
    if args.rows < npes || args.columns == 0 {
        return Err(format!("a plate for {npes} PEs has at least {npes} rows, and a column").into());
    }
    let room = args.rows.div_ceil(npes);
    let width = fours(args.columns);
    let cells = world.alloc::<Four>(2 * (room as usize + 2) * width)?;
    let from_above = world.alloc::<Semaphore>(1)?;
    let from_below = world.alloc::<Semaphore>(1)?;
    let result = world.alloc::<u32>(2)?;
    let plan = world.plan(Layout::new(world.team(), 1))?;
    let plate = Plate {
        cells: cells.view(),
        from_above: from_above.view(),
        from_below: from_below.view(),
        room,
        rows_above: if pe > 0 { rows_of(pe - 1, npes, args.rows) } else { 0 },
        rows: rows_of(pe, npes, args.rows),
        columns: args.columns,
    };
    if pe == 0 {
        // The host writes only what no peer ever puts to: a peer's kernel may be running already.
        let hot = vec![Pack([1.0; 4]); width];
        cells.write(0, &hot)?;
        cells.write((room as usize + 2) * width, &hot)?;
    }
    let stream = world.stream()?;
    let started = Instant::now();
    let rest = Rest { tolerance: args.tolerance, every: args.every, limit: args.limit };
    world.run(&stream, jacobi, Grid::one(256), (plate, result.view(), plan.view(), rest))?;
    let elapsed = started.elapsed();

    let steps = result.to_vec()?[0];
    let expected = sequential(args, steps);
    let first_row: u32 = (0..pe).map(|pe| rows_of(pe, npes, args.rows)).sum();
    let (columns, mut row_of_plate) = (args.columns as usize, vec![Pack([0.0; 4]); width]);
    for row in 1..=plate.rows {
        cells.read(((steps % 2) * (room + 2) + row) as usize * width, &mut row_of_plate)?;
        // Before the cells is a four of the rim, and in the sequential solve one cell.
        let found = row_of_plate.iter().flat_map(|four| four.0).skip(4);
        let start = (first_row + row) as usize * (columns + 2) + 1;
        let same = found.zip(&expected[start..start + columns]).all(|(a, b)| a.to_bits() == b.to_bits());
        if !same {
            return Err(format!("PE {pe}: row {row} differs from the sequential solve").into());
        }
    }
    world.barrier()?;
    if pe == 0 {
        let rate = f64::from(args.rows * args.columns) * f64::from(steps) / elapsed.as_secs_f64() / 1e6;
        println!(
            "{} x {} cells on {npes} PEs ({}): {steps} steps in {:.2} s, {rate:.0} million cells/s",
            args.rows,
            args.columns,
            world.machine(),
            elapsed.as_secs_f64()
        );
        println!("every cell on every PE equals the sequential solve, bit for bit");
    }
    Ok(())
}

/// Rows of a PE: as even as can be, the first ones have one more.
fn rows_of(pe: u32, npes: u32, rows: u32) -> u32 {
    rows / npes + u32::from(pe < rows % npes)
}

/// The whole plate after so many steps, by one thread.
fn sequential(args: &Args, steps: u32) -> Vec<f32> {
    let (rows, width) = (args.rows as usize, args.columns as usize + 2);
    let mut old = vec![0.0; (rows + 2) * width];
    old[..width].fill(1.0);
    let mut new = old.clone();
    for _ in 0..steps {
        for row in 1..=rows {
            for at in row * width + 1..(row + 1) * width - 1 {
                new[at] = mean(old[at - width], old[at - 1], old[at + 1], old[at + width]);
            }
        }
        (old, new) = (new, old);
    }
    old
}
