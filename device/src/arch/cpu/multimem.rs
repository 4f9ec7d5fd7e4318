//! What `multimem` instructions do at multicast addresses, emulated by loads from and stores to each member, one after the other: so the
//! algorithms that need such links run, and are tested, where there are none. Nothing here is fast.

use congruent_heap::{bf16, f16};

use super::{copy, load, store};
use crate::arch::{Replicas, Share, Word};
use crate::multimem::{MultimemOp, MultimemReduction, MultimemType};

/// Kernels have it where their world emulates it.
pub(crate) const MULTICAST: bool = true;

/// Stores its share of `bytes` bytes to every member.
///
/// # Safety
/// Both ranges are mapped symmetric memory, the one on every member.
pub(crate) unsafe fn multicast_put(share: Share, dst: &impl Replicas, src: *const u8, bytes: usize) {
    for i in 0..dst.count() {
        // SAFETY: the caller's contract.
        unsafe { copy(share, dst.replica(i), src, bytes) };
    }
}

/// Combines its share of `bytes` bytes of every member, in rank order, into `dst`.
///
/// # Safety
/// Both ranges are mapped symmetric memory, the one on every member; they start and end with words of `how`'s numbers.
pub(crate) unsafe fn multicast_reduce(
    share: Share,
    dst: *mut u8,
    src: &impl Replicas,
    bytes: usize,
    how: MultimemReduction,
) {
    // SAFETY: the caller's contract.
    unsafe { reduce(share, &One(dst), src, bytes, how) }
}

/// Combines its share of `bytes` bytes of every member, in rank order, into `dst` of every member.
///
/// # Safety
/// As [`multicast_reduce`], with `dst` on every member.
pub(crate) unsafe fn multicast_all_reduce(
    share: Share,
    dst: &impl Replicas,
    src: &impl Replicas,
    bytes: usize,
    how: MultimemReduction,
) {
    // SAFETY: the caller's contract.
    unsafe { reduce(share, dst, src, bytes, how) }
}

/// A place that is on one PE only.
struct One(*mut u8);

impl Replicas for One {
    fn count(&self) -> usize {
        1
    }
    fn replica(&self, _i: usize) -> *mut u8 {
        self.0
    }
}

/// A number as `multimem` instructions combine it.
trait MultimemElement: Copy {
    type Bits: Word;
    /// What it is summed in.
    type Acc: Copy;
    fn widen(bits: Self::Bits) -> Self::Acc;
    fn combine(op: MultimemOp, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The sum, divided unless by 0, and rounded once.
    fn narrow(acc: Self::Acc, divisor: u32) -> Self::Bits;
}

/// # Safety
/// As [`multicast_all_reduce`].
unsafe fn reduce(share: Share, dst: &impl Replicas, src: &impl Replicas, bytes: usize, how: MultimemReduction) {
    // SAFETY: the caller's contract.
    unsafe {
        match how.number() {
            MultimemType::U32 => each::<u32>(share, dst, src, bytes, how),
            MultimemType::I32 => each::<i32>(share, dst, src, bytes, how),
            MultimemType::U64 => each::<u64>(share, dst, src, bytes, how),
            MultimemType::I64 => each::<i64>(share, dst, src, bytes, how),
            MultimemType::F16 => each::<f16>(share, dst, src, bytes, how),
            MultimemType::Bf16 => each::<bf16>(share, dst, src, bytes, how),
            MultimemType::F32 => each::<f32>(share, dst, src, bytes, how),
            MultimemType::F64 => each::<f64>(share, dst, src, bytes, how),
        }
    }
}

/// # Safety
/// As [`multicast_all_reduce`], for numbers of this type.
unsafe fn each<N: MultimemElement>(
    share: Share,
    dst: &impl Replicas,
    src: &impl Replicas,
    bytes: usize,
    how: MultimemReduction,
) {
    let at = |start: *mut u8, i: usize| start.cast::<N::Bits>().wrapping_add(i);
    for i in (share.rank..bytes / size_of::<N::Bits>()).step_by(share.size) {
        // SAFETY: the caller's contract, and `i` is below the number of elements.
        unsafe {
            let value = |member: usize| N::widen(load(at(src.replica(member), i)));
            let sum = (1..src.count()).fold(value(0), |sum, member| N::combine(how.op(), sum, value(member)));
            let result = N::narrow(sum, how.divisor());
            for member in 0..dst.count() {
                store(at(dst.replica(member), i), result);
            }
        }
    }
}

macro_rules! integers {
    ($($int:ty: $bits:ty;)*) => {$(
        impl MultimemElement for $int {
            type Bits = $bits;
            type Acc = Self;
            fn widen(bits: $bits) -> Self {
                bits as Self
            }
            fn combine(op: MultimemOp, a: Self, b: Self) -> Self {
                match op {
                    MultimemOp::Sum => a.wrapping_add(b),
                    MultimemOp::Min => a.min(b),
                    MultimemOp::Max => a.max(b),
                    MultimemOp::And => a & b,
                    MultimemOp::Or => a | b,
                    MultimemOp::Xor => a ^ b,
                }
            }
            fn narrow(sum: Self, divisor: u32) -> $bits {
                // A team is smaller than any of these types can count.
                if divisor == 0 { sum as $bits } else { (sum / divisor as Self) as $bits }
            }
        }
    )*};
}

integers! { u32: u32; i32: u32; u64: u64; i64: u64; }

/// Of floats there are sums only (`MultimemReduction::new`).
macro_rules! floats {
    ($($float:ty: $bits:ty, $acc:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl MultimemElement for $float {
            type Bits = $bits;
            type Acc = $acc;
            fn widen(bits: $bits) -> $acc {
                $widen(Self::from_bits(bits))
            }
            fn combine(_sum: MultimemOp, a: $acc, b: $acc) -> $acc {
                a + b
            }
            fn narrow(sum: $acc, divisor: u32) -> $bits {
                let result: Self = $narrow(if divisor == 0 { sum } else { sum / divisor as $acc });
                result.to_bits()
            }
        }
    )*};
}

floats! {
    f32: u32, f32, core::convert::identity, core::convert::identity;
    f64: u64, f64, core::convert::identity, core::convert::identity;
    f16: u16, f32, f16::to_f32, f16::from_f32;
    bf16: u16, f32, bf16::to_f32, bf16::from_f32;
}
