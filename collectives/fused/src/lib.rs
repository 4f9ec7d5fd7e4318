//! Device functions in which computation and communication overlap: what a kernel calls with all of its blocks, and what it is made of.
//!
//! | module | what it computes | what travels meanwhile |
//! |---|---|---|
//! | [`gemm`] | a product of matrices, by tiles | nothing: the others are made of it |
//! | [`gather_gemm`] | the product of all PEs' rows | rows to all PEs |
//! | [`gemm_scatter`] | a product of which each PE has a part of every sum | tiles to the PE that sums them, and sums to all PEs |
//! | [`attention`] | attention of a query to keys, by a thread or by a block | nothing: the others are made of it |
//! | [`ring_attention`] | attention over a sequence that is divided among PEs | keys and values around the ring |
//! | [`flash_decode`] | attention of one query in each head to keys on all PEs | partial answers to the PE that has the head |
//! | [`experts`] | experts of a mixture, of two layers | answers that are whole |
//! | [`pages`] | what the kernel likes, layer by layer | pages of keys and values to the PE that needs them |
//! | [`gather_rows`] | what the kernel likes, bag by bag | rows of a table that is spread over the PEs |
//! | [`histogram`] | counts of keys, first in each block | additions to bins that are spread over the PEs |
//! | [`sparse`] | a sparse matrix times a vector | numbers of the vector to the PEs that need them |
//!
//! Memory of a function is in a struct that is a kernel argument; the host allocates it once, and no call resets anything. Whatever several
//! PEs call together is called with the same arguments but for what each PE has of its own, once in a launch, and in as many blocks on each
//! PE. Launches with the same memory are on one stream, or in order by events.
//!
//! Updates of a table that is spread over the PEs, and stages of a pipeline, are one call of `Ctx` each, [`xor`](congruent_device::Ctx::xor) and
//! [`put_signal`](congruent_device::Ctx::put_signal), and have no function here: the examples `gups` and `pipeline` are the whole of them.
#![no_std]

pub mod attention;
pub mod experts;
pub mod flash_decode;
pub mod gather_gemm;
pub mod gather_rows;
pub mod gemm;
pub mod gemm_scatter;
pub mod histogram;
pub mod pages;
pub mod ring_attention;
pub mod sparse;
