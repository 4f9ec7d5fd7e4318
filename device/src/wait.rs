//! Waiting for peers. Every wait is bounded: by the launch's deadline, and by the abort word, which the host sets when
//! another PE fails. A wait that ends so leaves a fault record and ends the kernel; it never returns as if all were well.

use core::time::Duration;

use congruent_heap::abi::{NO_DEADLINE, NO_PE};
use congruent_heap::{Awaited, Element, Notify, Pe, Rank, Semaphore, Signal, Sym};

use crate::arch::Word;
use crate::poll::{Polled, reaches};
use crate::sealed::Sealed;
use crate::{Ctx, Group, Thread, arch};

/// What [`Ctx::try_wait`] and [`Ctx::try_wait_at_least`] give when its budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

/// What [`Ctx::wait_equal`] waits on: a [`Signal`], or a word of data of 8, 16, 32 or 64 bits.
#[expect(private_bounds, reason = "the machine's part of the trait is nobody else's business")]
pub trait Waitable: Element + Sealed {
    /// What it holds.
    type Value: Word;
}

macro_rules! waitables {
    ($($type:ty: $value:ty;)*) => {$(
        impl Waitable for $type {
            type Value = $value;
        }
    )*};
}
waitables! { Signal: u64; u64: u64; u32: u32; u16: u16; u8: u8; }

impl Sealed for Signal {}
impl Sealed for u16 {}
impl Sealed for u8 {}

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
        self.wait_by_leader(group, || (awaited, value));
    }

    /// [`wait_at_least`](Ctx::wait_at_least), of which only the group's leader computes for what.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn wait_by_leader(&self, group: &impl Group, signal: impl FnOnce() -> (Awaited<Signal>, u64)) {
        let mut failed = false;
        if group.leader() {
            let (awaited, value) = signal();
            failed = !self.reached(awaited.word().elem(0).offset(), sender(awaited), value);
        }
        self.join(group, failed);
    }

    /// Waits until a word is `value`, as where a generation is waited for: it need not grow. Who sets it does not go on to the next value
    /// before this one was seen.
    ///
    /// A word of data, of 8 bits or more, is set by [`put_value`](Ctx::put_value) after a [`fence`](Ctx::fence), which orders what the
    /// sender put before. Nobody wakes a waiter of the CPU for it, as for a signal: it may notice half a millisecond late.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait`](Ctx::wait), of what a notify released, or a fence before the word was put (MM-4).
    ///
    /// # Panics
    /// Where the object has no word in it.
    ///
    /// ```
    /// use congruent_device::{Group, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Each PE sends the next one its rows, and then in one byte which generation they are of.
    ///     pub fn pass_on(block, ctx, inbox: Sym<f32>, rows: Sym<f32>, flag: Sym<u8>, generation: u32) {
    ///         let world = ctx.world();
    ///         ctx.put(block, inbox.at(world.next()), rows);
    ///         ctx.fence(block, world.next());
    ///         if block.leader() { ctx.put_value(flag.at(world.next()), generation as u8); }
    ///         ctx.wait_equal(block, flag.from_rank(world.prev()), generation as u8);
    ///     }
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_equal<W: Waitable>(&self, group: &impl Group, word: impl Into<Awaited<W>>, value: W::Value) {
        let awaited = word.into();
        let failed = group.leader() && !self.equals(awaited.word().elem(0).offset(), sender(awaited), value);
        self.join(group, failed);
    }

    /// Whether a word is `value` now; the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire where it is true, as [`wait_equal`](Ctx::wait_equal).
    ///
    /// # Panics
    /// Where the object has no word in it.
    #[inline(always)]
    #[track_caller]
    pub fn test_equal<W: Waitable>(&self, group: &impl Group, word: Sym<W>, value: W::Value) -> bool {
        let offset = word.elem(0).offset();
        group.any(group.leader() && self.word_of::<W::Value>(offset, self.pe()).load_acquire() == value)
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
            failed = failed || !self.reached(signals.elem(i).offset(), NO_PE, value);
        }
        self.join(group, failed);
    }

    /// Waits until the lower half of each of these signals is `tag`; the group shares the work. The upper half is the sender's to use: it
    /// comes with the tag. Signal `i` is set by member `from(i)`, which a fault names.
    ///
    /// It is equality that is waited for, and so a tag of an earlier round or of a later one is not taken for this one; tags may wrap
    /// around. A sender sets the next tag when it knows that this one was seen.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait`](Ctx::wait).
    #[inline(always)]
    #[track_caller]
    pub fn wait_tags<G>(&self, group: &impl Group, signals: Sym<Signal>, tag: u32, from: impl Fn(usize) -> Rank<G>) {
        let mut failed = false;
        for i in group.strided(signals.len()) {
            failed = failed || !self.tagged(signals.elem(i).offset(), from(i).pe().raw(), tag);
        }
        self.join(group, failed);
    }

    /// Sends `count` notifies and awaits `count` signals, each at least its value; the group shares the work. The functions give
    /// number `i` of both. All that the group did before is covered by the notifies.
    ///
    /// # Ordering
    /// Each notify as [`notify`](Ctx::notify), each wait as [`wait`](Ctx::wait).
    #[inline(always)]
    #[track_caller]
    pub fn exchange(
        &self,
        group: &impl Group,
        count: usize,
        notify: impl Fn(usize) -> Notify,
        awaited: impl Fn(usize) -> (Awaited<Signal>, u64),
    ) {
        group.sync();
        self.exchange_met(group, count, notify, awaited);
    }

    /// [`exchange`](Ctx::exchange) by a group that has just met: what it did before that is covered.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn exchange_met(
        &self,
        group: &impl Group,
        count: usize,
        notify: impl Fn(usize) -> Notify,
        awaited: impl Fn(usize) -> (Awaited<Signal>, u64),
    ) {
        for i in group.strided(count) {
            self.notify(&Thread, notify(i));
        }
        let mut failed = false;
        for i in group.strided(count) {
            let (awaited, value) = awaited(i);
            failed = failed || !self.reached(awaited.word().elem(0).offset(), sender(awaited), value);
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
        if group.leader() {
            let ready = || match (0..signals.len()).find(|&i| reaches(self.signal_value(signals.elem(i)), value)) {
                Some(i) => {
                    found = i;
                    true
                }
                None => false,
            };
            let came = self.poll(first, None, self.abi().deadline_ns, ready, |expiry| {
                self.timed_out(expiry, signals.offset(), NO_PE, value);
            });
            found = if came { found } else { signals.len() };
        }
        let found = group.broadcast(found as u64) as usize;
        self.end_unless(found < signals.len());
        found
    }

    /// Waits for `n` posts like [`wait`](Ctx::wait), but gives up after `budget`, and then has taken none. With a budget of 0 it looks
    /// once and does not wait; a loop around it asks [`aborted`](Ctx::aborted) too.
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
        let mut outcome = Within::Came;
        if group.leader() {
            let (posted, taken, expected) = self.claim_posts(awaited.word(), n);
            outcome = self.within(posted, expected, budget);
            if outcome == Within::Came {
                // SAFETY: `taken` is the owner's word of a semaphore on this PE's heap.
                unsafe { arch::store(taken.as_ptr(), expected) };
            }
        }
        self.told(group, outcome)
    }

    /// Waits until a signal is at least `value` like [`wait_at_least`](Ctx::wait_at_least), but gives up after `budget`; with one of 0 it
    /// does not wait, as [`test`](Ctx::test).
    ///
    /// # Errors
    /// [`TimedOut`], the same for every thread of the group.
    ///
    /// # Ordering
    /// Acquire on success (MM-3).
    ///
    /// # Panics
    /// Where the object has no signal in it.
    ///
    /// ```
    /// use core::time::Duration;
    /// use congruent_device::{Signal, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Waits for a round, and counts how often it was late.
    ///     pub fn patient(block, ctx, round: Sym<Signal>, late: Sym<u64>, number: u64) {
    ///         while ctx.try_wait_at_least(block, round, number, Duration::from_millis(1)).is_err() {
    ///             ctx.store(late, 0, ctx.load(late, 0) + 1);
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn try_wait_at_least(
        &self,
        group: &impl Group,
        signal: impl Into<Awaited<Signal>>,
        value: u64,
        budget: Duration,
    ) -> Result<(), TimedOut> {
        let mut outcome = Within::Came;
        if group.leader() {
            let word = self.word(signal.into().word().elem(0).offset(), self.pe());
            outcome = self.within(word, value, budget);
        }
        self.told(group, outcome)
    }

    /// Waits until a word is at least `value`, for at most `budget`.
    #[inline(always)]
    fn within(&self, word: Polled, value: u64, budget: Duration) -> Within {
        let budget = u64::try_from(budget.as_nanos()).unwrap_or(NO_DEADLINE);
        let mut expired = budget == 0;
        let ready = || word.at_least(value);
        let came = if expired {
            ready()
        } else {
            self.poll(word, None, budget, ready, |expiry| expired = expiry.waited_ns >= budget)
        };
        match (came, expired) {
            (true, _) => Within::Came,
            (false, true) => Within::TimedOut,
            (false, false) => Within::Aborted,
        }
    }

    /// Tells all threads of a group how its leader's bounded wait went.
    #[inline(always)]
    #[track_caller]
    fn told(&self, group: &impl Group, outcome: Within) -> Result<(), TimedOut> {
        self.join(group, outcome == Within::Aborted);
        if group.any(outcome == Within::TimedOut) { Err(TimedOut) } else { Ok(()) }
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
        self.word(signal.elem(0).offset(), self.pe()).load_acquire()
    }

    /// What a signal of this PE holds that nobody sets at the moment: the calling thread has waited for it, or its block has set it. It is
    /// relaxed, since that was ordered then.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn signal_seen(&self, signal: Sym<Signal>) -> u64 {
        self.word(signal.elem(0).offset(), self.pe()).load()
    }

    /// How many posts a semaphore of this PE holds that have not been taken, by the calling thread.
    ///
    /// # Ordering
    /// Acquire (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn available(&self, semaphore: Sym<Semaphore>) -> u64 {
        let (posted, _, taken) = self.claim_posts(semaphore, 0);
        posted.load_acquire().wrapping_sub(taken)
    }

    #[inline(always)]
    #[track_caller]
    fn take(&self, awaited: Awaited<Semaphore>, n: u64) -> bool {
        let (_, taken, expected) = self.claim_posts(awaited.word(), n);
        if !self.reached(awaited.word().offset() + Semaphore::POSTED, sender(awaited), expected) {
            return false;
        }
        // SAFETY: `taken` is the owner's word of a semaphore on this PE's heap.
        unsafe { arch::store(taken.as_ptr(), expected) };
        true
    }

    /// The words of a semaphore of this PE, and the count of posts after which `n` more have come.
    #[inline(always)]
    #[track_caller]
    fn claim_posts(&self, semaphore: Sym<Semaphore>, n: u64) -> (Polled, Polled, u64) {
        let offset = semaphore.elem(0).offset();
        let posted = self.word(offset + Semaphore::POSTED, self.pe());
        let taken = self.word(offset + Semaphore::TAKEN, self.pe());
        (posted, taken, taken.load().wrapping_add(n))
    }
}

/// How a bounded wait went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Came,
    TimedOut,
    Aborted,
}

/// The PE that is to notify, or [`NO_PE`].
#[inline(always)]
pub(crate) fn sender<T: Element>(awaited: Awaited<T>) -> u32 {
    awaited.from().map_or(NO_PE, Pe::raw)
}
