//! Bulk accesses on the GPU: copy and fill. Every access is relaxed at system scope.

use congruent_heap::Pod;

use super::{Word, load, load16, store, store16};
use crate::arch::Share;

/// Copies its share of `bytes` bytes.
///
/// # Safety
/// Both ranges are mapped global memory.
#[inline(always)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_what_is_filled() {
        for size in [1, 3, 32] {
            let mut words = [0u16; 20];
            for rank in 0..size {
                // SAFETY: 18 elements from the second on are inside.
                unsafe { fill(Share { rank, size }, words.as_mut_ptr().add(1), 18, 7u16) };
            }
            assert!(words[0] == 0 && words[1..19].iter().all(|&word| word == 7) && words[19] == 0, "{size}");
        }
    }

    #[test]
    fn a_copy_is_shared_by_threads_whatever_its_alignment() {
        let (mut dst, mut src) = ([0u128; 40], [0u128; 40]);
        for (at, byte) in bytemuck::bytes_of_mut(&mut src).iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        for (to, from) in [(0, 0), (3, 3), (4, 8), (5, 2), (15, 15)] {
            for bytes in [0, 1, 15, 16, 31, 64, 130, 600] {
                for size in [1, 3, 32] {
                    bytemuck::bytes_of_mut(&mut dst).fill(0xff);
                    for rank in 0..size {
                        let (dst, src) = ((&raw mut dst).cast::<u8>(), (&raw const src).cast::<u8>());
                        // SAFETY: both ranges are inside the arrays.
                        unsafe { copy(Share { rank, size }, dst.add(to), src.add(from), bytes) };
                    }
                    let (dst, src) = (bytemuck::bytes_of(&dst), bytemuck::bytes_of(&src));
                    assert_eq!(dst[to..to + bytes], src[from..from + bytes], "{to} {from} {bytes} {size}");
                    let mut around = dst[..to].iter().chain(&dst[to + bytes..]);
                    assert!(around.all(|&byte| byte == 0xff), "{to} {from} {bytes} {size}");
                }
            }
        }
    }
}
