//! The conformance suite with every peer reached through the proxy, over a network that delays, reorders, duplicates, loses and
//! fails, by seeds. The families are those of `conformance_proxied.rs`.

use congruent_tests::conformance::{self, faulty};

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            faulty(stringify!($family), conformance::$family);
        }
    )*};
}

families! { rma signals ordering atomics teams groups moe streams }
