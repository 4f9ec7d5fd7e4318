//! What threads of a warp, a tile and a block see of each other, and that it does not depend on how many there are.

use congruent::{Error, Grid, World};
use congruent_test_kernels::lanes as kernels;

use super::limit::at_most;

/// Lanes.
pub fn lanes(world: &mut World) -> Result<(), Error> {
    let stream = world.stream()?;
    // A block need not fill its last warp.
    for threads in [1, 24, 32, 48, 100] {
        let wrong = world.alloc::<u64>(10)?;
        for seed in [1, 99] {
            world.run(&stream, kernels::lane_facts, Grid::one(threads), (wrong.view(), seed))?;
        }
        assert_eq!(wrong.to_vec()?, [0; 10], "blocks of {threads} threads");
    }
    for (len, threads) in [(1, 1), (7, 32), (100, 48), (at_most(5000), 256), (at_most(5000), 250)] {
        let (numbers, sums, told) = (world.alloc::<u32>(len)?, world.alloc::<u32>(len)?, world.alloc::<u32>(4)?);
        let given: Vec<u32> = (0..len as u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> 3).collect();
        numbers.write(0, &given)?;
        world.run(&stream, kernels::block_scan, Grid::one(threads), (numbers.view(), sums.view(), told.view()))?;
        let mut sum = 0_u32;
        let mut before = Vec::new();
        for number in &given {
            before.push(sum);
            sum = sum.wrapping_add(*number);
        }
        assert_eq!(sums.to_vec()?, before, "{len} numbers, {threads} threads");
        let least = given.iter().enumerate().min_by_key(|(_, number)| **number).unwrap_or((0, &0));
        let bits = given.iter().fold(0, |bits, number| bits ^ number);
        assert_eq!(told.to_vec()?, [sum, *least.1, least.0 as u32, bits], "{len} numbers, {threads} threads");
    }
    Ok(())
}
