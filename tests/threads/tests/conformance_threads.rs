//! The conformance suite on the CPU machine, PEs as threads.

use congruent_tests::conformance::{self, Shape, threads};

/// One PE, powers of two and none at the fast width; fewer where lanes are told apart. `./check --full` has all numbers at all widths.
const SHAPES: [Shape; 8] = [(1, 1), (1, 2), (1, 4), (1, 5), (1, 7), (4, 3), (32, 2), (32, 5)];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            threads(conformance::$family, &SHAPES);
        }
    )*};
}

families! { rma signals ordering atomics teams groups lanes shared matrix moe arithmetic bulk direct collectives in_kernel norm streams buffers prints }

#[test]
fn large_teams() {
    threads(conformance::large_teams, &[(1, 9), (1, 16), (4, 11)]);
}
