//! Matrices of a warp: products of every layout and of both types against plain loops, exactly for integers and within a bound for
//! others; fills, maps and places of elements; what is refused.

use congruent::device::matrix::Multiplicand;
use congruent::device::{Kernel, Pack, Relaxed, Slice, SmallFloat, bf16, f16};
use congruent::fused::gemm::{Eight, SHARED, THREADS};
use congruent::{Arguments, Buffer, Error, Grid, World};
use congruent_example_kernels::gemm;
use congruent_test_kernels::matrix as kernels;

use super::limit::is_limited;

/// Matrices.
pub fn matrix(world: &mut World) -> Result<(), Error> {
    elements(world)?;
    let shapes = [(32, 24, 16), (64, 24, 48), (32, 72, 80)];
    let shapes = &shapes[usize::from(is_limited())..];
    for &shape in shapes {
        products::<bf16, _>(world, kernels::product_of_bf16, shape)?;
    }
    products::<f16, _>(world, kernels::product_of_f16, shapes[0])?;
    ways::<bf16, _>(world, kernels::ways_of_bf16)?;
    ways::<f16, _>(world, kernels::ways_of_f16)?;
    inside(world)?;
    gemm(world)
}

/// A buffer with these elements.
fn buffer<T: Multiplicand>(world: &World, values: &[T]) -> Result<Buffer<T>, Error> {
    let mut buffer = world.buffer(values.len())?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// Small integers, which are exact in every type and order; others, of which neighbours differ much.
fn numbers<T: Multiplicand>(len: usize, seed: usize, integers: bool) -> Vec<T> {
    let number = |i: usize| {
        let hash = (i + seed).wrapping_mul(0x9e37_79b9) >> 7;
        if integers { (hash % 17) as f32 - 8.0 } else { (hash % 2001) as f32 / 500.0 - 2.0 }
    };
    (0..len).map(|i| T::narrow(number(i))).collect()
}

/// That `c` is `a * b`: exactly, or each sum within what rounding may do to it.
///
/// With `k` products there are `k` additions, each of which is off by at most `u` times the sum of magnitudes so far, to first order:
/// `k u` times that of all. To nearest, `u` is 2^-24. Hardware cuts off what is below the largest of some addends, by at most a unit
/// of 2^-23 for each: twice as much for the addends and the result are 2^-22 for each product.
fn compare<T: Multiplicand>(c: &[f32], a: &[T], b: &[T], [m, n, k]: [usize; 3], exact: bool) {
    for (i, &found) in c.iter().enumerate().take(m * n) {
        let (row, column) = (i / n, i % n);
        let products = (0..k).map(|j| f64::from(a[row * k + j].widen()) * f64::from(b[j * n + column].widen()));
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()));
        let bound = if exact { 0.0 } else { k as f64 * size / f64::from(1 << 22) };
        assert!(
            (f64::from(found) - sum).abs() <= bound,
            "row {row}, column {column} of {m}x{n}x{k}: {found}, not {sum}"
        );
    }
}

fn products<T: Multiplicand, K: Kernel<Args = (Slice<T>, Slice<T>, Relaxed<f32>, u64, u64)>>(
    world: &World,
    kernel: K,
    (m, n, k): (usize, usize, usize),
) -> Result<(), Error>
where
    for<'b> (&'b Buffer<T>, &'b Buffer<T>, &'b mut Buffer<f32>, u64, u64): Arguments<K::Args>,
{
    let stream = world.stream()?;
    for (integers, grid) in [(true, Grid::one(32)), (false, Grid::new(2, 96))] {
        let (a, b) = (numbers::<T>(m * k, 1, integers), numbers::<T>(k * n, 2, integers));
        let mut c = world.buffer::<f32>(m * n)?;
        let arguments = (&buffer(world, &a)?, &buffer(world, &b)?, &mut c, n as u64, k as u64);
        world.run(&stream, kernel, grid, arguments)?;
        compare(&c.to_vec()?, &a, &b, [m, n, k], integers);
    }
    Ok(())
}

fn ways<T: Multiplicand, K: Kernel<Args = (Slice<T>, Slice<T>, Relaxed<f32>)>>(
    world: &World,
    kernel: K,
) -> Result<(), Error>
where
    for<'b> (&'b Buffer<T>, &'b Buffer<T>, &'b mut Buffer<f32>): Arguments<K::Args>,
{
    let stream = world.stream()?;
    let [m, n, k] = [32, 40, 48];
    for (integers, threads) in [(true, 64), (false, 32)] {
        let (a, b) = (numbers::<T>(m * k, 3, integers), numbers::<T>(k * n, 4, integers));
        let mut c = world.buffer::<f32>(4 * m * n)?;
        world.run(&stream, kernel, Grid::one(threads), (&buffer(world, &a)?, &buffer(world, &b)?, &mut c))?;
        for way in c.to_vec()?.chunks(m * n) {
            compare(way, &a, &b, [m, n, k], integers);
        }
    }
    Ok(())
}

fn elements(world: &mut World) -> Result<(), Error> {
    let stream = world.stream()?;
    for warps in [1, 3] {
        let (wrong, seen) = (world.alloc::<u64>(1)?, world.alloc::<u32>(32 * 24)?);
        world.run(&stream, kernels::fragments, Grid::one(32 * warps), (wrong.view(), seen.view()))?;
        // By each warp, of which a machine may have fewer.
        let seen = seen.to_vec()?;
        assert!((1..=warps).contains(&seen[0]), "{warps} warps: {seen:?}");
        assert_eq!((wrong.to_vec()?, &seen), (vec![0], &vec![seen[0]; 32 * 24]), "{warps} warps");
    }
    Ok(())
}

/// The last place where a matrix fits, of 16 rows 24 elements apart.
fn inside(world: &mut World) -> Result<(), Error> {
    let (stream, told) = (world.stream()?, world.alloc::<f32>(1)?);
    world.run(&stream, kernels::last_matrix, Grid::one(32), (told.view(), 600 - 15 * 24 - 16))?;
    assert_eq!(told.to_vec()?, [16.5]);
    Ok(())
}

/// The example's kernel, at edges of every kind.
fn gemm(world: &World) -> Result<(), Error> {
    let stream = world.stream()?;
    let shapes = [(1, 1, 1), (130, 19, 41), (64, 200, 77), (128, 128, 128)];
    for &(m, n, k) in &shapes[..if is_limited() { 2 } else { 4 }] {
        let (a, b) = (numbers::<bf16>(m * k, 5, true), numbers::<bf16>(n * k, 6, true));
        let groups = k.div_ceil(8);
        // Rows with zeros behind them.
        let rows = |all: &[bf16]| -> Result<Buffer<Eight>, Error> {
            let group =
                |row: &[bf16], i: usize| core::array::from_fn(|j| row.get(8 * i + j).copied().unwrap_or_default());
            let rows: Vec<_> = all.chunks(k).flat_map(|row| (0..groups).map(move |i| Pack(group(row, i)))).collect();
            let mut buffer = world.buffer(rows.len())?;
            buffer.write(0, &rows)?;
            Ok(buffer)
        };
        let mut c = world.buffer::<bf16>(m * n + 1)?;
        let grid = Grid::new(2, THREADS as u32).with_shared(SHARED as u32);
        world.run(&stream, gemm::gemm, grid, (&rows(&a)?, &rows(&b)?, &mut c, groups as u32))?;
        let found = c.to_vec()?;
        assert_eq!(found[m * n], bf16::default(), "past the end of {m}x{n}x{k}");
        for (i, &found) in found.iter().enumerate().take(m * n) {
            let (row, column) = (i / n, i % n);
            let products = (0..k).map(|j| a[row * k + j].widen() * b[column * k + j].widen());
            let sum = bf16::narrow(products.sum());
            assert_eq!(found, sum, "row {row}, column {column} of {m}x{n}x{k}");
        }
    }
    Ok(())
}
