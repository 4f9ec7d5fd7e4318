//! Collectives of two levels, of a world on several hosts.

use congruent::collectives::{Algorithm, Collective, Datatype, Layout, Op, PreMulSum, Protocol, two_level};
use congruent::device::World as WorldTag;
use congruent::{Comm, CommOptions, Error, Grid, LaunchError, OwnPreMulSum, Stream, SymVec, Team, World};
use congruent_test_kernels::collectives::sum_in_levels;

use super::limit;
use super::pattern::{assert_same, value};

/// Elements of a part: few, an odd number, and more than there is room for between the levels.
const LENGTHS: [usize; 4] = [1, 7, 1500, 40_000];
/// Bytes of that room.
const ROOM: u64 = 64 << 10;

/// Calls of both levels, and a kernel's.
pub fn levels(world: &mut World) -> Result<(), Error> {
    let options = CommOptions { buffer: Some(ROOM), ..CommOptions::default() };
    let mut comm = world.comm_with(world.team(), options)?;
    let stream = world.stream()?;
    let Some((host, rail)) = comm.levels() else {
        let near: Team<WorldTag> = world.host_team()?;
        assert_eq!(near.size(), 1, "hosts with several PEs have two levels");
        comm.force(Algorithm::TWO_LEVEL, Protocol::Simple);
        let one = world.alloc::<u32>(1)?;
        let refused = comm.all_reduce(&stream, one.view(), one.view(), Op::Sum);
        assert_refused(refused, "teams on several hosts");
        return Ok(());
    };
    assert_eq!((host.size() * rail.size(), host.rank() + host.size() * rail.rank()), (comm.size(), comm.rank()));
    let chosen = comm.chosen(Collective::AllReduce, 1 << 30, Some((Op::Sum, Datatype::U32)))?;
    assert_eq!(chosen.algorithm, Algorithm::TWO_LEVEL);
    comm.force(Algorithm::TWO_LEVEL, Protocol::Simple);
    let most = limit::at_most(LENGTHS[3]);
    let buffers = Buffers { src: world.alloc(most * comm.size())?, dst: world.alloc(most * comm.size())? };
    for (round, len) in LENGTHS.into_iter().map(|len| len.min(most)).enumerate() {
        for in_place in [false, true] {
            buffers.all_reduces(world, &comm, &stream, (round, len, in_place))?;
            buffers.moves(world, &comm, &stream, (round, len, in_place))?;
        }
    }
    refusals(world, &comm, &stream)?;
    in_a_kernel(world, &stream)
}

/// Whether a call was refused, for a reason that says this.
#[track_caller]
fn assert_refused(call: Result<(), LaunchError>, why: &str) {
    let said = call.err().map_or_else(String::new, |error| error.to_string());
    assert!(said.contains(why), "{said:?}");
}

struct Buffers {
    src: SymVec<u32>,
    dst: SymVec<u32>,
}

/// Whether these are the elements that `expected` says.
#[track_caller]
fn same(found: &[u32], expected: impl Fn(usize) -> u32, what: impl Fn() -> String) {
    assert_same(found, &(0..found.len()).map(expected).collect::<Vec<_>>(), what);
}

/// Element `i` of a member's.
fn of(round: usize, member: usize, i: usize) -> u32 {
    value(round as u64, member, i)
}

impl Buffers {
    /// Runs a call with `give` elements of this member's, which it gets from `from` on, and gives what `get` elements from `to` on become.
    #[track_caller]
    fn run(
        &self,
        world: &mut World,
        stream: &Stream,
        (round, give, from): (usize, usize, usize),
        (get, to): (usize, (usize, bool)),
        call: impl FnOnce(&SymVec<u32>, &SymVec<u32>) -> Result<(), LaunchError>,
    ) -> Result<Vec<u32>, Error> {
        let me = world.pe().index();
        let (to, in_place) = to;
        self.src.write(from, &(0..give).map(|i| of(round, me, i)).collect::<Vec<_>>())?;
        world.barrier()?;
        call(if in_place { &self.src } else { &self.dst }, &self.src)?;
        world.synchronize(stream)?;
        let all = if in_place { self.src.to_vec()? } else { self.dst.to_vec()? };
        world.barrier()?;
        Ok(all[to..to + get].to_vec())
    }

    /// All-reduce and reduce-scatter.
    fn all_reduces(
        &self,
        world: &mut World,
        comm: &Comm,
        stream: &Stream,
        (round, len, in_place): (usize, usize, bool),
    ) -> Result<(), Error> {
        let (me, n) = (comm.rank(), comm.size());
        let whole = len * n - usize::from(len > 1);
        let values = |i: usize| (0..n).map(move |member| of(round, member, i));
        let what = format!("of {len} elements, in place: {in_place}");
        let got = self.run(world, stream, (round, whole, 0), (whole, (0, in_place)), |dst, src| {
            comm.all_reduce(stream, dst.view().slice(..whole), src.view().slice(..whole), Op::Sum)
        })?;
        same(&got, |i| values(i).fold(0, u32::wrapping_add), || format!("sum {what}"));
        let got = self.run(world, stream, (round, whole, 0), (whole, (0, in_place)), |dst, src| {
            comm.all_reduce(stream, dst.view().slice(..whole), src.view().slice(..whole), PreMulSum(3))
        })?;
        let thrice = |i: usize| values(i).fold(0, |sum: u32, value| sum.wrapping_add(value.wrapping_mul(3)));
        same(&got, thrice, || format!("premul-sum {what}"));
        let got = self.run(world, stream, (round, whole, 0), (whole, (0, in_place)), |dst, src| {
            let (dst, src) = (dst.view().slice(..whole), src.view().slice(..whole));
            comm.all_reduce(stream, dst, src, OwnPreMulSum(me as u32 + 3))
        })?;
        let weighted = |i: usize| {
            let each = values(i).zip(3_u32..).map(|(value, weight)| value.wrapping_mul(weight));
            each.fold(0, u32::wrapping_add)
        };
        same(&got, weighted, || format!("premul-sum of members' own scalars {what}"));
        // Longer parts have no room between the levels.
        if 4 * len as u64 * comm.levels().map_or(1, |(_, rail)| rail.size() as u64) <= ROOM {
            let to = if in_place { me * len } else { 0 };
            let got = self.run(world, stream, (round, len * n, 0), (len, (to, in_place)), |dst, src| {
                comm.reduce_scatter(stream, dst.view().slice(to..to + len), src.view().slice(..len * n), Op::Max)
            })?;
            same(&got, |i| values(me * len + i).max().unwrap_or(0), || format!("reduce-scatter {what}"));
        }
        Ok(())
    }

    /// All-gather and all-to-all.
    fn moves(
        &self,
        world: &mut World,
        comm: &Comm,
        stream: &Stream,
        (round, len, in_place): (usize, usize, bool),
    ) -> Result<(), Error> {
        let (me, n) = (comm.rank(), comm.size());
        let what = format!("of {len} elements, in place: {in_place}");
        let from = if in_place { me * len } else { 0 };
        let got = self.run(world, stream, (round, len, from), (len * n, (0, in_place)), |dst, src| {
            comm.all_gather(stream, dst.view().slice(..len * n), src.view().slice(from..from + len))
        })?;
        same(&got, |i| of(round, i / len, i % len), || format!("all-gather {what}"));
        let got = self.run(world, stream, (round, len * n, 0), (len * n, (0, in_place)), |dst, src| {
            comm.all_to_all(stream, dst.view().slice(..len * n), src.view().slice(..len * n))
        })?;
        same(&got, |i| of(round, i / len, me * len + i % len), || format!("all-to-all {what}"));
        Ok(())
    }
}

/// What two levels do not do is another algorithm's, or refused where they are asked for.
fn refusals(world: &mut World, comm: &Comm, stream: &Stream) -> Result<(), Error> {
    let numbers = world.alloc::<f32>(8)?;
    assert_refused(comm.all_reduce(stream, numbers.view(), numbers.view(), Op::Avg), "rounded once");
    let n = comm.size();
    let large = world.alloc::<u32>(n * ROOM as usize)?;
    let part = large.view().slice(..ROOM as usize);
    assert_refused(comm.reduce_scatter(stream, part, large.view(), Op::Sum), "two-level");
    Ok(())
}

/// By the device's function, on plans of the program's own.
fn in_a_kernel(world: &mut World, stream: &Stream) -> Result<(), Error> {
    let near: Team<WorldTag> = world.host_team()?;
    let rail: Option<Team<WorldTag>> = world.split(Some(near.me() as u32), 0)?;
    let Some(rail) = rail else { return Ok(()) };
    let (host_plan, rail_plan) = (world.plan(Layout::new(near.view(), 2))?, world.plan(Layout::new(rail.view(), 2))?);
    let levels = || two_level::Levels { host: host_plan.view(), rail: rail_plan.view() };
    let (me, n) = (world.pe().index(), world.npes());
    let len = limit::at_most(1003);
    let (src, dst) = (world.alloc::<u32>(len)?, world.alloc::<u32>(len)?);
    for round in 0..3 {
        src.write(0, &(0..len).map(|i| of(round, me, i)).collect::<Vec<_>>())?;
        world.barrier()?;
        world.run(stream, sum_in_levels, Grid::new(2, 64), (dst.view(), src.view(), levels()))?;
        let sum = |i: usize| (0..n).fold(0, |sum: u32, member| sum.wrapping_add(of(round, member, i)));
        same(&dst.to_vec()?, sum, || format!("in a kernel, round {round}"));
    }
    Ok(world.barrier()?)
}
