//! Atomic read-modify-writes of symmetric memory: relaxed, at system scope.

use core::arch::asm;
use core::mem::transmute_copy;

use congruent_heap::{bf16, f16};

use super::load;
use crate::SmallFloat;
use crate::arch::{Rmw, RmwInt};

macro_rules! fetch {
    ($name:ident, $register:ident, $($instruction:tt)*) => {
        #[inline(always)]
        unsafe fn $name(pointer: *mut Self, value: Self) -> Self {
            let old: Self;
            on_global!(concat!("atom.relaxed.sys.global.", $($instruction)*, " {o}, [g], {v};"), pointer, o = out($register) old, v = in($register) value);
            old
        }
    };
}

macro_rules! rmw {
    ($($type:ty, $register:ident, $bits:literal, $add:literal;)*) => {$(
        impl Rmw for $type {
            fetch!(fetch_add, $register, $add);
            fetch!(swap, $register, concat!("exch.", $bits));
            #[inline(always)]
            unsafe fn add(pointer: *mut Self, value: Self) {
                on_global!(concat!("red.relaxed.sys.global.", $add, " [g], {v};"), pointer, v = in($register) value);
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                let old: Self;
                on_global!(
                    concat!("atom.relaxed.sys.global.cas.", $bits, " {o}, [g], {e}, {n};"),
                    pointer, o = out($register) old, e = in($register) expected, n = in($register) new
                );
                old
            }
        }
    )*};
}

macro_rules! rmw_int {
    ($($type:ty, $register:ident, $bits:literal, $number:literal;)*) => {$(
        impl RmwInt for $type {
            fetch!(fetch_and, $register, concat!("and.", $bits));
            fetch!(fetch_or, $register, concat!("or.", $bits));
            fetch!(fetch_xor, $register, concat!("xor.", $bits));
            fetch!(fetch_min, $register, concat!("min.", $number));
            fetch!(fetch_max, $register, concat!("max.", $number));
        }
    )*};
}

rmw! {
    u32, reg32, "b32", "add.u32";
    i32, reg32, "b32", "add.s32";
    u64, reg64, "b64", "add.u64";
    i64, reg64, "b64", "add.u64";
    f32, reg32, "b32", "add.f32";
    f64, reg64, "b64", "add.f64";
}

/// Floats of 16 bits: a GPU adds them where it has an instruction (those of `bf16` from sm_90 on), and replaces them by compare and swap.
macro_rules! rmw_small {
    ($($type:ty: $($number:literal)?;)*) => {$(
        impl Rmw for $type {
            rmw_small! { @ $($number)? }
            #[inline(always)]
            unsafe fn swap(pointer: *mut Self, value: Self) -> Self {
                // SAFETY: the trait's contract.
                unsafe { update(pointer, |_| value) }
            }
            #[inline(always)]
            unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self {
                let old: u16;
                on_global!(
                    "atom.relaxed.sys.global.cas.b16 {o}, [g], {e}, {n};",
                    pointer, o = out(reg16) old, e = in(reg16) expected.to_bits(), n = in(reg16) new.to_bits()
                );
                Self::from_bits(old)
            }
        }
    )*};
    (@ $number:literal) => {
        #[inline(always)]
        unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self {
            let old: u16;
            on_global!(
                concat!("atom.relaxed.sys.global.add.noftz.", $number, " {o}, [g], {v};"),
                pointer, o = out(reg16) old, v = in(reg16) value.to_bits()
            );
            Self::from_bits(old)
        }
        #[inline(always)]
        unsafe fn add(pointer: *mut Self, value: Self) {
            on_global!(
                concat!("red.relaxed.sys.global.add.noftz.", $number, " [g], {v};"),
                pointer, v = in(reg16) value.to_bits()
            );
        }
    };
    (@) => {
        #[inline(always)]
        unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self {
            // SAFETY: the trait's contract. A sum in f32, rounded once more, is the sum rounded once.
            unsafe { update(pointer, |old| Self::narrow(old.widen() + value.widen())) }
        }
    };
}

/// Replaces a float of 16 bits by what becomes of it, and gives the old one.
///
/// # Safety
/// As [`Rmw`].
#[inline(always)]
unsafe fn update<T: Rmw + SmallFloat>(pointer: *mut T, new: impl Fn(T) -> T) -> T {
    let bits = |value: T| -> u16 {
        const { assert!(size_of::<T>() == 2) };
        // SAFETY: it has 16 bits.
        unsafe { transmute_copy(&value) }
    };
    // SAFETY: the caller's contract; any bits are a float.
    let mut seen: T = unsafe { transmute_copy(&load(pointer.cast::<u16>())) };
    loop {
        // SAFETY: the caller's contract.
        let old = unsafe { T::compare_exchange(pointer, seen, new(seen)) };
        if bits(old) == bits(seen) {
            return old;
        }
        seen = old;
    }
}

rmw_small! { f16: "f16"; }
#[cfg(target_feature = "sm_90")]
rmw_small! { bf16: "bf16"; }
#[cfg(not(target_feature = "sm_90"))]
rmw_small! { bf16: ; }

rmw_int! {
    u32, reg32, "b32", "u32";
    i32, reg32, "b32", "s32";
    u64, reg64, "b64", "u64";
    i64, reg64, "b64", "s64";
}
