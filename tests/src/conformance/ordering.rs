//! Who sees a signal sees the data: message passing, fence, quiet and nonblocking scopes, over many rounds.
//!
//! Kernels check what they receive and count in `wrong` what should not have been there.

use congruent::device::Semaphore;
use congruent::{Error, Grid, World};
use congruent_test_kernels::By;
use congruent_test_kernels::ordering::{self as kernels, Generation};

use super::limit::{at_most, limited, times};
use super::pattern::{assert_same, value, values};

/// Enough for a race to show, few enough for many PEs on two cores.
const ROUNDS: u64 = 40;

/// Ordering.
pub fn ordering(world: &mut World) -> Result<(), Error> {
    messages(world)?;
    covered(world)?;
    baton(world)?;
    fenced(world)?;
    in_flight(world)?;
    generations::<u8>(world, u8::MAX.into())?;
    generations::<u16>(world, u16::MAX.into())?;
    generations::<u32>(world, u32::MAX.into())?;
    generations::<u64>(world, 1)?;
    crossing(world)?;
    exchange(world)
}

fn in_flight(world: &mut World) -> Result<(), Error> {
    const PARTS: usize = 5;
    let (stream, wrong, len) = (world.stream()?, world.alloc::<u64>(1)?, at_most(300));
    let (inbox, outbox) = (world.alloc::<u64>(len)?, world.alloc::<u64>(len)?);
    let (arrived, free) = (world.alloc::<Semaphore>(PARTS)?, world.alloc::<Semaphore>(1)?);
    for by in By::ALL {
        let (count, rounds) = (world.alloc::<u64>(1)?, times(ROUNDS / 2));
        let (signals, inbox, outbox) = ((arrived.view(), free.view()), inbox.view(), outbox.view());
        let arguments = (inbox, outbox, signals.0, signals.1, count.view(), wrong.view(), rounds, by);
        world.run(&stream, kernels::signals_in_flight, Grid::one(64), arguments)?;
        // The last addition comes behind the last signal.
        world.barrier()?;
        assert_eq!((wrong.to_vec()?, count.to_vec()?), (vec![0], vec![rounds]), "by {by:?}");
    }
    Ok(())
}

/// Rounds on both sides of the largest generation, of which there is one more than `largest`.
fn generations<T: Generation + Into<u64>>(world: &mut World, largest: u64) -> Result<(), Error> {
    let (stream, wrong, len, rounds) =
        (world.stream()?, world.alloc::<u64>(1)?, at_most(100), times(ROUNDS / 4).max(4));
    let (inbox, outbox) = (world.alloc::<u64>(len)?, world.alloc::<u64>(len)?);
    let (flags, free) = (world.alloc::<T>(3)?, world.alloc::<Semaphore>(1)?);
    for by in By::ALL {
        flags.fill(T::zeroed())?;
        world.barrier()?;
        let (first, words) = (largest - 1, (flags.view(), free.view(), wrong.view()));
        let arguments = (inbox.view(), outbox.view(), words.0, words.1, words.2, first.max(1), rounds, by);
        world.run(&stream, T::Wait::default(), Grid::one(64), arguments)?;
        assert_eq!(wrong.to_vec()?, [0], "{} by {by:?}", std::any::type_name::<T>());
        let last = first.max(1) + rounds - 1;
        let left: Vec<u64> = flags.to_vec()?.into_iter().map(Into::into).collect();
        assert_eq!(left, [0, if largest > 1 { last % (largest + 1) } else { last }, 0]);
    }
    Ok(())
}

fn messages(world: &mut World) -> Result<(), Error> {
    let (stream, wrong) = (world.stream()?, world.alloc::<u64>(1)?);
    for blocks in [1, 3] {
        let semaphores = blocks as usize;
        let (full, free) = (world.alloc::<Semaphore>(semaphores)?, world.alloc::<Semaphore>(semaphores)?);
        for (len, by) in [(1, By::Block), (301, By::Block), (301, By::Warp), (301, By::Thread), (20_000, By::Block)] {
            let len = at_most(len);
            let (inbox, outbox) = (world.alloc::<u64>(len)?, world.alloc::<u64>(len)?);
            let rounds = if len > 1000 { ROUNDS / 8 } else { times(ROUNDS) };
            let (inbox, outbox) = (inbox.view(), outbox.view());
            let arguments = (inbox, outbox, full.view(), free.view(), wrong.view(), rounds, by);
            world.run(&stream, kernels::messages, Grid::new(blocks, 64), arguments)?;
            assert_eq!(wrong.to_vec()?, [0], "{len} elements in {blocks} blocks, by {by:?}");
        }
    }
    Ok(())
}

fn covered(world: &mut World) -> Result<(), Error> {
    let (stream, wrong, inbox) = (world.stream()?, world.alloc::<u64>(1)?, world.alloc::<u64>(500)?);
    let (full, free) = (world.alloc::<Semaphore>(1)?, world.alloc::<Semaphore>(1)?);
    for by in By::ALL {
        let arguments = (inbox.view(), full.view(), free.view(), wrong.view(), times(ROUNDS), by);
        world.run(&stream, kernels::covered, Grid::one(64), arguments)?;
        assert_eq!(wrong.to_vec()?, [0], "by {by:?}");
    }
    Ok(())
}

fn baton(world: &mut World) -> Result<(), Error> {
    let (stream, wrong) = (world.stream()?, world.alloc::<u64>(1)?);
    let (word, turn) = (world.alloc::<u64>(1)?, world.alloc::<Semaphore>(1)?);
    world.run(&stream, kernels::baton, Grid::one(64), (word.view(), turn.view(), wrong.view(), times(ROUNDS)))?;
    assert_eq!(wrong.to_vec()?, [0]);
    Ok(())
}

fn fenced(world: &mut World) -> Result<(), Error> {
    let (stream, wrong, inbox) = (world.stream()?, world.alloc::<u64>(1)?, world.alloc::<u64>(300)?);
    let (never, free) = (world.alloc::<Semaphore>(1)?, world.alloc::<Semaphore>(1)?);
    let flag = world.alloc::<u64>(1)?;
    let arguments = (inbox.view(), flag.view(), never.view(), free.view(), wrong.view(), times(ROUNDS));
    world.run(&stream, kernels::fenced, Grid::one(64), arguments)?;
    assert_eq!((wrong.to_vec()?, flag.to_vec()?), (vec![0], vec![times(ROUNDS)]));
    Ok(())
}

fn crossing(world: &mut World) -> Result<(), Error> {
    let (stream, wrong, rounds) = (world.stream()?, world.alloc::<u64>(1)?, 2 * times(ROUNDS));
    let (word, missed) = (world.alloc::<u64>(1)?, world.alloc::<u64>(rounds as usize)?);
    world.run(&stream, kernels::crossing, Grid::one(64), (word.view(), missed.view(), wrong.view()))?;
    let paired = world.pe().index() ^ 1 < world.npes();
    assert_eq!((wrong.to_vec()?, word.to_vec()?), (vec![0], vec![if paired { rounds } else { 0 }]));
    Ok(())
}

fn exchange(world: &mut World) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    let (stream, wrong) = (world.stream()?, world.alloc::<u64>(1)?);
    for each in limited(&[1, 77, 1000]) {
        let (to, back, from) = (world.alloc::<u32>(each * n)?, world.alloc::<u32>(each * n)?, world.alloc(each * n)?);
        from.write(0, &values::<u32>(1, me, each * n))?;
        let arguments = (to.view(), back.view(), from.view(), wrong.view());
        world.run(&stream, kernels::exchange, Grid::one(64), arguments)?;
        assert_eq!(wrong.to_vec()?, [0], "{each} elements for each PE");
        // Element i of everybody's chunk for me, in the order of the PEs.
        let expected: Vec<u32> = (0..each * n).map(|i| value(1, i / each, me * each + i % each)).collect();
        assert_same(&to.to_vec()?, &expected, || format!("{each} elements put"));
        assert_same(&back.to_vec()?, &expected, || format!("{each} elements got"));
    }
    Ok(())
}
