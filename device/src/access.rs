//! One element of symmetric memory, whatever its type, or up to 8 bytes: as few relaxed word accesses as size and alignment allow.

use core::mem::MaybeUninit;

use congruent_heap::Pod;

use crate::arch;

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
