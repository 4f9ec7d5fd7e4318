//! Criterion benches and the comparison against other libraries.
//!
//! The comparison (`cargo run --release -p congruent-benches --bin compare`) runs the same works with every [`peer`],
//! each in processes of its own on the same two cores, and holds our times to what [`requirement`] asks. It also holds what the
//! selector chooses to the best of its [`candidates`], what kernels [`compute`] to plain Rust, what is [`fused`] to the same apart, and says
//! what [`checked`] calls and [`proxied`] puts cost.
#![forbid(unsafe_code)]

pub mod candidates;
pub mod checked;
mod collective;
pub mod compute;
pub mod fused;
mod gathered;
pub mod ours;
pub mod peer;
pub mod proxied;
pub mod requirement;
pub mod roofline;
pub mod sample;
pub mod table;
pub mod threads;
mod tokens;
