//! Folds in vector registers: each vector of every source is loaded once, and the result stored once to every destination.
//!
//! Loads and stores of symmetric memory are `asm!`, as in the parent module and for its reason. What happens between them is
//! plain Rust on arrays of elements as large as a register, which the compiler turns into vector arithmetic.

use core::arch::x86_64::{__m256i, __m512i};
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::bulk::most_in_caches;
use super::fold::Work;
use crate::{ReduceOp, Vectorized};

/// Widest registers that the processor has and this file uses.
#[derive(Clone, Copy, PartialEq)]
enum Width {
    Avx2,
    Avx512,
}

impl Width {
    #[inline(always)]
    fn here() -> Option<Self> {
        let has_512 = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq");
        match has_512 {
            true => Some(Self::Avx512),
            false => std::is_x86_feature_detected!("avx2").then_some(Self::Avx2),
        }
    }
}

/// A fold of whole vectors.
pub(super) struct Fused<'w> {
    work: &'w Work<'w>,
    width: Width,
    /// Whether the result passes the caches by.
    streams: bool,
    /// Elements before the first that is stored on a multiple of the register's width.
    pub(super) head: usize,
    vectors: usize,
}

impl<'w> Fused<'w> {
    /// Elements `start..end`, where that can be done here.
    pub(super) fn new<T: Pod>(work: &'w Work<'w>, start: usize, end: usize) -> Option<Self> {
        let (size, dst) = (size_of::<T>(), work.dst);
        let bytes = (end - start) * size;
        if !matches!(size, 1 | 2 | 4 | 8) || bytes < 64 || work.src.is_empty() {
            return None;
        }
        let width = Width::here()?;
        let wide = if width == Width::Avx512 { 64 } else { 32 };
        let (mut streams, mut head) = (false, 0);
        if bytes >= most_in_caches() && !dst.is_empty() {
            let misaligned = |place: *mut u8| (place as usize + start * size) % wide;
            let first = misaligned(dst[0]);
            streams = dst.iter().all(|&place| misaligned(place) == first) && first.is_multiple_of(size);
            head = if streams { (wide - first) % wide / size } else { 0 };
        }
        let vectors = (end - start - head) * size / wide;
        Some(Self { work, width, streams, head, vectors })
    }

    /// Folds whole vectors from element `at` on; gives how many elements that was.
    ///
    /// # Safety
    /// `at` is the start it was made for plus its head; the operands cover the elements it was made for.
    pub(super) unsafe fn run<T: Pod, O: ReduceOp<T>>(&self, at: usize, op: O) -> usize {
        // SAFETY: the caller's contract, and the processor has the instructions, as `new` found. Non-temporal stores are
        // weakly ordered (Intel SDM vol. 1, "Caching of Temporal vs. Non-Temporal Data"); the sfence puts them before
        // every later store, so a release that follows covers them.
        unsafe {
            match (self.width, size_of::<T>()) {
                (Width::Avx512, 1) => avx512::<T, O, 64>(self, at, op),
                (Width::Avx512, 2) => avx512::<T, O, 32>(self, at, op),
                (Width::Avx512, 4) => avx512::<T, O, 16>(self, at, op),
                (Width::Avx512, _) => avx512::<T, O, 8>(self, at, op),
                (Width::Avx2, 1) => avx2::<T, O, 32>(self, at, op),
                (Width::Avx2, 2) => avx2::<T, O, 16>(self, at, op),
                (Width::Avx2, 4) => avx2::<T, O, 8>(self, at, op),
                (Width::Avx2, _) => avx2::<T, O, 4>(self, at, op),
            }
            if self.streams {
                core::arch::asm!("sfence", options(nostack, preserves_flags));
            }
        }
        let wide = if self.width == Width::Avx512 { 64 } else { 32 };
        self.vectors * wide / size_of::<T>()
    }
}

macro_rules! fused {
    ($name:ident, $features:literal, $wide:literal, $vector:ty, $class:ident, $plain:literal, $streaming:literal) => {
        /// # Safety
        /// As [`Fused::run`]; the processor has the features, and `N` elements are a register.
        #[target_feature(enable = $features)]
        unsafe fn $name<T: Pod, O: ReduceOp<T>, const N: usize>(fused: &Fused<'_>, at: usize, op: O) {
            let first = at * size_of::<T>();
            for vector in 0..fused.vectors {
                let at = first + vector * $wide;
                // SAFETY: the vector is inside every range, as the caller says. N elements are as many bytes as a register
                // holds, and any bytes are a valid Pod.
                unsafe {
                    let load = |from: *mut u8| -> [T; N] {
                        let value: $vector;
                        core::arch::asm!(concat!($plain, " {v}, [{p}]"), v = out($class) value, p = in(reg) from.add(at),
                            options(nostack, readonly, preserves_flags));
                        transmute_copy(&value)
                    };
                    let value: $vector = transmute_copy(&fused.work.combine(op, load));
                    for &destination in fused.work.dst {
                        if fused.streams {
                            core::arch::asm!(concat!($streaming, " [{p}], {v}"), v = in($class) value,
                                p = in(reg) destination.add(at), options(nostack, preserves_flags));
                        } else {
                            core::arch::asm!(concat!($plain, " [{p}], {v}"), v = in($class) value,
                                p = in(reg) destination.add(at), options(nostack, preserves_flags));
                        }
                    }
                }
            }
        }
    };
}

fused!(avx512, "avx512f,avx512bw,avx512vl,avx512dq", 64, __m512i, zmm_reg, "vmovdqu64", "vmovntdq");
fused!(avx2, "avx2", 32, __m256i, ymm_reg, "vmovdqu", "vmovntdq");

/// Runs a loop by registers of 32 bytes, where the processor has them, with the instructions on them that came with longer ones.
#[inline(always)]
pub(crate) fn vectorized(what: impl Vectorized) {
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
    fn by_avx512(what: impl Vectorized) {
        what.run();
    }
    #[target_feature(enable = "avx2")]
    fn by_avx2(what: impl Vectorized) {
        what.run();
    }
    match Width::here() {
        // SAFETY: the processor has the instructions.
        Some(Width::Avx512) => unsafe { by_avx512(what) },
        // SAFETY: the same.
        Some(Width::Avx2) => unsafe { by_avx2(what) },
        None => what.run(),
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::Sum;
    use crate::arch::Share;

    #[test]
    fn what_passes_the_caches_by_is_the_same() {
        if Width::here().is_none() {
            std::eprintln!("SKIPPED: this processor has no registers of 32 bytes");
            return;
        }
        let mut numbers: [Vec<f32>; 3] = [0.5, 2.0, 0.0].map(|step| (0..200).map(|i| i as f32 * step).collect());
        let [a, b, sums] = numbers.each_mut().map(|numbers| numbers.as_mut_ptr().cast::<u8>());
        // Stores past the caches are of whole registers, of which the first begins here.
        let head = (sums as usize).wrapping_neg() % 64 / 4;
        let (share, dst, src) = (Share { rank: 0, size: 1 }, [sums], [a, b]);
        let work = Work { share, dst: &dst, src: &src, partial: 0, bytes: 800, members: 0 };
        let fused = Fused::new::<f32>(&work, head, 200).map(|fused| Fused { streams: true, ..fused });
        // SAFETY: the ranges are this test's own, and the stores are aligned.
        let folded = fused.map_or(0, |fused| unsafe { fused.run::<f32, _>(head, Sum) });
        assert!(folded >= 160);
        let expected = |i: usize| if (head..head + folded).contains(&i) { i as f32 * 2.5 } else { 0.0 };
        assert!(numbers[2].iter().enumerate().all(|(i, &sum)| sum == expected(i)));
    }
}
