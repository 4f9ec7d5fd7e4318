//! Arbitrary bytes on a control connection: `cargo +nightly fuzz run bootstrap_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| congruent::bootstrap::fuzz_decode(bytes));
