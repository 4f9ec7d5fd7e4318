//! The one place that knows a machine: every intrinsic, every `asm!`, every atomic access to symmetric memory.
//!
//! Two implementations with the same items: `nvptx` (PTX by inline assembly and LLVM intrinsics) and `cpu` (native
//! instructions; blocks and lanes are made by the host's CPU machine through [`Machine`](cpu::Machine)). To add a machine,
//! give these:
//!
//! | item | what it must do |
//! |---|---|
//! | `Lane` | who runs: thread, block, their counts; syncs, votes and broadcasts of block and warp; shuffles, votes and matches of the lanes of a tile; what the warps of a block give; exit; clock |
//! | `MOST_LANES`, `bound` | the most lanes of a warp; how many lanes a loop over the lanes of a tile is for |
//! | `Room`, `SharedAt`, `room`, `shared_load`, `shared_store`, `SharedAdd` | the block's shared memory, where an array of it begins, and accesses of elements |
//! | `copy_later`, `copies_done`, `stage_done`, `is_global` | copies from global to shared memory that go on by themselves |
//! | `PartA`, `PartB`, `PartC`, `part_a`, `part_b`, `load_a`, `load_b`, `load_b2`, `fill_c`, `map_c`, `store_c`, `mma` | a lane's shares of matrices, and what is done with them |
//! | `convergent` | stands before assembly that a whole warp runs together |
//! | `in_whole_warp`, `warps_of` | a lane's index in a warp that has all lanes, and how many warps a block of known size has |
//! | `fma32`, `fma64`, `sqrt32`, `sqrt64`, `multiply_add`, `between`, `approx` | arithmetic that has instructions, exact and not |
//! | `E4M3`, `E5M2` | 8-bit floats to and from `f32`; `fp8` has them for machines without instructions |
//! | `load`, `store` | one relaxed system-scope access of 1, 2, 4 or 8 bytes that never tears |
//! | `load_wide`, `store_wide` | two words of 8 bytes where 16 bytes begin, in no order, as a `Wide`: what a CPU computes with |
//! | `load_acquire` | a load of 1, 2, 4 or 8 bytes with acquire at system scope |
//! | `store_release`, `add_release` | a store and an addition of 8 bytes with release at system scope |
//! | `fence`, `fence_sc` | acquire-release and sequentially consistent fences at system scope |
//! | `Rmw`, `RmwInt` | relaxed system-scope read-modify-write of 4 and 8 bytes; of 16-bit floats `Rmw` |
//! | `copy`, `fill`, `fold`, `fold_reduction`, `transfer` | bulk accesses by a group; bytes may tear, memory may not |
//! | `send`, `receive`, `receive_parts`, `receive_reduction` | exchanges in packets by a group |
//! | `MULTICAST`, `multicast_put`, `multicast_reduce`, `multicast_all_reduce` | whether kernels have stores to all members of a team and reductions over them; those |
//! | `Backoff` | how a poll passes the time, and when it looks at the clock |
//! | `opaque`, `opaque_word` | the same value, of which the compiler knows nothing, where registers are few (decision 16) |
//! | `divide`, `turn` | which indices each of so many threads has of a plain loop, and what each of its turns says |
//! | `vectorized` | runs a loop by the widest vectors that there are |
//! | `wake` | wakes who sleeps on a word, where waiters sleep at all |

use core::iter::from_fn;
use core::ops::Range;

use congruent_heap::Element;

#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use cpu::*;

#[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_89", target_feature = "ptx81")))]
mod fp8;
#[cfg(all(test, not(target_arch = "nvptx64")))]
mod like_gpu;
#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub(crate) use nvptx::*;

#[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_89", target_feature = "ptx81")))]
pub(crate) use fp8::{E4M3, E5M2};

/// An unsigned integer that one instruction moves.
pub(crate) trait Word: Element + PartialEq + Into<u64> {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for u64 {}

/// Whose value a shuffle gives a lane.
#[derive(Clone, Copy)]
pub(crate) enum Shuffle {
    Index,
    Up,
    Down,
    Xor,
}

/// What part of a bulk operation a thread does: thread `rank` of `size`.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// Relaxed read-modify-write at system scope; the pointers are mapped symmetric memory, aligned.
pub(crate) trait Rmw: Sized {
    unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self;
    #[inline(always)]
    unsafe fn add(pointer: *mut Self, value: Self) {
        // SAFETY: the same contract.
        unsafe { Self::fetch_add(pointer, value) };
    }
    unsafe fn swap(pointer: *mut Self, value: Self) -> Self;
    unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self;
}

/// What gives no old value, for machines to do better.
macro_rules! without_old {
    ($($name:ident $fetch:ident),*) => {$(
        #[inline(always)]
        unsafe fn $name(pointer: *mut Self, value: Self) {
            // SAFETY: the same contract.
            unsafe { Self::$fetch(pointer, value) };
        }
    )*};
}

/// The same, for integers.
pub(crate) trait RmwInt: Rmw {
    unsafe fn fetch_and(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_or(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_xor(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_min(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_max(pointer: *mut Self, value: Self) -> Self;
    without_old! { and fetch_and, or fetch_or, xor fetch_xor, min fetch_min, max fetch_max }
}

/// An object on all members of a team at once, resolved: mapped symmetric memory.
pub(crate) trait Replicas {
    /// Its multicast address.
    #[cfg(target_arch = "nvptx64")]
    #[cfg_attr(not(target_feature = "sm_90"), expect(dead_code, reason = "older GPUs have no multicast"))]
    fn address(&self) -> *mut u8;
    /// How many members.
    #[cfg(not(target_arch = "nvptx64"))]
    fn count(&self) -> usize;
    /// Its address on member `i`.
    #[cfg(not(target_arch = "nvptx64"))]
    fn replica(&self, i: usize) -> *mut u8;
}

/// These numbers, of which the compiler does not see how many: a loop of accesses that it unrolled would be several times as long and no
/// faster, for what it waits for is memory.
#[inline(always)]
pub(crate) fn each(range: Range<usize>) -> impl Iterator<Item = usize> {
    let (mut next, end) = (range.start, range.end);
    from_fn(move || {
        let i = next;
        next = opaque(i as u64 + 1) as usize;
        (i < end).then_some(i)
    })
}
