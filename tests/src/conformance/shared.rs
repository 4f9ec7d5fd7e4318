//! Shared memory of a block: its phases, elements of every size, and what a launch may ask for.

use congruent::device::Pack;
use congruent::{Error, Grid, LaunchError, World};
use congruent_test_kernels::shared as kernels;

use super::limit::at_most;

/// Shared memory.
pub fn shared(world: &mut World) -> Result<(), Error> {
    let stream = world.stream()?;
    for (len, grid) in [(1, Grid::one(1)), (77, Grid::one(48)), (at_most(3000), Grid::new(2, 256))] {
        let (bytes, counts) = (world.alloc::<u8>(len)?, world.alloc::<u32>(256)?);
        let given: Vec<u8> = (0..len).map(|i| (i * i / 3) as u8).collect();
        bytes.write(0, &given)?;
        world.run(&stream, kernels::histogram, grid, (bytes.view(), counts.view()))?;
        let mut expected = vec![0; 256];
        given.iter().for_each(|&byte| expected[usize::from(byte)] += 1);
        assert_eq!(counts.to_vec()?, expected, "{len} bytes, {grid:?}");
    }
    let len = at_most(1000);
    let (numbers, reversed, told) = (world.alloc::<f32>(len)?, world.alloc::<f32>(len)?, world.alloc::<u64>(1)?);
    let given: Vec<f32> = (0..len).map(|i| i as f32 - 0.5).collect();
    numbers.write(0, &given)?;
    // The last of them is more than a launch may have without asking the driver.
    for (threads, bytes) in [(1, 4), (48, 256), (64, 1001), (256, 100 << 10)] {
        let grid = Grid::one(threads).with_shared(bytes);
        world.run(&stream, kernels::reverse, grid, (numbers.view(), reversed.view(), told.view()))?;
        let expected: Vec<f32> = given.iter().rev().copied().collect();
        assert_eq!((reversed.to_vec()?, told.to_vec()?), (expected, vec![u64::from(bytes / 4)]), "{grid:?}");
    }
    for threads in [1, 24, 64] {
        let (wrong, sums) = (world.alloc::<u64>(1)?, world.alloc::<f32>(1)?);
        let grid = Grid::one(threads).with_shared(12 * 20);
        world.run(&stream, kernels::elements, grid, (wrong.view(), sums.view()))?;
        assert_eq!((wrong.to_vec()?, sums.to_vec()?), (vec![0], vec![0.25]), "blocks of {threads} threads");
    }
    for packs in [0, 1, kernels::STAGE, at_most(5 * kernels::STAGE + 7)] {
        let (mut from, to) = (world.buffer(packs)?, world.alloc::<Pack<u32, 4>>(packs.max(1))?);
        let given: Vec<_> = (0..packs as u32).map(|i| Pack([i, 2 * i, !i, 5])).collect();
        from.write(0, &given)?;
        world.run(&stream, kernels::staged, Grid::one(48), (&from, to.view()))?;
        assert_eq!(to.to_vec()?[..packs], given, "{packs} packs");
    }
    let told = world.alloc::<u64>(2)?;
    world.run(&stream, kernels::in_turn, Grid::one(96), (told.view(),))?;
    assert_eq!(told.to_vec()?, [(0..200).map(|i| i * i).sum(), 3]);
    let refused = world.run(&stream, kernels::in_turn, Grid::one(64), (told.view(),));
    assert!(matches!(refused, Err(LaunchError::Warps { kernel: "in_turn", asked: 64, warps: 3 })), "{refused:?}");
    let told = world.alloc::<u32>(1)?;
    world.run(&stream, kernels::beyond, Grid::one(32), (told.view(), 7))?;
    assert_eq!(told.to_vec()?, [7]);
    // More than any block can have, and any at all for a kernel that has no array for it.
    let too_much = Grid::one(1).with_shared(1 << 20);
    let words = world.alloc::<u64>(1)?;
    let refused = world.run(&stream, kernels::reverse, too_much, (numbers.view(), reversed.view(), words.view()));
    assert!(matches!(refused, Err(LaunchError::SharedMemory { asked: 0x10_0000, fits: 1.., .. })), "{refused:?}");
    let refused = world.run(&stream, kernels::beyond, Grid::one(1).with_shared(4), (told.view(), 0));
    assert!(matches!(refused, Err(LaunchError::SharedMemory { asked: 4, fits: 0, .. })), "{refused:?}");
    Ok(())
}
