//! The CPU: native instructions, under a [`Machine`] that the host provides.
//!
//! Accesses to symmetric memory are `asm!`: of one word (`single.rs`), or in bulk (`bulk.rs`). A bulk copy reads and writes
//! each byte as a relaxed atomic access of that byte would, several at once, which the hardware may do because relaxed
//! accesses to different bytes have no order; so it races with other accesses without undefined behaviour, and may tear.

use core::ops::Range;
use core::panic::Location;
use core::sync::atomic::{self, Ordering};

use congruent_heap::f16;

use crate::Note;
use crate::arch::Word;
use crate::poll::Polled;

mod bulk;
mod exchange;
mod fold;
#[cfg(target_arch = "x86_64")]
mod fused;
mod lanes;
mod math;
mod matrix;
mod multimem;
mod shared;
mod single;

#[cfg(any(
    not(target_os = "linux"),
    not(target_endian = "little"),
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
compile_error!("kernels run on Linux on x86-64, on Linux on aarch64 (little-endian), and on NVIDIA GPUs (nvptx64)");
#[cfg(miri)]
compile_error!("Miri cannot run kernels: they reach symmetric memory by assembly (docs/memory-model.md)");

pub(crate) use bulk::{copy, fill};
pub use bulk::{copy_bytes_for_host, zero_for_host};
pub(crate) use exchange::{receive, receive_parts, receive_reduction, send};
pub(crate) use fold::{fold, fold_reduction, transfer};
#[cfg(target_arch = "x86_64")]
pub(crate) use fused::vectorized;
pub(crate) use lanes::{MOST_LANES, bound};
pub(crate) use math::{approx, between, fma32, fma64, multiply_add, sqrt32, sqrt64};
pub(crate) use matrix::{
    PartA, PartB, PartC, convergent, fill_c, in_whole_warp, load_a, load_b, load_b2, map_c, mma, part_a, part_b,
    store_c, warps_of,
};
pub(crate) use multimem::{MULTICAST, multicast_all_reduce, multicast_put, multicast_reduce};
pub use shared::{Room, SharedAt};
pub(crate) use shared::{SharedAdd, copies_done, copy_later, is_global, room, shared_load, shared_store, stage_done};
pub(crate) use single::{Wide, add_release, claim, load, load_acquire, load_wide, store, store_release, store_wide};
pub use single::{add_for_host, compare_exchange_for_host, load_for_host, store_for_host, store_release_for_host};

/// Where in the program lanes meet.
pub type At = &'static Location<'static>;

/// What runs the lanes of a block on this CPU. The host's CPU machine implements it; kernel authors never meet it.
///
/// `lane` is the thread's index in its block throughout, and `at` where in the program it is.
pub trait Machine {
    /// Waits for all lanes of the block, and tells whether any of them gave `true`. Lanes that have exited do not count.
    fn block_any(&self, lane: u32, flag: bool, at: At) -> bool;
    /// The same for the lane's warp.
    fn warp_any(&self, lane: u32, flag: bool, at: At) -> bool;
    /// Waits for all lanes of the block and gives each the value of lane 0.
    fn block_broadcast(&self, lane: u32, value: u64, at: At) -> u64;
    /// The same for the lane's warp and its first lane.
    fn warp_broadcast(&self, lane: u32, value: u64, at: At) -> u64;
    /// Waits for these lanes of the block, which are all of it, or of one warp, and shows `see` once what each of them gave; nothing of
    /// those that have left.
    fn gather(&self, lane: u32, lanes: Range<u32>, word: u128, at: At, see: &mut dyn FnMut(&[Option<u128>]));
    /// Passes the time while a poll sees nothing new: `turn` counts up, `word` is the low half of what is polled and `seen`
    /// what it held. Returns after a bounded time.
    ///
    /// # Safety
    /// The word is mapped symmetric memory, aligned, or a word that host and kernels share.
    unsafe fn pause(&self, lane: u32, turn: u32, word: *const u32, seen: u32);
    /// Lets the block's other lanes have their turn, and other threads the core.
    fn pass(&self, lane: u32);
    /// Wakes who sleeps in [`pause`](Machine::pause) on this word, in any process.
    ///
    /// # Safety
    /// As for [`pause`](Machine::pause).
    unsafe fn wake(&self, word: *const u32);
    /// A clock that only grows, nanoseconds.
    fn now_ns(&self) -> u64;
    /// Ends this lane's kernel, by unwinding to the machine.
    fn exit(&self) -> !;
    /// Hears how far the block is and what it moved, where its lanes are `watched`.
    fn note(&self, note: Note);
}

/// Thread `rank` of `size` has some of so many elements in a row, which the compiler makes vectors of: from, step, end.
#[inline(always)]
pub(crate) fn divide(len: usize, rank: usize, size: usize) -> (usize, usize, usize) {
    let each = len.div_ceil(size);
    let start = (rank * each).min(len);
    (start, 1, (start + each).min(len))
}

/// Each turn of a loop over `T` says so. The compiler would gather vectors from several `T` that are vectors by themselves, but not around
/// a fence; it takes two turns together instead. The fence is for the compiler alone, and orders nothing that would be elsewhere without.
#[inline(always)]
pub(crate) fn turn<T>() {
    if size_of::<T>() == 16 {
        atomic::compiler_fence(Ordering::Release);
    }
}

/// Which lane this is, and its machine.
#[derive(Clone, Copy)]
pub struct Lane<'m> {
    /// Index in the block.
    pub thread: u32,
    /// Threads in the block.
    pub threads: u32,
    /// Threads in a warp.
    pub warp: u32,
    /// Index of the block in the launch.
    pub block: u32,
    /// Blocks in the launch.
    pub blocks: u32,
    /// How often a poll looks before it asks the machine to pause.
    pub spins: u32,
    /// Whether the machine wants to hear notes.
    pub watched: bool,
    /// The block's shared memory.
    pub room: Room,
    /// What runs the lanes.
    pub machine: &'m dyn Machine,
}

impl Lane<'_> {
    #[inline(always)]
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }
    #[inline(always)]
    pub(crate) fn threads(&self) -> u32 {
        self.threads
    }
    #[inline(always)]
    pub(crate) fn warp_size(&self) -> u32 {
        self.warp
    }
    #[inline(always)]
    pub(crate) fn block(&self) -> u32 {
        self.block
    }
    #[inline(always)]
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn block_sync(&self) {
        if self.threads > 1 {
            self.machine.block_any(self.thread, false, Location::caller());
        }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn block_any(&self, flag: bool) -> bool {
        if self.threads > 1 { self.machine.block_any(self.thread, flag, Location::caller()) } else { flag }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn block_broadcast(&self, value: u64) -> u64 {
        if self.threads > 1 { self.machine.block_broadcast(self.thread, value, Location::caller()) } else { value }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn warp_sync(&self) {
        if self.warp > 1 {
            self.machine.warp_any(self.thread, false, Location::caller());
        }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn warp_any(&self, flag: bool) -> bool {
        if self.warp > 1 { self.machine.warp_any(self.thread, flag, Location::caller()) } else { flag }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn warp_broadcast(&self, value: u64) -> u64 {
        if self.warp > 1 { self.machine.warp_broadcast(self.thread, value, Location::caller()) } else { value }
    }
    #[inline(always)]
    #[track_caller]
    pub(crate) fn warp_uniform(&self, value: u64) -> u64 {
        self.warp_broadcast(value)
    }
    #[inline(always)]
    pub(crate) fn pass(&self) {
        self.machine.pass(self.thread);
    }
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.machine.now_ns()
    }
    #[cold]
    pub(crate) fn exit(&self) -> ! {
        self.machine.exit()
    }
}

/// How a poll passes the time: it spins while an answer from another core may be on its way, then leaves the core to
/// others through the machine.
pub(crate) struct Backoff {
    turn: u32,
}

impl Backoff {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { turn: 0 }
    }

    /// Whether the next turn looks at what the word held.
    #[inline(always)]
    pub(crate) fn asks_for_word(&self) -> bool {
        true
    }

    /// One turn of a poll of `word`, which held `seen`; true when it is time to look at the abort word and the clock.
    #[inline(always)]
    pub(crate) fn turn<W: Word>(&mut self, lane: &Lane<'_>, word: Polled<W>, seen: u64) -> bool {
        self.turn += 1;
        if self.turn < lane.spins {
            core::hint::spin_loop();
            return false;
        }
        // Sleeps are on 4 bytes. Of 8, the half that changes with every notify is the low one, which comes first.
        let bytes = word.as_ptr().cast::<u8>();
        let whole = bytes.wrapping_sub(bytes.addr() % 4).cast::<u32>();
        // SAFETY: a word that may be polled, and with it the 4 bytes that it is in, as heaps begin and end at multiples of more.
        unsafe {
            let seen = if size_of::<W>() < 4 { load(whole) } else { seen as u32 };
            lane.machine.pause(lane.thread, self.turn - lane.spins, whole, seen);
        }
        true
    }
}

/// Wakes the sleepers on `word` if the PE that owns it has any.
///
/// The two relaxed accesses (the notify before this, the count here) are not ordered, so a waiter that goes to sleep in
/// between can be missed; every sleep is short and bounded, so a miss costs at most one of them.
///
/// # Safety
/// `sleepers` is the address of a PE's count of sleepers, `word` an aligned word on its heap.
#[inline(always)]
pub(crate) unsafe fn wake(lane: &Lane<'_>, sleepers: *mut u32, word: *mut u64) {
    // SAFETY: the caller's contract.
    unsafe {
        if load(sleepers) != 0 {
            lane.machine.wake(word.cast());
        }
    }
}

/// Vectors are what the processor always has.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn vectorized(what: impl crate::Vectorized) {
    what.run();
}

/// What the registers have no room for is on the stack, which is near.
#[inline(always)]
pub(crate) fn opaque(value: u64) -> u64 {
    value
}

/// The same.
#[inline(always)]
pub(crate) fn opaque_word(value: u32) -> u32 {
    value
}

#[inline(always)]
pub(crate) fn fence() {
    atomic::fence(Ordering::AcqRel);
}

#[inline(always)]
pub(crate) fn fence_sc() {
    atomic::fence(Ordering::SeqCst);
}

#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

#[inline(always)]
pub(crate) fn f16_from_f32(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

#[inline(always)]
pub(crate) fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    // To nearest, of two as near to the even one. Without a branch, so that compilers do several at a time.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { nearest }) as u16
}
