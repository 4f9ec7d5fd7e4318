//! Collectives that a kernel calls on its own: over teams, with operators of a user's own, by blocks that work alone with
//! several collectives in flight, and by the same plan again and again.

use congruent::collectives::Layout;
use congruent::device::{Sym, TeamView};
use congruent::{Error, Grid, Plan, Team, World};
use congruent_test_kernels::Crew;
use congruent_test_kernels::collectives::{self as kernels, Affine};

use super::limit::{is_limited, limited};
use super::orders::part;
use super::pattern::{assert_same, value};

/// Blocks that have collectives in flight at once.
const BLOCKS: u32 = 4;

/// In-kernel collectives.
pub fn in_kernel(world: &mut World) -> Result<(), Error> {
    let n = world.npes() as u32;
    let everybody: Vec<u32> = (0..n).collect();
    let backwards: Vec<u32> = (u32::from(n > 2)..n).rev().collect();
    let odd: Vec<u32> = (0..n).filter(|pe| pe % 2 == 1 || n == 1).collect();
    for members in [everybody, backwards, odd] {
        let team = world.listed_team::<Crew>(&members)?;
        let plan = world.plan(layout(&team, members.len()))?;
        compose(world, &team, &members, &plan)?;
        nearest(world, &team, &members, &plan)?;
        in_flight(world, &team, &members, &plan)?;
    }
    Ok(())
}

/// A plan for a team, with little scratch. All PEs allocate it: those that are not in the team, for one of its size.
fn layout(team: &Option<Team<Crew>>, size: usize) -> Layout {
    let stranger = || TeamView::strided(0, 1, size as u32, 0, Sym::empty());
    Layout::new(team.as_ref().map_or_else(stranger, Team::view), BLOCKS).buffer(0)
}

/// An operator that does not commute shows the order.
fn compose(world: &mut World, team: &Option<Team<Crew>>, members: &[u32], plan: &Plan) -> Result<(), Error> {
    for len in limited(&[0, 1, 40, 3001]) {
        let room = len.max(1);
        let (dst, src) = (world.alloc::<Affine>(room)?, world.alloc::<Affine>(room)?);
        if let Some(team) = team {
            let stream = world.stream()?;
            let sample = |rank: usize, i| value::<Affine>(5, members[rank] as usize, i);
            src.write(0, &(0..len).map(|i| sample(team.me(), i)).collect::<Vec<_>>())?;
            let expected: Vec<Affine> = (0..len).map(|i| composed(team.size(), len, i, sample)).collect();
            for blocks in [1, BLOCKS] {
                let arguments = (dst.slice(..len)?, src.slice(..len)?, plan.view());
                world.run(&stream, kernels::compose, Grid::new(blocks, 64), arguments)?;
                let case = || format!("{len} composed by {members:?} in {blocks} blocks");
                assert_same(&dst.to_vec()?[..len], &expected, case);
            }
        }
        // Members of other launches may still read; nobody frees before all are here.
        world.barrier()?;
    }
    Ok(())
}

/// An operator that knows a number which the launch is given, and one on elements of three bytes.
fn nearest(world: &mut World, team: &Option<Team<Crew>>, members: &[u32], plan: &Plan) -> Result<(), Error> {
    let (len, to) = (if is_limited() { 40 } else { 300 }, 70);
    let [ring, shot, src] = [world.alloc::<i32>(len)?, world.alloc::<i32>(len)?, world.alloc::<i32>(len)?];
    let threes = world.alloc::<[u8; 3]>(len)?;
    if let Some(team) = team {
        let stream = world.stream()?;
        let sample = |rank: usize, i| (value::<u64>(6, members[rank] as usize, i) % 150) as i32;
        src.write(0, &(0..len).map(|i| sample(team.me(), i)).collect::<Vec<_>>())?;
        let reached = !world.is_proxied();
        let arguments = (ring.view(), shot.view(), src.view(), to, plan.view(), u32::from(reached));
        world.run(&stream, kernels::nearest, Grid::one(64), arguments)?;
        let nearest = |i| (0..team.size()).map(|rank| sample(rank, i)).min_by_key(|x| ((x - to).abs(), *x));
        let expected: Vec<i32> = (0..len).filter_map(nearest).collect();
        let bytes = |rank: usize, i| (value::<u64>(7, members[rank] as usize, i) as u32).to_le_bytes();
        threes.write(0, &(0..len).map(|i| bytes(team.me(), i)).map(|[a, b, c, _]| [a, b, c]).collect::<Vec<_>>())?;
        world.run(&stream, kernels::largest_bytes, Grid::one(64), (threes.view(), plan.view()))?;
        let largest = |i, k: usize| (0..team.size()).map(|rank| bytes(rank, i)[k]).max().unwrap_or(0);
        let expected_bytes: Vec<[u8; 3]> = (0..len).map(|i| [0, 1, 2].map(|k| largest(i, k))).collect();
        assert_same(&threes.to_vec()?, &expected_bytes, || format!("{len} largest of {members:?}"));
        for found in [ring.to_vec()?, if reached { shot.to_vec()? } else { expected.clone() }] {
            assert_same(&found, &expected, || format!("{len} nearest to {to} of {members:?}"));
        }
    }
    Ok(world.barrier()?)
}

/// Around the ring from left to right: `x[c+1]`, then `x[c+2]`, at the end `x[c]`, for an element of chunk `c`.
fn composed(n: usize, len: usize, i: usize, x: impl Fn(usize, usize) -> Affine) -> Affine {
    let c = i / part(len, n, size_of::<Affine>());
    (2..=n).fold(x((c + 1) % n, i), |sum, step| kernels::then(sum, x((c + step) % n, i)))
}

fn in_flight(world: &mut World, team: &Option<Team<Crew>>, members: &[u32], plan: &Plan) -> Result<(), Error> {
    let len = 2501;
    // Blocks and members have parts of the same length.
    let parted = 640 * BLOCKS as usize * members.len();
    let (sums, casts, parts) = (world.alloc::<i64>(len)?, world.alloc::<u64>(len)?, world.alloc::<i64>(parted)?);
    if let Some(team) = team {
        let stream = world.stream()?;
        for launch in 0..3 {
            let sample = |buffer: u64, rank: usize, i| value(buffer + 3 * launch, members[rank] as usize, i);
            let mine = |buffer, len| (0..len).map(|i| sample(buffer, team.me(), i) as i64).collect::<Vec<_>>();
            sums.write(0, &mine(1, len))?;
            casts.write(0, &(0..len).map(|i| sample(2, team.me(), i)).collect::<Vec<_>>())?;
            parts.write(0, &mine(3, parted))?;
            let arguments = (team.view(), sums.view(), casts.view(), parts.view(), plan.view());
            world.run(&stream, kernels::in_flight, Grid::new(BLOCKS, 64), arguments)?;
            let total = |buffer, len| {
                let sum = |i| (0..team.size()).fold(0, |sum: u64, rank| sum.wrapping_add(sample(buffer, rank, i)));
                (0..len).map(|i| sum(i) as i64).collect::<Vec<_>>()
            };
            let case = || format!("launch {launch} by {members:?}");
            assert_same(&sums.to_vec()?, &total(1, len), case);
            assert_same(&parts.to_vec()?, &total(3, parted), case);
            // Block `b` broadcasts its chunk from member `b`.
            let root = |i| i / len.div_ceil(BLOCKS as usize) % team.size();
            assert_same(&casts.to_vec()?, &(0..len).map(|i| sample(2, root(i), i)).collect::<Vec<_>>(), case);
        }
    }
    Ok(world.barrier()?)
}
