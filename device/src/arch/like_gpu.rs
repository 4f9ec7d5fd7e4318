//! The loops of a GPU's folds, for tests on a CPU: the same text over accesses of the CPU.

#[path = "nvptx/bulk.rs"]
mod bulk;
#[path = "nvptx/granules.rs"]
mod granules;
#[path = "nvptx/pieces.rs"]
mod pieces;
#[path = "nvptx/words.rs"]
mod words;

use super::Word;
use super::cpu::{load, load_acquire, store, store_release};

/// A thread of a warp whose others run before or after it, and miss nothing.
struct Lane;

impl Lane {
    fn new() -> Self {
        Self
    }
    fn warp_any(&self, flag: bool) -> bool {
        flag
    }
}

unsafe fn load16(pointer: *const u8) -> [u32; 4] {
    // SAFETY: the caller's contract: 16 bytes of mapped memory, aligned.
    core::array::from_fn(|i| unsafe { load(pointer.cast::<u32>().add(i)) })
}

unsafe fn store16(pointer: *mut u8, words: [u32; 4]) {
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: as for load16.
        unsafe { store(pointer.cast::<u32>().add(i), word) };
    }
}

unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    // SAFETY: as for load16.
    core::array::from_fn(|i| unsafe { load(pointer.cast::<u64>().add(i)) })
}

unsafe fn store_words(pointer: *mut u8, words: [u64; 2]) {
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: as for load16.
        unsafe { store(pointer.cast::<u64>().add(i), word) };
    }
}
