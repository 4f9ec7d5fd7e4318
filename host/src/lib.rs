//! GPU-initiated PGAS communication in Rust: symmetric heap, device-side put/get/signals, in-kernel collectives.
//!
//! A job is a number of PEs, as threads or as processes. Each has a [`World`], allocates symmetric objects with it, and
//! launches kernels. A kernel moves data between PEs and signals them by itself; the host waits for its end.
//!
//! ```
//! use congruent::device::{Group, Semaphore, Sym, kernels};
//! use congruent::{Error, Grid};
//!
//! kernels! {
//!     /// Each PE sends its number to the next one, with a signal that says so.
//!     pub fn pass_on(block, ctx, mine: Sym<u64>, theirs: Sym<u64>, arrived: Sym<Semaphore>) {
//!         let team = ctx.world();
//!         ctx.put_signal(block, theirs.at(team.next()), mine, arrived.at(team.next()).post());
//!         ctx.wait(block, arrived.from_rank(team.prev()), 1);
//!     }
//! }
//!
//! congruent::run(4, |world| {
//!     let (mine, theirs) = (world.alloc::<u64>(1)?, world.alloc::<u64>(1)?);
//!     let arrived = world.alloc::<Semaphore>(1)?;
//!     let (pe, npes) = (world.pe().index(), world.npes());
//!     mine.fill(pe as u64)?;
//!     let stream = world.stream()?;
//!     world.run(&stream, pass_on, Grid::one(32), (mine.view(), theirs.view(), arrived.view()))?;
//!     assert_eq!(theirs.to_vec()?, [((pe + npes - 1) % npes) as u64]);
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<_, Error>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | start PEs | [`run`] (what a launcher says, else threads), [`local`] (threads), [`World::builder`] |
//! | allocate | [`World::alloc`], [`SymVec`] |
//! | write kernels | [`device`]: [`Ctx`](device::Ctx) has every operation, [`kernels!`](device::kernels) declares them |
//! | use collectives in kernels | [`collectives`], [`World::plan`] |
//! | use collectives without a kernel | [`Comm`] |
//! | exchange tokens with experts of other PEs | [`collectives::moe`], [`World::moe`]; without a kernel: [`StreamBatch`] |
//! | launch | [`World::launch`], [`World::run`], [`World::synchronize`]; before any waits for another: [`World::load`]; again and again: [`World::capture`], [`Graph`]; how many blocks fit: [`World::occupancy`] |
//! | move data without a kernel | [`World::put`], [`World::get`], [`World::put_signal`], [`World::wait_at_least`] |
//! | use memory of this PE alone | [`World::buffer`], [`Buffer`], [`Lend`]; the host's, for copies: [`World::host_buffer`], [`World::copy`] |
//! | use another library's streams, events and memory | [`World::borrow_stream`], [`World::import_event`], [`Builder::contexts`], [`Lend`], [`World::borrow_raw_buffer`]; as symmetric objects: [`World::import`] |
//! | make teams | [`World::split`], [`World::strided_team`], [`World::listed_team`] |
//! | tune | [`tunables`]: each is an environment variable `CONGRUENT_*` |
//!
//! # Failure
//! Every wait of a kernel is bounded. One that passes its deadline ends its kernel, and [`World::synchronize`] returns who
//! waited where, for what, and from whom. A PE that fails, or whose program returns an error, ends the job: all PEs report the
//! same first reason.
//!
//! # Memory
//! Dropping a [`SymVec`] never communicates. Its memory is given out again when every PE has dropped it.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]

pub mod bootstrap;
mod buffer;
mod builder;
mod comm;
mod cpu;
mod cuda;
mod error;
mod event;
mod fault;
mod graph;
mod launch;
mod launch_error;
mod launches;
mod lines;
mod local;
mod machine;
mod moe;
mod objects;
mod occupancy;
mod plan;
#[doc(hidden)]
pub mod program;
mod proxy;
mod rings;
mod rma;
mod route;
mod runner;
pub mod select;
mod shared;
mod shared_memory;
mod sym_vec;
mod team;
pub mod trace;
pub mod tunables;
mod watch;
mod world;

pub use congruent_collectives as collectives;
pub use congruent_device as device;
pub use congruent_fused as fused;
pub use congruent_heap::HeapStats;
pub use congruent_kernels as fixed_kernels;
pub use congruent_moe_kernels as moe_kernels;
pub use congruent_sum_kernels as sum_kernels;
pub use cudarc;

pub use buffer::{Arguments, Buffer, BufferView, BufferViewMut, Chunked, Lend, Packed, Source, Target, Tiled};
pub use builder::Builder;
pub use comm::{
    CallGroup, CallMismatch, Comm, CommOptions, FixedArgs, FixedKernel, OpWith, OwnPreMulSum, Queue, STREAMS,
};
pub use cuda::{CudaError, CudaVersion, ImportError};
pub use error::{AccessError, AllocError, BuildError, CollectiveError, CommError, Error, GrowError, SplitError};
pub use event::Event;
pub use fault::{Fault, WorldFailure};
pub use graph::Graph;
pub use launch::{Grid, Stream};
pub use launch_error::LaunchError;
pub use lines::KernelLine;
pub use local::{local, run};
pub use machine::MachineKind;
pub use moe::{Answer, Moe, MoeError, RowsByExpert, StreamBatch};
pub use occupancy::Occupancy;
pub use plan::Plan;
pub use sym_vec::SymVec;
pub use team::Team;
pub use tunables::Tunables;
pub use watch::Traffic;
pub use world::{Memory, World};
