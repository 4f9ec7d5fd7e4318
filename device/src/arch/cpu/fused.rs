//! Folds in vector registers: each vector of every source is loaded once, and the result stored once to every destination.
//!
//! Loads and stores of symmetric memory are `asm!`, as in the parent module and for its reason. What happens between them is
//! plain Rust on arrays of elements as large as a register, which the compiler turns into vector arithmetic.

use core::arch::x86_64::{__m256i, __m512i};
use core::mem::transmute_copy;

use congruent_heap::Pod;

use crate::{Operand, ReduceOp, Vectorized};

/// Sources and destinations that fit; more are folded tile by tile.
const MOST: usize = 16;

/// From this size on a result is streamed past the caches: it would not stay in them, and need not be read first.
const STREAM: usize = 1 << 20;

/// From this size on only the first destination, which is this PE's own, is stored through the caches.
const STREAM_OTHERS: usize = 384 << 10;

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

/// Plain operands.
pub(super) struct Fused {
    dst: [*mut u8; MOST],
    dsts: usize,
    src: [*const u8; MOST],
    srcs: usize,
    /// A bit for each source that is a partial result.
    partial: u32,
    members: usize,
    width: Width,
    /// Destinations from this index on are streamed.
    streamed: usize,
    /// Elements before the first that is stored on a multiple of the register's width.
    pub(super) head: usize,
    vectors: usize,
}

impl Fused {
    /// Elements `start..end` of these operands, where that can be done here.
    pub(super) fn new<T: Pod>(
        dst: &[Operand],
        src: &[Operand],
        start: usize,
        end: usize,
        members: usize,
    ) -> Option<Self> {
        let size = size_of::<T>();
        let bytes = (end - start) * size;
        let (srcs, dsts) = (src.len(), dst.len());
        if !matches!(size, 1 | 2 | 4 | 8) || bytes < 64 || srcs > MOST || dsts > MOST || srcs == 0 {
            return None;
        }
        let width = Width::here()?;
        let mut fused = Self {
            dst: [core::ptr::null_mut(); MOST],
            dsts,
            src: [core::ptr::null(); MOST],
            srcs,
            partial: 0,
            members,
            width,
            streamed: dsts,
            head: 0,
            vectors: 0,
        };
        if !dst.iter().chain(src).all(Operand::is_plain) {
            return None;
        }
        for (i, source) in src.iter().enumerate() {
            fused.src[i] = source.start();
            fused.partial |= u32::from(source.is_partial()) << i;
        }
        for (i, destination) in dst.iter().enumerate() {
            fused.dst[i] = destination.start();
        }
        let wide = if width == Width::Avx512 { 64 } else { 32 };
        if bytes >= STREAM_OTHERS && dsts > 0 {
            let misaligned = |pointer: *mut u8| (pointer as usize + start * size) % wide;
            let first = misaligned(fused.dst[0]);
            if fused.dst[..dsts].iter().all(|&pointer| misaligned(pointer) == first) && first.is_multiple_of(size) {
                fused.head = (wide - first) % wide / size;
                fused.streamed = if bytes >= STREAM { 0 } else { 1 };
            }
        }
        fused.vectors = (end - start - fused.head) * size / wide;
        Some(fused)
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
            if self.streamed < self.dsts {
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
        unsafe fn $name<T: Pod, O: ReduceOp<T>, const N: usize>(fused: &Fused, at: usize, op: O) {
            let (src, dst) = (&fused.src[..fused.srcs], &fused.dst[..fused.dsts]);
            let first = at * size_of::<T>();
            for vector in 0..fused.vectors {
                let at = first + vector * $wide;
                // SAFETY: the vector is inside every range, as the caller says. N elements are as many bytes as a register
                // holds, and any bytes are a valid Pod.
                unsafe {
                    let load = |from: *const u8| -> [T; N] {
                        let value: $vector;
                        core::arch::asm!(concat!($plain, " {v}, [{p}]"), v = out($class) value, p = in(reg) from.add(at),
                            options(nostack, readonly, preserves_flags));
                        transmute_copy(&value)
                    };
                    let lift = |i: usize, values: [T; N]| match fused.partial >> i & 1 {
                        0 => values.map(|value| op.lift(value)),
                        _ => values.map(|value| op.resume(value)),
                    };
                    let mut sums = lift(0, load(src[0]));
                    for (i, &source) in src.iter().enumerate().skip(1) {
                        let values = lift(i, load(source));
                        for i in 0..N {
                            sums[i] = op.combine(sums[i], values[i]);
                        }
                    }
                    let value: $vector = match fused.members {
                        0 => transmute_copy(&sums.map(|sum| op.lower(sum))),
                        members => transmute_copy(&sums.map(|sum| op.finish(sum, members))),
                    };
                    for (i, &destination) in dst.iter().enumerate() {
                        if i < fused.streamed {
                            core::arch::asm!(concat!($plain, " [{p}], {v}"), v = in($class) value,
                                p = in(reg) destination.add(at), options(nostack, preserves_flags));
                        } else {
                            core::arch::asm!(concat!($streaming, " [{p}], {v}"), v = in($class) value,
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
