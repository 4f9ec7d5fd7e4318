//! Device functions in which computation and communication overlap: what a kernel calls with all of its blocks, and what it is made of.
//!
//! | module | what it computes | what travels meanwhile |
//! |---|---|---|
//! | [`gemm`] | a product of matrices, by tiles | nothing: the others are made of it |
#![no_std]

pub mod gemm;
