//! Rows of numbers times the weights of a layer, by tiles: shared memory, asynchronous copies and matrices of a warp.
//!
//! The lesson: the body of a tiled product is the same on every machine. Fragments say which rows and columns a warp has and never which
//! thread has what, so it runs with warps of one lane on the CPU, and by tensor cores on a GPU.
//!
//! Run it with `cargo run --release --example gemm`, or with other sizes: `-- --m 300 --n 500 --k 100`.

use std::time::Instant;

use clap::Parser;
use congruent::device::{SmallFloat, bf16};
use congruent::fused::gemm::{Eight, SHARED, THREADS};
use congruent::{Error, Grid};
use congruent_example_kernels::gemm::{exact_product, gemm, numbers};

/// How large the matrices are.
#[derive(Parser)]
struct Sizes {
    /// Rows of the first factor.
    #[arg(long, default_value_t = 300)]
    m: usize,
    /// Rows of the second factor, which are columns of the result.
    #[arg(long, default_value_t = 500)]
    n: usize,
    /// Numbers in a row of either factor.
    #[arg(long, default_value_t = 100)]
    k: usize,
}

fn main() -> Result<(), Error> {
    let Sizes { m, n, k } = Sizes::parse();
    congruent::run(1, |world| {
        let groups = k.div_ceil(8);
        let (rows, weights) = (numbers(m, k, world.pe().index()), numbers(n, k, 3));
        let (mut a, mut b) = (world.buffer::<Eight>(rows.len())?, world.buffer::<Eight>(weights.len())?);
        a.write(0, &rows)?;
        b.write(0, &weights)?;
        let (stream, mut c) = (world.stream()?, world.buffer::<bf16>(m * n)?);
        let grid = Grid::new(4, THREADS as u32).with_shared(SHARED as u32);
        let started = Instant::now();
        world.run(&stream, gemm, grid, (&a, &b, &mut c, groups as u32))?;
        let took = started.elapsed();
        let expected = rows.chunks(groups.max(1)).flat_map(|x| weights.chunks(groups.max(1)).map(move |y| (x, y)));
        for (i, (found, (x, y))) in c.to_vec()?.iter().zip(expected).enumerate() {
            let right = bf16::narrow(exact_product(x, y));
            assert!(*found == right, "row {}, column {}: {found}, not {right}", i / n, i % n);
        }
        if world.pe().index() == 0 {
            println!("{m} x {k} times {k} x {n} is what a plain loop computes, in {took:?} on {}", world.machine());
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
