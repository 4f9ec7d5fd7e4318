//! The one loop in which a kernel waits, and the record it leaves when the wait does not end well.

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{self, Abort, FaultKind, FaultRecord};

use crate::arch::{self, Backoff, End, Form, Lane};

/// Who polls, and where that is told.
#[derive(Clone, Copy)]
pub(crate) struct Waiter<'m> {
    pub(crate) lane: Lane<'m>,
    /// Address of the PE's control block, which the context vouches for.
    pub(crate) control: u64,
    pub(crate) pe: u32,
}

/// Who waits for packets in a bulk operation, and how long.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'m> {
    pub(crate) waiter: Waiter<'m>,
    pub(crate) budget_ns: u64,
}

impl Patience<'_> {
    /// Waits until the packets of an end have `arrived`; sleeps on `word` where the machine sleeps. False when the kernel must end,
    /// and then the reason is recorded.
    #[cold]
    #[inline(always)]
    pub(crate) fn packet(self, end: impl Fn() -> End, word: *mut u64, arrived: impl FnMut() -> bool) -> bool {
        self.waiter.poll(word, self.budget_ns, arrived, |expiry| {
            let end = end();
            let flag = match end.form {
                Form::Plain => 0,
                Form::Packets { flag } | Form::Lines { flag, .. } => flag,
            };
            // The flag is the lower half of a packet; above it is data.
            let seen = expiry.seen & u64::from(u32::MAX);
            self.waiter.timed_out(Expiry { seen, ..expiry }, end.offset, end.sender, flag.into());
        })
    }
}

/// Instead of the time when a poll began to look at the clock.
const NOT_YET: u64 = u64::MAX;

/// A wait whose budget is spent: what its word held, and how long it took.
#[derive(Clone, Copy)]
pub(crate) struct Expiry {
    pub(crate) seen: u64,
    pub(crate) waited_ns: u64,
}

/// Waits until `word`, at `offset` of this PE's heap, is at least `value`. False when the kernel must end; then the reason
/// is recorded.
///
/// On a GPU it is a function of its own, with scalar arguments only: inlined, it would be most of every kernel's text.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
pub(crate) fn reached(waiter: Waiter<'_>, word: *mut u64, budget_ns: u64, offset: u64, peer: u32, value: u64) -> bool {
    let ready = || at_least(word, value);
    waiter.poll(word, budget_ns, ready, |expiry| waiter.timed_out(expiry, offset, peer, value))
}

/// Whether a word of this PE's heap has reached `value`, with acquire.
#[inline(always)]
pub(crate) fn at_least(word: *mut u64, value: u64) -> bool {
    // SAFETY: callers give words of this PE's heap, mapped and aligned.
    reaches(unsafe { arch::load_acquire(word) }, value)
}

/// Whether a count has reached `value`, by the distance between them, so that counts may wrap around.
#[inline(always)]
pub(crate) fn reaches(seen: u64, value: u64) -> bool {
    seen.wrapping_sub(value) as i64 >= 0
}

/// Whether the launch is ending.
#[inline(always)]
pub(crate) fn aborted(control: u64) -> bool {
    let word = control as usize + core::mem::offset_of!(abi::Control, abort);
    // SAFETY: the context vouches for the control block, and the word is aligned.
    unsafe { arch::load::<u32>(with_exposed_provenance_mut(word)) != 0 }
}

impl Waiter<'_> {
    /// Polls until `ready`, at most `budget_ns`; sleeps on `word` where the machine sleeps. False when the launch is ending, and
    /// when the budget is spent: of that `expired` is told, here and not by a result that would be carried out of every wait.
    #[inline(always)]
    pub(crate) fn poll(
        self,
        word: *mut u64,
        budget_ns: u64,
        mut ready: impl FnMut() -> bool,
        expired: impl FnOnce(Expiry),
    ) -> bool {
        if ready() {
            return true;
        }
        let mut backoff = Backoff::new();
        let mut started = NOT_YET;
        loop {
            // SAFETY: callers give words of this PE's heap, mapped and aligned. Read before `ready`, so that a sleep on
            // this value ends at once if the word has changed since.
            let seen = unsafe { arch::load(word) };
            if ready() {
                return true;
            }
            if backoff.turn(&self.lane, word, seen) {
                if aborted(self.control) {
                    return false;
                }
                let now = self.lane.now_ns();
                if started == NOT_YET {
                    started = now;
                }
                let waited_ns = now - started;
                if waited_ns >= budget_ns {
                    expired(Expiry { seen, waited_ns });
                    return false;
                }
            }
        }
    }

    /// Leaves a fault record for a wait that expired.
    #[cold]
    #[inline(always)]
    pub(crate) fn timed_out(self, expiry: Expiry, offset: u64, peer: u32, expected: u64) {
        self.fault(FaultKind::Timeout, peer, offset, expected, expiry.seen, expiry.waited_ns);
    }

    /// Leaves a fault record, if it is the first one of this PE, and ends every wait of it.
    #[cold]
    #[inline(always)]
    pub(crate) fn fault(self, kind: FaultKind, peer: u32, offset: u64, expected: u64, seen: u64, waited_ns: u64) {
        let (block, thread) = (self.lane.block(), self.lane.thread());
        let kind = kind as u32;
        self.leave(FaultRecord { kind, pe: self.pe, block, thread, peer, part: 0, offset, expected, seen, waited_ns });
    }

    /// Leaves a record, as [`fault`](Self::fault).
    #[cold]
    #[inline(always)]
    pub(crate) fn leave(self, record: FaultRecord) {
        let control: *mut abi::Control = with_exposed_provenance_mut(self.control as usize);
        // SAFETY: the context vouches for the control block; the claim makes this thread the record's only writer, and the
        // host reads it only after it has seen state 2.
        unsafe {
            if arch::claim(&raw mut (*control).fault_state, 0, 1) {
                (&raw mut (*control).fault).write(record);
                arch::fence();
                arch::store(&raw mut (*control).fault_state, 2);
                arch::claim(&raw mut (*control).abort, 0, Abort::Fault as u32);
            }
        }
    }
}
