//! In-kernel collective algorithms: plain functions that a kernel calls on its own data, free of unsafe code.
//!
//! | algorithm | operations | bytes each PE sends | latency | when |
//! |---|---|---|---|---|
//! | [`ring`] | all-reduce | `2 (n-1)/n S` | `2 (n-1)` hops | large messages |
//! | [`ring`] | reduce-scatter, all-gather | `(n-1)/n S` | `n-1` hops | large messages |
//! | [`ring`] | broadcast | `S` (the last PE none) | `n-1` hops, pipelined | large messages |
//! | [`tree`] | all-reduce | up to `2 S` | `2 log2 n` hops, pipelined | medium to large messages, large teams |
//! | [`tree`] | broadcast, reduce | up to `2 S`, `S` | `log2 n` hops, pipelined | medium messages |
//! | [`recursive`] | all-reduce | `S log2 n`, or `2 (n-1)/n S` if long | `log2 n` or `2 log2 n` hops | small to medium messages |
//! | [`recursive`] | reduce-scatter, all-gather | `(n-1)/n S` | `log2 n` hops | small to medium messages |
//! | [`two_level`] | all-reduce, reduce-scatter, all-gather, all-to-all | between `h` hosts of `l` PEs, `2 (h-1)/h S/l`, or half of it | those of both levels | several hosts |
//! | [`bruck`] | all-to-all | `S/2 log2 n` | `log2 n` hops | small messages, large teams |
//! | [`exchange`] | all-to-all-v, all-gather-v | its parts | 2 meetings and 1 hop | always |
//! | [`multimem`] | all-reduce, reduce-scatter, all-gather, broadcast | `S/n` to `S` | 2 meetings and 1 hop | links that reduce |
//! | [`send_recv`] | sends and receives | what it sends | 2 hops each | always |
//! | [`norm`] | all-reduce, residual and RMSNorm | as all-reduce: in one shot, directly, by links | 1 hop, or 2 meetings and 1 hop | tensor parallelism |
//! | [`moe`] | dispatch and combine of tokens | each token once to each PE | 1 hop each | mixtures of experts |
//! | [`barrier`], `Ctx::barrier` | barrier | 8 bytes to each of up to 8 PEs, else to `log2 n` | 1 or `log2 n` hops | always |
//!
//! A kernel begins a session on a plan, and calls collectives on it, one after the other:
//!
//! ```
//! use congruent_collectives::{PlanView, Sum, ring};
//! use congruent_device::{Sym, kernels};
//!
//! kernels! {
//!     /// The sum over all PEs, and then every PE's part of it again at all.
//!     pub fn sum_up(block, ctx, dst: Sym<f32>, src: Sym<f32>, plan: PlanView) {
//!         let mut coll = plan.enter(block, ctx);
//!         ring::all_reduce(&mut coll, dst, src, Sum);
//!     }
//! }
//! ```
//!
//! The plan has the team, and the words that PEs signal each other on; the host makes it once, and its view is a kernel argument.
//! Nothing in it is ever reset, so a kernel is launched with it again and again.
//!
//! # Blocks
//! A collective is called by every block of the launch, with the same arguments, and the blocks share the work: when a
//! block returns, its [share](Share) of the result is there, and the whole of it when the kernel ends. A block that calls
//! one for itself says so with `plan.alone(slot)`; several blocks may then have several collectives in flight.
//!
//! # Members
//! All members call the same collective with the same lengths, operator and root, and with the same ranges of their heaps: members write
//! to each other's `dst`, and read each other's `src`, where their own is.
//!
//! # Order of summation
//! Each algorithm states the order in which it combines, and that order depends on the team and the length only: results
//! are the same for every number of blocks and threads, on every machine.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod agree;
pub mod bruck;
mod check;
mod descriptor;
pub mod direct;
pub mod exchange;
mod link;
pub mod moe;
pub mod multimem;
mod names;
mod node;
pub mod norm;
pub mod one_shot;
mod pairs;
mod plan;
pub mod recursive;
pub mod ring;
mod schedule;
mod scratch;
mod send_recv;
mod session;
mod share;
mod step;
mod transfers;
pub mod tree;
pub mod two_level;
mod word;

pub use agree::{Description, agree, barrier};
pub use congruent_device::{
    AccumulateIn, Arithmetic, Avg, BitAnd, BitOr, BitXor, Datatype, HasDatatype, In, Integer, Max, MaxLoc, Min, MinLoc,
    Number, Op, PreMulSum, Prod, ReduceOp, Reducer, Reduction, Sum,
};
pub use descriptor::{Descriptor, Members, Sizes, Work};
pub use exchange::Parts;
pub use names::{Algorithm, Collective, Operation, Protocol};
pub use plan::{Layout, Needs, PlanView, Shape};
pub use schedule::{Call, Move, Schedule};
pub use send_recv::send_recv;
pub use session::Coll;
pub use share::Share;
pub use transfers::{Listed, Transfer};
pub use word::PlanWord;
