//! Shared memory of a block: memory of the thread that runs all of its lanes, which take turns.

use congruent_heap::Pod;

use super::Lane;
use crate::{Number, SharedArrays};

/// What a block has, as its machine gives it.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    start: *mut u8,
    known: usize,
    rest: usize,
}

impl Room {
    /// `known` bytes, a multiple of 16, and `rest` bytes behind them.
    ///
    /// # Safety
    /// They are there, aligned to 16, for as long as the block runs, and nobody else uses them.
    pub unsafe fn new(start: *mut u8, known: usize, rest: usize) -> Self {
        Self { start, known, rest }
    }

    #[inline(always)]
    pub(crate) fn known(self, at: usize) -> SharedAt {
        SharedAt(self.start.wrapping_add(at))
    }

    #[inline(always)]
    pub(crate) fn rest(self) -> (SharedAt, usize) {
        (SharedAt(self.start.wrapping_add(self.known)), self.rest)
    }
}

/// Where an array begins.
#[derive(Clone, Copy)]
pub struct SharedAt(*mut u8);

impl SharedAt {
    /// Where what is behind `n` elements begins.
    #[inline(always)]
    pub(crate) fn behind<T>(self, n: usize) -> Self {
        Self(self.0.wrapping_add(n * size_of::<T>()))
    }
}

/// # Safety
/// As for [`Shared::of`](crate::Shared::of).
#[inline(always)]
pub(crate) unsafe fn room<A: ?Sized + SharedArrays>(lane: &Lane<'_>) -> Room {
    debug_assert_eq!(lane.room.known, A::BYTES);
    lane.room
}

/// # Safety
/// There is an element `i` of an array that begins there.
#[inline(always)]
pub(crate) unsafe fn shared_load<T: Pod>(start: SharedAt, i: usize) -> T {
    // SAFETY: the caller's contract; arrays are aligned to 16, and any bytes are plain data. All lanes of the block run on this
    // thread.
    unsafe { start.0.cast::<T>().add(i).read() }
}

/// # Safety
/// As for [`shared_load`].
#[inline(always)]
pub(crate) unsafe fn shared_store<T: Pod>(start: SharedAt, i: usize, value: T) {
    // SAFETY: as above.
    unsafe { start.0.cast::<T>().add(i).write(value) }
}

/// Copies an element that is there, or zeros: at once.
///
/// # Safety
/// As for [`shared_store`]; where it is there, `from` is that of an element.
#[inline(always)]
pub(crate) unsafe fn copy_later<T: Pod>(start: SharedAt, i: usize, from: *const T, is_there: bool) {
    // SAFETY: the caller's contract.
    unsafe { shared_store(start, i, if is_there { from.read() } else { T::zeroed() }) }
}

/// They are done when they have begun.
#[inline(always)]
pub(crate) fn copies_done() {}

#[inline(always)]
pub(crate) fn stage_done<const N: usize>() {}

/// All memory is alike.
#[inline(always)]
pub(crate) fn is_global<T>(_at: *const T) -> bool {
    true
}

/// An addition that no other lane comes between.
pub(crate) trait SharedAdd: Pod {
    unsafe fn add(start: SharedAt, i: usize, value: Self) -> Self;
}

impl<T: Number> SharedAdd for T {
    #[inline(always)]
    unsafe fn add(start: SharedAt, i: usize, value: T) -> T {
        // SAFETY: the caller's contract. Lanes take turns where they meet, and not here.
        unsafe {
            let old = shared_load::<T>(start, i);
            shared_store(start, i, old.plus(value));
            old
        }
    }
}
