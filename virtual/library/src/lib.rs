//! The virtual driver as a C library: put where the dynamic loader finds it first, it is what a program loads as `libcuda.so.1`.

pub use congruent_virtual_driver::*;
