//! Waiting for peers. Every wait is bounded: by the launch's deadline, and by the abort word, which the host sets when
//! another PE fails. A wait that ends so leaves a fault record and ends the kernel; it never returns as if all were well.

use core::ptr::with_exposed_provenance_mut;
use core::time::Duration;

use congruent_heap::abi::{self, Abort, FaultKind, FaultRecord, NO_DEADLINE, NO_PE};
use congruent_heap::{Awaited, Pe, Semaphore, Signal, Sym};

use crate::arch::{self, Backoff};
use crate::{Ctx, Group};

/// What [`Ctx::try_wait`] gives when its budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

/// Why a poll ended without what it waited for.
enum Stop {
    Expired { seen: u64, waited_ns: u64 },
    Aborted,
}

impl Ctx<'_> {
    /// Waits for `n` posts and takes them. One group at a time waits on a semaphore.
    ///
    /// # Ordering
    /// Acquire (MM-3): every thread of the group sees what the posters put here before they posted.
    ///
    /// # Panics
    /// Where the object has no semaphore in it.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self, group: &impl Group, semaphore: impl Into<Awaited<Semaphore>>, n: u64) {
        let awaited = semaphore.into();
        let failed = group.leader() && !self.take(awaited, n);
        self.join(group, failed);
    }

    /// Waits until a signal is at least `value`.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait`](Ctx::wait).
    ///
    /// # Panics
    /// Where the object has no signal in it.
    #[inline(always)]
    #[track_caller]
    pub fn wait_at_least(&self, group: &impl Group, signal: impl Into<Awaited<Signal>>, value: u64) {
        let awaited = signal.into();
        let failed = group.leader() && !self.reached(awaited.word().elem(0).offset(), awaited.from(), value);
        self.join(group, failed);
    }

    /// Waits until every one of these signals is at least `value`; the group shares the work.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait`](Ctx::wait).
    #[inline(always)]
    #[track_caller]
    pub fn wait_all(&self, group: &impl Group, signals: Sym<Signal>, value: u64) {
        let mut failed = false;
        for i in group.strided(signals.len()) {
            failed = failed || !self.reached(signals.elem(i).offset(), None, value);
        }
        self.join(group, failed);
    }

    /// Waits until any of these signals is at least `value`, and gives the first such index to every thread.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait`](Ctx::wait).
    ///
    /// # Panics
    /// Where there are no signals.
    #[inline(always)]
    #[track_caller]
    pub fn wait_any(&self, group: &impl Group, signals: Sym<Signal>, value: u64) -> usize {
        let first = self.word(signals.elem(0).offset(), self.pe());
        let mut found = 0;
        let failed = group.leader() && {
            let ready = || {
                found = (0..signals.len()).find(|&i| {
                    // SAFETY: `i` is inside the signals, which `word` and `elem` checked.
                    reaches(unsafe { arch::load_acquire(self.word(signals.elem(i).offset(), self.pe())) }, value)
                })?;
                Some(())
            };
            !self.or_fault(self.poll(first, self.abi.deadline_ns, ready), signals.offset(), None, value)
        };
        self.join(group, failed);
        group.broadcast(found as u64) as usize
    }

    /// Waits for `n` posts like [`wait`](Ctx::wait), but gives up after `budget`, and then has taken none.
    ///
    /// # Errors
    /// [`TimedOut`], the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire on success (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn try_wait(
        &self,
        group: &impl Group,
        semaphore: impl Into<Awaited<Semaphore>>,
        n: u64,
        budget: Duration,
    ) -> Result<(), TimedOut> {
        let awaited = semaphore.into();
        let (mut expired, mut aborted) = (false, false);
        if group.leader() {
            let (posted, taken, expected) = self.claim_posts(awaited.word(), n);
            let budget = u64::try_from(budget.as_nanos()).unwrap_or(NO_DEADLINE);
            match self.poll(posted, budget, || self.at_least(posted, expected)) {
                // SAFETY: `taken` is the owner's word of a semaphore on this PE's heap.
                Ok(()) => unsafe { arch::store(taken, expected) },
                Err(Stop::Expired { .. }) => expired = true,
                Err(Stop::Aborted) => aborted = true,
            }
        }
        self.join(group, aborted);
        if group.any(expired) { Err(TimedOut) } else { Ok(()) }
    }

    /// Whether a signal is at least `value` now; the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire where it is true (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn test(&self, group: &impl Group, signal: Sym<Signal>, value: u64) -> bool {
        group.any(group.leader() && reaches(self.signal_value(signal), value))
    }

    /// Whether every one of these signals is at least `value` now; the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire where it is true (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn test_all(&self, group: &impl Group, signals: Sym<Signal>, value: u64) -> bool {
        let below = group.strided(signals.len()).any(|i| !reaches(self.signal_value(signals.elem(i)), value));
        !group.any(below)
    }

    /// The first of these signals that is at least `value` now; the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire where there is one (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn test_any(&self, group: &impl Group, signals: Sym<Signal>, value: u64) -> Option<usize> {
        let mut found = signals.len();
        if group.leader() {
            found = (0..signals.len()).find(|&i| reaches(self.signal_value(signals.elem(i)), value)).unwrap_or(found);
        }
        let found = group.broadcast(found as u64) as usize;
        (found < signals.len()).then_some(found)
    }

    /// What a signal of this PE holds now, by the calling thread (OpenSHMEM's signal_fetch).
    ///
    /// # Ordering
    /// Acquire (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn signal_value(&self, signal: Sym<Signal>) -> u64 {
        // SAFETY: the word is on this PE's heap, mapped and aligned.
        unsafe { arch::load_acquire(self.word(signal.elem(0).offset(), self.pe())) }
    }

    /// How many posts a semaphore of this PE holds that have not been taken, by the calling thread.
    ///
    /// # Ordering
    /// Acquire (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn available(&self, semaphore: Sym<Semaphore>) -> u64 {
        let (posted, _, taken) = self.claim_posts(semaphore, 0);
        // SAFETY: the word is on this PE's heap, mapped and aligned.
        unsafe { arch::load_acquire(posted) }.wrapping_sub(taken)
    }

    /// Waits until the word at `offset` of this PE is at least `value`; false when the kernel must end.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn reached(&self, offset: u64, from: Option<Pe>, value: u64) -> bool {
        let word = self.word(offset, self.pe());
        self.or_fault(self.poll(word, self.abi.deadline_ns, || self.at_least(word, value)), offset, from, value)
    }

    /// Ends the kernel of the whole group if any thread failed.
    #[inline(always)]
    pub(crate) fn join(&self, group: &impl Group, failed: bool) {
        if group.any(failed) {
            self.lane.exit();
        }
    }

    /// Leaves a fault record, the first one of this PE, and ends every wait of it.
    #[cold]
    pub(crate) fn fault(
        &self,
        kind: FaultKind,
        peer: Option<Pe>,
        offset: u64,
        expected: u64,
        seen: u64,
        waited_ns: u64,
    ) {
        let control: *mut abi::Control = with_exposed_provenance_mut(self.abi.control as usize);
        let record = FaultRecord {
            kind: kind as u32,
            pe: self.abi.pe,
            block: self.lane.block(),
            thread: self.lane.thread(),
            peer: peer.map_or(NO_PE, Pe::raw),
            reserved: 0,
            offset,
            expected,
            seen,
            waited_ns,
        };
        // SAFETY: the control block is mapped (`Ctx::new`); the claim makes this thread the record's only writer, and the
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

    #[inline(always)]
    #[track_caller]
    fn take(&self, awaited: Awaited<Semaphore>, n: u64) -> bool {
        let (posted, taken, expected) = self.claim_posts(awaited.word(), n);
        let offset = awaited.word().offset() + Semaphore::POSTED;
        let polled = self.poll(posted, self.abi.deadline_ns, || self.at_least(posted, expected));
        if !self.or_fault(polled, offset, awaited.from(), expected) {
            return false;
        }
        // SAFETY: `taken` is the owner's word of a semaphore on this PE's heap.
        unsafe { arch::store(taken, expected) };
        true
    }

    /// The words of a semaphore of this PE, and the count of posts after which `n` more have come.
    #[inline(always)]
    #[track_caller]
    fn claim_posts(&self, semaphore: Sym<Semaphore>, n: u64) -> (*mut u64, *mut u64, u64) {
        let offset = semaphore.elem(0).offset();
        let posted = self.word(offset + Semaphore::POSTED, self.pe());
        let taken = self.word(offset + Semaphore::TAKEN, self.pe());
        // SAFETY: `taken` is mapped and aligned; only its owner's waits touch it, one at a time.
        (posted, taken, unsafe { arch::load(taken) }.wrapping_add(n))
    }

    #[inline(always)]
    fn at_least(&self, word: *mut u64, value: u64) -> Option<()> {
        // SAFETY: callers give words of this PE's heap, mapped and aligned.
        reaches(unsafe { arch::load_acquire(word) }, value).then_some(())
    }

    /// Polls until `ready`, at most `budget_ns`; sleeps on `word` where the machine sleeps.
    #[inline(always)]
    fn poll(&self, word: *mut u64, budget_ns: u64, mut ready: impl FnMut() -> Option<()>) -> Result<(), Stop> {
        if ready().is_some() {
            return Ok(());
        }
        let mut backoff = Backoff::new();
        let mut started = None;
        loop {
            // SAFETY: callers give words of this PE's heap, mapped and aligned. Read before `ready`, so that a sleep on
            // this value ends at once if the word has changed since.
            let seen = unsafe { arch::load(word) };
            if ready().is_some() {
                return Ok(());
            }
            if backoff.turn(&self.lane, word, seen) {
                if self.aborted() {
                    return Err(Stop::Aborted);
                }
                let now = self.lane.now_ns();
                let waited_ns = now - *started.get_or_insert(now);
                if waited_ns >= budget_ns {
                    return Err(Stop::Expired { seen, waited_ns });
                }
            }
        }
    }

    #[inline(always)]
    fn or_fault(&self, polled: Result<(), Stop>, offset: u64, from: Option<Pe>, expected: u64) -> bool {
        match polled {
            Ok(()) => true,
            Err(Stop::Expired { seen, waited_ns }) => {
                self.fault(FaultKind::Timeout, from, offset, expected, seen, waited_ns);
                false
            }
            Err(Stop::Aborted) => false,
        }
    }
}

/// Whether a count has reached `value`, by the distance between them, so that counts may wrap around.
#[inline(always)]
fn reaches(seen: u64, value: u64) -> bool {
    seen.wrapping_sub(value) as i64 >= 0
}
