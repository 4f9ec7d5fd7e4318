//! The conformance suite with every peer reached through the proxy by an RDMA device, PEs as processes of a virtual machine. The families
//! are those of `conformance_proxied.rs`. Some run on two virtual machines, too, with several PEs each, where those of one machine reach each
//! other by loads and stores.

use congruent_tests::conformance::{self, Shape, verbs, verbs_hosts};

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

macro_rules! families_of_two_hosts {
    ($($test:ident: $family:ident, $each:literal $(, $ignored:meta)?;)*) => {$(
        #[test]
        $(#[$ignored])?
        fn $test() {
            verbs_hosts(stringify!($test), conformance::$family, $each);
        }
    )*};
}

families_of_two_hosts! {
    signals_of_two_hosts: signals, 2;
    streams_of_two_hosts: streams, 1;
    rma_of_two_hosts: rma, 1, ignore = "takes long: ./check --full runs it";
    ordering_of_two_hosts: ordering, 2, ignore = "takes long: ./check --full runs it";
    atomics_of_two_hosts: atomics, 2, ignore = "takes long: ./check --full runs it";
    teams_of_two_hosts: teams, 2, ignore = "takes long: ./check --full runs it";
    groups_of_two_hosts: groups, 2, ignore = "takes long: ./check --full runs it";
}
