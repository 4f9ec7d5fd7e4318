//! The CPU: native instructions, under a [`Machine`] that the host provides.
//!
//! Accesses to symmetric memory are relaxed atomics of one word, or bulk copies by `asm!`. A bulk copy reads and writes
//! each byte as a relaxed atomic access of that byte would, several at once, which the hardware may do because relaxed
//! accesses to different bytes have no order; so it races with other accesses without undefined behaviour, and may tear.
#![allow(clippy::disallowed_types, reason = "this is the layer that gives atomics their meaning")]

use core::mem::MaybeUninit;
use core::sync::atomic::{self, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use congruent_heap::{Pod, bf16, f16};

use super::{Rmw, RmwInt, Share, Word};

/// What runs the lanes of a block on this CPU. The host's CPU machine implements it; kernel authors never meet it.
///
/// `lane` is the thread's index in its block throughout.
pub trait Machine {
    /// Waits for all lanes of the block, and tells whether any of them gave `true`. Lanes that have exited do not count.
    fn block_any(&self, lane: u32, flag: bool) -> bool;
    /// The same for the lane's warp.
    fn warp_any(&self, lane: u32, flag: bool) -> bool;
    /// Waits for all lanes of the block and gives each the value of lane 0.
    fn block_broadcast(&self, lane: u32, value: u64) -> u64;
    /// The same for the lane's warp and its first lane.
    fn warp_broadcast(&self, lane: u32, value: u64) -> u64;
    /// Passes the time while a poll sees nothing new: `turn` counts up, `word` is the low half of what is polled and `seen`
    /// what it held. Returns after a bounded time.
    fn pause(&self, lane: u32, turn: u32, word: *const u32, seen: u32);
    /// Wakes who sleeps in [`pause`](Machine::pause) on this word, in any process.
    fn wake(&self, word: *const u32);
    /// A clock that only grows, nanoseconds.
    fn now_ns(&self) -> u64;
    /// Ends this lane's kernel, by unwinding to the machine.
    fn exit(&self) -> !;
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
    pub(crate) fn block_sync(&self) {
        if self.threads > 1 {
            self.machine.block_any(self.thread, false);
        }
    }
    #[inline(always)]
    pub(crate) fn block_any(&self, flag: bool) -> bool {
        if self.threads > 1 { self.machine.block_any(self.thread, flag) } else { flag }
    }
    #[inline(always)]
    pub(crate) fn block_broadcast(&self, value: u64) -> u64 {
        if self.threads > 1 { self.machine.block_broadcast(self.thread, value) } else { value }
    }
    #[inline(always)]
    pub(crate) fn warp_sync(&self) {
        if self.warp > 1 {
            self.machine.warp_any(self.thread, false);
        }
    }
    #[inline(always)]
    pub(crate) fn warp_any(&self, flag: bool) -> bool {
        if self.warp > 1 { self.machine.warp_any(self.thread, flag) } else { flag }
    }
    #[inline(always)]
    pub(crate) fn warp_broadcast(&self, value: u64) -> u64 {
        if self.warp > 1 { self.machine.warp_broadcast(self.thread, value) } else { value }
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

    /// One turn of a poll of `word`, which held `seen`; true when it is time to look at the abort word and the clock.
    #[inline(always)]
    pub(crate) fn turn(&mut self, lane: &Lane<'_>, word: *const u64, seen: u64) -> bool {
        self.turn += 1;
        if self.turn < lane.spins {
            core::hint::spin_loop();
            return false;
        }
        // The futex word is the half that changes with every notify: the low one.
        let half = if cfg!(target_endian = "big") { 4 } else { 0 };
        lane.machine.pause(
            lane.thread,
            self.turn - lane.spins,
            word.cast::<u8>().wrapping_add(half).cast(),
            seen as u32,
        );
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
    // SAFETY: the caller's contract; the word is only accessed atomically.
    if unsafe { AtomicU32::from_ptr(sleepers) }.load(Ordering::Relaxed) != 0 {
        lane.machine.wake(word.cast());
    }
}

macro_rules! by_width {
    ($word:ty, $pointer:expr, |$atomic:ident, $as:ident| $access:expr) => {
        match size_of::<$word>() {
            1 => by_width!(@ AtomicU8, u8, $pointer, |$atomic, $as| $access),
            2 => by_width!(@ AtomicU16, u16, $pointer, |$atomic, $as| $access),
            4 => by_width!(@ AtomicU32, u32, $pointer, |$atomic, $as| $access),
            _ => by_width!(@ AtomicU64, u64, $pointer, |$atomic, $as| $access),
        }
    };
    (@ $type:ty, $int:ty, $pointer:expr, |$atomic:ident, $as:ident| $access:expr) => {{
        // SAFETY: the caller vouches that the word is mapped and aligned; it is only ever accessed atomically or by the
        // byte-wise atomic copies of this file (MM-1).
        let $atomic = unsafe { <$type>::from_ptr($pointer.cast()) };
        type $as = $int;
        $access
    }};
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn load<W: Word>(pointer: *const W) -> W {
    by_width!(W, pointer.cast_mut(), |atomic, Int| {
        let value: Int = atomic.load(Ordering::Relaxed);
        // SAFETY: W is the unsigned integer of this width (Word has no other implementor).
        unsafe { core::mem::transmute_copy(&value) }
    })
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn store<W: Word>(pointer: *mut W, value: W) {
    by_width!(W, pointer, |atomic, Int| {
        // SAFETY: W is the unsigned integer of this width (Word has no other implementor).
        let value: Int = unsafe { core::mem::transmute_copy(&value) };
        atomic.store(value, Ordering::Relaxed);
    });
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn load_acquire(pointer: *const u64) -> u64 {
    // SAFETY: the caller's contract; the word is only accessed atomically.
    unsafe { AtomicU64::from_ptr(pointer.cast_mut()) }.load(Ordering::Acquire)
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn store_release(pointer: *mut u64, value: u64) {
    // SAFETY: the caller's contract; the word is only accessed atomically.
    unsafe { AtomicU64::from_ptr(pointer) }.store(value, Ordering::Release);
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn add_release(pointer: *mut u64, value: u64) {
    // SAFETY: the caller's contract; the word is only accessed atomically.
    unsafe { AtomicU64::from_ptr(pointer) }.fetch_add(value, Ordering::Release);
}

/// # Safety
/// `pointer` is mapped memory, aligned.
pub(crate) unsafe fn claim(pointer: *mut u32, from: u32, to: u32) -> bool {
    // SAFETY: the caller's contract; the word is only accessed atomically.
    unsafe { AtomicU32::from_ptr(pointer) }.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

#[inline(always)]
pub(crate) fn fence() {
    atomic::fence(Ordering::AcqRel);
}

#[inline(always)]
pub(crate) fn fence_sc() {
    atomic::fence(Ordering::SeqCst);
}

macro_rules! rmw_integers {
    ($($int:ty, $atomic:ty;)*) => {$(
        impl Rmw for $int {
            rmw_integers!(@ $int, $atomic, fetch_add swap);
            #[inline(always)]
            unsafe fn add(pointer: *mut Self, value: Self) {
                // SAFETY: the trait's contract; the word is only accessed atomically.
                unsafe { <$atomic>::from_ptr(pointer) }.fetch_add(value, Ordering::Relaxed);
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                // SAFETY: the trait's contract; the word is only accessed atomically.
                let result = unsafe { <$atomic>::from_ptr(pointer) }
                    .compare_exchange(expected, new, Ordering::Relaxed, Ordering::Relaxed);
                result.unwrap_or_else(|seen| seen)
            }
        }
        impl RmwInt for $int {
            rmw_integers!(@ $int, $atomic, fetch_and fetch_or fetch_xor fetch_min fetch_max);
        }
    )*};
    (@ $int:ty, $atomic:ty, $($method:ident)*) => {$(
        #[inline(always)]
        unsafe fn $method(pointer: *mut Self, value: Self) -> Self {
            // SAFETY: the trait's contract; the word is only accessed atomically.
            unsafe { <$atomic>::from_ptr(pointer) }.$method(value, Ordering::Relaxed)
        }
    )*};
}

rmw_integers! { u32, AtomicU32; i32, AtomicI32; u64, AtomicU64; i64, AtomicI64; }

macro_rules! rmw_floats {
    ($($float:ty, $bits:ty, $atomic:ty;)*) => {$(
        impl Rmw for $float {
            #[inline(always)]
            unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self {
                // SAFETY: the trait's contract; a float is as wide and as aligned as its bits.
                let word = unsafe { <$atomic>::from_ptr(pointer.cast()) };
                let sum = |bits| Some((<$float>::from_bits(bits) + value).to_bits());
                let bits = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).unwrap_or_else(|seen| seen);
                <$float>::from_bits(bits)
            }
            #[inline(always)]
            unsafe fn add(pointer: *mut Self, value: Self) {
                // SAFETY: the same contract.
                unsafe { Self::fetch_add(pointer, value) };
            }
            #[inline(always)]
            unsafe fn swap(pointer: *mut Self, value: Self) -> Self {
                // SAFETY: the same contract; a float is as wide and as aligned as its bits.
                <$float>::from_bits(unsafe { <$bits as Rmw>::swap(pointer.cast(), value.to_bits()) })
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                let (expected, new) = (expected.to_bits(), new.to_bits());
                // SAFETY: the same contract; a float is as wide and as aligned as its bits.
                <$float>::from_bits(unsafe { <$bits as Rmw>::compare_exchange(pointer.cast(), expected, new) })
            }
        }
    )*};
}

rmw_floats! { f32, u32, AtomicU32; f64, u64, AtomicU64; }

/// Copies its share of `bytes` bytes.
///
/// # Safety
/// Both ranges are mapped; at least one is symmetric memory, the other that or memory of this thread's own.
#[inline(always)]
pub(crate) unsafe fn copy(share: Share, dst: *mut u8, src: *const u8, bytes: usize) {
    let (start, end) = part(share, bytes);
    // SAFETY: the caller's contract, for a part of the ranges.
    unsafe { copy_bytes(dst.add(start), src.add(start), end - start) };
}

/// Which bytes of `bytes` a lane handles: contiguous parts that start on cache lines.
#[inline(always)]
fn part(share: Share, bytes: usize) -> (usize, usize) {
    if share.size == 1 {
        return (0, bytes);
    }
    let each = bytes.div_ceil(share.size).next_multiple_of(64);
    ((share.rank * each).min(bytes), ((share.rank + 1) * each).min(bytes))
}

/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, bytes: usize) {
    if bytes == 8 && (dst as usize | src as usize).is_multiple_of(8) {
        // SAFETY: the caller's contract, and both are aligned.
        unsafe { store(dst.cast::<u64>(), load(src.cast::<u64>())) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { copy_many(dst, src, bytes) };
    }
}

/// Past this size a copy does not fit the caches near the core, and its destination need not be read first.
#[cfg(target_arch = "x86_64")]
const STREAM: usize = 2 << 20;

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_many(mut dst: *mut u8, mut src: *const u8, mut bytes: usize) {
    use core::arch::asm;
    // SAFETY: each block reads and writes only the two ranges, byte by byte or 16 at once (the file's heading argues why
    // that may race). The direction flag is clear by the ABI. The stores of one string instruction have no order among
    // themselves, but all come before every later store (Intel SDM vol. 3A, "Fast-String Operation and Out-of-Order
    // Stores"). Non-temporal stores are weakly ordered (vol. 1, "Caching of Temporal vs. Non-Temporal Data"); the sfence
    // puts them before every later store. So a release that follows covers both.
    unsafe {
        if bytes >= STREAM {
            let head = (dst as usize).wrapping_neg() % 64;
            asm!("rep movsb", inout("rcx") head => _, inout("rdi") dst, inout("rsi") src, options(nostack, preserves_flags));
            bytes -= head;
            let lines = bytes / 64 * 64;
            asm!(
                "2:",
                "movdqu {a}, [{s}]", "movdqu {b}, [{s} + 16]", "movdqu {c}, [{s} + 32]", "movdqu {e}, [{s} + 48]",
                "movntdq [{d}], {a}", "movntdq [{d} + 16], {b}", "movntdq [{d} + 32], {c}", "movntdq [{d} + 48], {e}",
                "add {s}, 64", "add {d}, 64", "sub {n}, 64",
                "jnz 2b",
                "sfence",
                s = inout(reg) src, d = inout(reg) dst, n = inout(reg) lines => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                options(nostack),
            );
            bytes %= 64;
        }
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") dst => _, inout("rsi") src => _, options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_many(dst: *mut u8, src: *const u8, bytes: usize) {
    let mut at = 0;
    if (dst as usize).abs_diff(src as usize).is_multiple_of(8) {
        let head = ((dst as usize).wrapping_neg() % 8).min(bytes);
        while at < head {
            // SAFETY: the caller's contract.
            unsafe { store(dst.add(at), load(src.add(at))) };
            at += 1;
        }
        while at + 8 <= bytes {
            // SAFETY: the caller's contract, and both are aligned now.
            unsafe { store(dst.add(at).cast::<u64>(), load(src.add(at).cast::<u64>())) };
            at += 8;
        }
    }
    while at < bytes {
        // SAFETY: the caller's contract.
        unsafe { store(dst.add(at), load(src.add(at))) };
        at += 1;
    }
}

/// Bytes that [`combine`] holds of one source at a time: they stay in the first-level cache.
const TILE: usize = 4096;

#[repr(align(64))]
struct Tile(MaybeUninit<[u8; TILE]>);

impl Tile {
    /// The first `count` elements, which the caller has filled.
    ///
    /// # Safety
    /// So many elements have been written and fit.
    #[inline(always)]
    unsafe fn elements<T: Pod>(&mut self, count: usize) -> &mut [T] {
        // SAFETY: the tile is 64-byte aligned, of its own, filled as the caller says; any bytes are a valid Pod.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<T>(), count) }
    }
}

/// Combines element `i` of every source with `op`, left to right, into element `i` of every destination.
///
/// Sources are brought into private tiles, so that `op` runs on plain memory and vectorises.
///
/// # Safety
/// Every range of `count` elements is mapped symmetric memory aligned for `T`, whose alignment is at most 64.
#[inline(always)]
pub(crate) unsafe fn combine<T: Pod, const D: usize, const S: usize>(
    share: Share,
    dst: [*mut T; D],
    src: [*const T; S],
    count: usize,
    op: &impl Fn(T, T) -> T,
) {
    const { assert!(S > 0 && size_of::<T>() <= TILE && align_of::<T>() <= 64) };
    let (mut tile, mut next) = (Tile(MaybeUninit::uninit()), Tile(MaybeUninit::uninit()));
    let step = TILE / size_of::<T>();
    let each = count.div_ceil(share.size).next_multiple_of(64);
    let (mut at, end) = ((share.rank * each).min(count), ((share.rank + 1) * each).min(count));
    while at < end {
        let n = step.min(end - at);
        let bytes = n * size_of::<T>();
        // SAFETY: the ranges are the caller's, `at + n <= count`, and a tile holds `n` elements.
        unsafe {
            copy_bytes(tile.0.as_mut_ptr().cast(), src[0].add(at).cast(), bytes);
            let sums = tile.elements::<T>(n);
            for source in &src[1..] {
                copy_bytes(next.0.as_mut_ptr().cast(), source.add(at).cast(), bytes);
                for (sum, &value) in sums.iter_mut().zip(next.elements::<T>(n).iter()) {
                    *sum = op(*sum, value);
                }
            }
            for destination in &dst {
                copy_bytes(destination.add(at).cast(), sums.as_ptr().cast(), bytes);
            }
        }
        at += n;
    }
}

/// Stores `value` into its share of `count` elements.
///
/// # Safety
/// The range is mapped symmetric memory aligned for `T`, whose alignment is at most 64.
#[inline(always)]
pub(crate) unsafe fn fill<T: Pod>(share: Share, dst: *mut T, count: usize, value: T) {
    const { assert!(size_of::<T>() <= TILE && align_of::<T>() <= 64) };
    let mut tile = Tile(MaybeUninit::zeroed());
    let step = (TILE / size_of::<T>()).min(count);
    // SAFETY: the tile is zeroed and holds `step` elements.
    unsafe { tile.elements::<T>(step) }.fill(value);
    let each = count.div_ceil(share.size).next_multiple_of(64);
    let (mut at, end) = ((share.rank * each).min(count), ((share.rank + 1) * each).min(count));
    while at < end {
        let n = step.min(end - at);
        // SAFETY: the range is the caller's and `at + n <= count`.
        unsafe { copy_bytes(dst.add(at).cast(), tile.0.as_ptr().cast(), n * size_of::<T>()) };
        at += n;
    }
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
    bf16::from_f32(value).to_bits()
}

/// Copies bytes between symmetric memory and memory of the host's own, or within symmetric memory.
///
/// # Safety
/// Both ranges are mapped; each is symmetric memory or the caller's own.
pub unsafe fn copy_bytes_for_host(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy_bytes(dst, src, bytes) }
}

/// Zeroes symmetric memory.
///
/// # Safety
/// The range is mapped symmetric memory.
pub unsafe fn zero_for_host(dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { fill(Share { rank: 0, size: 1 }, dst, bytes, 0) }
}
