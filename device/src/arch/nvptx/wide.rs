//! Accesses of 16 bytes.

use core::arch::asm;

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

/// Two words in one access. Each is a relaxed access of 64 bits of its own in the PTX model, which does not tear.
#[inline(always)]
pub(crate) unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    let (a, b): (u64, u64);
    on_global!("ld.relaxed.sys.global.v2.b64 {{{a}, {b}}}, [g];", pointer, a = out(reg64) a, b = out(reg64) b);
    [a, b]
}

#[inline(always)]
pub(crate) unsafe fn store_words(pointer: *mut u8, [a, b]: [u64; 2]) {
    on_global!("st.relaxed.sys.global.v2.b64 [g], {{{a}, {b}}};", pointer, a = in(reg64) a, b = in(reg64) b);
}
