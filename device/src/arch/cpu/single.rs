//! Single accesses of symmetric memory, by assembly: loads, stores and read-modify-writes of one aligned word.
//!
//! A program may see the same bytes at several widths (`Sym::cast`), and Rust has no atomics of two widths on the same bytes.
//! What processors do then is documented; `docs/memory-model.md` argues from it, under "Rust's mixed-size rule". Every function
//! here is unsafe for the one reason that its pointer must be mapped, and aligned to its width.

use core::arch::asm;
use core::mem::transmute_copy;

use congruent_heap::{bf16, f16};

use crate::SmallFloat;
use crate::arch::{Rmw, RmwInt, Word};

/// The instruction for each access: `{v}` is the value, `{p}` its place.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
macro_rules! text {
    (load 1) => { "movzx {v:e}, byte ptr [{p}]" };
    (load 2) => { "movzx {v:e}, word ptr [{p}]" };
    (load 4) => { "mov {v:e}, dword ptr [{p}]" };
    (load 8) => { "mov {v:r}, qword ptr [{p}]" };
    (store 1) => { "mov byte ptr [{p}], {v:l}" };
    (store 2) => { "mov word ptr [{p}], {v:x}" };
    (store 4) => { "mov dword ptr [{p}], {v:e}" };
    (store 8) => { "mov qword ptr [{p}], {v:r}" };
    // Loads are not reordered with later accesses, nor stores with earlier ones (Intel SDM, volume 3, 9.2.2).
    (load_acquire 1) => { text!(load 1) };
    (load_acquire 2) => { text!(load 2) };
    (load_acquire 4) => { text!(load 4) };
    (load_acquire 8) => { text!(load 8) };
    (store_release 4) => { text!(store 4) };
    (store_release 8) => { text!(store 8) };
}

/// The same; unlike the other loads and stores, `ldar` and `stlr` are ordered with what follows and what comes before (Arm
/// ARM, B2.3, "Load-Acquire, Store-Release").
#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
macro_rules! text {
    (load 1) => { "ldrb {v:w}, [{p}]" };
    (load 2) => { "ldrh {v:w}, [{p}]" };
    (load 4) => { "ldr {v:w}, [{p}]" };
    (load 8) => { "ldr {v:x}, [{p}]" };
    (store 1) => { "strb {v:w}, [{p}]" };
    (store 2) => { "strh {v:w}, [{p}]" };
    (store 4) => { "str {v:w}, [{p}]" };
    (store 8) => { "str {v:x}, [{p}]" };
    (load_acquire 1) => { "ldarb {v:w}, [{p}]" };
    (load_acquire 2) => { "ldarh {v:w}, [{p}]" };
    (load_acquire 4) => { "ldar {v:w}, [{p}]" };
    (load_acquire 8) => { "ldar {v:x}, [{p}]" };
    (store_release 4) => { "stlr {v:w}, [{p}]" };
    (store_release 8) => { "stlr {v:x}, [{p}]" };
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn load<W: Word>(pointer: *const W) -> W {
    macro_rules! load {
        ($bytes:tt) => {{
            let bits: u64;
            asm!(text!(load $bytes), v = out(reg) bits, p = in(reg) pointer, options(nostack, preserves_flags, readonly));
            bits
        }};
    }
    // SAFETY: the caller's contract. The value is the low bytes, which come first.
    unsafe {
        let bits = match size_of::<W>() {
            1 => load!(1),
            2 => load!(2),
            4 => load!(4),
            _ => load!(8),
        };
        transmute_copy(&bits)
    }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn store<W: Word>(pointer: *mut W, value: W) {
    let bits: u64 = value.into();
    macro_rules! store {
        ($bytes:tt) => {
            asm!(text!(store $bytes), v = in(reg) bits, p = in(reg) pointer, options(nostack, preserves_flags))
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        match size_of::<W>() {
            1 => store!(1),
            2 => store!(2),
            4 => store!(4),
            _ => store!(8),
        }
    }
}

/// What [`load_wide`] gives, in a register whose numbers are computed together.
#[cfg(target_arch = "x86_64")]
pub(crate) type Wide = core::arch::x86_64::__m128i;
/// What [`load_wide`] gives.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Wide = [u64; 2];

/// Two words beside each other, in no order. Elements of 16 bytes may tear (MM-1).
///
/// # Safety
/// `pointer` is mapped symmetric memory of 16 bytes, aligned to as many.
#[inline(always)]
pub(crate) unsafe fn load_wide(pointer: *const u8) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract, and every x86-64 processor has the instruction.
    unsafe {
        let value;
        asm!("movdqa {v}, xmmword ptr [{p}]", v = out(xmm_reg) value, p = in(reg) pointer,
            options(nostack, preserves_flags, readonly));
        value
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's contract.
    unsafe {
        [load(pointer.cast::<u64>()), load(pointer.cast::<u64>().add(1))]
    }
}

/// # Safety
/// As [`load_wide`].
#[inline(always)]
pub(crate) unsafe fn store_wide(pointer: *mut u8, value: Wide) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `load_wide`.
    unsafe {
        asm!("movdqa xmmword ptr [{p}], {v}", v = in(xmm_reg) value, p = in(reg) pointer, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as in `load_wide`.
    unsafe {
        store(pointer.cast::<u64>(), value[0]);
        store(pointer.cast::<u64>().add(1), value[1]);
    }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width.
#[inline(always)]
pub(crate) unsafe fn load_acquire<W: Word>(pointer: *const W) -> W {
    // Without `readonly`, so that the compiler moves nothing before it.
    macro_rules! load {
        ($bytes:tt) => {{
            let bits: u64;
            asm!(text!(load_acquire $bytes), v = out(reg) bits, p = in(reg) pointer, options(nostack, preserves_flags));
            bits
        }};
    }
    // SAFETY: the caller's contract. The value is the low bytes, which come first.
    unsafe {
        let bits = match size_of::<W>() {
            1 => load!(1),
            2 => load!(2),
            4 => load!(4),
            _ => load!(8),
        };
        transmute_copy(&bits)
    }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned to its width: 4 or 8 bytes.
#[inline(always)]
pub(crate) unsafe fn store_release<W: Word>(pointer: *mut W, value: W) {
    const { assert!(matches!(size_of::<W>(), 4 | 8)) };
    let bits: u64 = value.into();
    macro_rules! store {
        ($bytes:tt) => {
            asm!(text!(store_release $bytes), v = in(reg) bits, p = in(reg) pointer, options(nostack, preserves_flags))
        };
    }
    // SAFETY: the caller's contract.
    unsafe { if size_of::<W>() == 4 { store!(4) } else { store!(8) } };
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned.
#[inline(always)]
pub(crate) unsafe fn add_release(pointer: *mut u64, value: u64) {
    // SAFETY: the caller's contract; all read-modify-writes here are acquire and release.
    unsafe { u64::fetch_add(pointer, value) };
}

/// # Safety
/// `pointer` is mapped memory, aligned.
pub(crate) unsafe fn claim(pointer: *mut u32, from: u32, to: u32) -> bool {
    // SAFETY: the caller's contract; as in `add_release`.
    unsafe { u32::compare_exchange(pointer, from, to) == from }
}

/// Read-modify-writes of a word, each acquire and release: locked instructions are ordered with everything (Intel SDM, volume 3,
/// 9.2.3.9).
#[cfg(target_arch = "x86_64")]
macro_rules! rmw {
    ($word:ty, $register:literal) => {
        impl Rmw for $word {
            #[inline(always)]
            unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self {
                let old;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(concat!("lock xadd [{p}], {v:", $register, "}"), v = inout(reg) value => old, p = in(reg) pointer,
                        options(nostack));
                }
                old
            }
            #[inline(always)]
            unsafe fn swap(pointer: *mut Self, value: Self) -> Self {
                let old;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(concat!("xchg [{p}], {v:", $register, "}"), v = inout(reg) value => old, p = in(reg) pointer,
                        options(nostack, preserves_flags));
                }
                old
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                let seen;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(concat!("lock cmpxchg [{p}], {v:", $register, "}"), v = in(reg) new, p = in(reg) pointer,
                        inout("rax") expected => seen, options(nostack));
                }
                seen
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
rmw!(u16, "x");
#[cfg(target_arch = "x86_64")]
rmw!(u32, "e");
#[cfg(target_arch = "x86_64")]
rmw!(u64, "r");

/// Read-modify-writes of a word, each acquire and release: pairs of exclusive accesses with both (Arm ARM, B2.9).
#[cfg(target_arch = "aarch64")]
macro_rules! rmw {
    ($word:ty, $register:literal, $width:literal) => {
        impl Rmw for $word {
            #[inline(always)]
            unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self {
                let old;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(
                        "2:",
                        concat!("ldaxr", $width, " {o:", $register, "}, [{p}]"),
                        concat!("add {n:", $register, "}, {o:", $register, "}, {v:", $register, "}"),
                        concat!("stlxr", $width, " {failed:w}, {n:", $register, "}, [{p}]"),
                        "cbnz {failed:w}, 2b",
                        o = out(reg) old, n = out(reg) _, failed = out(reg) _, v = in(reg) value, p = in(reg) pointer,
                        options(nostack, preserves_flags)
                    );
                }
                old
            }
            #[inline(always)]
            unsafe fn swap(pointer: *mut Self, value: Self) -> Self {
                let old;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(
                        "2:",
                        concat!("ldaxr", $width, " {o:", $register, "}, [{p}]"),
                        concat!("stlxr", $width, " {failed:w}, {v:", $register, "}, [{p}]"),
                        "cbnz {failed:w}, 2b",
                        o = out(reg) old, failed = out(reg) _, v = in(reg) value, p = in(reg) pointer,
                        options(nostack, preserves_flags)
                    );
                }
                old
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                let seen;
                // SAFETY: the trait's contract.
                unsafe {
                    asm!(
                        "2:",
                        concat!("ldaxr", $width, " {o:", $register, "}, [{p}]"),
                        concat!("cmp {o:", $register, "}, {e:", $register, "}"),
                        "b.ne 3f",
                        concat!("stlxr", $width, " {failed:w}, {v:", $register, "}, [{p}]"),
                        "cbnz {failed:w}, 2b",
                        "3:",
                        o = out(reg) seen, failed = out(reg) _, e = in(reg) u64::from(expected), v = in(reg) new, p = in(reg) pointer,
                        options(nostack)
                    );
                }
                seen
            }
        }
    };
}

#[cfg(target_arch = "aarch64")]
rmw!(u16, "w", "h");
#[cfg(target_arch = "aarch64")]
rmw!(u32, "w", "");
#[cfg(target_arch = "aarch64")]
rmw!(u64, "x", "");

/// Replaces a word by what becomes of it, and gives the old one.
///
/// # Safety
/// As [`Rmw`].
#[inline(always)]
unsafe fn update<W: Word + Rmw>(pointer: *mut W, new: impl Fn(W) -> W) -> W {
    // SAFETY: the caller's contract.
    let mut seen = unsafe { load(pointer) };
    loop {
        // SAFETY: the caller's contract.
        let old = unsafe { W::compare_exchange(pointer, seen, new(seen)) };
        if old == seen {
            return old;
        }
        seen = old;
    }
}

/// A sum in `f32`, rounded once more, is the sum rounded once: 24 bits are at least 2 * 11 + 2.
#[inline(always)]
fn sum<T: SmallFloat>(a: T, b: T) -> T {
    T::narrow(a.widen() + b.widen())
}

/// Numbers that are as wide and as aligned as a word.
macro_rules! rmw_by_bits {
    ($($type:ty as $word:ty: $to:path, $from:path, |$pointer:ident, $value:ident| $added:expr;)*) => {$(
        impl Rmw for $type {
            #[inline(always)]
            unsafe fn fetch_add($pointer: *mut Self, $value: Self) -> Self {
                let $pointer: *mut $word = $pointer.cast();
                // SAFETY: the trait's contract.
                $from(unsafe { $added })
            }
            #[inline(always)]
            unsafe fn swap(pointer: *mut Self, value: Self) -> Self {
                // SAFETY: the trait's contract.
                $from(unsafe { <$word>::swap(pointer.cast(), $to(value)) })
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                // SAFETY: the trait's contract.
                $from(unsafe { <$word>::compare_exchange(pointer.cast(), $to(expected), $to(new)) })
            }
        }
    )*};
}

rmw_by_bits! {
    i32 as u32: i32::cast_unsigned, u32::cast_signed, |word, value| u32::fetch_add(word, value.cast_unsigned());
    i64 as u64: i64::cast_unsigned, u64::cast_signed, |word, value| u64::fetch_add(word, value.cast_unsigned());
    f16 as u16: f16::to_bits, f16::from_bits, |word, value| update(word, |old| sum(f16::from_bits(old), value).to_bits());
    bf16 as u16: bf16::to_bits, bf16::from_bits, |word, value| update(word, |old| sum(bf16::from_bits(old), value).to_bits());
    f32 as u32: f32::to_bits, f32::from_bits, |word, value| update(word, |old| (f32::from_bits(old) + value).to_bits());
    f64 as u64: f64::to_bits, f64::from_bits, |word, value| update(word, |old| (f64::from_bits(old) + value).to_bits());
}

macro_rules! rmw_integers {
    ($($type:ty as $word:ty, $register:literal;)*) => {$(
        impl RmwInt for $type {
            // One instruction, where a loop that wants the old value loads it first.
            #[cfg(target_arch = "x86_64")]
            rmw_integers! { @ $register; and "and", or "or", xor "xor" }
            rmw_integers! { @ $word;
                fetch_and: |old, value| old & value;
                fetch_or: |old, value| old | value;
                fetch_xor: |old, value| old ^ value;
                fetch_min: |old, value| old.min(value);
                fetch_max: |old, value| old.max(value);
            }
        }
    )*};
    (@ $register:literal; $($name:ident $instruction:literal),*) => {$(
        #[inline(always)]
        unsafe fn $name(pointer: *mut Self, value: Self) {
            // SAFETY: the trait's contract.
            unsafe {
                asm!(concat!("lock ", $instruction, " [{p}], {v:", $register, "}"), v = in(reg) value, p = in(reg) pointer,
                    options(nostack));
            }
        }
    )*};
    (@ $word:ty; $($name:ident: |$old:ident, $value:ident| $new:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(pointer: *mut Self, $value: Self) -> Self {
            let new = |$old: $word| {
                let $old = $old as Self;
                $new as $word
            };
            // SAFETY: the trait's contract; an integer is as wide and as aligned as the word of its width.
            unsafe { update(pointer.cast(), new) as Self }
        }
    )*};
}

rmw_integers! { u32 as u32, "e"; i32 as u32, "e"; u64 as u64, "r"; i64 as u64, "r"; }

/// The word of 1, 2, 4 or 8 bytes at `from`, relaxed: for a transport of the host's.
///
/// # Safety
/// It is mapped symmetric memory, aligned to its width, which is one of these.
pub unsafe fn load_for_host(from: *const u8, bytes: usize) -> u64 {
    // SAFETY: the caller's contract.
    unsafe {
        match bytes {
            1 => load(from).into(),
            2 => load(from.cast::<u16>()).into(),
            4 => load(from.cast::<u32>()).into(),
            _ => load(from.cast()),
        }
    }
}

/// Stores such a word.
///
/// # Safety
/// As [`load_for_host`].
pub unsafe fn store_for_host(to: *mut u8, bytes: usize, value: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        match bytes {
            1 => store(to, value as u8),
            2 => store(to.cast(), value as u16),
            4 => store(to.cast(), value as u32),
            _ => store(to.cast(), value),
        }
    }
}

/// Stores a word of 8 bytes, with release.
///
/// # Safety
/// As [`load_for_host`].
pub unsafe fn store_release_for_host(to: *mut u8, value: u64) {
    // SAFETY: the caller's contract.
    unsafe { store_release(to.cast(), value) }
}

/// Adds to a word of 4 bytes, acquire and release.
///
/// # Safety
/// As [`load_for_host`].
pub unsafe fn add_for_host(at: *mut u32, value: u32) {
    // SAFETY: the caller's contract.
    unsafe { u32::add(at, value) }
}

/// Replaces a word of 2, 4 or 8 bytes by `new` where it is `expected`, and gives what it was: acquire and release.
///
/// # Safety
/// As [`load_for_host`].
pub unsafe fn compare_exchange_for_host(at: *mut u8, bytes: usize, expected: u64, new: u64) -> u64 {
    // SAFETY: the caller's contract.
    unsafe {
        match bytes {
            2 => u16::compare_exchange(at.cast(), expected as u16, new as u16).into(),
            4 => u32::compare_exchange(at.cast(), expected as u32, new as u32).into(),
            _ => u64::compare_exchange(at.cast(), expected, new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_moves_its_bytes_alone() {
        let mut word = [0u64; 3];
        let at = (&raw mut word[1]).cast::<u8>();
        // SAFETY: the words are this test's, and aligned for each width.
        unsafe {
            store(at.cast(), 0x8877_6655_4433_2211_u64);
            assert_eq!((load(at), load(at.add(7))), (0x11, 0x88));
            assert_eq!((load(at.cast::<u16>()), load(at.add(6).cast::<u16>())), (0x2211, 0x8877));
            assert_eq!((load(at.cast::<u32>()), load(at.add(4).cast::<u32>())), (0x4433_2211, 0x8877_6655));
            store(at.add(1), 0xaa_u8);
            store(at.add(2).cast(), 0xbbcc_u16);
            store(at.add(4).cast(), 0xdddd_eeee_u32);
            assert_eq!(load_acquire(at.cast::<u64>()), 0xdddd_eeee_bbcc_aa11);
            store_release::<u64>(at.cast(), 5);
            add_release(at.cast(), u64::MAX);
        }
        assert_eq!(word, [0, 4, 0]);
    }

    #[test]
    fn read_modify_writes_compute_and_give_what_was() {
        macro_rules! integers {
            ($($type:ty)*) => {$(
                let mut number: $type = 12;
                let at = &raw mut number;
                // SAFETY: the number is this test's.
                unsafe {
                    assert_eq!((<$type>::fetch_add(at, <$type>::MAX), number), (12, (12 as $type).wrapping_add(<$type>::MAX)));
                    assert_eq!((<$type>::swap(at, 0b1100), number), ((12 as $type).wrapping_add(<$type>::MAX), 0b1100));
                    assert_eq!((<$type>::compare_exchange(at, 1, 2), number), (0b1100, 0b1100));
                    assert_eq!((<$type>::compare_exchange(at, 0b1100, 0b1010), number), (0b1100, 0b1010));
                    assert_eq!((<$type>::fetch_and(at, 0b0110), number), (0b1010, 0b0010));
                    assert_eq!((<$type>::fetch_or(at, 0b1000), number), (0b0010, 0b1010));
                    assert_eq!((<$type>::fetch_xor(at, 0b0011), number), (0b1010, 0b1001));
                    assert_eq!((<$type>::fetch_max(at, <$type>::MIN), number), (9, 9));
                    assert_eq!((<$type>::fetch_min(at, <$type>::MIN), number), (9, <$type>::MIN));
                    assert_eq!((<$type>::fetch_max(at, 3), number), (<$type>::MIN, <$type>::MIN.max(3)));
                    let mut after = |change: unsafe fn(*mut $type, $type), value| {
                        number = 0b0110;
                        change(&raw mut number, value);
                        number
                    };
                    assert_eq!([after(<$type>::and, 0b1010), after(<$type>::or, 0b1010)], [0b0010, 0b1110]);
                    assert_eq!([after(<$type>::xor, 0b1010), after(<$type>::xor, <$type>::MAX)], [0b1100, <$type>::MAX ^ 0b0110]);
                    assert_eq!([after(RmwInt::min, 5), after(RmwInt::max, 7)], [5, 7]);
                }
            )*};
        }
        integers! { u32 i32 u64 i64 }
        let mut number = 1.5f64;
        // SAFETY: the number is this test's.
        unsafe {
            assert_eq!((f64::fetch_add(&raw mut number, -2.0), number), (1.5, -0.5));
            assert_eq!((f64::swap(&raw mut number, 7.0), number), (-0.5, 7.0));
            assert_eq!((f64::compare_exchange(&raw mut number, 7.0, 8.0), number), (7.0, 8.0));
        }
    }

    #[test]
    fn of_accesses_of_two_sizes_each_sees_what_was_stored() {
        const ROUNDS: u32 = 50_000;
        let mut word = u64::from(u32::MAX);
        let at = (&raw mut word).expose_provenance();
        let place = || core::ptr::with_exposed_provenance_mut::<u64>(at);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..=ROUNDS {
                    // SAFETY: the word outlives the scope, and nothing but these functions touches it meanwhile.
                    unsafe { store(place(), u64::from(i) << 32 | u64::from(!i)) };
                }
            });
            scope.spawn(move || {
                let (mut up, mut down) = (0, u32::MAX);
                while up != ROUNDS {
                    // SAFETY: as above; both halves are aligned.
                    let half = |i| unsafe { load::<u32>(place().cast::<u32>().add(i)) };
                    let (low, high) = (half(0), half(1));
                    assert!(
                        (up..=ROUNDS).contains(&high) && (!ROUNDS..=down).contains(&low),
                        "{high} {low}: torn, or older"
                    );
                    (up, down) = (high, low);
                }
            });
        });
    }
}
