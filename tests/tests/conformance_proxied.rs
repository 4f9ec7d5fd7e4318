//! The conformance suite with every peer reached through the proxy. The families that work on peers' memory directly
//! (`bulk`, `direct` and the ring's reductions) have no such route.

use congruent_tests::conformance::{self, Shape, proxied};

/// Few, because each PE has a proxy beside it and every message crosses threads.
const SHAPES: [Shape; 4] = [(1, 1), (1, 2), (1, 4), (4, 3)];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            proxied(conformance::$family, &SHAPES);
        }
    )*};
}

families! { rma signals ordering atomics teams groups moe streams }
