//! One element of symmetric memory, whatever its type, or up to 8 bytes: as few relaxed word accesses as size and alignment allow.

use core::mem::MaybeUninit;

use congruent_heap::Pod;

use crate::arch::{self, each};

/// Bytes of one access to a `T`: the widest power of two that divides its size and that its alignment grants.
pub(crate) const fn width<T>() -> usize {
    let (size, align) = (size_of::<T>(), align_of::<T>());
    let mut width = if align < 8 { align } else { 8 };
    while !size.is_multiple_of(width) {
        width /= 2;
    }
    width
}

/// Whether a `T` is of 16 bytes each where 16 bytes begin, of which one instruction moves two words.
const fn is_wide<T>() -> bool {
    size_of::<T>().is_multiple_of(16) && align_of::<T>() >= 16
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned for `T`.
#[inline(always)]
pub(crate) unsafe fn load<T: Pod>(pointer: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `width` divides size and alignment, so the accesses are aligned and cover exactly the element; all of its
    // bytes are then written, and any bytes are a valid Pod.
    unsafe {
        let mut at = 0;
        while at < size_of::<T>() {
            let (from, to) = (pointer.cast::<u8>().add(at), value.as_mut_ptr().cast::<u8>().add(at));
            if is_wide::<T>() {
                to.cast::<arch::Wide>().write(arch::load_wide(from));
                at += 16;
                continue;
            }
            match width::<T>() {
                1 => to.write(arch::load::<u8>(from)),
                2 => to.cast::<u16>().write(arch::load(from.cast::<u16>())),
                4 => to.cast::<u32>().write(arch::load(from.cast::<u32>())),
                _ => to.cast::<u64>().write(arch::load(from.cast::<u64>())),
            }
            at += width::<T>();
        }
        value.assume_init()
    }
}

/// # Safety
/// `pointer` is mapped symmetric memory, aligned for `T`.
#[inline(always)]
pub(crate) unsafe fn store<T: Pod>(pointer: *mut T, value: T) {
    let from = (&raw const value).cast::<u8>();
    // SAFETY: `width` divides size and alignment, so the accesses are aligned and cover exactly the element.
    unsafe {
        let mut at = 0;
        while at < size_of::<T>() {
            let (from, to) = (from.add(at), pointer.cast::<u8>().add(at));
            if is_wide::<T>() {
                arch::store_wide(to, from.cast::<arch::Wide>().read());
                at += 16;
                continue;
            }
            match width::<T>() {
                1 => arch::store::<u8>(to, from.read()),
                2 => arch::store(to.cast::<u16>(), from.cast::<u16>().read()),
                4 => arch::store(to.cast::<u32>(), from.cast::<u32>().read()),
                _ => arch::store(to.cast::<u64>(), from.cast::<u64>().read()),
            }
            at += width::<T>();
        }
    }
}

/// Gives the words of a value, each with its byte offset.
#[inline(always)]
pub(crate) fn each_word<T: Pod>(value: T, mut give: impl FnMut(u64, u64)) {
    let from = (&raw const value).cast::<u8>();
    let mut at = 0;
    while at < size_of::<T>() {
        // SAFETY: `width` divides size and alignment, so the reads are aligned and inside the value.
        let bits = unsafe {
            match width::<T>() {
                1 => u64::from(from.add(at).read()),
                2 => u64::from(from.add(at).cast::<u16>().read()),
                4 => u64::from(from.add(at).cast::<u32>().read()),
                _ => from.add(at).cast::<u64>().read(),
            }
        };
        give(at as u64, bits);
        at += width::<T>();
    }
}

/// Makes a value of the words at each byte offset.
#[inline(always)]
pub(crate) fn from_words<T: Pod>(mut word: impl FnMut(u64) -> u64) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let to = value.as_mut_ptr().cast::<u8>();
    let mut at = 0;
    while at < size_of::<T>() {
        let bits = word(at as u64);
        // SAFETY: `width` divides size and alignment, so the writes are aligned and inside the value.
        unsafe {
            match width::<T>() {
                1 => to.add(at).write(bits as u8),
                2 => to.add(at).cast::<u16>().write(bits as u16),
                4 => to.add(at).cast::<u32>().write(bits as u32),
                _ => to.add(at).cast::<u64>().write(bits),
            }
        }
        at += width::<T>();
    }
    // SAFETY: all bytes are written, and any bytes are a valid Pod.
    unsafe { value.assume_init() }
}

#[inline(always)]
pub(crate) const fn low_high(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Whether these bytes are one access.
#[inline(always)]
pub(crate) fn is_word(start: *const u8, n: u32) -> bool {
    n == 8 && (start as usize).is_multiple_of(8)
}

/// Whether they are accesses of 4 bytes.
#[inline(always)]
fn is_halves(start: *const u8, n: u32) -> bool {
    (start as usize | n as usize).is_multiple_of(4)
}

/// Up to 8 bytes, aligned or not: `unit`, a constant, divides address and length.
///
/// # Safety
/// The bytes are mapped symmetric memory.
#[inline(always)]
pub(crate) unsafe fn load_up_to_8(from: *const u8, n: u32, unit: usize) -> [u32; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(from, n) {
            return low_high(arch::load(from.cast::<u64>()));
        }
        if unit >= 4 || is_halves(from, n) {
            let halves = from.cast::<u32>();
            return [arch::load(halves), if n == 8 { arch::load(halves.add(1)) } else { 0 }];
        }
        let mut value = 0;
        for i in each(0..n as usize / unit) {
            value |= match unit {
                2 => u64::from(arch::load(from.cast::<u16>().add(i))) << (16 * i),
                _ => u64::from(arch::load::<u8>(from.add(i))) << (8 * i),
            };
        }
        low_high(value)
    }
}

/// # Safety
/// As [`load_up_to_8`].
#[inline(always)]
pub(crate) unsafe fn store_up_to_8(to: *mut u8, n: u32, unit: usize, [low, high]: [u32; 2]) {
    let value = u64::from(low) | u64::from(high) << 32;
    // SAFETY: the caller's contract.
    unsafe {
        if is_word(to, n) {
            return arch::store(to.cast::<u64>(), value);
        }
        if unit >= 4 || is_halves(to, n) {
            let halves = to.cast::<u32>();
            arch::store(halves, low);
            if n == 8 {
                arch::store(halves.add(1), high);
            }
            return;
        }
        for i in each(0..n as usize / unit) {
            match unit {
                2 => arch::store(to.cast::<u16>().add(i), (value >> (16 * i)) as u16),
                _ => arch::store(to.add(i), (value >> (8 * i)) as u8),
            }
        }
    }
}

/// Up to 8 bytes as one or two packets, each with its flag in the lower half.
///
/// # Safety
/// There is room for them, aligned to 16 bytes, in mapped symmetric memory.
#[inline(always)]
pub(crate) unsafe fn store_packets(to: *mut u8, n: u32, data: [u32; 2], flag: u32) {
    let packet = |data: u32| u64::from(data) << 32 | u64::from(flag);
    // SAFETY: the caller's contract.
    unsafe {
        if n > 4 {
            arch::store_words(to, data.map(packet));
        } else {
            arch::store(to.cast::<u64>(), packet(data[0]));
        }
    }
}
