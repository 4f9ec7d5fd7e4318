//! Bulk accesses on the GPU: copy and fill. Every access is relaxed at system scope.

use core::iter::from_fn;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::{Word, load, load16, store, store_words, store16};
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

/// Stores `value` into its share of `count` elements, 16 bytes at a time where as many lie there: elements of 4 and 8 bytes by accesses of
/// their own size, so that who polls one of them does not see a part (MM-1).
///
/// # Safety
/// The range is mapped symmetric memory aligned for `T`.
#[inline(always)]
pub(crate) unsafe fn fill<T: Pod>(share: Share, dst: *mut T, count: usize, value: T) {
    // SAFETY: of each transmute_copy: the arm's size makes both types equally large, and any bytes are valid.
    let word = unsafe {
        match size_of::<T>() {
            8 => Some(transmute_copy::<T, u64>(&value)),
            4 => Some(u64::from(transmute_copy::<T, u32>(&value)) * 0x1_0000_0001),
            2 => Some(u64::from(transmute_copy::<T, u16>(&value)) * 0x1_0001_0001_0001),
            1 => Some(u64::from(transmute_copy::<T, u8>(&value)) * 0x101_0101_0101_0101),
            _ => None,
        }
    };
    let (size, address) = (size_of::<T>(), dst as usize);
    let word = word.filter(|_| address.is_multiple_of(size));
    // Elements without bytes have neither.
    let (head, tail) = if word.is_some() {
        let head = (address.wrapping_neg() % 16 / size).min(count);
        (head, head + (count - head) * size / 16 * 16 / size)
    } else {
        (count, count)
    };
    // No `step_by`, which divides.
    let own = |from: usize, to: usize, step: usize| {
        let mut next = from + share.rank * step;
        from_fn(move || {
            let at = next;
            next += share.size * step;
            (at < to).then_some(at)
        })
    };
    // SAFETY: the caller's contract, and all indices are less than `count`. What is stored by 16 bytes begins on a multiple of them.
    unsafe {
        own(0, head, 1).chain(own(tail, count, 1)).for_each(|i| crate::access::store(dst.add(i), value));
        if let Some(word) = word {
            own(head, tail, 16 / size).for_each(|i| match size {
                8 => store_words(dst.add(i).cast(), [word; 2]),
                _ => store16(dst.add(i).cast(), [word as u32; 4]),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_what_is_filled() {
        fn check<T: Pod + PartialEq>(value: T, other: T) {
            let (size, mut memory) = (size_of::<T>(), [0_u128; 10]);
            let most = 160 / size;
            for (at, count) in (0..6).flat_map(|at| (0..most - at).map(move |count| (at, count))) {
                for threads in [1, 3, 32] {
                    bytemuck::cast_slice_mut::<_, T>(&mut memory).fill(other);
                    for rank in 0..threads {
                        // SAFETY: `count` elements from that one on are inside.
                        unsafe {
                            let start = (&raw mut memory).cast::<T>().add(at);
                            fill(Share { rank, size: threads }, start, count, value);
                        }
                    }
                    let mut all = bytemuck::cast_slice::<_, T>(&memory).iter().enumerate();
                    let is_right =
                        |(i, is): (usize, &T)| *is == if (at..at + count).contains(&i) { value } else { other };
                    assert!(all.all(is_right), "{count} of {size} bytes at {at} by {threads}");
                }
            }
        }
        check(7_u8, 1);
        check(0x0203_u16, 1);
        check(0x0405_0607_u32, 1);
        check(0x0809_0a0b_0c0d_0e0f_u64, 1);
        check([1_u32, 2, 3, 4], [5; 4]);
        // SAFETY: of nothing, nothing is stored.
        unsafe { fill(Share { rank: 0, size: 1 }, core::ptr::dangling_mut::<[u8; 0]>(), 3, []) };
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
