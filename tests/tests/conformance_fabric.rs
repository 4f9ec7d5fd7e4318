//! The conformance suite with every peer reached through the proxy by libfabric, PEs as processes. The families are those of
//! `conformance_proxied.rs`.

use congruent_tests::conformance::{self, Shape, fabric, fabric_by};

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

macro_rules! families_of_providers {
    ($($test:ident: $family:ident, $provider:literal $(, $ignored:meta)?;)*) => {$(
        #[test]
        $(#[$ignored])?
        fn $test() {
            fabric_by($provider, stringify!($test), conformance::$family, &SHAPES[..1]);
        }
    )*};
}

// Others than tcp's, with addresses of other kinds and datagrams below: what is asked of providers is nothing of one's own.
families_of_providers! {
    rma_by_datagrams: rma, "udp;ofi_rxd";
    signals_by_shared_memory: signals, "shm";
    signals_by_sockets: signals, "sockets";
    rma_by_sockets: rma, "sockets", ignore = "takes long: ./check --full runs it";
    signals_by_datagrams: signals, "udp;ofi_rxd", ignore = "takes long: ./check --full runs it";
    rma_by_shared_memory: rma, "shm", ignore = "takes long: ./check --full runs it";
}
