//! The one loop in which a kernel waits.

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::Pe;
use congruent_heap::abi::{self, Cause, NO_PE};

use crate::Operand;
use crate::arch::{self, Backoff, Word};
use crate::{Ctx, Mark};

/// A word that may be polled: mapped, aligned, and never plain memory of somebody's.
#[derive(Clone, Copy)]
pub(crate) struct Polled<W = u64>(*mut W);

impl<W: Word> Polled<W> {
    /// # Safety
    /// The word is mapped for as long as the kernel runs, aligned, and accessed as words of `arch` are.
    #[inline(always)]
    pub(crate) unsafe fn new(word: *mut W) -> Self {
        Self(word)
    }

    /// Where it is.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut W {
        self.0
    }

    /// What it holds, relaxed.
    #[inline(always)]
    pub(crate) fn load(self) -> W {
        // SAFETY: `new` was promised that it is mapped and aligned.
        unsafe { arch::load(self.0) }
    }

    /// What it holds, with acquire.
    #[inline(always)]
    pub(crate) fn load_acquire(self) -> W {
        // SAFETY: as in `load`.
        unsafe { arch::load_acquire(self.0) }
    }
}

impl Polled {
    /// Whether it has reached `value`, with acquire.
    #[inline(always)]
    pub(crate) fn at_least(self, value: u64) -> bool {
        reaches(self.load_acquire(), value)
    }
}

/// Instead of the time when a poll began to look at the clock.
const NOT_YET: u64 = u64::MAX;

/// A wait in vain, whose budget is spent or whose launch is ending: what its word held, and how long it took.
#[derive(Clone, Copy)]
pub(crate) struct Expiry {
    pub(crate) seen: u64,
    pub(crate) waited_ns: u64,
}

/// Whether a count has reached `value`, by the distance between them, so that counts may wrap around.
#[inline(always)]
pub(crate) fn reaches(seen: u64, value: u64) -> bool {
    seen.wrapping_sub(value) as i64 >= 0
}

impl Ctx<'_> {
    outlined! {
        /// Waits until the word at `offset` of this PE is at least `value`, which `peer` is to see to. False when the kernel must end;
        /// then the reason is recorded.
        pub(crate) fn reached(&self, offset: u64, peer: u32, value: u64) -> bool {
            let word = self.word(offset, self.pe());
            let ready = || word.at_least(value);
            self.poll(word, Some(peer), self.abi().deadline_ns, ready, |expiry| self.timed_out(expiry, offset, peer, value))
        }

        /// Waits until the lower half of the word at `offset` of this PE is `tag`, which `peer` is to see to. False when the kernel must
        /// end; then the reason is recorded.
        pub(crate) fn tagged(&self, offset: u64, peer: u32, tag: u32) -> bool {
            let word = self.word(offset, self.pe());
            let ready = || word.load_acquire() as u32 == tag;
            self.poll(word, Some(peer), self.abi().deadline_ns, ready, |expiry| {
                let seen = expiry.seen & u64::from(u32::MAX);
                self.timed_out(Expiry { seen, ..expiry }, offset, peer, tag.into());
            })
        }
    }

    /// Waits until the word at `offset` of this PE is `value`, which `peer` is to see to. False when the kernel must end; then the
    /// reason is recorded.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn equals<W: Word>(&self, offset: u64, peer: u32, value: W) -> bool {
        let word: Polled<W> = self.word_of(offset, self.pe());
        let ready = || word.load_acquire() == value;
        self.poll(word, Some(peer), self.abi().deadline_ns, ready, |expiry| {
            self.timed_out(expiry, offset, peer, value.into())
        })
    }

    /// Waits until the packets of an operand have `arrived`; sleeps on `word` where the machine sleeps. False when the kernel must end,
    /// and then the reason is recorded.
    #[cold]
    #[inline(always)]
    pub(crate) fn packet(&self, operand: impl Fn() -> Operand, word: Polled, arrived: impl FnMut() -> bool) -> bool {
        self.all_packets(|seen| (operand(), seen), word, arrived)
    }

    /// The same of packets of several operands: `late` gives one that lacks some, and what is in its place, once it is late; it is told
    /// what `word` held.
    #[inline(always)]
    pub(crate) fn all_packets(
        &self,
        late: impl Fn(u64) -> (Operand, u64),
        word: Polled,
        arrived: impl FnMut() -> bool,
    ) -> bool {
        self.poll(word, None, self.abi().deadline_ns, arrived, |expiry| {
            let (Operand { offset, sender, flag, .. }, seen) = late(expiry.seen);
            // The flag is the lower half of a packet; above it is data.
            let seen = seen & u64::from(u32::MAX);
            self.timed_out(Expiry { seen, ..expiry }, offset, sender, flag.into());
        })
    }

    /// Whether the launch is ending: another PE failed or a wait of this one expired. A loop that does not wait asks this.
    #[inline(always)]
    pub fn aborted(&self) -> bool {
        let word = self.abi().control as usize + core::mem::offset_of!(abi::Control, abort);
        // SAFETY: the control block is mapped, as `Ctx::new` was promised, and the word is aligned.
        unsafe { arch::load::<u32>(with_exposed_provenance_mut(word)) != 0 }
    }

    /// Polls until `ready`, which `peer` is to see to if it is one, at most `budget_ns`; sleeps on `word` where the machine sleeps. False when the budget is spent, and when
    /// the launch is ending: of both `expired` is told, here and not by a result that would be carried out of every wait.
    #[inline(always)]
    pub(crate) fn poll<W: Word>(
        &self,
        word: Polled<W>,
        peer: Option<u32>,
        budget_ns: u64,
        mut ready: impl FnMut() -> bool,
        expired: impl FnOnce(Expiry),
    ) -> bool {
        if ready() {
            return true;
        }
        let _span =
            self.span_of(|| Mark { peer: peer.filter(|&peer| peer != NO_PE).map(Pe::new), ..Mark::new("wait") });
        let mut backoff = Backoff::new();
        let mut started = NOT_YET;
        loop {
            // Read before `ready`, so that a sleep on this value ends at once if the word has changed since; and not where nobody asks
            // for it, as it is a trip to memory.
            let seen = if backoff.asks_for_word() { word.load().into() } else { 0 };
            if ready() {
                return true;
            }
            if backoff.turn(&self.lane, word, seen) {
                let now = self.lane.now_ns();
                if started == NOT_YET {
                    started = now;
                }
                let waited_ns = now - started;
                if waited_ns >= budget_ns || self.aborted() {
                    expired(Expiry { seen, waited_ns });
                    return false;
                }
            }
        }
    }

    /// Leaves a fault record for a wait that expired. Of a launch that is ending since another PE has failed, it tells what this PE
    /// waited for then.
    #[cold]
    #[inline(always)]
    pub(crate) fn timed_out(&self, expiry: Expiry, offset: u64, peer: u32, expected: u64) {
        let Expiry { seen, waited_ns } = expiry;
        self.leave(Cause::Timeout { offset, peer, expected, seen, waited_ns });
    }
}
