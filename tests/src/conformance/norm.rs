//! Rows that are summed over all PEs and normalized: sums bit for bit as they say, normalized rows as exactly as their type allows.

use std::any::type_name;

use congruent::collectives::norm::{Normed, rows_of_block};
use congruent::collectives::{Layout, Op, PlanView, Protocol};
use congruent::device::{Fp8E4M3, SmallFloat, Sym, bf16};
use congruent::{Buffer, Error, Grid, LaunchError, Stream, World};
use congruent_test_kernels::{multicast, norm as kernels};

use super::limit::at_most;
use super::model::{Sample, samples};
use super::pattern::assert_same;

/// Elements around buffers that must stay as they are: they start on no boundary.
const MARGIN: usize = 3;
/// What these have.
const AROUND: f32 = 77.0;
/// As large as the squares are, so that it is missed.
const EPSILON: f32 = 0.5;
/// Blocks of the largest launch.
const BLOCKS: u32 = 3;

type Arguments<'a, T> = (PlanView, Sym<T>, Sym<T>, Sym<T>, &'a Buffer<T>, f32, &'a Buffer<T>, Sym<T>);

/// All-reduce, residual and RMSNorm.
pub fn norm(world: &mut World) -> Result<(), Error> {
    let ways = Ways::InOrder;
    of_type::<f32>(world, ways, 1e-5, |world, stream, grid, rows| world.launch(stream, kernels::norm_f32, grid, rows))?;
    of_type::<bf16>(world, ways, 1.0 / 255.0, |world, stream, grid, rows| {
        world.launch(stream, kernels::norm_bf16, grid, rows)
    })?;
    quantized(world, ways, |world, stream, grid, rows| world.launch(stream, kernels::norm_quantized, grid, rows))
}

/// The same through multicast addresses.
pub(super) fn multimem(world: &mut World) -> Result<(), Error> {
    let ways = Ways::Multimem;
    of_type::<f32>(world, ways, 1e-5, |world, stream, grid, rows| {
        world.launch(stream, multicast::multimem_norm::<f32>(), grid, rows)
    })?;
    of_type::<bf16>(world, ways, 1.0 / 255.0, |world, stream, grid, rows| {
        world.launch(stream, multicast::multimem_norm::<bf16>(), grid, rows)
    })?;
    quantized(world, ways, |world, stream, grid, rows| {
        world.launch(stream, multicast::multimem_norm_quantized, grid, rows)
    })
}

/// How rows are summed.
#[derive(Clone, Copy, PartialEq)]
enum Ways {
    /// In two steps, and by packets: rounded once.
    InOrder,
    /// By links, which round, and then the residual is added.
    Multimem,
}

impl Ways {
    fn protocols(self) -> &'static [Protocol] {
        match self {
            Self::InOrder => &[Protocol::Simple, Protocol::Ll],
            Self::Multimem => &[Protocol::Simple],
        }
    }
}

type QuantizedArguments<'a> = (PlanView, Sym<Fp8E4M3>, Sym<f32>, Sym<bf16>, Sym<bf16>, &'a Buffer<bf16>, u64);

/// Rows in 8 bits: each group's scale is of its largest number, and each number is off by half of what its bits tell apart at most.
fn quantized(
    world: &mut World,
    ways: Ways,
    launch: impl Fn(&World, &Stream, Grid, QuantizedArguments<'_>) -> Result<(), LaunchError>,
) -> Result<(), Error> {
    let (me, stream) = (world.pe().index(), world.stream()?);
    let plan = world.plan(Layout::new(world.team(), BLOCKS).buffer(0))?;
    for (count, len, group) in [(1, 1, 128), (5, 37, 8), (7, at_most(200), 32)] {
        let whole = count * len;
        let weights: Vec<bf16> = samples(299, 0, len);
        let mut by = world.buffer(len)?;
        by.write(0, &weights)?;
        let (src, residual) = (world.alloc::<bf16>(whole)?, world.alloc::<bf16>(whole)?);
        let (numbers, scales) = (world.alloc::<Fp8E4M3>(whole)?, world.alloc::<f32>(count * len.div_ceil(group))?);
        for &protocol in ways.protocols() {
            for grid in [Grid::one(32), Grid::new(BLOCKS, 48)] {
                let case = || format!("{count} rows of {len} by {group} over {protocol}, {grid:?}");
                src.write(0, &samples(500, me, whole))?;
                residual.write(0, &samples::<bf16>(501, 0, whole))?;
                numbers.fill(Fp8E4M3(0x7f))?;
                scales.fill(f32::NAN)?;
                world.barrier()?;
                let (view, to) = (plan.view().over(protocol), (numbers.view(), scales.view()));
                let rows = (view, to.0, to.1, src.view(), residual.view(), &by, group as u64);
                launch(world, &stream, grid, rows)?;
                world.synchronize(&stream)?;
                let (sums, numbers, scales) = (residual.to_vec()?, numbers.to_vec()?, scales.to_vec()?);
                let mut scales = scales.into_iter().map(f64::from);
                for (numbers, sums) in numbers.chunks(len).zip(sums.chunks(len)) {
                    let wide = |x: &bf16| f64::from(x.widen());
                    let squares: f64 = sums.iter().map(|x| wide(x).powi(2)).sum();
                    let scale = 1.0 / (squares / len as f64 + f64::from(EPSILON)).sqrt();
                    let right: Vec<f64> = sums.iter().zip(&weights).map(|(x, by)| wide(x) * scale * wide(by)).collect();
                    for (numbers, right) in numbers.chunks(group).zip(right.chunks(group)) {
                        let scale = scales.next().unwrap_or(f64::NAN);
                        let of_largest = right.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 448.0;
                        assert!(
                            (scale - of_largest).abs() <= 1e-5 * of_largest + 1e-37,
                            "{scale}, {of_largest}: {}",
                            case()
                        );
                        for (number, right) in numbers.iter().zip(right) {
                            let off = (f64::from(number.widen()) * scale - right).abs();
                            // Four bits, of which half of the last; the smallest are 2^-9 apart.
                            let most = right.abs().mul_add(1.001 / 16.0, scale / 1000.0);
                            assert!(off <= most, "{number:?} times {scale}, not {right}: {}", case());
                        }
                    }
                }
                world.barrier()?;
            }
        }
    }
    Ok(())
}

/// Rows of a type whose roundings are off by less than so much of a number.
fn of_type<T: Sample<Wide = f32> + Normed>(
    world: &mut World,
    ways: Ways,
    exact: f64,
    launch: impl Fn(&World, &Stream, Grid, Arguments<'_, T>) -> Result<(), LaunchError>,
) -> Result<(), Error> {
    let (n, me, stream) = (world.npes(), world.pe().index(), world.stream()?);
    // So little room that rows go in several pieces.
    let plan = world.plan(Layout::new(world.team(), BLOCKS).buffer(0))?;
    let mut buffer = 300;
    for (count, len) in [(0, 5), (1, 1), (5, 37), (7, at_most(200)), (20, at_most(4000))] {
        let whole = count * len;
        let weights: Vec<T> = samples(299, 0, len);
        let mut by = world.buffer(len)?;
        by.write(0, &weights)?;
        let mut given = world.buffer(whole)?;
        let mut room = || world.alloc::<T>(whole + 2 * MARGIN);
        let (dst, src, residual) = (room()?, room()?, room()?);
        let seen = world.alloc::<T>(whole.max(1))?;
        for &protocol in ways.protocols() {
            for (grid, in_place) in [(Grid::one(32), false), (Grid::new(BLOCKS, 48), true)] {
                buffer += 2;
                let case = || format!("{count} rows of {len} {} over {protocol}, {grid:?}", type_name::<T>());
                for all in [&dst, &src, &residual] {
                    all.fill(T::from_acc(AROUND))?;
                }
                given.write(0, &samples(buffer, me, whole))?;
                residual.write(MARGIN, &samples::<T>(buffer + 1, 0, whole))?;
                // What others store here comes after what was just written.
                world.barrier()?;
                let rows = MARGIN..MARGIN + whole;
                let to = if in_place { &src } else { &dst };
                let of = |all: &congruent::SymVec<T>| all.slice(rows.clone());
                let arguments =
                    (plan.view().over(protocol), of(to)?, of(&src)?, of(&residual)?, &by, EPSILON, &given, seen.view());
                launch(world, &stream, grid, arguments)?;
                world.synchronize(&stream)?;
                let sum = |i| {
                    let all = (1..n).fold(T::sample(buffer, 0, i).wide(), |sum, pe| {
                        T::apply(Op::Sum, sum, T::sample(buffer, pe, i).wide())
                    });
                    let all = if ways == Ways::Multimem { T::rounded(all).wide() } else { all };
                    T::rounded(T::apply(Op::Sum, all, T::sample(buffer + 1, 0, i).wide()))
                };
                let sums: Vec<T> = (0..whole).map(sum).collect();
                let around = [T::from_acc(AROUND); MARGIN];
                assert_same(&residual.to_vec()?, &[&around, &sums[..], &around].concat(), case);
                let found = to.to_vec()?;
                assert_same(&found[..MARGIN], &around, case);
                let seen = seen.to_vec()?;
                for block in 0..grid.blocks as usize {
                    let mine = rows_of_block(count, block, grid.blocks as usize);
                    let mut expected = found[rows.clone()][mine.start * len..mine.end * len].to_vec();
                    let by = expected.len().min(1);
                    expected.rotate_left(by);
                    assert_same(&seen[mine.start * len..mine.end * len], &expected, case);
                }
                assert_same(&found[MARGIN + whole..], &around, case);
                for (found, sums) in found[rows].chunks(len).zip(sums.chunks(len)) {
                    let squares: f64 = sums.iter().map(|x| f64::from(x.wide()).powi(2)).sum();
                    let scale = 1.0 / (squares / len as f64 + f64::from(EPSILON)).sqrt();
                    for ((found, sum), by) in found.iter().zip(sums).zip(&weights) {
                        let right = f64::from(sum.wide()) * scale * f64::from(by.wide());
                        let off = (f64::from(found.wide()) - right).abs();
                        assert!(off <= right.abs() * exact + 1e-7, "{}, not {right}: {}", found.wide(), case());
                    }
                }
                // Nobody writes anew what others still read or write.
                world.barrier()?;
            }
        }
    }
    Ok(())
}
