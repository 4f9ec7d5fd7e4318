//! Semaphores count posts and takes; signal words only grow; every way to wait and to test agrees on them.

use congruent::device::{Semaphore, Signal};
use congruent::{Error, Grid, World};
use congruent_test_kernels::By;
use congruent_test_kernels::signals::{self as kernels, LEAP, NONE};

use super::limit::times;

/// Semaphores and signal words.
pub fn signals(world: &mut World) -> Result<(), Error> {
    posts(world)?;
    many_posters(world)?;
    bounded_waits(world)?;
    signal_words(world)?;
    signal_sets(world)?;
    looks(world)?;
    leaps(world)
}

fn posts(world: &mut World) -> Result<(), Error> {
    let (stream, turn, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(3)?);
    for by in By::ALL {
        for n in [1, 2, times(1000)] {
            world.run(&stream, kernels::posts, Grid::one(64), (turn.view(), told.view(), n, by))?;
            assert_eq!(told.to_vec()?, [n + 1, n, 0], "1 and {n} posts, by {by:?}");
        }
    }
    Ok(())
}

fn many_posters(world: &mut World) -> Result<(), Error> {
    let (stream, all, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(2)?);
    for blocks in [1, 3] {
        for launch in 1..=3 {
            told.fill(0)?;
            world.run(&stream, kernels::many_posters, Grid::new(blocks, 64), (all.view(), told.view()))?;
            let told = told.to_vec()?;
            assert!(told[0] >= blocks.into() && told[0] % u64::from(blocks) == 0, "{} threads", told[0]);
            assert_eq!(told[1], 0, "launch {launch} of {blocks} blocks: posts left");
        }
    }
    Ok(())
}

fn bounded_waits(world: &mut World) -> Result<(), Error> {
    let (stream, turn, told) = (world.stream()?, world.alloc::<Semaphore>(1)?, world.alloc::<u64>(7)?);
    for by in By::ALL {
        for n in [1, 5] {
            told.fill(0)?;
            world.run(&stream, kernels::bounded_waits, Grid::one(64), (turn.view(), told.view(), n, by))?;
            let told = told.to_vec()?;
            // Of the three waits two time out, for every thread of the group, and take nothing.
            assert_eq!(told, [told[0], told[0], 0, told[0], n - 1, 0, 0], "{n} posts, by {by:?}");
        }
    }
    Ok(())
}

fn signal_words(world: &mut World) -> Result<(), Error> {
    let n = world.npes() as u64;
    for by in By::ALL {
        let (stream, told) = (world.stream()?, world.alloc::<u64>(12)?);
        let (from, sum) = (world.alloc::<Signal>(world.npes())?, world.alloc::<Signal>(1)?);
        for round in 1..=n.max(3) {
            told.fill(0)?;
            let arguments = (from.view(), sum.view(), told.view(), round, by);
            world.run(&stream, kernels::signal_words, Grid::one(64), arguments)?;
            let told = told.to_vec()?;
            let (size, first, alone) = (told[0], round % n, u64::from(n == 1));
            let said: Vec<u64> = told[1..10].iter().map(|sum| sum / size).collect();
            assert_eq!(said.iter().map(|one| one * size).collect::<Vec<_>>(), told[1..10], "threads of a group differ");
            let before = [0, NONE, 0];
            let between = [first, first, alone];
            let after = [1, 1, 0];
            assert_eq!(said, [before, between, after].concat(), "round {round}, by {by:?}");
            assert_eq!(told[10..], [n * round * (round + 1) / 2, round], "round {round}, by {by:?}");
        }
    }
    Ok(())
}

fn signal_sets(world: &mut World) -> Result<(), Error> {
    let n = world.npes() as u64;
    for by in By::ALL {
        let (stream, from, told) = (world.stream()?, world.alloc::<Signal>(world.npes())?, world.alloc::<u64>(7)?);
        for round in 1..=3 {
            told.fill(0)?;
            world.run(&stream, kernels::signal_sets, Grid::one(64), (from.view(), told.view(), round, by))?;
            let told = told.to_vec()?;
            let evens = n.div_ceil(2);
            let expected = [0, evens, 1, evens, n, 0].map(|one| one * told[0]);
            assert_eq!(told[1..], expected, "round {round}, by {by:?}, a group of {}", told[0]);
        }
    }
    Ok(())
}

fn looks(world: &mut World) -> Result<(), Error> {
    let (stream, told) = (world.stream()?, world.alloc::<u64>(8)?);
    let (turn, sum) = (world.alloc::<Semaphore>(1)?, world.alloc::<Signal>(1)?);
    for (round, by) in (1..).zip(By::ALL) {
        told.fill(0)?;
        world.run(&stream, kernels::looks, Grid::one(64), (turn.view(), sum.view(), told.view(), round, by))?;
        let told = told.to_vec()?;
        let size = told[0];
        assert_eq!(told, [size, size, size, size, 0, 0, size, 0], "by {by:?}");
    }
    Ok(())
}

fn leaps(world: &mut World) -> Result<(), Error> {
    let (stream, told) = (world.stream()?, world.alloc::<u64>(1)?);
    let (far, turn) = (world.alloc::<Signal>(1)?, world.alloc::<Semaphore>(1)?);
    told.fill(LEAP)?;
    world.run(&stream, kernels::leaps, Grid::one(64), (far.view(), turn.view(), told.view(), 7))?;
    assert_eq!(told.to_vec()?, [0], "posts left after counts have wrapped around three times");
    Ok(())
}
