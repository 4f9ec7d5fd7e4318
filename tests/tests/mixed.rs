//! A thousand collectives back to back, of all kinds, with members that are late at random, and nobody waits in between.

use std::time::Duration;

use congruent::{Error, World};
use congruent_tests::conformance::{few_shapes, mixed};

const CALLS: usize = 1000;

fn back_to_back(width: u32, npes: usize, seed: u64) -> Result<(), Error> {
    let world = World::builder().heap(128 << 20).width(width).deadline(Duration::from_secs(60));
    let calls = if few_shapes() { CALLS / 10 } else { CALLS };
    world.local(npes, |world| mixed(world, seed, calls)).map(drop)
}

macro_rules! tests {
    ($($name:ident: $width:literal, $npes:literal, $seed:literal;)*) => {$(
        #[test]
        fn $name() -> Result<(), Error> {
            back_to_back($width, $npes, $seed)
        }
    )*};
}

tests! {
    of_two: 1, 2, 20;
    of_three: 1, 3, 30;
    of_five: 1, 5, 50;
    of_eight: 1, 8, 80;
    of_four_in_wide_blocks: 4, 4, 40;
}
