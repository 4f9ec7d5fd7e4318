//! The ring's collectives against a sequential model that combines in the documented order, bit for bit: so results cannot
//! depend on blocks, widths or machines either.

use congruent::collectives::Op;
use congruent::collectives::ring::{self, Ring};
use congruent::device::{Kernel, Sym, TeamView};
use congruent::kernels::Reducible;
use congruent::{Error, Grid, Plan, Stream, World};
use congruent_heap::{bf16, f16};
use congruent_test_kernels::collectives as kernels;
use congruent_test_kernels::rma::Particle;

use super::model::{Sample, all_reduced, chunk, samples};
use super::pattern::{assert_same, values};

/// Blocks of the largest launch.
const BLOCKS: u32 = 3;
/// Elements around a range that must stay as they are.
const MARGIN: usize = 3;
const OPS: [Op; 4] = [Op::Sum, Op::Prod, Op::Min, Op::Max];

/// Collectives over the world, by the fixed kernels.
pub fn collectives(world: &mut World) -> Result<(), Error> {
    let bench = Bench { plan: world.plan(Ring::new(BLOCKS).piece(512))?, stream: world.stream()? };
    all_reduce::<i32, <i32 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<u32, <u32 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<i64, <i64 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<u64, <u64 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<f16, <f16 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<bf16, <bf16 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<f32, <f32 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<f64, <f64 as Reducible>::AllReduce>(world, &bench)?;
    all_reduce::<i8, kernels::all_reduce_i8>(world, &bench)?;
    all_reduce::<u8, kernels::all_reduce_u8>(world, &bench)?;
    all_reduce::<i16, kernels::all_reduce_i16>(world, &bench)?;
    all_reduce::<u16, kernels::all_reduce_u16>(world, &bench)?;
    scatter_and_gather::<f32>(world, &bench)?;
    scatter_and_gather::<bf16>(world, &bench)?;
    scatter_and_gather::<u64>(world, &bench)?;
    broadcast(world, &bench)?;
    on_two_streams(world)
}

/// What all cases use again and again: nothing in a plan is ever reset.
struct Bench {
    plan: Plan<Ring>,
    stream: Stream,
}

fn all_reduce<T, K>(world: &mut World, bench: &Bench) -> Result<(), Error>
where
    T: Sample,
    K: Kernel<Args = (TeamView, Sym<T>, Sym<T>, Op, ring::View)>,
{
    const LARGE: usize = 9001;
    let (dst, src) = (world.alloc::<T>(LARGE + 2 * MARGIN)?, world.alloc::<T>(LARGE + 2 * MARGIN)?);
    let (me, n) = (world.pe().index(), world.npes());
    let run = |len: usize, op: Op, blocks: u32, in_place: bool| -> Result<(), Error> {
        // Starts on no boundary.
        let range = MARGIN..MARGIN + len;
        let padding: Vec<T> = values(9, me, len + 2 * MARGIN);
        dst.write(0, &padding)?;
        (if in_place { &dst } else { &src }).write(MARGIN, &samples(me, len))?;
        let from = if in_place { dst.slice(range.clone())? } else { src.slice(range.clone())? };
        let arguments = (world.team(), dst.slice(range.clone())?, from, op, bench.plan.view());
        world.run(&bench.stream, K::default(), Grid::new(blocks, 64), arguments)?;
        let mut expected = padding;
        expected[range].copy_from_slice(&all_reduced(n, len, T::sample, |a, b| T::apply(op, a, b)));
        let mut found = vec![T::zeroed(); len + 2 * MARGIN];
        dst.read(0, &mut found)?;
        assert_same(&found, &expected, || format!("{} of {len}, {op:?}, {blocks} blocks, {in_place}", K::NAME));
        Ok(())
    };
    for op in OPS {
        run(777, op, 1, true)?;
        run(777, op, BLOCKS, false)?;
    }
    for len in [0, 1, 31, 33, 1024, LARGE] {
        for blocks in [1, BLOCKS] {
            for in_place in [false, true] {
                run(len, Op::Sum, blocks, in_place)?;
            }
        }
    }
    Ok(())
}

fn scatter_and_gather<T: Sample + Reducible>(world: &mut World, bench: &Bench) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    for len in [1, 100, 5003] {
        let buf = world.alloc::<T>(len)?;
        let mine = chunk::<T>(me, n, len);
        for blocks in [1, BLOCKS] {
            let (grid, team, case) = (Grid::new(blocks, 64), world.team(), || format!("{len} in {blocks} blocks"));
            buf.write(0, &samples(me, len))?;
            world.reduce_scatter(&bench.stream, grid, team, &buf, Op::Sum, &bench.plan)?;
            world.synchronize(&bench.stream)?;
            let expected = all_reduced(n, len, T::sample, |a, b| T::apply(Op::Sum, a, b));
            assert_same(&buf.to_vec()[mine.clone()], &expected[mine.clone()], case);

            let mut before: Vec<T> = values(me as u64, me, len);
            before[mine.clone()].copy_from_slice(&expected[mine.clone()]);
            buf.write(0, &before)?;
            world.all_gather(&bench.stream, grid, team, &buf, &bench.plan)?;
            world.synchronize(&bench.stream)?;
            assert_same(&buf.to_vec(), &expected, case);
        }
    }
    Ok(())
}

fn broadcast(world: &mut World, bench: &Bench) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    for len in [1, 50, 1001] {
        let buf = world.alloc::<Particle>(len)?;
        for root in 0..n {
            buf.write(0, &values(root as u64, me, len))?;
            let grid = Grid::new(1 + root as u32 % BLOCKS, 64);
            world.broadcast(&bench.stream, grid, world.team(), &buf, root, &bench.plan)?;
            world.synchronize(&bench.stream)?;
            assert_same(&buf.to_vec(), &values(root as u64, root, len), || format!("{len} from member {root}"));
        }
    }
    Ok(())
}

/// Streams are concurrent, so each has a plan of its own; what is launched on one runs in order.
fn on_two_streams(world: &mut World) -> Result<(), Error> {
    let (me, n, len) = (world.pe().index(), world.npes(), 2000);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let bench = Bench { plan: world.plan(Ring::new(1))?, stream: world.stream()? };
        let buf = world.alloc::<u64>(len)?;
        buf.write(0, &samples(me, len))?;
        streams.push((bench, buf));
    }
    let once: Vec<u64> = all_reduced(n, len, u64::sample, u64::wrapping_add);
    let twice: Vec<u64> = once.iter().map(|sum| sum.wrapping_mul(n as u64)).collect();
    // Every PE launches them in another order.
    streams.rotate_left(me % 2);
    for _ in 0..2 {
        for (bench, buf) in &streams {
            world.all_reduce(&bench.stream, Grid::one(64), world.team(), buf, None, Op::Sum, &bench.plan)?;
        }
    }
    for (bench, buf) in &streams {
        world.synchronize(&bench.stream)?;
        assert_same(&buf.to_vec(), &twice, || "twice on one of two streams".into());
    }
    Ok(world.barrier()?)
}
