//! How a waiting lane gives up its core: it yields for a while, then sleeps on the word it polls.
//!
//! A sleeper registers in the header of its PE's heap, so that who changes a word makes the system call to wake it only
//! when someone sleeps. The check of the notifier and the registration here are not ordered (that would cost every notify a
//! full fence), so a wake can be missed; a nap is therefore short, and a miss costs at most [`NAP`].
#![allow(clippy::disallowed_types, reason = "registers sleepers that other processes read")]

use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use congruent_device::abi;
use rustix::thread::futex;

/// How often a waiting lane yields before it sleeps.
const YIELDS: u32 = 50;

/// The longest sleep between two looks at the word, the abort word and the clock.
const NAP: Duration = Duration::from_micros(500);

/// Passes time for turn `turn` of a poll of `word`, which held `seen`.
pub(super) fn pass(context: &abi::Context, turn: u32, word: *const u32, seen: u32) {
    if turn < YIELDS {
        std::thread::yield_now();
        return;
    }
    let header = context.base + u64::from(context.pe) * context.stride;
    let sleepers = header as usize + std::mem::offset_of!(abi::HeapHeader, sleepers);
    // SAFETY: every heap starts with a mapped HeapHeader, whose count is only accessed atomically.
    let sleepers = unsafe { &*with_exposed_provenance::<AtomicU32>(sleepers) };
    // SAFETY: the device polls words of this PE's mapped heap, aligned to 8 bytes, and only atomically.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    sleepers.fetch_add(1, Ordering::Relaxed);
    let nap = rustix::fs::Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
    // Every outcome means "look again": woken, timed out, interrupted, or the word has changed already.
    let _look_again = futex::wait(word, futex::Flags::empty(), seen, Some(&nap));
    sleepers.fetch_sub(1, Ordering::Relaxed);
}

/// Wakes everyone who sleeps on `word`, in any process that maps it.
pub(super) fn wake(word: *const u32) {
    // SAFETY: the device notifies words of mapped heaps, aligned to 8 bytes, and only atomically.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    let _how_many = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
