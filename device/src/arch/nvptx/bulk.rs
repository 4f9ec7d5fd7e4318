//! Bulk accesses on the GPU: copy and fill. Every access is relaxed at system scope.

use core::arch::asm;

use congruent_heap::Pod;

use super::{Word, load, store};
use crate::arch::Share;

/// Four words in one access. Each is a relaxed access of its own in the PTX model; their order is unspecified.
#[inline(always)]
pub(super) unsafe fn load16(pointer: *const u8) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    on_global!(
        "ld.relaxed.sys.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [g];",
        pointer, a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d
    );
    [a, b, c, d]
}

#[inline(always)]
pub(super) unsafe fn store16(pointer: *mut u8, [a, b, c, d]: [u32; 4]) {
    on_global!(
        "st.relaxed.sys.global.v4.b32 [g], {{{a}, {b}, {c}, {d}}};",
        pointer, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d
    );
}

/// Copies its share of `bytes` bytes. A function of its own: its loops outweigh a call, and inlined they would be much of
/// every kernel's text.
///
/// # Safety
/// Both ranges are mapped global memory.
#[inline(never)]
pub(crate) unsafe fn copy(share: Share, dst: *mut u8, src: *const u8, bytes: usize) {
    let apart = dst as usize ^ src as usize;
    // SAFETY: the caller's contract; each branch moves only what both addresses are aligned for.
    unsafe {
        if apart.is_multiple_of(16) {
            let head = ((dst as usize).wrapping_neg() % 16).min(bytes);
            let vectors = (bytes - head) / 16 * 16;
            copy_words::<u8>(share, dst, src, head);
            copy_vectors(share, dst.add(head), src.add(head), vectors);
            copy_words::<u8>(share, dst.add(head + vectors), src.add(head + vectors), bytes - head - vectors);
        } else if apart.is_multiple_of(4) && (dst as usize).is_multiple_of(4) {
            copy_words::<u32>(share, dst.cast(), src.cast(), bytes / 4);
            copy_words::<u8>(share, dst.add(bytes / 4 * 4), src.add(bytes / 4 * 4), bytes % 4);
        } else {
            copy_words::<u8>(share, dst, src, bytes);
        }
    }
}

#[inline(always)]
unsafe fn copy_words<W: Word>(share: Share, dst: *mut W, src: *const W, count: usize) {
    let mut i = share.rank;
    while i < count {
        // SAFETY: the caller's contract, and `i < count`.
        unsafe { store(dst.add(i), load(src.add(i))) };
        i += share.size;
    }
}

/// Four 16-byte vectors a thread in flight: enough to hide the latency of memory behind a few warps.
#[inline(always)]
unsafe fn copy_vectors(share: Share, dst: *mut u8, src: *const u8, bytes: usize) {
    let step = share.size * 16;
    let mut at = share.rank * 16;
    while at + 3 * step < bytes {
        // SAFETY: the caller's contract; the last access starts below `bytes`, a multiple of 16.
        unsafe {
            let (a, b) = (load16(src.add(at)), load16(src.add(at + step)));
            let (c, d) = (load16(src.add(at + 2 * step)), load16(src.add(at + 3 * step)));
            store16(dst.add(at), a);
            store16(dst.add(at + step), b);
            store16(dst.add(at + 2 * step), c);
            store16(dst.add(at + 3 * step), d);
        }
        at += 4 * step;
    }
    while at < bytes {
        // SAFETY: as above.
        unsafe { store16(dst.add(at), load16(src.add(at))) };
        at += step;
    }
}

/// Stores `value` into its share of `count` elements.
///
/// # Safety
/// The range is mapped symmetric memory aligned for `T`.
#[inline(always)]
pub(crate) unsafe fn fill<T: Pod>(share: Share, dst: *mut T, count: usize, value: T) {
    let mut i = share.rank;
    while i < count {
        // SAFETY: the caller's contract, and `i < count`.
        unsafe { crate::access::store(dst.add(i), value) };
        i += share.size;
    }
}
