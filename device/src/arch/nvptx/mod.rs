//! NVIDIA GPUs: PTX by inline assembly, convergent operations by LLVM intrinsics.
//!
//! rustc does not mark inline assembly as convergent, so LLVM may duplicate or sink it: barriers, votes and shuffles are
//! LLVM intrinsics and never assembly. Atomic read-modify-writes are assembly and never `core::sync::atomic`, which loses
//! order and system scope on this target (docs/memory-model.md, "Why not core atomics").

use core::arch::{asm, global_asm};
use core::marker::PhantomData;
use core::mem::transmute_copy;

use congruent_heap::abi;

use super::Word;
use crate::group::lanes_of_warp;

/// One instruction on global memory at a generic address.
macro_rules! on_global {
    ($instruction:expr, $address:expr, $($operands:tt)*) => {
        // SAFETY: the caller vouches that the address is mapped global memory, aligned to the access.
        unsafe {
            asm!(
                concat!("{{ .reg .b64 g; cvta.to.global.u64 g, {p}; ", $instruction, " }}"),
                p = in(reg64) $address, $($operands)*, options(nostack)
            )
        }
    };
}

mod bulk;
mod exchange;
mod fold;
#[cfg(all(target_feature = "sm_89", target_feature = "ptx81"))]
mod fp8;
mod lanes;
mod math;
mod matrix;
#[cfg(target_feature = "sm_90")]
mod multimem;
#[cfg(not(target_feature = "sm_90"))]
mod no_multimem;
mod rmw;
mod shared;
mod vectors;
mod wide;
mod words;

pub(crate) use bulk::{copy, fill};
pub(crate) use exchange::{receive, receive_parts, receive_reduction, send};
pub(crate) use fold::{fold, fold_reduction, transfer};
#[cfg(all(target_feature = "sm_89", target_feature = "ptx81"))]
pub(crate) use fp8::{E4M3, E5M2};
pub(crate) use lanes::{MOST_LANES, bound};
pub(crate) use math::{approx, between, fma32, fma64, multiply_add, sqrt32, sqrt64};
pub(crate) use matrix::{
    PartA, PartB, PartC, convergent, fill_c, in_whole_warp, load_a, load_b, load_b2, map_c, mma, part_a, part_b,
    store_c, warps_of,
};
#[cfg(target_feature = "sm_90")]
pub(crate) use multimem::{MULTICAST, multicast_all_reduce, multicast_put, multicast_reduce};
#[cfg(not(target_feature = "sm_90"))]
pub(crate) use no_multimem::{MULTICAST, multicast_all_reduce, multicast_put, multicast_reduce};
pub(crate) use shared::{
    Room, SharedAdd, SharedAt, copies_done, copy_later, is_global, room, shared_load, shared_store, stage_done,
};
pub(crate) use wide::{load_words, load_words as load_wide, store_words, store_words as store_wide};
use wide::{load16, store16};

/// What [`load_wide`] gives.
pub(crate) type Wide = [u64; 2];

#[allow(improper_ctypes, reason = "the unadjusted ABI of LLVM intrinsics takes i1 as bool")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_sync(id: i32);
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_or(id: i32, flag: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: i32);
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: i32, flag: bool) -> bool;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: i32, value: i32, lane: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"]
    fn tid() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.x"]
    fn ntid() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.x"]
    fn ctaid() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.nctaid.x"]
    fn nctaid() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.warpsize"]
    fn warpsize() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.globaltimer"]
    fn globaltimer() -> i64;
}

/// What a warp's first lane gives: in two halves, since there are no 64-bit shuffles.
///
/// # Safety
/// Every lane of the mask calls it that has not exited.
#[inline(always)]
unsafe fn first_lanes(mask: i32, value: u64) -> u64 {
    // SAFETY: as of this function.
    let (low, high) = unsafe { (shfl_idx(mask, value as i32, 0, 31), shfl_idx(mask, (value >> 32) as i32, 0, 31)) };
    u64::from(low as u32) | u64::from(high as u32) << 32
}

/// A thread has no vectors.
#[inline(always)]
pub(crate) fn vectorized(what: impl crate::Vectorized) {
    what.run();
}

/// The compiler takes the assembly for a computation with effects: it does not foresee the result, make one of two, or do it
/// before a loop instead of in it.
#[inline(always)]
pub(crate) fn opaque(mut value: u64) -> u64 {
    // SAFETY: does nothing.
    unsafe { asm!("/* {0} */", inout(reg64) value, options(nomem, nostack)) };
    value
}

/// The same of 32 bits, without a register of 64.
#[inline(always)]
pub(crate) fn opaque_word(mut value: u32) -> u32 {
    // SAFETY: does nothing.
    unsafe { asm!("/* {0} */", inout(reg32) value, options(nomem, nostack)) };
    value
}

/// The share of a thread of a block.
#[inline(always)]
fn block_share(ctx: &crate::Ctx<'_>) -> crate::arch::Share {
    crate::arch::Share { rank: ctx.lane.thread() as usize, size: ctx.lane.threads() as usize }
}

/// Thread `rank` of `size` has every `size`-th index from `rank` on, so that the threads of a warp access neighbours: from, step, end.
#[inline(always)]
pub(crate) const fn divide(len: usize, rank: usize, size: usize) -> (usize, usize, usize) {
    (rank, size, len)
}

/// Nothing gathers here.
#[inline(always)]
pub(crate) const fn turn<T>() {}

/// Which thread this is: asked of the hardware.
#[derive(Clone, Copy)]
pub struct Lane<'m>(PhantomData<&'m ()>);

impl Lane<'_> {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
    #[inline(always)]
    pub(crate) fn thread(&self) -> u32 {
        // SAFETY: reads a special register.
        unsafe { tid() as u32 }
    }
    #[inline(always)]
    pub(crate) fn threads(&self) -> u32 {
        // SAFETY: reads a special register.
        unsafe { ntid() as u32 }
    }
    #[inline(always)]
    pub(crate) fn warp_size(&self) -> u32 {
        // SAFETY: reads a special register.
        unsafe { warpsize() as u32 }
    }
    #[inline(always)]
    pub(crate) fn block(&self) -> u32 {
        // SAFETY: reads a special register.
        unsafe { ctaid() as u32 }
    }
    #[inline(always)]
    pub(crate) fn blocks(&self) -> u32 {
        // SAFETY: reads a special register.
        unsafe { nctaid() as u32 }
    }
    #[inline(always)]
    pub(crate) fn block_sync(&self) {
        // SAFETY: every thread of the block calls it, by the contract of a group, and those of a warp together (PTX ISA,
        // barrier{.cta}, .aligned), which the linter proves of shipped kernels; threads that have exited are not waited for (PTX ISA,
        // exit).
        unsafe { barrier_sync(0) }
    }
    #[inline(always)]
    pub(crate) fn block_any(&self, flag: bool) -> bool {
        // SAFETY: as block_sync.
        unsafe { barrier_or(0, flag) }
    }
    #[inline(always)]
    pub(crate) fn block_broadcast(&self, value: u64) -> u64 {
        let slot: u32;
        // SAFETY: declares eight bytes of shared memory of this call site's own and gives their address.
        unsafe {
            asm!("{{ .shared .align 8 .b8 slot[8]; mov.u32 {a}, slot; }}", a = out(reg32) slot, options(nostack))
        };
        if self.thread() == 0 {
            // SAFETY: the slot is shared memory of this block; the barriers order this store with the loads below.
            unsafe { asm!("st.shared.b64 [{a}], {v};", a = in(reg32) slot, v = in(reg64) value, options(nostack)) };
        }
        self.block_sync();
        let seen: u64;
        // SAFETY: as above.
        unsafe { asm!("ld.shared.b64 {v}, [{a}];", a = in(reg32) slot, v = out(reg64) seen, options(nostack)) };
        self.block_sync();
        seen
    }
    /// The lanes of this warp: not those that a block, whose threads are no multiple of a warp's, does not have. PTX lets a mask
    /// name lanes that have exited, and says nothing of lanes that never were.
    #[inline(always)]
    fn warp_mask(&self) -> i32 {
        (u32::MAX >> (32 - lanes_of_warp(self))) as i32
    }
    #[inline(always)]
    pub(crate) fn warp_sync(&self) {
        // SAFETY: every lane of the warp calls it, by the contract of a group.
        unsafe { bar_warp_sync(self.warp_mask()) }
    }
    #[inline(always)]
    pub(crate) fn warp_any(&self, flag: bool) -> bool {
        // SAFETY: every lane of the warp calls it, by the contract of a group.
        unsafe {
            bar_warp_sync(self.warp_mask());
            vote_any(self.warp_mask(), flag)
        }
    }
    #[inline(always)]
    pub(crate) fn warp_broadcast(&self, value: u64) -> u64 {
        // SAFETY: every lane of the warp calls it, by the contract of a group.
        unsafe {
            bar_warp_sync(self.warp_mask());
            first_lanes(self.warp_mask(), value)
        }
    }
    #[inline(always)]
    pub(crate) fn warp_uniform(&self, value: u64) -> u64 {
        // SAFETY: every lane of the warp calls it, by the contract of a group. Lanes that there are not are as those that have exited,
        // for which the mask may have bits (PTX ISA, shfl.sync).
        unsafe { first_lanes(-1, value) }
    }
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        // SAFETY: reads a special register.
        unsafe { globaltimer() as u64 }
    }
    /// The same for a span, whose mark says that no wait looks at the clock here (`host/src/cuda/patience.rs`).
    #[cfg(feature = "trace")]
    #[inline(always)]
    pub(crate) fn span_ns(&self) -> u64 {
        let now;
        // SAFETY: reads a special register. What it says of memory keeps the accesses of a span inside.
        unsafe { asm!("mov.u64 {}, %globaltimer; // span", out(reg64) now, options(nostack)) };
        now
    }
    /// Leaves the issue slots to other warps for about a tenth of a microsecond.
    #[inline(always)]
    pub(crate) fn pass(&self) {
        // SAFETY: suspends the thread for a bounded time (PTX ISA, nanosleep; sm_70 and later).
        unsafe { asm!("nanosleep.u32 100;", options(nostack)) }
    }
    #[cold]
    pub(crate) fn exit(&self) -> ! {
        // SAFETY: ends this thread; barriers no longer wait for it (PTX ISA, exit).
        unsafe { asm!("exit;", options(noreturn)) }
    }
}

/// How a poll passes the time: it keeps polling, and looks at the clock rarely.
pub(crate) struct Backoff {
    turn: u32,
}

impl Backoff {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { turn: 0 }
    }
    /// Whether the next turn looks at the clock, and at what the word held.
    #[inline(always)]
    pub(crate) fn asks_for_word(&self) -> bool {
        self.turn & 1023 == 1023
    }
    #[inline(always)]
    pub(crate) fn turn<W>(&mut self, _lane: &Lane<'_>, _word: crate::poll::Polled<W>, _seen: u64) -> bool {
        let looks = self.asks_for_word();
        self.turn = self.turn.wrapping_add(1);
        looks
    }
}

/// Nobody sleeps on a GPU's words.
#[inline(always)]
pub(crate) unsafe fn wake(_lane: &Lane<'_>, _sleepers: *mut u32, _word: *mut u64) {}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn load<W: Word>(pointer: *const W) -> W {
    let bits: u64 = match size_of::<W>() {
        1 => {
            let v: u16;
            on_global!("ld.relaxed.sys.global.u8 {v}, [g];", pointer, v = out(reg16) v);
            u64::from(v)
        }
        2 => {
            let v: u16;
            on_global!("ld.relaxed.sys.global.u16 {v}, [g];", pointer, v = out(reg16) v);
            u64::from(v)
        }
        4 => {
            let v: u32;
            on_global!("ld.relaxed.sys.global.u32 {v}, [g];", pointer, v = out(reg32) v);
            u64::from(v)
        }
        _ => {
            let v: u64;
            on_global!("ld.relaxed.sys.global.u64 {v}, [g];", pointer, v = out(reg64) v);
            v
        }
    };
    // SAFETY: W is an unsigned integer of at most 8 bytes, and this target is little-endian.
    unsafe { transmute_copy(&bits) }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn store<W: Word>(pointer: *mut W, value: W) {
    match size_of::<W>() {
        1 => {
            // SAFETY: W is u8.
            let v: u8 = unsafe { transmute_copy(&value) };
            on_global!("st.relaxed.sys.global.u8 [g], {v};", pointer, v = in(reg16) u16::from(v));
        }
        2 => {
            // SAFETY: W is u16.
            let v: u16 = unsafe { transmute_copy(&value) };
            on_global!("st.relaxed.sys.global.u16 [g], {v};", pointer, v = in(reg16) v);
        }
        4 => {
            // SAFETY: W is u32.
            let v: u32 = unsafe { transmute_copy(&value) };
            on_global!("st.relaxed.sys.global.u32 [g], {v};", pointer, v = in(reg32) v);
        }
        _ => {
            // SAFETY: W is u64.
            let v: u64 = unsafe { transmute_copy(&value) };
            on_global!("st.relaxed.sys.global.u64 [g], {v};", pointer, v = in(reg64) v);
        }
    }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn load_acquire<W: Word>(pointer: *const W) -> W {
    let bits: u64 = match size_of::<W>() {
        1 => {
            let v: u16;
            on_global!("ld.acquire.sys.global.u8 {v}, [g];", pointer, v = out(reg16) v);
            u64::from(v)
        }
        2 => {
            let v: u16;
            on_global!("ld.acquire.sys.global.u16 {v}, [g];", pointer, v = out(reg16) v);
            u64::from(v)
        }
        4 => {
            let v: u32;
            on_global!("ld.acquire.sys.global.u32 {v}, [g];", pointer, v = out(reg32) v);
            u64::from(v)
        }
        _ => {
            let v: u64;
            on_global!("ld.acquire.sys.global.u64 {v}, [g];", pointer, v = out(reg64) v);
            v
        }
    };
    // SAFETY: W is an unsigned integer of at most 8 bytes, and this target is little-endian.
    unsafe { transmute_copy(&bits) }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn store_release(pointer: *mut u64, value: u64) {
    on_global!("st.release.sys.global.u64 [g], {v};", pointer, v = in(reg64) value);
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn add_release(pointer: *mut u64, value: u64) {
    on_global!("red.release.sys.global.add.u64 [g], {v};", pointer, v = in(reg64) value);
}

/// # Safety
/// `pointer` is mapped memory, aligned.
pub(crate) unsafe fn claim(pointer: *mut u32, from: u32, to: u32) -> bool {
    let seen: u32;
    on_global!("atom.acq_rel.sys.global.cas.b32 {o}, [g], {e}, {n};", pointer, o = out(reg32) seen, e = in(reg32) from, n = in(reg32) to);
    seen == from
}

#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack)) }
}

#[inline(always)]
pub(crate) fn fence_sc() {
    // SAFETY: a fence.
    unsafe { asm!("fence.sc.sys;", options(nostack)) }
}

/// `cvt.f32.f16` and back, round to nearest even.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let value: f32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("cvt.f32.f16 {o}, {i};", o = out(reg32) value, i = in(reg16) bits, options(pure, nomem, nostack)) };
    value
}

#[inline(always)]
pub(crate) fn f16_from_f32(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16.f32 {o}, {i};", o = out(reg16) bits, i = in(reg32) value, options(pure, nomem, nostack))
    };
    bits
}

#[inline(always)]
pub(crate) fn bf16_from_f32(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16.f32 {o}, {i};", o = out(reg16) bits, i = in(reg32) value, options(pure, nomem, nostack))
    };
    bits
}

/// The address of a variable in shared memory.
macro_rules! shared {
    ($name:literal) => {{
        let address: u64;
        // SAFETY: computes the address of what is declared for the module.
        unsafe {
            asm!(
                concat!("{{ .reg .b64 s; mov.b64 s, ", $name, "; cvta.shared.u64 {a}, s; }}"),
                a = out(reg64) address, options(pure, nomem, nostack)
            )
        };
        core::ptr::with_exposed_provenance_mut(address as usize)
    }};
}

// One place for all kernels of a module.
global_asm!(
    ".shared .align 8 .b8 congruent_context[104];",
    ".shared .align 8 .b8 congruent_kept[640];",
    ".shared .align 8 .b64 congruent_in_session;"
);

/// Where the value lies that a block keeps.
#[inline(always)]
pub(crate) fn kept<T>() -> *mut T {
    const { assert!(size_of::<T>() <= 640 && align_of::<T>() <= 8) };
    shared!("congruent_kept")
}

/// Keeps what the host has told the launch where every function of the kernel finds it.
#[inline(always)]
pub(crate) fn keep(lane: &Lane<'_>, context: abi::Context) {
    if lane.thread() == 0 {
        // SAFETY: the block's shared memory has room for it, aligned; nobody reads it before the barrier or writes it after.
        unsafe {
            self::context().write(context);
            in_session().write(0);
        }
    }
    lane.block_sync();
}

/// Where it is.
#[inline(always)]
pub(crate) fn context() -> *mut abi::Context {
    shared!("congruent_context")
}

/// Whether the block keeps a session's state: not 0.
#[inline(always)]
pub(crate) fn in_session() -> *mut u64 {
    shared!("congruent_in_session")
}

/// A kernel that is given what it must refuse (an index out of bounds, say) leaves a fault, and ends as after a failed wait. Called by
/// `refuse!`, which is in a crate below this one.
#[unsafe(no_mangle)]
fn congruent_refused(why: &'static str) -> ! {
    // SAFETY: what refuses runs in a kernel.
    unsafe { crate::Ctx::of_kernel() }.panicked_at(why, None)
}

/// A panic of the program's own leaves a fault as well, with its place. What it says would have to be formatted, in a stack frame of
/// every kernel.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a panic is within a kernel.
    unsafe { crate::Ctx::of_kernel() }.panicked_at("its own code, or an impossible object", info.location())
}
