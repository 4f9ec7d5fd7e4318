//! The conformance suite on the CPU machine, PEs as processes.

use congruent_tests::conformance::{self, Shape, processes};

/// Every number of PEs and every width.
const SHAPES: [Shape; 8] = [(1, 1), (1, 2), (1, 7), (4, 3), (4, 6), (32, 4), (32, 5), (1, 8)];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            processes(stringify!($family), conformance::$family, &SHAPES);
        }
    )*};
}

families! { rma signals ordering atomics teams groups moe bulk direct collectives in_kernel norm streams buffers }

#[test]
fn large_teams() {
    processes("large_teams", conformance::large_teams, &[(1, 10)]);
}
