//! The conformance suite with every peer reached through the proxy by libfabric, PEs as processes. The families are those of
//! `conformance_proxied.rs`.

use congruent_tests::conformance::{self, Shape, fabric};

/// Few, because each PE has a proxy beside it that always polls.
const SHAPES: [Shape; 2] = [(1, 2), (4, 3)];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            fabric(stringify!($family), conformance::$family, &SHAPES);
        }
    )*};
}

families! { rma signals ordering atomics teams groups streams }
