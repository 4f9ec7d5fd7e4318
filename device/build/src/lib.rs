//! Compiles a kernels crate to PTX.
