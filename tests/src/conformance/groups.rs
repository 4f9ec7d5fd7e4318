//! Thread, warp and block: what a group says of itself, and that warps act independently of each other.

use congruent::device::Semaphore;
use congruent::{Error, Grid, World};
use congruent_test_kernels::groups as kernels;

const ROUNDS: u64 = 20;
/// Not a multiple of any group's size.
const INDICES: usize = 131;

/// Groups.
pub fn groups(world: &mut World) -> Result<(), Error> {
    // A block need not fill its last warp.
    for threads in [1, 24, 32, 48, 64] {
        facts(world, threads)?;
        sync_and_messages(world, threads)?;
    }
    Ok(())
}

/// Threads and warps of a block, as the block itself says.
fn facts(world: &mut World, threads: u32) -> Result<(u64, u64), Error> {
    let (stream, told, marks) = (world.stream()?, world.alloc::<u64>(13)?, world.alloc::<u32>(3 * INDICES)?);
    world.run(&stream, kernels::group_facts, Grid::one(threads), (told.view(), marks.view()))?;
    let told = told.to_vec()?;
    let (size, warp, warps) = (told[0], told[1], told[2]);
    assert_eq!(warps, size.div_ceil(warp), "{size} threads in warps of {warp}");
    assert!(
        warp == 1 || threads < 32 || threads.is_multiple_of(32) == size.is_multiple_of(warp),
        "{size} of {threads}"
    );
    assert!(threads > 32 || warps == 1, "{warps} warps of {threads} threads");
    let sums = [
        size * (size - 1) / 2,
        1,     // leader of the block
        warps, // leaders of warps
        size,  // block rank from warp rank
        size,  // any, where one says so
        0,     // any, where nobody does
        warp,  // any of the first warp alone
        size,  // the block leader's value
        size,  // the warp leader's value
        size,  // a thread on its own
    ];
    assert_eq!(told[3..], sums, "blocks of {threads} threads");
    let marks = marks.to_vec()?;
    for (name, times, row) in [("block", 1, 0), ("warp", warps, 1), ("thread", size, 2)] {
        let row = &marks[row * INDICES..][..INDICES];
        assert!(row.iter().all(|&mark| u64::from(mark) == times), "indices of the {name}: {row:?}");
    }
    Ok((size, warps))
}

fn sync_and_messages(world: &mut World, threads: u32) -> Result<(), Error> {
    let (size, warps) = facts(world, threads)?;
    let (stream, wrong, row) = (world.stream()?, world.alloc::<u64>(1)?, world.alloc::<u64>(size as usize)?);
    world.run(&stream, kernels::group_sync, Grid::one(threads), (row.view(), wrong.view(), ROUNDS))?;
    assert_eq!((wrong.to_vec()?, row.to_vec()?), (vec![0], vec![ROUNDS - 1; size as usize]));

    let (inbox, outbox) = (world.alloc::<u64>(INDICES)?, world.alloc::<u64>(INDICES)?);
    let (full, free) = (world.alloc::<Semaphore>(warps as usize)?, world.alloc::<Semaphore>(warps as usize)?);
    let arguments = (inbox.view(), outbox.view(), full.view(), free.view(), wrong.view(), ROUNDS);
    world.run(&stream, kernels::warp_messages, Grid::one(threads), arguments)?;
    assert_eq!(wrong.to_vec()?, [0], "messages of {warps} warps");
    // The last message of each warp is still there.
    let each = INDICES.div_ceil(warps as usize);
    for (i, word) in inbox.to_vec()?.into_iter().enumerate() {
        assert_eq!(word >> 32, ROUNDS * (i / each + 1) as u64 - 1, "round of element {i}");
    }
    Ok(())
}
