//! Criterion benches and the comparison against other libraries.
