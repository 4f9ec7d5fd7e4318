//! Bulk accesses on the CPU: copy and fill.

use core::mem::MaybeUninit;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use congruent_heap::Pod;

use super::fold::{TILE, Tile};
use super::{load, store};
use crate::arch::Share;

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
pub(super) unsafe fn copy_bytes(dst: *mut u8, src: *const u8, bytes: usize) {
    if bytes == 8 && (dst as usize | src as usize).is_multiple_of(8) {
        // SAFETY: the caller's contract, and both are aligned.
        unsafe { store(dst.cast::<u64>(), load(src.cast::<u64>())) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { copy_many(dst, src, bytes) };
    }
}

/// Up to this size a copy takes less time than a string instruction takes to start.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 128;

/// A copy of up to [`FEW`] bytes: pieces of one size that overlap where they must, each read before any is written.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_few(dst: *mut u8, src: *const u8, bytes: usize) {
    use core::arch::asm;
    macro_rules! ends {
        ($class:ident, $size:literal, $move:literal) => {
            asm!(
                concat!($move, " {a}, [{s}]"), concat!($move, " {b}, [{s} + {n} - ", $size, "]"),
                concat!($move, " [{d}], {a}"), concat!($move, " [{d} + {n} - ", $size, "], {b}"),
                s = in(reg) src, d = in(reg) dst, n = in(reg) bytes, a = out($class) _, b = out($class) _,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: each piece is inside both ranges, because `bytes` is at least its size and at most twice that.
    unsafe {
        match bytes {
            0 => {}
            1 => store(dst, load(src)),
            2..4 => {
                let (first, middle, last) = (load(src), load(src.add(bytes / 2)), load(src.add(bytes - 1)));
                store(dst, first);
                store(dst.add(bytes / 2), middle);
                store(dst.add(bytes - 1), last);
            }
            4..8 => {
                let (a, b): (u32, u32);
                asm!("mov {a:e}, [{s}]", "mov {b:e}, [{s} + {n} - 4]", "mov [{d}], {a:e}", "mov [{d} + {n} - 4], {b:e}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) bytes, a = out(reg) a, b = out(reg) b,
                    options(nostack, preserves_flags));
                let _both_stored = (a, b);
            }
            8..16 => ends!(reg, "8", "mov"),
            16..=32 => ends!(xmm_reg, "16", "movdqu"),
            _ => {
                copy_few(dst, src, 32);
                let (mut at, end) = (32, bytes - 32);
                while at < end {
                    copy_few(dst.add(at), src.add(at), 32);
                    at += 32;
                }
                copy_few(dst.add(end), src.add(end), 32);
            }
        }
    }
}

/// From so many bytes on, what is stored passes the caches by: a quarter of the last one, as glibc has it since 2.38. Less of it stays
/// there for who reads it next, and what does not need not be read before it is overwritten.
#[cfg(target_arch = "x86_64")]
pub(super) fn most_in_caches() -> usize {
    static MOST: LazyLock<usize> = LazyLock::new(|| (last_cache() / 4).max(2 << 20));
    *MOST
}

/// Bytes of the third-level cache that this core shares, 0 where there is none: by Intel's leaf and by AMD's (Intel SDM vol. 2A, CPUID,
/// 04H; AMD APM vol. 3, E.4.15), which have the same layout.
#[cfg(target_arch = "x86_64")]
fn last_cache() -> usize {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let of_leaf = |leaf: u32| {
        let is_there = __cpuid(leaf & 1 << 31).eax >= leaf;
        let caches = (0..8).map(|i| __cpuid_count(leaf, i)).take_while(|cache| is_there && cache.eax & 31 != 0);
        let third = caches.filter(|cache| cache.eax >> 5 & 7 == 3).last()?;
        let field = |from: u32, bits: u32| (third.ebx >> from & ((1 << bits) - 1)) as usize + 1;
        Some(field(22, 10) * field(12, 10) * field(0, 12) * (third.ecx as usize + 1))
    };
    of_leaf(4).or_else(|| of_leaf(0x8000_001d)).unwrap_or(0)
}

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_many(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if bytes <= FEW {
            copy_few(dst, src, bytes);
        } else if bytes < most_in_caches() {
            copy_string(dst, src, bytes);
        } else {
            copy_past_caches(dst, src, bytes);
        }
    }
}

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_string(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: reads and writes only the two ranges; that may race (docs/memory-model.md, MM-1). The direction flag is clear by the ABI.
    // The stores of one string instruction have no order among themselves, but all come before every later store (Intel SDM vol. 3A,
    // "Fast-String Operation and Out-of-Order Stores"). So a release that follows covers them.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`copy`], of at least 64 bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, bytes: usize) {
    let head = (dst as usize).wrapping_neg() % 64;
    let lines = (bytes - head) / 64 * 64;
    let at = head + lines;
    // SAFETY: reads and writes only the two ranges, which have whole lines from `head` on. Non-temporal stores are weakly ordered (Intel
    // SDM vol. 1, "Caching of Temporal vs. Non-Temporal Data"); the sfence puts them before every later store, so that a release that
    // follows covers them.
    unsafe {
        copy_string(dst, src, head);
        core::arch::asm!(
            "2:",
            "cmp {s}, {e}",
            "je 3f",
            "movdqu {a}, [{s}]", "movdqu {b}, [{s} + 16]", "movdqu {c}, [{s} + 32]", "movdqu {f}, [{s} + 48]",
            "movntdq [{d}], {a}", "movntdq [{d} + 16], {b}", "movntdq [{d} + 32], {c}", "movntdq [{d} + 48], {f}",
            "add {s}, 64", "add {d}, 64",
            "jmp 2b",
            "3:",
            "sfence",
            s = inout(reg) src.add(head) => _, d = inout(reg) dst.add(head) => _, e = in(reg) src.add(at),
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, f = out(xmm_reg) _,
            options(nostack),
        );
        copy_string(dst.add(at), src.add(at), bytes - at);
    }
}

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "aarch64")]
unsafe fn copy_many(mut dst: *mut u8, mut src: *const u8, mut bytes: usize) {
    use core::arch::asm;
    // SAFETY: each block reads and writes only the two ranges, which may be aligned for nothing. All stores are ordinary ones: they
    // come before every later store with release (Arm ARM, B2.3).
    unsafe {
        let pairs = bytes / 32 * 32;
        if pairs > 0 {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{s}], #32", "stp {a:q}, {b:q}, [{d}], #32",
                "subs {n}, {n}, #32",
                "b.ne 2b",
                s = inout(reg) src, d = inout(reg) dst, n = inout(reg) pairs => _, a = out(vreg) _, b = out(vreg) _,
                options(nostack),
            );
            bytes -= pairs;
        }
        while bytes >= 8 {
            asm!("ldr {a}, [{s}], #8", "str {a}, [{d}], #8", s = inout(reg) src, d = inout(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags));
            bytes -= 8;
        }
        for at in 0..bytes {
            store(dst.add(at), load(src.add(at)));
        }
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn copies_past_the_caches_are_of_all_bytes_and_no_others() {
        let src: Vec<u8> = (0..1200_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for (head, from) in [(0, 0), (1, 0), (63, 5), (17, 64)] {
            for bytes in [64, 65, 127, 128, 191, 1000, 1024] {
                let mut dst = std::vec![0xa5; 1200];
                let at = (dst.as_ptr() as usize).wrapping_neg() % 64 + head;
                // SAFETY: both ranges are this test's own.
                unsafe { copy_past_caches(dst[at..at + bytes].as_mut_ptr(), src[from..from + bytes].as_ptr(), bytes) };
                let expected = |i: usize| if (at..at + bytes).contains(&i) { src[from + i - at] } else { 0xa5 };
                assert!(dst.iter().enumerate().all(|(i, &byte)| byte == expected(i)), "{bytes} bytes from {head}");
            }
        }
    }

    #[test]
    fn caches_have_a_size_that_caches_have() {
        assert!((2 << 20..1 << 32).contains(&most_in_caches()), "{}", most_in_caches());
    }
}
