//! Atomics by network cards, on words that nothing else touches ([`NicWord`]).
//!
//! They act on the first word of a place, by the calling thread, and are relaxed as all atomics are (MM-7).

use congruent_heap::abi::{AtomicOp, NumberKind, Request, Then, Verb};
use congruent_heap::{NicWord, Place};

use crate::arch::Rmw;
use crate::proxy::to;
use crate::{Ctx, Thread};

impl Ctx<'_> {
    /// Adds, wrapping around, and gives the old value.
    ///
    /// ```
    /// use congruent_device::{NicWord, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Each thread of every PE takes the next item of a list that PE 0 counts.
    ///     pub fn work(block, ctx, taken: Sym<NicWord>, items: u64, mine: Sym<u64>) {
    ///         let taken = taken.at(ctx.world().rank(0));
    ///         let mut item = ctx.nic_fetch_add(taken, 1);
    ///         while item < items {
    ///             ctx.add(mine.at(ctx.world().me()), item);
    ///             item = ctx.nic_fetch_add(taken, 1);
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # One-sided
    /// The old value is here on return.
    ///
    /// # Errors
    /// Where the connection to the PE fails meanwhile, nobody knows whether it was done. The world then ends with an error that says so.
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn nic_fetch_add<G>(&self, place: Place<NicWord, G>, value: u64) -> u64 {
        let word = self.reach(place.elem(0)).cast();
        if self.has_proxy() {
            return self.far_nic(place, AtomicOp::Add, value, 0);
        }
        // SAFETY: `reach` gives mapped symmetric memory, aligned for a word.
        unsafe { u64::fetch_add(word, value) }
    }

    /// Adds, wrapping around.
    ///
    /// # One-sided
    /// On return it may not have happened yet; a quiet waits for it.
    ///
    /// # Errors
    /// As [`nic_fetch_add`](Ctx::nic_fetch_add).
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn nic_add<G>(&self, place: Place<NicWord, G>, value: u64) {
        // Of a PE that loads and stores reach, a quiet of that PE alone does not ask the proxy.
        if self.is_proxied(place.pe()) {
            let ticket = self.ask_nic(place, Verb::NicPost, AtomicOp::Add, value, 0);
            return self.join(&Thread, !self.took(ticket));
        }
        self.nic_fetch_add(place, value);
    }

    /// Stores `new` if the value is `expected`; gives the value that was there as `Ok` where it was stored.
    ///
    /// # One-sided
    /// The old value is here on return.
    ///
    /// # Errors
    /// The value that was there, where it was another. And as [`nic_fetch_add`](Ctx::nic_fetch_add).
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn nic_compare_exchange<G>(&self, place: Place<NicWord, G>, expected: u64, new: u64) -> Result<u64, u64> {
        let word = self.reach(place.elem(0)).cast();
        let old = if self.has_proxy() {
            self.far_nic(place, AtomicOp::CompareExchange, new, expected)
        } else {
            // SAFETY: `reach` gives mapped symmetric memory, aligned for a word.
            unsafe { u64::compare_exchange(word, expected, new) }
        };
        if old == expected { Ok(old) } else { Err(old) }
    }

    /// An atomic through the proxy.
    #[inline(always)]
    #[track_caller]
    fn far_nic<G>(&self, place: Place<NicWord, G>, op: AtomicOp, value: u64, expected: u64) -> u64 {
        let old = self.reply(place.pe(), self.ask_nic(place, Verb::NicAtomic, op, value, expected));
        self.join(&Thread, old.is_none());
        old.unwrap_or(0)
    }

    #[inline(always)]
    #[track_caller]
    fn ask_nic<G>(&self, place: Place<NicWord, G>, verb: Verb, op: AtomicOp, value: u64, expected: u64) -> u64 {
        let _checked = self.reach(place.elem(0));
        let header = Request::header(verb, Then::Nothing, op, NumberKind::Unsigned);
        let bytes = size_of::<NicWord>() as u64;
        self.ask_word(header | to(place.pe()), place.sym().offset(), bytes, value, expected)
    }
}
