//! Virtual GPUs: executes PTX on the CPU.

pub mod alu;
