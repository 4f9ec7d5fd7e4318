//! GPU-initiated PGAS communication in Rust: symmetric heap, device-side put/get/signals, in-kernel collectives.

pub mod bootstrap;
mod shared_memory;
