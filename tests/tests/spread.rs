//! What is spread over the PEs: bins of a length that the launch says, and what histograms and sparse matrices refuse.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::device::{Signal, Slice, Sym, kernels};
use congruent::fused::histogram::count_in_blocks;
use congruent::fused::sparse::{Entry, Exchange, Part};
use congruent::{Error, Grid, World, WorldFailure};
use congruent_example_kernels::sparse::multiply;

/// Keys of each of two PEs.
const KEYS: u32 = 1000;

/// Keys that need no memory.
const NOTHINGS: &[()] = &[(); 1 << 33];

kernels! {
    /// Counts keys by their remainder.
    pub fn count_remainders(block, ctx, keys: Slice<u32>, bins: u32, counts: Sym<u64>; shared: ([u32],)) {
        count_in_blocks(block, ctx, shared, keys, counts, |key| (key % bins) as usize);
        ctx.barrier(block, &ctx.world());
    }

    /// Counts nothings in one bin: more of them than a block's count has room for.
    pub fn count_nothings(block, ctx, keys: u64, counts: Sym<u64>; shared: ([u32; 1],)) {
        count_in_blocks(block, ctx, shared, &NOTHINGS[..keys as usize], counts, |()| 0);
    }
}

fn local<R: Send>(npes: usize, program: impl Fn(&mut World) -> Result<R, Error> + Sync) -> Result<Vec<R>, Error> {
    World::builder().heap(8 << 20).deadline(Duration::from_secs(20)).local(npes, program)
}

/// Why a kernel has ended the world.
fn told<R>(ended: Result<R, Error>) -> String {
    match ended.err().unwrap().world_failure() {
        Some(WorldFailure::KernelPanicked { message, .. }) => message.clone(),
        other => panic!("{other:?}"),
    }
}

/// The counts of two PEs, of keys in `bins` bins, where blocks have shared memory for `room`.
fn counted(bins: u32, room: u32) -> Result<Vec<Vec<u64>>, Error> {
    local(2, |world| {
        let counts = world.alloc::<u64>(4)?;
        let mut keys = world.buffer::<u32>(KEYS as usize)?;
        keys.write(0, &(0..KEYS).collect::<Vec<_>>())?;
        let (stream, grid) = (world.stream()?, Grid::new(3, 32).with_shared(4 * room));
        world.run(&stream, count_remainders, grid, (&keys, bins, counts.view()))?;
        Ok(counts.to_vec()?)
    })
}

#[test]
fn bins_are_as_many_as_the_launch_has_shared_memory_for() {
    // 1000 keys of each PE in 7 bins: 143 in the first six of them. PE 0 has the bins 0, 2, 4 and 6.
    for room in [7, 8] {
        assert_eq!(counted(7, room).unwrap(), [[286, 286, 286, 284], [286, 286, 286, 0]], "room for {room}");
    }
}

#[test]
fn counts_of_a_block_do_not_wrap_around() {
    let count = |blocks, keys: u64| {
        local(1, |world| {
            let counts = world.alloc::<u64>(1)?;
            world.run(&world.stream()?, count_nothings, Grid::new(blocks, 32), (keys, counts.view()))?;
            Ok(counts.to_vec()?)
        })
    };
    assert_eq!(count(2, 1 << 20).unwrap(), [[1 << 20]]);
    for blocks in [1, 2] {
        let message = told(count(blocks, u64::from(blocks) << 32));
        assert!(message.contains("a block counts fewer than 2^32 keys"), "{message}");
    }
}

/// One PE's product of a matrix of two rows, with so many offsets and signals, by two blocks. Each number gets the other's through the halo.
fn multiplied(offsets: usize, signals: usize) -> Result<Vec<Vec<f64>>, Error> {
    local(1, |world| {
        let (packed, halos, sent) = (world.alloc::<f64>(2)?, world.alloc::<f64>(4)?, world.alloc::<Signal>(signals)?);
        let mut parts = world.buffer::<Part>(1)?;
        parts.write(0, &[Part { pe: 0, from: 0, to: 0, count: 2 }])?;
        let mut gives = world.buffer::<u32>(2)?;
        gives.write(0, &[1, 0])?;
        let (mut starts, mut entries) = (world.buffer::<u32>(offsets)?, world.buffer::<Entry>(2)?);
        starts.write(0, &[0, 1, 2][..offsets])?;
        entries.write(0, &[0, 1].map(|column| Entry { value: 10.0, column }))?;
        let (mut x, mut y) = (world.buffer::<f64>(2)?, world.buffer::<f64>(2)?);
        x.write(0, &[1.0, 2.0])?;
        let exchange = Exchange { packed: packed.view(), halos: halos.view(), sent: sent.view(), turn: 1 };
        let lent = (exchange, &parts, &gives, &starts, &entries, &starts, &entries, &x, &mut y);
        world.run(&world.stream()?, multiply, Grid::new(2, 32), lent)?;
        Ok(y.to_vec()?)
    })
}

#[test]
fn rows_without_offsets_and_blocks_without_signals_are_refused() {
    assert_eq!(multiplied(3, 2).unwrap(), [[30.0, 30.0]]);
    let message = told(multiplied(2, 2));
    assert!(message.contains("an offset more than there are numbers"), "{message}");
    let message = told(multiplied(3, 1));
    assert!(message.contains("symmetric"), "{message}");
}
