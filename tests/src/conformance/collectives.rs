//! The ring's collectives against a sequential model that combines in the documented order, bit for bit: so results cannot
//! depend on blocks, widths, protocols or machines either.

use congruent::collectives::{Layout, Op, Reduction, Typed};
use congruent::device::{Fp8E4M3, Fp8E5M2, Kernel};
use congruent::{Error, Grid, Plan, Stream, World, kernels};
use congruent_heap::{bf16, f16};
use congruent_test_kernels::rma::Particle;

use super::model::{Sample, all_reduced, part_reduced, samples};
use super::pattern::{assert_same, values};

/// Blocks of the largest launch.
const BLOCKS: u32 = 3;
/// Elements around a range that must stay as they are.
const MARGIN: usize = 3;
const OPS: [Op; 4] = [Op::Sum, Op::Prod, Op::Min, Op::Max];

/// Collectives over the world, by the fixed kernels.
pub fn collectives(world: &mut World) -> Result<(), Error> {
    // The least scratch there is, so that buffers of some KiB go round several times.
    let plan = world.plan(Layout::new(world.team(), BLOCKS).buffer(0))?;
    let bench = Bench { plan, stream: world.stream()? };
    all_reduce::<i8>(world, &bench)?;
    all_reduce::<u8>(world, &bench)?;
    all_reduce::<i16>(world, &bench)?;
    all_reduce::<u16>(world, &bench)?;
    all_reduce::<i32>(world, &bench)?;
    all_reduce::<u32>(world, &bench)?;
    all_reduce::<i64>(world, &bench)?;
    all_reduce::<u64>(world, &bench)?;
    all_reduce::<f16>(world, &bench)?;
    all_reduce::<bf16>(world, &bench)?;
    all_reduce::<f32>(world, &bench)?;
    all_reduce::<f64>(world, &bench)?;
    all_reduce::<Fp8E4M3>(world, &bench)?;
    all_reduce::<Fp8E5M2>(world, &bench)?;
    scatter_and_gather::<f32>(world, &bench)?;
    scatter_and_gather::<bf16>(world, &bench)?;
    scatter_and_gather::<u64>(world, &bench)?;
    broadcast(world, &bench)?;
    on_two_streams(world)
}

/// What all cases use again and again: nothing in a plan is ever reset.
struct Bench {
    plan: Plan,
    stream: Stream,
}

impl Bench {
    fn run<K: Kernel>(&self, world: &World, kernel: K, blocks: u32, args: K::Args) -> Result<(), Error> {
        Ok(world.run(&self.stream, kernel, Grid::new(blocks, 64), args)?)
    }
}

fn reduction<T: Typed>(op: Op) -> Reduction {
    Reduction::new::<T>(op, None).unwrap_or_else(|| panic!("{} has no {op}", T::DATATYPE))
}

fn all_reduce<T: Sample + Typed>(world: &mut World, bench: &Bench) -> Result<(), Error> {
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
        let to = dst.slice(range.clone())?;
        let args = (world.team(), to.cast(), from.cast(), reduction::<T>(op), 0, bench.plan.view(), 1);
        bench.run(world, kernels::all_reduce_ring, blocks, args)?;
        let mut expected = padding;
        expected[range].copy_from_slice(&all_reduced(n, len, T::sample, |a, b| T::apply(op, a, b)));
        let mut found = vec![T::zeroed(); len + 2 * MARGIN];
        dst.read(0, &mut found)?;
        assert_same(&found, &expected, || format!("{} of {len} {}, {blocks} blocks, {in_place}", op, T::DATATYPE));
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

/// Parts of the sum to all, and back together, both out of place and in place.
fn scatter_and_gather<T: Sample + Typed>(world: &mut World, bench: &Bench) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    for len in [1, 100, 1701] {
        let (whole, part) = (world.alloc::<T>(n * len)?, world.alloc::<T>(len)?);
        let mine = me * len..(me + 1) * len;
        let sums = |c| part_reduced(n, c, len, T::sample, |a, b| T::apply(Op::Sum, a, b));
        for (blocks, in_place) in [(1, false), (1, true), (BLOCKS, false), (BLOCKS, true)] {
            let case = || format!("{len} of each in {blocks} blocks, in place: {in_place}");
            let part_view = if in_place { whole.slice(mine.clone())? } else { part.view() };
            let (parts, one) = (whole.view().cast(), part_view.cast());
            whole.write(0, &samples(me, n * len))?;
            let args = (world.team(), one, parts, reduction::<T>(Op::Sum), 0, bench.plan.view(), 1);
            bench.run(world, kernels::reduce_scatter_ring, blocks, args)?;
            let found = if in_place { whole.to_vec()[mine.clone()].to_vec() } else { part.to_vec() };
            assert_same(&found, &sums(me), case);

            let mut before: Vec<T> = values(me as u64, me, n * len);
            if in_place {
                before[mine.clone()].copy_from_slice(&found);
            }
            whole.write(0, &before)?;
            let args = (world.team(), parts, one, 0, bench.plan.view(), 1);
            bench.run(world, kernels::all_gather_ring, blocks, args)?;
            assert_same(&whole.to_vec(), &(0..n).flat_map(sums).collect::<Vec<_>>(), case);
        }
    }
    Ok(())
}

fn broadcast(world: &mut World, bench: &Bench) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    for len in [1, 50, 1001] {
        let (dst, src) = (world.alloc::<Particle>(len)?, world.alloc::<Particle>(len)?);
        for root in 0..n {
            let own: Vec<Particle> = values(root as u64, me, len);
            let in_place = root % 2 == 0;
            let from = if in_place { &dst } else { &src };
            dst.write(0, &values(100, me, len))?;
            from.write(0, &own)?;
            let args = (world.team(), dst.view().cast(), from.view().cast(), root as u32, bench.plan.view(), 1);
            bench.run(world, kernels::broadcast_ring, 1 + root as u32 % BLOCKS, args)?;
            assert_same(&dst.to_vec(), &values(root as u64, root, len), || format!("{len} from member {root}"));
            if !in_place {
                assert_same(&src.to_vec(), &own, || format!("the source, {len} from member {root}"));
            }
        }
    }
    Ok(())
}

/// Streams are concurrent, so each has slots of its own; what is launched on one runs in order.
fn on_two_streams(world: &mut World) -> Result<(), Error> {
    let (me, n, len) = (world.pe().index(), world.npes(), 2000);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let buf = world.alloc::<u64>(len)?;
        buf.write(0, &samples(me, len))?;
        streams.push((comm, stream, buf));
    }
    let once: Vec<u64> = all_reduced(n, len, u64::sample, u64::wrapping_add);
    let twice: Vec<u64> = once.iter().map(|sum| sum.wrapping_mul(n as u64)).collect();
    world.barrier()?;
    // Every PE launches them in another order.
    streams.rotate_left(me % 2);
    for _ in 0..2 {
        for (comm, stream, buf) in &streams {
            comm.all_reduce(stream, buf.view(), buf.view(), Op::Sum)?;
        }
    }
    for (_, stream, buf) in &streams {
        world.synchronize(stream)?;
        assert_same(&buf.to_vec(), &twice, || "twice on one of two streams".into());
    }
    Ok(world.barrier()?)
}
