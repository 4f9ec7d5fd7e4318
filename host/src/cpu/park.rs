//! How a waiting lane, or proxy, gives up its core: it yields for a while, then sleeps on the word it polls.
//!
//! Where other programs compute, a yield gives the core away for a whole slice of theirs, some milliseconds, while who is woken
//! gets a core soon. So a thread whose yield took long sleeps instead of yielding for a while. One whose yield came back at once has its core
//! for itself, and looks at the network some times before the next one.
//!
//! A sleeper registers in the header of its PE's heap, so that who changes a word makes the system call to wake it only
//! when someone sleeps. The check of the notifier and the registration here are not ordered (that would cost every notify a
//! full fence), so a wake can be missed; a sleep is therefore short, and a miss costs at most [`LONGEST`].
#![allow(clippy::disallowed_types, reason = "the futex's words have this type; nothing here looks at one")]

use std::cell::Cell;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use congruent_device::{abi, cpu};
use rustix::thread::futex;

/// How often a waiting lane yields before it sleeps; and where a network has to be polled, which no word tells of.
const YIELDS: u32 = 50;
const POLLING_YIELDS: u32 = 2000;

/// The longest sleep between two looks at the word, the abort word and the clock; and where a network has to be polled.
const LONGEST: Duration = Duration::from_micros(500);
pub(crate) const SHORT: Duration = Duration::from_micros(50);

/// A yield that takes longer gave the core to a program that computes. A PE of the job that computes between two waits, as experts do,
/// mostly has it for less, while the system's slices are milliseconds.
const LONG: Duration = Duration::from_micros(800);

/// How long a thread does not yield after that.
const CROWDED: Duration = Duration::from_millis(50);

/// A yield that takes less found nobody who wants the core. Who polls a network looks at it so many times before the next one.
const ALONE: Duration = Duration::from_micros(2);
const LOOKS: u32 = 8;

thread_local! {
    /// Until when this thread does not yield.
    static CROWDED_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How often this thread goes on before its next yield.
    static LOOKS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// How often who waits yields before it sleeps.
pub(crate) fn yields(polls: bool) -> u32 {
    if polls { POLLING_YIELDS } else { YIELDS }
}

/// Passes time for turn `turn` of a wait for `word`, which held `seen`, of somebody who `polls` a network, too, or does not.
///
/// # Safety
/// As for `Machine::pause`; the heap of the PE that `context` is of is mapped.
pub(crate) unsafe fn pass(context: &abi::Context, turn: u32, word: *const u32, seen: u32, polls: bool) {
    if turn < yields(polls) && (polls && is_alone() || gives_way()) {
        return;
    }
    let most = if polls { SHORT } else { LONGEST };
    let sleepers = sleepers(context);
    // SAFETY: the caller's contract; the word is looked at by the kernel of the system only.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    // SAFETY: every heap starts with a mapped HeapHeader.
    unsafe { cpu::add_for_host(sleepers, 1) };
    let most = rustix::fs::Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
    // Every outcome means "look again": woken, timed out, interrupted, or the word has changed already.
    let _look_again = futex::wait(word, futex::Flags::empty(), seen, Some(&most));
    // SAFETY: as above.
    unsafe { cpu::add_for_host(sleepers, u32::MAX) };
}

/// Yields, unless a yield has lately cost this thread its core; tells whether it did.
fn gives_way() -> bool {
    CROWDED_UNTIL.with(|until| {
        let now = Instant::now();
        if until.get().is_some_and(|until| now < until) {
            return false;
        }
        std::thread::yield_now();
        let took = now.elapsed();
        until.set((took > LONG).then(|| now + CROWDED));
        LOOKS_LEFT.set(if took < ALONE { LOOKS } else { 0 });
        true
    })
}

/// Whether nobody wanted the core lately.
fn is_alone() -> bool {
    let left = LOOKS_LEFT.get();
    LOOKS_LEFT.set(left.saturating_sub(1));
    left > 0
}

/// Where the count of those who sleep on words of this PE is.
fn sleepers(context: &abi::Context) -> *mut u32 {
    let header = context.base + u64::from(context.pe) * context.stride;
    with_exposed_provenance_mut(header as usize + std::mem::offset_of!(abi::HeapHeader, sleepers))
}

/// Wakes who sleeps on `word` of this PE, if anybody does.
///
/// # Safety
/// As for `Machine::wake`; the heap of the PE that `context` is of is mapped.
pub(crate) unsafe fn wake_own(context: &abi::Context, word: *const u32) {
    // SAFETY: the caller's contract.
    unsafe {
        if cpu::load_for_host(sleepers(context).cast(), size_of::<u32>()) != 0 {
            wake(word);
        }
    }
}

/// Wakes everyone who sleeps on `word`, in any process that maps it.
///
/// # Safety
/// As for `Machine::wake`.
pub(crate) unsafe fn wake(word: *const u32) {
    // SAFETY: as in `pass`.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    let _how_many = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
