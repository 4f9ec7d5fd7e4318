//! The loops of a GPU's folds, for tests on a CPU: the same text over accesses of the CPU.

#[path = "nvptx/bulk.rs"]
mod bulk;
#[path = "nvptx/vectors.rs"]
mod vectors;
#[path = "nvptx/words.rs"]
mod words;

use core::cell::RefCell;
use std::vec::Vec;

use super::Word;
use super::cpu::{self, load, load_acquire};

std::thread_local! {
    /// The stores so far of this thread of the test, but those of vectors: where, and how many bytes.
    static STORES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

fn note_store<T>(pointer: *mut T, bytes: usize) {
    STORES.with_borrow_mut(|stores| stores.push((pointer as usize, bytes)));
}

/// A thread of a warp whose others run before or after it, and miss nothing.
struct Lane;

impl Lane {
    fn new() -> Self {
        Self
    }
    fn warp_sync(&self) {}
    fn warp_any(&self, flag: bool) -> bool {
        flag
    }
}

unsafe fn store<W: Word>(pointer: *mut W, value: W) {
    note_store(pointer, size_of::<W>());
    // SAFETY: the caller's contract.
    unsafe { cpu::store(pointer, value) };
}

unsafe fn store_release(pointer: *mut u64, value: u64) {
    note_store(pointer, 8);
    // SAFETY: the caller's contract.
    unsafe { cpu::store_release(pointer, value) };
}

unsafe fn load16(pointer: *const u8) -> [u32; 4] {
    // SAFETY: the caller's contract: 16 bytes of mapped memory, aligned.
    core::array::from_fn(|i| unsafe { load(pointer.cast::<u32>().add(i)) })
}

unsafe fn store16(pointer: *mut u8, words: [u32; 4]) {
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: as for load16.
        unsafe { cpu::store(pointer.cast::<u32>().add(i), word) };
    }
}

unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    // SAFETY: as for load16.
    core::array::from_fn(|i| unsafe { load(pointer.cast::<u64>().add(i)) })
}

unsafe fn store_words(pointer: *mut u8, words: [u64; 2]) {
    note_store(pointer, 16);
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: as for load16.
        unsafe { cpu::store(pointer.cast::<u64>().add(i), word) };
    }
}
