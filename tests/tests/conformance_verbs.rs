//! The conformance suite with every peer reached through the proxy by an RDMA device, PEs as processes of a virtual machine. The families
//! are those of `conformance_proxied.rs`.

use congruent_tests::conformance::{self, Shape, verbs};

/// Few, because an emulated processor does all of it.
const SHAPES: [Shape; 1] = [(1, 2)];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            verbs(stringify!($family), conformance::$family, &SHAPES);
        }
    )*};
}

families! { rma signals ordering atomics teams groups streams }
