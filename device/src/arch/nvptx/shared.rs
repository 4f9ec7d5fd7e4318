//! Shared memory of a block: weak accesses of its state space, so that those of two threads without a sync between are races which
//! a virtual GPU finds. Assembly: where they race, a thread reads an old value or a new one, and the compiler knows nothing of it.

use core::arch::{asm, global_asm};

use congruent_heap::Pod;

use super::Lane;
use crate::SharedArrays;

// What a launch asks for. One name for all kernels of a module.
global_asm!(".extern .shared .align 16 .b8 congruent_shared[];");

/// What a block has: where it begins.
#[derive(Clone, Copy)]
pub struct Room(u32);

/// Where an array begins.
#[derive(Clone, Copy)]
pub struct SharedAt(u32);

impl SharedAt {
    /// Where what is behind `n` elements begins.
    #[inline(always)]
    pub(crate) fn behind<T>(self, n: usize) -> Self {
        Self(self.element::<T>(n))
    }

    /// The same, of which the compiler does not know how it came. What is added behind it becomes part of an instruction: it is not worked
    /// out ahead of a loop, for each instruction in a register of its own.
    #[inline(always)]
    pub(super) fn opaque(self) -> Self {
        let mut place = self.0;
        // SAFETY: does nothing.
        unsafe { asm!("/* {0} */", inout(reg32) place, options(nomem, nostack)) };
        Self(place)
    }

    /// The address of an element.
    #[inline(always)]
    pub(super) fn element<T>(self, i: usize) -> u32 {
        self.0 + (i * size_of::<T>()) as u32
    }
}

/// # Safety
/// As for [`Shared::of`](crate::Shared::of).
#[inline(always)]
pub(crate) unsafe fn room<A: ?Sized + SharedArrays>(_lane: &Lane<'_>) -> Room {
    if A::BYTES == 0 {
        return Room(0);
    }
    let start: u32;
    // SAFETY: declares shared memory of this place in the kernel's own, and gives its address. It is where the kernel begins, by the
    // caller's contract, and so in the text once.
    unsafe {
        asm!(
            "{{ .shared .align 16 .b8 room[{n}]; mov.u32 {a}, room; }}",
            n = const A::BYTES, a = out(reg32) start, options(nostack)
        );
    }
    Room(start)
}

impl Room {
    #[inline(always)]
    pub(crate) fn known(self, at: usize) -> SharedAt {
        SharedAt(self.0 + at as u32)
    }

    #[inline(always)]
    pub(crate) fn rest(self) -> (SharedAt, usize) {
        let (start, bytes): (u32, u32);
        // SAFETY: the address of what is declared for the module, and how many bytes the launch has there (PTX ISA,
        // %dynamic_smem_size).
        unsafe {
            asm!(
                "mov.u32 {a}, congruent_shared; mov.u32 {b}, %dynamic_smem_size;",
                a = out(reg32) start, b = out(reg32) bytes, options(pure, nomem, nostack)
            );
        }
        (SharedAt(start), bytes as usize)
    }
}

/// How an element is accessed: in as few words as its size and alignment allow.
const fn width<T>() -> usize {
    match size_of::<T>() {
        16 => 16,
        size if size % 4 == 0 && align_of::<T>() >= 4 => 4,
        size if size % 2 == 0 && align_of::<T>() >= 2 => 2,
        _ => 1,
    }
}

/// # Safety
/// There is an element `i` of an array that begins there.
#[inline(always)]
pub(crate) unsafe fn shared_load<T: Pod>(start: SharedAt, i: usize) -> T {
    let at = start.0 + (i * size_of::<T>()) as u32;
    let mut value = T::zeroed();
    let to = (&raw mut value).cast::<u8>();
    // SAFETY: the caller's contract; an array is aligned to 16, and any bytes are plain data.
    unsafe {
        match (width::<T>(), size_of::<T>()) {
            (16, _) => {
                let (a, b, c, d): (u32, u32, u32, u32);
                asm!("ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{p}];", p = in(reg32) at, a = out(reg32) a, b = out(reg32) b,
                    c = out(reg32) c, d = out(reg32) d, options(nostack));
                to.cast::<[u32; 4]>().write_unaligned([a, b, c, d]);
            }
            (4, 8) => {
                let (a, b): (u32, u32);
                asm!("ld.shared.v2.b32 {{{a}, {b}}}, [{p}];", p = in(reg32) at, a = out(reg32) a, b = out(reg32) b,
                    options(nostack));
                to.cast::<[u32; 2]>().write_unaligned([a, b]);
            }
            (4, size) => {
                for j in 0..size / 4 {
                    let word: u32;
                    asm!("ld.shared.b32 {v}, [{p}];", p = in(reg32) at + 4 * j as u32, v = out(reg32) word, options(nostack));
                    to.cast::<u32>().add(j).write_unaligned(word);
                }
            }
            (2, size) => {
                for j in 0..size / 2 {
                    let word: u16;
                    asm!("ld.shared.b16 {v}, [{p}];", p = in(reg32) at + 2 * j as u32, v = out(reg16) word, options(nostack));
                    to.cast::<u16>().add(j).write_unaligned(word);
                }
            }
            (_, size) => {
                for j in 0..size {
                    let word: u16;
                    asm!("ld.shared.u8 {v}, [{p}];", p = in(reg32) at + j as u32, v = out(reg16) word, options(nostack));
                    to.add(j).write(word as u8);
                }
            }
        }
    }
    value
}

/// # Safety
/// As for [`shared_load`].
#[inline(always)]
pub(crate) unsafe fn shared_store<T: Pod>(start: SharedAt, i: usize, value: T) {
    let at = start.0 + (i * size_of::<T>()) as u32;
    let from = (&raw const value).cast::<u8>();
    // SAFETY: as above.
    unsafe {
        match (width::<T>(), size_of::<T>()) {
            (16, _) => {
                let [a, b, c, d] = from.cast::<[u32; 4]>().read_unaligned();
                asm!("st.shared.v4.b32 [{p}], {{{a}, {b}, {c}, {d}}};", p = in(reg32) at, a = in(reg32) a, b = in(reg32) b,
                    c = in(reg32) c, d = in(reg32) d, options(nostack));
            }
            (4, 8) => {
                let [a, b] = from.cast::<[u32; 2]>().read_unaligned();
                asm!("st.shared.v2.b32 [{p}], {{{a}, {b}}};", p = in(reg32) at, a = in(reg32) a, b = in(reg32) b,
                    options(nostack));
            }
            (4, size) => {
                for j in 0..size / 4 {
                    let word = from.cast::<u32>().add(j).read_unaligned();
                    asm!("st.shared.b32 [{p}], {v};", p = in(reg32) at + 4 * j as u32, v = in(reg32) word, options(nostack));
                }
            }
            (2, size) => {
                for j in 0..size / 2 {
                    let word = from.cast::<u16>().add(j).read_unaligned();
                    asm!("st.shared.b16 [{p}], {v};", p = in(reg32) at + 2 * j as u32, v = in(reg16) word, options(nostack));
                }
            }
            (_, size) => {
                for j in 0..size {
                    let word = u16::from(from.add(j).read());
                    asm!("st.shared.u8 [{p}], {v};", p = in(reg32) at + j as u32, v = in(reg16) word, options(nostack));
                }
            }
        }
    }
}

/// Begins to copy an element of 16 bytes that is there, or zeros.
///
/// # Safety
/// As for [`shared_store`]; where it is there, `from` is that of an element in global memory, aligned to 16. Where not, nothing is read.
#[inline(always)]
pub(crate) unsafe fn copy_later<T: Pod>(start: SharedAt, i: usize, from: *const T, is_there: bool) {
    let bytes = if is_there { 16_u32 } else { 0 };
    // SAFETY: the caller's contract. Of the source so many bytes are read, and zeros take the place of the others (PTX ISA, cp.async).
    unsafe {
        asm!(
            "{{ .reg .b64 g; cvta.to.global.u64 g, {p}; cp.async.cg.shared.global [{a}], [g], 16, {n}; }}",
            p = in(reg64) from, a = in(reg32) start.element::<T>(i), n = in(reg32) bytes, options(nostack)
        );
    }
}

/// Waits for all that this thread has begun to copy.
#[inline(always)]
pub(crate) fn copies_done() {
    // SAFETY: waits.
    unsafe { asm!("cp.async.wait_all;", options(nostack)) }
}

/// Ends a group of copies, and waits for all but the last `N` groups.
#[inline(always)]
pub(crate) fn stage_done<const N: usize>() {
    // SAFETY: waits.
    unsafe { asm!("cp.async.commit_group; cp.async.wait_group {n};", n = const N, options(nostack)) }
}

/// Whether an address is one of global memory.
#[inline(always)]
pub(crate) fn is_global<T>(at: *const T) -> bool {
    let is: u32;
    // SAFETY: looks at an address.
    unsafe {
        asm!(
            "{{ .reg .pred q; isspacep.global q, {p}; selp.b32 {r}, 1, 0, q; }}",
            p = in(reg64) at, r = out(reg32) is, options(pure, nomem, nostack)
        );
    }
    is != 0
}

/// An addition that no other thread of the block comes between.
pub(crate) trait SharedAdd: Sized {
    unsafe fn add(start: SharedAt, i: usize, value: Self) -> Self;
}

macro_rules! adds {
    ($($type:ty, $register:ident, $instruction:literal;)*) => {$(
        impl SharedAdd for $type {
            #[inline(always)]
            unsafe fn add(start: SharedAt, i: usize, value: Self) -> Self {
                let old: Self;
                // SAFETY: the caller's contract.
                unsafe {
                    asm!(
                        concat!("atom.relaxed.cta.shared.add.", $instruction, " {o}, [{p}], {v};"),
                        p = in(reg32) start.0 + (i * size_of::<Self>()) as u32, o = out($register) old, v = in($register) value,
                        options(nostack)
                    );
                }
                old
            }
        }
    )*};
}
adds! {
    u32, reg32, "u32";
    i32, reg32, "s32";
    u64, reg64, "u64";
    f32, reg32, "f32";
}
