//! Multicast by `multimem` instructions (PTX 9.7.10, sm_90 and newer): NVLink SHARP.
//!
//! Every access is relaxed at system scope. A multicast address is another address of memory that members also reach by
//! their own, and "distinct virtual addresses of one location" are ordered only by `fence.proxy.alias` on the way (PTX 8.6,
//! MM-9): each function here begins and ends with one, by every thread.

use core::arch::asm;

use super::{load, load16, store, store16};
use crate::arch::{Replicas, Share};
use crate::multimem::{MultimemOp, MultimemReduction, MultimemType};

/// Whether kernels that are compiled so have multicast.
pub(crate) const MULTICAST: bool = true;

/// Stores its share of `bytes` bytes to every member.
///
/// # Safety
/// Both ranges are mapped global memory, whole words of 4 bytes, aligned; `dst`'s is multicast.
#[inline(always)]
pub(crate) unsafe fn multicast_put(share: Share, dst: &impl Replicas, src: *const u8, bytes: usize) {
    let threads = share.rank as u64 | (share.size as u64) << 32;
    // SAFETY: the caller's contract.
    unsafe { put(threads, dst.address() as u64, src as u64, bytes as u64) }
}

/// Combines its share of `bytes` bytes of every member into `dst`.
///
/// # Safety
/// Both ranges are mapped global memory, whole words of `how`'s numbers, aligned; `src`'s is multicast.
#[inline(always)]
pub(crate) unsafe fn multicast_reduce(
    share: Share,
    dst: *mut u8,
    src: &impl Replicas,
    bytes: usize,
    how: MultimemReduction,
) {
    let threads = share.rank as u64 | (share.size as u64) << 32;
    // SAFETY: the caller's contract.
    unsafe { reduce(threads, dst as u64, src.address() as u64, bytes as u64, encode(how)) }
}

/// Combines its share of `bytes` bytes of every member into `dst` of every member.
///
/// # Safety
/// As [`multicast_reduce`], and `dst`'s range is multicast.
#[inline(always)]
pub(crate) unsafe fn multicast_all_reduce(
    share: Share,
    dst: &impl Replicas,
    src: &impl Replicas,
    bytes: usize,
    how: MultimemReduction,
) {
    let threads = share.rank as u64 | (share.size as u64) << 32;
    // SAFETY: the caller's contract.
    unsafe { reduce(threads, dst.address() as u64, src.address() as u64, bytes as u64, encode(how) | EVERYWHERE) }
}

/// Where the parts of a reduction are in its word: number, operator, where the result goes, divisor.
const OP: u32 = 8;
const EVERYWHERE: u64 = 1 << 16;
const DIVISOR: u32 = 32;

#[inline(always)]
const fn encode(how: MultimemReduction) -> u64 {
    how.number() as u64 | (how.op() as u64) << OP | (how.divisor() as u64) << DIVISOR
}

/// Orders what this thread did through one address of a location with what it does through another.
#[inline(always)]
fn fence_alias() {
    // SAFETY: a fence.
    unsafe { asm!("fence.proxy.alias;", options(nostack)) }
}

/// What a function of this file works on.
#[derive(Clone, Copy)]
struct Part {
    share: Share,
    dst: *mut u8,
    src: *const u8,
    bytes: usize,
    /// Whether the destination is multicast.
    everywhere: bool,
}

impl Part {
    #[inline(always)]
    fn new(threads: u64, dst: u64, src: u64, bytes: u64, everywhere: bool) -> Self {
        let share = Share { rank: threads as u32 as usize, size: (threads >> 32) as usize };
        let (dst, src) = (core::ptr::with_exposed_provenance_mut(dst as usize), src as usize);
        Self { share, dst, src: core::ptr::with_exposed_provenance(src), bytes: bytes as usize, everywhere }
    }
}

/// A function of its own, so that a module has its loops once.
///
/// # Safety
/// As [`multicast_put`].
#[inline(never)]
unsafe fn put(threads: u64, dst: u64, src: u64, bytes: u64) {
    fence_alias();
    let part = Part::new(threads, dst, src, bytes, true);
    // SAFETY: the caller's contract.
    let one = |at: *const u8| u64::from(unsafe { load::<u32>(at.cast()) });
    // SAFETY: the caller's contract.
    let sixteen = |at: *const u8| unsafe { load16(at) };
    // SAFETY: the caller's contract.
    unsafe { each::<4, 4>(part, one, sixteen) };
    fence_alias();
}

/// A word of 4 bytes, a word of 8, or 16 bytes, combined in the switch.
macro_rules! reduced {
    (4, $op:expr) => {
        |at: *const u8| {
            let v: u32;
            on_global!(concat!("multimem.ld_reduce.relaxed.sys.global.", $op, " {v}, [g];"), at, v = out(reg32) v);
            u64::from(v)
        }
    };
    (8, $op:expr) => {
        |at: *const u8| {
            let v: u64;
            on_global!(concat!("multimem.ld_reduce.relaxed.sys.global.", $op, " {v}, [g];"), at, v = out(reg64) v);
            v
        }
    };
    (16, $op:expr) => {
        |at: *const u8| {
            let (a, b, c, d): (u32, u32, u32, u32);
            on_global!(
                concat!("multimem.ld_reduce.relaxed.sys.global.", $op, " {{{a}, {b}, {c}, {d}}}, [g];"),
                at, a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d
            );
            [a, b, c, d]
        }
    };
}

/// A function of its own, one for all kernels of a module, because it is a loop for every type and operator.
///
/// # Safety
/// As [`multicast_reduce`], or [`multicast_all_reduce`] where `how` says everywhere.
#[inline(never)]
unsafe fn reduce(threads: u64, dst: u64, src: u64, bytes: u64, how: u64) {
    fence_alias();
    let part = Part::new(threads, dst, src, bytes, how & EVERYWHERE != 0);
    let (number, op, divisor) = (how as u32 & 0xff, (how >> OP) as u32 & 0xff, (how >> DIVISOR) as u32);
    macro_rules! is {
        ($($number:ident)|+, $op:ident) => {
            (false $(|| number == MultimemType::$number as u32)+) && op == MultimemOp::$op as u32
        };
    }
    let of_f32 = |bits: u32| if divisor == 0 { bits } else { (f32::from_bits(bits) / divisor as f32).to_bits() };
    let of_f64 = |bits: u64| if divisor == 0 { bits } else { (f64::from_bits(bits) / f64::from(divisor)).to_bits() };
    // A divisor that is visibly positive needs no check for zero and for overflow.
    let of_i32 = |bits: u64| if divisor == 0 { bits } else { (bits as i32 / (divisor as i32).max(1)) as u32 as u64 };
    let of_u32 = |bits: u64| if divisor == 0 { bits } else { (bits as u32 / divisor.max(1)).into() };
    let of_i64 = |bits: u64| if divisor == 0 { bits } else { (bits as i64 / i64::from(divisor).max(1)) as u64 };
    let of_u64 = |bits: u64| if divisor == 0 { bits } else { bits / u64::from(divisor).max(1) };
    macro_rules! by_words {
        ($($first:ident $(| $more:ident)*, $op:ident: $word:tt, $instruction:literal $(, $finish:ident)?;)*) => {$(
            if is!($first $(| $more)*, $op) {
                let one = reduced!($word, $instruction);
                $(let one = |at: *const u8| $finish(one(at));)?
                // SAFETY: the caller's contract.
                unsafe { words::<$word>(part, one) };
            }
        )*};
    }
    by_words! {
        U32, Sum: 4, "add.u32", of_u32;
        I32, Sum: 4, "add.s32", of_i32;
        U32, Min: 4, "min.u32";
        I32, Min: 4, "min.s32";
        U32, Max: 4, "max.u32";
        I32, Max: 4, "max.s32";
        U32 | I32, And: 4, "and.b32";
        U32 | I32, Or: 4, "or.b32";
        U32 | I32, Xor: 4, "xor.b32";
        U64, Sum: 8, "add.u64", of_u64;
        // The low bits of a sum do not depend on the sign, and there is no `add.s64`.
        I64, Sum: 8, "add.u64", of_i64;
        U64, Min: 8, "min.u64";
        I64, Min: 8, "min.s64";
        U64, Max: 8, "max.u64";
        I64, Max: 8, "max.s64";
        U64 | I64, And: 8, "and.b64";
        U64 | I64, Or: 8, "or.b64";
        U64 | I64, Xor: 8, "xor.b64";
        F64, Sum: 8, "add.f64", of_f64;
    }
    macro_rules! by_vectors {
        ($($number:ident, Sum: $instruction:literal, $vector:literal $(, $finish:ident)?;)*) => {$(
            if is!($number, Sum) {
                let (one, sixteen) = (reduced!(4, $instruction), reduced!(16, $vector));
                $(
                    let one = |at: *const u8| u64::from($finish(one(at) as u32));
                    let sixteen = |at: *const u8| sixteen(at).map($finish);
                )?
                // SAFETY: the caller's contract.
                unsafe { each::<4, 4>(part, one, sixteen) };
            }
        )*};
    }
    by_vectors! {
        F32, Sum: "add.f32", "add.v4.f32", of_f32;
        F16, Sum: "add.acc::f32.f16x2", "add.acc::f32.v4.f16x2";
        Bf16, Sum: "add.acc::f32.bf16x2", "add.acc::f32.v4.bf16x2";
    }
    fence_alias();
}

/// Words of `WORD` bytes, 16 bytes of them at a time where both ends allow that: there are no vectors of these.
///
/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn words<const WORD: usize>(part: Part, one: impl Fn(*const u8) -> u64) {
    let sixteen = |at: *const u8| {
        if WORD == 4 {
            [one(at), one(at.wrapping_add(4)), one(at.wrapping_add(8)), one(at.wrapping_add(12))]
                .map(|word| word as u32)
        } else {
            let (a, b) = (one(at), one(at.wrapping_add(8)));
            [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
        }
    };
    // SAFETY: the caller's contract.
    unsafe { each::<WORD, 1>(part, &one, sixteen) }
}

/// Takes every word of the source and stores it: 16 bytes at a time, `DEEP` of them a thread in flight, where source and
/// destination are aligned alike, and the rest word by word.
///
/// # Safety
/// The part is mapped, whole words of `WORD` bytes, aligned; `one` and `sixteen` may be called on its source.
#[inline(always)]
unsafe fn each<const WORD: usize, const DEEP: usize>(
    part: Part,
    one: impl Fn(*const u8) -> u64,
    sixteen: impl Fn(*const u8) -> [u32; 4],
) {
    let Part { share, dst, src, bytes, everywhere } = part;
    let alike = (dst as usize ^ src as usize).is_multiple_of(16);
    let head = if alike { ((dst as usize).wrapping_neg() % 16).min(bytes) } else { bytes };
    let tail = head + (bytes - head) / 16 * 16;
    let words = |from: usize, to: usize| {
        let mut at = from + share.rank * WORD;
        while at < to {
            // SAFETY: the caller's contract, and `at` is the start of a word below `bytes`.
            unsafe { put_word::<WORD>(everywhere, dst.add(at), one(src.add(at))) };
            at += share.size * WORD;
        }
    };
    let step = share.size * 16;
    let mut at = head + share.rank * 16;
    // SAFETY: the caller's contract; the last access starts below `tail`, and both ends are aligned there.
    unsafe {
        while DEEP == 4 && at + 3 * step < tail {
            let (a, b) = (sixteen(src.add(at)), sixteen(src.add(at + step)));
            let (c, d) = (sixteen(src.add(at + 2 * step)), sixteen(src.add(at + 3 * step)));
            put16(everywhere, dst.add(at), a);
            put16(everywhere, dst.add(at + step), b);
            put16(everywhere, dst.add(at + 2 * step), c);
            put16(everywhere, dst.add(at + 3 * step), d);
            at += 4 * step;
        }
        while at < tail {
            put16(everywhere, dst.add(at), sixteen(src.add(at)));
            at += step;
        }
    }
    words(0, head);
    words(tail, bytes);
}

/// # Safety
/// `pointer` is mapped global memory, aligned to 16 bytes, multicast where it is to be everywhere.
#[inline(always)]
unsafe fn put16(everywhere: bool, pointer: *mut u8, words: [u32; 4]) {
    if everywhere {
        let [a, b, c, d] = words;
        on_global!(
            "multimem.st.relaxed.sys.global.v4.f32 [g], {{{a}, {b}, {c}, {d}}};",
            pointer, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d
        );
    } else {
        // SAFETY: the caller's contract.
        unsafe { store16(pointer, words) };
    }
}

/// # Safety
/// As [`put16`], aligned to `WORD` bytes.
#[inline(always)]
unsafe fn put_word<const WORD: usize>(everywhere: bool, pointer: *mut u8, word: u64) {
    match (everywhere, WORD) {
        (true, 4) => on_global!("multimem.st.relaxed.sys.global.b32 [g], {v};", pointer, v = in(reg32) word as u32),
        (true, _) => on_global!("multimem.st.relaxed.sys.global.b64 [g], {v};", pointer, v = in(reg64) word),
        // SAFETY: the caller's contract.
        (false, 4) => unsafe { store::<u32>(pointer.cast(), word as u32) },
        // SAFETY: the caller's contract.
        (false, _) => unsafe { store::<u64>(pointer.cast(), word) },
    }
}
