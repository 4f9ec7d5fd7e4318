//! The heaps of the CPU machine as a proxy accesses them: as kernels do.

use std::sync::atomic::{Ordering, fence};

use congruent_device::cpu;
use congruent_transports::{Access, Atomic};

use super::park;

/// Access by the processor.
#[derive(Debug)]
pub(crate) struct HeapAccess;

impl Access for HeapAccess {
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { cpu::copy_bytes_for_host(to, from, bytes) };
        Ok(())
    }

    unsafe fn load(&self, from: *const u8, bytes: usize) -> Result<u64, String> {
        // SAFETY: the caller's promise.
        Ok(unsafe { cpu::load_for_host(from, bytes) })
    }

    unsafe fn store(&self, to: *mut u8, bytes: usize, value: u64) -> Result<(), String> {
        // With the store a release, whatever its width (MM-4).
        fence(Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { cpu::store_for_host(to, bytes, value) };
        Ok(())
    }

    unsafe fn atomic(&self, at: *mut u8, atomic: Atomic) -> Result<u64, String> {
        let bytes = atomic.bytes as usize;
        // SAFETY: the caller's promise, here and below.
        let mut seen = unsafe { cpu::load_for_host(at, bytes) };
        loop {
            // SAFETY: as above.
            let old = unsafe { cpu::compare_exchange_for_host(at, bytes, seen, atomic.apply(seen)) };
            if old == seen {
                return Ok(old);
            }
            seen = old;
        }
    }

    unsafe fn wake(&self, sleepers: *const u8, word: *const u8) {
        // SAFETY: the caller's promise; the low half of a word comes first.
        unsafe {
            if cpu::load_for_host(sleepers, size_of::<u32>()) != 0 {
                park::wake(word.cast());
            }
        }
    }
}
