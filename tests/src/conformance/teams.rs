//! Teams: who is in one and in which order, and barriers that keep every member together, block by block.

use congruent::device::Pe;
use congruent::{Error, Grid, Stream, SymVec, Team, World};
use congruent_test_kernels::Crew;
use congruent_test_kernels::teams as kernels;

/// Blocks that synchronize at once.
const BLOCKS: u32 = 4;
const ROUNDS: u64 = 10;

/// Teams.
pub fn teams(world: &mut World) -> Result<(), Error> {
    let (me, n) = (world.pe().raw(), world.npes() as u32);
    assert_eq!((world.team().size(), world.team().me()), (n as usize, me as usize));

    let all = world.strided_team::<Crew>(0, 1, n)?;
    check(world, all, Some((0..n).collect()))?;

    let odd: Vec<u32> = (1..n).step_by(2).collect();
    if !odd.is_empty() {
        let team = world.strided_team::<Crew>(1, 2, odd.len() as u32)?;
        check(world, team, odd.contains(&me).then_some(odd))?;
    }

    // Backwards, and without PE 0 where there are others: no stride gives this list.
    let backwards: Vec<u32> = (u32::from(n > 1)..n).rev().collect();
    let team = world.listed_team::<Crew>(&backwards)?;
    check(world, team, backwards.contains(&me).then_some(backwards))?;

    // By thirds, in the reverse order of PEs; the last PE of four or more joins none.
    let colour = |pe: u32| (n < 4 || pe != n - 1).then_some(pe % 3);
    let team = world.split::<Crew>(colour(me), n - me)?;
    let mine = (0..n).rev().filter(|&pe| colour(pe) == colour(me)).collect();
    check(world, team, colour(me).map(|_| mine))?;

    // Equal keys leave the order of PEs.
    let team = world.split::<Crew>(Some(7), 0)?;
    check(world, team, Some((0..n).collect()))?;

    // Parts of parts: of even and odd PEs, each team backwards by pairs of its ranks; rank 1 of each joins none.
    let half = world.split::<Crew>(Some(me % 2), n - me)?;
    let rank = half.as_ref().map_or(0, |half| half.me() as u32);
    let ranks: Vec<u32> = (0..n).rev().filter(|pe| pe % 2 == me % 2).collect();
    let pair = |rank: u32| (rank != 1).then_some(rank / 2);
    let team = world.split_team::<Crew, Crew>(half.as_ref(), pair(rank), n - rank)?;
    let mine = (0..).zip(&ranks).filter(|&(other, _)| pair(other) == pair(rank)).map(|(_, &pe)| pe);
    let mine: Vec<u32> = mine.collect::<Vec<_>>().into_iter().rev().collect();
    check(world, team, pair(rank).map(|_| mine))?;

    // Who has no parent is in no part, whatever its colour.
    let first = world.strided_team::<Crew>(0, 1, 1)?;
    let team = world.split_team::<Crew, Crew>(first.as_ref(), Some(0), 0)?;
    check(world, team, (me == 0).then(|| vec![0]))
}

fn check(world: &mut World, team: Option<Team<Crew>>, members: Option<Vec<u32>>) -> Result<(), Error> {
    // Collective calls, so also for PEs that are in no team.
    let n = world.npes();
    let (told, wrong) = (world.alloc::<u64>(5 + 2 * n)?, world.alloc::<u64>(1)?);
    let board = world.alloc::<u64>(n * BLOCKS as usize)?;
    assert_eq!(team.is_some(), members.is_some(), "{} in a team", world.pe());
    if let (Some(team), Some(members)) = (team, members) {
        let stream = world.stream()?;
        facts(world, &stream, &team, &members, &told)?;
        rounds(world, &stream, &team, &board, &wrong)?;
    }
    // Members of other teams may still be at it; their objects go when all have come here.
    Ok(world.barrier()?)
}

fn facts(world: &World, stream: &Stream, team: &Team<Crew>, members: &[u32], told: &SymVec<u64>) -> Result<(), Error> {
    let size = members.len();
    let me = members.iter().position(|&pe| pe == world.pe().raw()).unwrap_or(size);
    assert_eq!((team.size(), team.me()), (size, me));
    assert_eq!(team.pes().map(|pe| pe.raw()).collect::<Vec<_>>(), members);
    world.run(stream, kernels::team_facts, Grid::one(64), (team.view(), told.view()))?;
    let neighbours = [members[(me + 1) % size], members[(me + size - 1) % size]];
    let rank_of = |pe| members.iter().position(|&member| member == pe);
    let ranks: Vec<u32> = (0..world.npes() as u32).map(|pe| rank_of(pe).unwrap_or(size) as u32).collect();
    for pe in 0..world.npes() as u32 {
        assert_eq!(team.rank_of(Pe::new(pe)), rank_of(pe), "PE {pe}");
    }
    assert_eq!((0..=size).map(|rank| team.pe(rank).map(Pe::raw)).collect::<Vec<_>>(), {
        members.iter().copied().map(Some).chain([None]).collect::<Vec<_>>()
    });
    let expected = [&[size as u32, me as u32][..], &neighbours, &[0], members, &ranks].concat();
    let told: Vec<u32> = told.to_vec()?.into_iter().map(|word| word as u32).take(expected.len()).collect();
    assert_eq!(told, expected, "size, rank, next, previous, one past the last, members, ranks of PEs");
    Ok(())
}

fn rounds(
    world: &World,
    stream: &Stream,
    team: &Team<Crew>,
    board: &SymVec<u64>,
    wrong: &SymVec<u64>,
) -> Result<(), Error> {
    for launch in 1..=2 {
        let arguments = (team.view(), board.view(), wrong.view(), ROUNDS);
        world.run(stream, kernels::team_rounds, Grid::new(BLOCKS, 64), arguments)?;
        assert_eq!(wrong.to_vec()?, [0], "launch {launch}: a barrier let a member of {} through", team.size());
    }
    let board = board.to_vec()?;
    for (block, rounds) in (0..BLOCKS as usize).zip(ROUNDS..) {
        let row = &board[block * team.size()..][..team.size()];
        assert!(row.iter().all(|&told| told == 2 * rounds), "block {block}: {row:?}");
    }
    // The fixed kernel's barrier.
    let team = team.view().untagged();
    Ok(world.run(stream, congruent::fixed_kernels::barrier, Grid::one(32), (team, 1))?)
}

/// Teams of more members than tell each other directly, with barriers of one thread as well as of blocks.
pub fn large_teams(world: &mut World) -> Result<(), Error> {
    let n = world.npes() as u32;
    let team = world.strided_team::<Crew>(0, 1, n)?;
    check(world, team, Some((0..n).collect()))?;
    let mixed: Vec<u32> = (0..n).step_by(2).rev().chain((1..n).step_by(2)).collect();
    let team = world.listed_team::<Crew>(&mixed)?;
    check(world, team, Some(mixed))?;
    let (stream, board, wrong) = (world.stream()?, world.alloc::<u64>(n as usize)?, world.alloc::<u64>(1)?);
    if let Some(team) = world.strided_team::<Crew>(0, 1, n)? {
        let arguments = (team.view(), board.view(), wrong.view(), ROUNDS);
        world.run(&stream, kernels::thread_rounds, Grid::one(64), arguments)?;
        assert_eq!((wrong.to_vec()?, board.to_vec()?), (vec![0], vec![ROUNDS; n as usize]));
        world.barrier()?;
    }
    world.comm(world.team())?.barrier(&stream)?;
    Ok(world.synchronize(&stream)?)
}
