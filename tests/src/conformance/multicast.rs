//! Multicast, on machines that have or emulate it: the fixed kernels, communicators of any team, and kernels of a user's own.

use congruent::collectives::{Algorithm, Layout, Op, Protocol};
use congruent::device::{Sym, TeamView};
use congruent::{Error, Grid, Team, World};
use congruent_heap::f16;
use congruent_test_kernels::Crew;
use congruent_test_kernels::multicast as kernels;

use super::model::{Sample, samples};
use super::norm;
use super::pattern::{assert_same, value};
use super::sweep;
use super::ways::Way;

/// Everything through multicast addresses.
pub fn multicast(world: &mut World) -> Result<(), Error> {
    assert_ne!(world.team().window(), 0, "this world has no multicast");
    sweep::these(world, Way::multimem(world.npes()))?;
    sweep::types(world, Way::multimem(world.npes()))?;
    communicators(world)?;
    norm::multimem(world)?;
    in_kernel(world)
}

/// Every other PE, backwards, and the rest.
fn communicators(world: &mut World) -> Result<(), Error> {
    let (me, n, len) = (world.pe().index(), world.npes(), 1001);
    let Some(mut comm) = world.comm_split(Some(me as u32 % 2), (n - me) as u32)? else { return Ok(()) };
    let members: Vec<usize> = (0..n).rev().filter(|pe| pe % 2 == me % 2).collect();
    assert_eq!((comm.size(), members[comm.rank()]), (members.len(), me));
    let stream = world.stream()?;
    let (whole, parts, other) = (world.alloc::<i64>(len)?, world.alloc::<i64>(len * n)?, world.alloc::<i64>(len)?);
    comm.force(Algorithm::MULTIMEM, Protocol::Simple);
    whole.write(0, &samples(7, me, len))?;
    let parts_view = parts.view().slice(..len * members.len());
    comm.all_gather(&stream, parts_view, whole.view())?;
    comm.broadcast(&stream, other.view(), whole.view(), members.len() - 1)?;
    comm.all_reduce(&stream, whole.view(), whole.view(), Op::Min)?;
    comm.reduce_scatter(&stream, whole.view(), parts_view, Op::Avg)?;
    world.synchronize(&stream)?;
    let x = |rank: usize, i: usize| i64::sample(7, members[rank], i);
    let gathered: Vec<i64> = (0..len * members.len()).map(|at| x(at / len, at % len)).collect();
    assert_same(&parts.to_vec()?[..gathered.len()], &gathered, || format!("gathered by {members:?}"));
    let last: Vec<i64> = (0..len).map(|i| x(members.len() - 1, i)).collect();
    assert_same(&other.to_vec()?, &last, || format!("broadcast by {members:?}"));
    // All have gathered the same, so its sum is a multiple and its average the same again, where it does not wrap around.
    let size = members.len() as i64;
    let mine: Vec<i64> = (0..len).map(|i| x(comm.rank(), i).wrapping_mul(size) / size).collect();
    assert_same(&whole.to_vec()?, &mine, || format!("scattered by {members:?}"));
    Ok(world.barrier()?)
}

/// A listed team of all, backwards, in kernels that call multicast themselves.
fn in_kernel(world: &mut World) -> Result<(), Error> {
    let n = world.npes();
    let members: Vec<u32> = (0..n as u32).rev().collect();
    let Some(team) = world.listed_team::<Crew>(&members)? else { return Ok(()) };
    let plan = world.plan(Layout::new(team.view(), 2).buffer(0))?;
    let stream = world.stream()?;
    sum_halves(world, &team, &plan, &stream)?;
    let len = 13;
    let (dst, src, has) = (world.alloc::<u32>(len * n)?, world.alloc::<u32>(len)?, world.alloc::<u64>(1)?);
    src.write(0, &(0..len).map(|i| value(9, team.me(), i)).collect::<Vec<u32>>())?;
    world.run(&stream, kernels::store_to_all, Grid::one(64), (team.view(), dst.view(), src.view(), has.view()))?;
    assert_eq!(has.to_vec()?, [1]);
    let all: Vec<u32> = (0..len * n).map(|at| value(9, at / len, at % len)).collect();
    assert_same(&dst.to_vec()?, &all, || "stored to all".into());
    world.barrier()?;
    // A view without a window is the same team without multicast.
    let without: TeamView<Crew> = team.view().with_window(0);
    world.run(&stream, kernels::store_to_all, Grid::one(64), (without, dst.view(), src.view(), has.view()))?;
    assert_eq!(has.to_vec()?, [0]);
    Ok(world.barrier()?)
}

/// Halves that start within a word, and halves whose places in words differ.
fn sum_halves(
    world: &mut World,
    team: &Team<Crew>,
    plan: &congruent::Plan,
    stream: &congruent::Stream,
) -> Result<(), Error> {
    let (n, len) = (world.npes(), 777);
    let (dst, src) = (world.alloc::<f16>(len + 2)?, world.alloc::<f16>(len + 2)?);
    let sum =
        |i| f16::rounded((1..n).fold(f16::sample(11, 0, i).wide(), |sum, rank| sum + f16::sample(11, rank, i).wide()));
    let expected: Vec<f16> = (0..len).map(sum).collect();
    for (to, from) in [(0, 0), (1, 1), (0, 1), (1, 2)] {
        src.write(from, &samples(11, team.me(), len))?;
        let part = |of: Sym<f16>, at: usize| of.slice(at..at + len);
        let arguments = (part(dst.view(), to), part(src.view(), from), plan.view());
        world.run(stream, kernels::sum_halves, Grid::new(2, 64), arguments)?;
        assert_same(&dst.to_vec()?[to..to + len], &expected, || format!("halves from {from} to {to}"));
        world.barrier()?;
    }
    Ok(())
}
