//! What kernel authors call: put, get, signals, atomics, waits and groups, on the CPU and as PTX.
//!
//! A kernel is a function over a [`Block`] and a [`Ctx`], declared in [`kernels!`]; its one body runs natively on the CPU
//! and, compiled by `congruent-build`, as PTX on a GPU. Remote memory is named by places (`sym.at(rank)`), never by
//! pointers, and every access to it is a relaxed access of words: programs that race see torn values, never broken
//! memory. Order comes from [`Ctx::notify`] and [`Ctx::wait`] alone; `docs/memory-model.md` numbers the rules that the
//! `# Ordering` headings here cite.
//!
//! ```
//! use congruent_device::{Group, Semaphore, Sym, kernels};
//!
//! kernels! {
//!     /// Two PEs bounce a counter.
//!     pub fn ping_pong(block, ctx, ball: Sym<u64>, turn: Sym<Semaphore>, rounds: u64) {
//!         let team = ctx.world();
//!         let (peer, first) = (team.next(), team.me().index() == 0);
//!         for _ in 0..rounds {
//!             if !first { ctx.wait(block, turn.from_rank(peer), 1); }
//!             if block.leader() { ctx.store(ball, 0, ctx.load(ball, 0) + 1); }
//!             block.sync();
//!             ctx.put_signal(block, ball.at(peer), ball, turn.at(peer).post());
//!             if first { ctx.wait(block, turn.from_rank(peer), 1); }
//!         }
//!     }
//! }
//! ```
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, link_llvm_intrinsics, abi_unadjusted),
    allow(internal_features)
)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

/// Methods that are functions of their own on a GPU, where kernels use them in many places: inlined, they would be most of every
/// kernel's text. They take few scalars, as others would travel through local memory.
macro_rules! outlined {
    ($($method:item)*) => {$(
        #[cfg_attr(target_arch = "nvptx64", inline(never))]
        #[cfg_attr(not(target_arch = "nvptx64"), inline(always), track_caller)]
        $method
    )*};
}

/// Does something for each number below a constant of at most 16. On a GPU in as many copies, and with no closure that is called: arrays
/// that are indexed by it stay in registers.
#[cfg(target_arch = "nvptx64")]
macro_rules! copies {
    ($i:ident in $n:ident => $each:expr) => {
        copies!($i in $n => $each; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident in $n:ident => $each:expr; $($number:literal)*) => {{
        const { assert!($n <= 16, "a fragment has at most 16 parts in a row or a column") };
        $(if $number < $n {
            let $i = $number;
            $each;
        })*
    }};
}
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! copies {
    ($i:ident in $n:ident => $each:expr) => {
        for $i in 0..$n {
            $each;
        }
    };
}

mod access;
mod any;
mod arch;
mod atomics;
mod buffer;
mod bulk;
mod ctx;
mod direct;
mod disagree;
mod end;
mod exchange;
mod float16;
mod float8;
mod group;
mod kept;
mod kernels;
mod lanes;
pub mod math;
pub mod matrix;
mod multicast;
mod multimem;
mod nic;
mod nonblocking;
mod operand;
mod order;
mod pack;
mod pause;
mod poll;
mod print;
mod proxy;
pub mod quantize;
mod reduce;
mod rma;
mod scan;
mod shared;
mod team;
mod wait;
mod watch;

pub use congruent_heap::{
    Awaited, Element, Fp8E4M3, Fp8E5M2, KernelArg, Locatable, NicWord, Node, Notify, NotifyOp, Pe, Place, Pod, Rank,
    Semaphore, Signal, Sym, Tag, TeamView, ValueAt, World, abi, bf16, f16, kernel_arg, team_tag,
};

#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub use arch::cpu;
pub use atomics::{Atomic, AtomicInteger};
pub use buffer::{Chunks, ChunksMut, Elements, Relaxed, Row, Rows, RowsMut, Slice, SliceMut, TileMut, Tiles, TilesMut};
#[doc(hidden)]
pub use bulk::Fold;
#[doc(hidden)]
pub use congruent_heap::refuse;
pub use ctx::Ctx;
pub use direct::Peer;
pub use disagree::Disagreement;
#[doc(hidden)]
pub use exchange::{Exchange, PerMember};
pub use float16::SmallFloat;
pub use group::{Block, Group, Strided, Thread, Warp};
#[doc(hidden)]
pub use kept::{Bound, Kept};
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub use kernels::enter;
pub use kernels::{Kernel, KernelArgs, Module};
#[doc(hidden)]
pub use kernels::{arrays_fit, bytes_of};
pub use lanes::{Lanes, Tile};
pub use multicast::Multicast;
pub use multimem::{MultimemOp, MultimemReduction, MultimemType};
pub use nonblocking::Nonblocking;
#[doc(hidden)]
pub use operand::{Apart, Operand, Operands, PACKETS, PLAIN, operands, packed_words};
pub use pack::Pack;
pub use print::Print;
#[doc(hidden)]
pub use print::{OpenLine, check_print};
pub use reduce::{
    AccumulateIn, Arithmetic, Avg, BitAnd, BitOr, BitXor, Datatype, HasDatatype, In, Integer, Max, MaxLoc, Min, MinLoc,
    Number, Op, PreMulSum, Prod, ReduceOp, Reducer, Reduction, Sum,
};
#[doc(hidden)]
pub use reduce::{Keep, is_named};
pub use shared::{
    Global, Shared, SharedAll, SharedArray, SharedArrays, SharedAtomic, SharedCells, SharedPart, SharedType,
};
pub use team::Team;
pub use wait::{TimedOut, Waitable};
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub use watch::Note;
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub use watch::whole;
pub use watch::{Mark, Span};

/// The same value, of which the compiler knows nothing: what follows from it is computed where it is needed, and not once before
/// a loop, to be kept in a register through all of it.
#[doc(hidden)]
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    arch::opaque(value)
}

/// [`opaque`] of 32 bits.
#[doc(hidden)]
#[inline(always)]
pub fn opaque_word(value: u32) -> u32 {
    arch::opaque_word(value)
}

/// A loop that compilers make vectors of. What it calls is inlined into it, so that it is compiled for registers of several widths; a
/// closure of its own would not be.
#[doc(hidden)]
pub trait Vectorized {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run(self);
}

/// Runs a loop by the widest vectors that the machine has.
#[doc(hidden)]
#[inline(always)]
pub fn vectorized(what: impl Vectorized) {
    arch::vectorized(what);
}

mod sealed {
    /// Keeps a trait to this crate's types.
    pub trait Sealed {}
}
