//! A product whose rows come from other PEs, in the kernel that gathers them: beside both apart, where rows are late and where not. And one
//! whose sums are scattered over PEs, in the kernel that computes it.

use std::time::{Duration, Instant};

use congruent::device::{Signal, SmallFloat, bf16};
use congruent::fused::gemm::{Eight, SHARED, SHARED_F32, THREADS};
use congruent::{Error, Grid, World};
use congruent_example_kernels::gather_gemm::{Rows, gather_gemm};
use congruent_example_kernels::gemm;
use congruent_example_kernels::gemm_scatter::{Sums, gemm_scatter};
use congruent_transports::Faults;

use crate::compute::{Timed, Times};

/// PEs, each with a core.
const PES: usize = 2;

/// Rows of each PE, columns that each computes, and numbers of a row in groups of eight: two tiles of the kernel each way.
const ROWS: usize = 384;
const COLUMNS: usize = 384;
const GROUPS: usize = 128;

/// Bytes of the rows that a PE sends, or of those of which it has a part of every sum.
pub(crate) const BYTES: u64 = (ROWS * GROUPS * size_of::<Eight>()) as u64;

/// Nanoseconds of a repeat, of the PE that took longest.
#[derive(Clone, Copy, Default)]
struct Ways {
    fused: f64,
    pair: f64,
    gather: f64,
    multiply: f64,
    gemm: f64,
}

/// Times all ways of so many repeats.
///
/// # Errors
/// Where a world fails.
pub(crate) fn measure(repeats: u32) -> Result<[Timed; 5], Error> {
    let times = |ways: &[Ways], ours: fn(&Ways) -> f64, theirs: fn(&Ways) -> f64| Times {
        ours: ways.iter().map(ours).collect(),
        theirs: ways.iter().map(theirs).collect(),
    };
    let near = slowest(World::builder().width(1).local(PES, |world| run(world, repeats))?);
    let product = times(&near, |ways| ways.multiply, |ways| ways.gemm);
    // Rows of a PE are on the wire for its part of the time that all rows are multiplied in.
    let wire = Duration::from_nanos(product.median() as u64 / PES as u64);
    let faults = Faults { delay: 0, wire, one_of: 0, ..Faults::seeded(0) };
    let late = slowest(World::builder().width(1).faulty(faults).local(PES, |world| run(world, repeats))?);
    let fused = times(&late, |ways| ways.fused, |ways| ways.gather.max(ways.multiply));
    let pair = times(&near, |ways| ways.fused, |ways| ways.pair);
    let sums = slowest(World::builder().width(1).local(PES, |world| scatter(world, repeats))?);
    let scattered = times(&sums, |ways| ways.fused, |ways| ways.pair);
    let partial = times(&sums, |ways| ways.multiply, |ways| ways.gemm);
    Ok([
        Timed::new("rows that are late, multiplied", BYTES, Some(1.0 / 1.15), fused).beside("the longer of both"),
        Timed::new("rows gathered and multiplied", BYTES, Some(1.0), pair).beside("two launches"),
        Timed::new("its product alone", BYTES, Some(0.9), product).beside("gemm"),
        Timed::new("rows multiplied and summed", BYTES, Some(1.0), scattered).beside("two launches"),
        Timed::new("its products alone", BYTES, Some(0.9), partial).beside("gemm"),
    ])
}

/// Of each repeat and way the PE that took longest.
fn slowest(pes: Vec<Vec<Ways>>) -> Vec<Ways> {
    let longer = |one: Ways, other: Ways| Ways {
        fused: one.fused.max(other.fused),
        pair: one.pair.max(other.pair),
        gather: one.gather.max(other.gather),
        multiply: one.multiply.max(other.multiply),
        gemm: one.gemm.max(other.gemm),
    };
    let mut all = pes.into_iter();
    let first = all.next().unwrap_or_default();
    all.fold(first, |slowest, pe| slowest.into_iter().zip(pe).map(|(one, other)| longer(one, other)).collect())
}

/// Rows of numbers.
fn numbers(rows: usize) -> Vec<Eight> {
    let number = |i: usize| bf16::narrow((i * 7 % 29) as f32 / 16.0 - 0.875);
    (0..rows * GROUPS).map(|i| Eight::from_fn(|j| number(8 * i + j))).collect()
}

fn run(world: &mut World, repeats: u32) -> Result<Vec<Ways>, Error> {
    let me = world.pe().index();
    let (all, sent) = (world.alloc::<Eight>(PES * ROWS * GROUPS)?, world.alloc::<Signal>(PES)?);
    all.write(me * ROWS * GROUPS, &numbers(ROWS))?;
    let (mut weights, mut copy) = (world.buffer(COLUMNS * GROUPS)?, world.buffer(PES * ROWS * GROUPS)?);
    weights.write(0, &numbers(COLUMNS))?;
    for pe in 0..PES {
        copy.write(pe * ROWS * GROUPS, &numbers(ROWS))?;
    }
    let (stream, columns) = (world.stream()?, world.npes() * ROWS * COLUMNS);
    let (mut y, mut product) = (world.buffer::<bf16>(columns)?, world.buffer::<bf16>(columns)?);
    let grid = Grid::one(THREADS as u32).with_shared(SHARED as u32);
    let mut rows = Rows { all: all.view(), sent: sent.view(), turn: 0, gathers: 1, multiplies: 1 };
    let mut timed = |world: &mut World, launches: &[[u32; 2]]| -> Result<f64, Error> {
        world.barrier()?;
        let started = Instant::now();
        for &[gathers, multiplies] in launches {
            rows.turn += u64::from(gathers);
            let rows = Rows { gathers, multiplies, ..rows };
            world.launch(&stream, gather_gemm, grid, (rows, &weights, &mut y, GROUPS as u32))?;
        }
        world.synchronize(&stream)?;
        Ok(started.elapsed().as_nanos() as f64)
    };
    let mut ways = Vec::new();
    // The first repeat warms caches and pages, and does not count.
    for _ in 0..=repeats {
        let (fused, pair) = (timed(world, &[[1, 1]])?, timed(world, &[[1, 0], [0, 1]])?);
        let (gather, multiply) = (timed(world, &[[1, 0]])?, timed(world, &[[0, 1]])?);
        world.barrier()?;
        let started = Instant::now();
        world.run(&stream, gemm::gemm, grid, (&copy, &weights, &mut product, GROUPS as u32))?;
        ways.push(Ways { fused, pair, gather, multiply, gemm: started.elapsed().as_nanos() as f64 });
    }
    world.barrier()?;
    assert_eq!(y.to_vec()?, product.to_vec()?, "the same product");
    Ok(ways.split_off(1))
}

fn scatter(world: &mut World, repeats: u32) -> Result<Vec<Ways>, Error> {
    let (rows, columns) = (PES * ROWS, COLUMNS);
    let partials = world.alloc::<f32>(Sums::partials(PES, ROWS, columns))?;
    let arrived = world.alloc::<Signal>(Sums::arrived(PES, ROWS, columns))?;
    let (y, given) = (world.alloc::<bf16>(rows * columns)?, world.alloc::<Signal>(PES)?);
    let (mut x, mut weights) = (world.buffer(rows * GROUPS)?, world.buffer(columns * GROUPS)?);
    x.write(0, &numbers(rows))?;
    weights.write(0, &numbers(columns))?;
    let (stream, mut product) = (world.stream()?, world.buffer::<bf16>(rows * columns)?);
    let grid = Grid::one(THREADS as u32).with_shared(SHARED_F32 as u32);
    let mut sums = Sums {
        partials: partials.view(),
        arrived: arrived.view(),
        y: y.view(),
        given: given.view(),
        turn: 1,
        rows: ROWS as u32,
        multiplies: 1,
        scatters: 1,
        gathers: 0,
    };
    let mut timed = |world: &mut World, launches: &[[u32; 2]]| -> Result<f64, Error> {
        world.barrier()?;
        let started = Instant::now();
        for &[multiplies, scatters] in launches {
            let sums = Sums { multiplies, scatters, ..sums };
            world.launch(&stream, gemm_scatter, grid, (sums, &x, &weights, GROUPS as u32))?;
        }
        world.synchronize(&stream)?;
        let took = started.elapsed().as_nanos() as f64;
        sums.turn += u64::from(launches.iter().any(|&[_, scatters]| scatters != 0));
        Ok(took)
    };
    let mut ways = Vec::new();
    for _ in 0..=repeats {
        let (fused, pair) = (timed(world, &[[1, 1]])?, timed(world, &[[1, 0], [0, 1]])?);
        let multiply = timed(world, &[[1, 0]])?;
        world.barrier()?;
        let started = Instant::now();
        world.run(&stream, gemm::gemm, grid, (&x, &weights, &mut product, GROUPS as u32))?;
        ways.push(Ways { fused, pair, multiply, gemm: started.elapsed().as_nanos() as f64, ..Ways::default() });
    }
    world.barrier()?;
    // Both PEs have the same factors.
    let me = world.pe().index();
    let (ours, alone) = (y.to_vec()?, product.to_vec()?);
    let twice = |(sum, one): (&bf16, &bf16)| (sum.to_f32() - 2.0 * one.to_f32()).abs() <= one.to_f32().abs() / 64.0;
    assert!(ours.iter().zip(&alone).skip(me * ROWS * columns).take(ROWS * columns).all(twice), "twice the product");
    Ok(ways.split_off(1))
}
