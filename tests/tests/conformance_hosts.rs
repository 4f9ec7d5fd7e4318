//! The conformance suite on two hosts, each of which is a network namespace, joined by a pair of virtual Ethernet devices. PEs of one
//! host reach each other by loads and stores, those of the other by libfabric. The families are those of `conformance_proxied.rs`.

use congruent_tests::conformance::{self, hosts};

/// PEs of each host, of one lane.
const PES: [usize; 2] = [1, 2];

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            hosts(stringify!($family), conformance::$family, &PES);
        }
    )*};
}

families! { signals ordering atomics teams groups streams }

/// Two PEs or three on each host; with one there are no levels.
#[test]
fn levels() {
    hosts("levels", conformance::levels, &[2, 3, 1]);
}

/// Its many small operations take a round trip each.
#[test]
fn rma() {
    hosts("rma", conformance::rma, &PES[..1]);
}
