//! What orders data and tells peers about it: notify, put_signal, fence and quiet.

use congruent_heap::refuse;
use congruent_heap::{Notify, NotifyOp, Pe, Place, Pod, Rank, Signal, Sym};

use crate::proxy::Complete;
use crate::rma::check_same;
use crate::{Ctx, Group, arch};

impl Ctx<'_> {
    /// Sends a prepared signal.
    ///
    /// # One-sided
    /// Returns at once; the peer sees it in time.
    ///
    /// # Ordering
    /// Release (MM-2): a PE whose wait sees this signal also sees everything that every thread of this group put to that
    /// PE before, and whatever those threads had seen themselves.
    ///
    /// # Panics
    /// Where the PE is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn notify(&self, group: &impl Group, notify: Notify) {
        group.sync();
        self.notify_by_leader(group, || notify);
    }

    /// [`notify`](Ctx::notify) by a group that has just met: what it did before that is covered. Only its leader computes what is sent.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn notify_by_leader(&self, group: &impl Group, notify: impl FnOnce() -> Notify) {
        let failed = group.leader() && !self.signal(notify());
        // Only a proxy can fail to take a signal.
        if self.abi().routes != 0 {
            self.join(group, failed);
        }
    }

    /// Sets a signal of this PE that nobody else sets, with the order of a [`notify`](Ctx::notify). False, to the leader, where it was
    /// `least` or more before: then it stays.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn raise_signal(&self, group: &impl Group, signal: Sym<Signal>, least: u64, value: u64) -> bool {
        group.sync();
        !group.leader() || self.raise(signal.elem(0).offset(), least, value)
    }

    /// Sends `count` signals, by a group that has just met, which shares the work: what it did before that is covered by each.
    ///
    /// # Ordering
    /// Each as [`notify`](Ctx::notify): whichever thread sends it has met the others, so that what they did happens before it (MM-2).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn notify_each_met(&self, group: &impl Group, count: usize, each: impl Fn(usize) -> Notify) {
        let mut failed = false;
        for i in group.strided(count) {
            failed = failed || !self.signal(each(i));
        }
        if self.abi().routes != 0 {
            self.join(group, failed);
        }
    }

    /// Copies this PE's `src` to `place`, then sends the signal: the peer that sees the signal sees the data.
    ///
    /// # One-sided
    /// On return every thread may overwrite `src`.
    ///
    /// # Ordering
    /// As [`notify`](Ctx::notify).
    ///
    /// # Panics
    /// Where the lengths differ, or the signal is for another PE than the data.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>, notify: Notify) {
        if let Some(ticket) = self.start_put_signal(group, place, src, notify) {
            self.end_unless(self.finish(group, place.pe(), ticket, Complete::Locally));
        }
    }

    /// The put and its signal, which a direct route is done with on return. Through the proxy, the leader's ticket.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_put_signal<T: Pod, G>(
        &self,
        group: &impl Group,
        place: Place<T, G>,
        src: Sym<T>,
        notify: Notify,
    ) -> Option<u64> {
        if place.pe() != notify.pe() {
            refuse!("put_signal signals the PE that it puts to");
        }
        check_same(place.len(), src.len());
        let _span = self.transfer_span("put", place.pe(), src.bytes());
        if self.is_proxied_for(group, place.pe()) {
            group.sync();
            return Some(self.ask_put_signal(group, place, src, notify));
        }
        self.store_range(group, place, src);
        group.sync();
        if group.leader() {
            let _no_proxy_is_asked = self.signal(notify);
        }
        None
    }

    /// The same where the proxy is asked, of ranges of one length. Gives the leader's ticket.
    #[inline(always)]
    #[track_caller]
    fn ask_put_signal<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>, notify: Notify) -> u64 {
        self.moved_by(group, self.abi().pe, place.pe().raw(), src.bytes());
        // One request, so that data and signal are never two unordered messages.
        if group.leader() { self.ask_put(place, src, Some(notify)) } else { 0 }
    }

    /// [`put_signal`](Ctx::put_signal) to a PE that is reached through a proxy, by a group that has just met.
    ///
    /// # Panics
    /// Where it is reached by loads and stores, and as [`put_signal`](Ctx::put_signal).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn put_signal_by_proxy<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>, notify: Notify) {
        check_same(place.len(), src.len());
        if place.pe() != notify.pe() || !self.is_proxied_for(group, place.pe()) {
            refuse!("what goes through a proxy goes to one PE that is reached so");
        }
        let ticket = self.ask_put_signal(group, place, src, notify);
        self.end_unless(self.finish(group, place.pe(), ticket, Complete::Locally));
    }

    /// Orders what this group put to that PE before with what it puts there later.
    ///
    /// # Ordering
    /// Acquire-release at system scope, by every thread of the group (MM-4). To no other PE. The proxy keeps the order of
    /// requests to a peer by itself.
    ///
    /// # Panics
    /// Where the rank is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn fence<G>(&self, group: &impl Group, rank: Rank<G>) {
        self.check_pe(rank.pe());
        group.sync();
        if !self.is_proxied(rank.pe()) {
            arch::fence();
        }
    }

    /// Waits until everything this group put anywhere has arrived, and every get is here.
    ///
    /// # Ordering
    /// Sequentially consistent at system scope (MM-5): of two PEs that each put, quiet, and then read what the other put,
    /// at least one sees it.
    #[inline(always)]
    #[track_caller]
    pub fn quiet(&self, group: &impl Group) {
        group.sync();
        self.await_proxy(group);
        arch::fence_sc();
    }

    /// Waits until what this group put through the proxy has arrived. With a notify after it that is all that the notified PE, and
    /// those that it notifies, need of a [`quiet`](Ctx::quiet): what was stored directly a release covers (MM-2).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn await_proxy(&self, group: &impl Group) {
        if self.abi().routes != 0 {
            self.drain(group);
        }
    }

    /// [`quiet`](Ctx::quiet), for what went to that PE: a proxy is waited for only if it serves that PE, and not for other PEs.
    ///
    /// # Panics
    /// Where the rank is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn quiet_to<G>(&self, group: &impl Group, rank: Rank<G>) {
        self.check_pe(rank.pe());
        group.sync();
        if self.is_proxied_for(group, rank.pe()) {
            self.end_unless(self.drain_to(group, rank.pe()));
        }
        arch::fence_sc();
    }

    /// Sends a signal, by the calling thread. False when the kernel must end.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn signal(&self, notify: Notify) -> bool {
        self.signal_word(notify.pe(), notify.op() == NotifyOp::Add, notify.offset(), notify.value())
    }

    outlined! {
        fn raise(&self, offset: u64, least: u64, value: u64) -> bool {
            self.word(offset, self.pe()).load() < least && self.signal_word(self.pe(), false, offset, value)
        }

        /// Adds to the word at `offset` of a PE, or sets it, with release. False when the kernel must end.
        pub(crate) fn signal_word(&self, pe: Pe, adds: bool, offset: u64, value: u64) -> bool {
            if self.is_proxied(pe) {
                return self.ask_signal(pe, adds, offset, value);
            }
            let word = self.word(offset, pe);
            // SAFETY: `word` is on the peer's heap, mapped and aligned, and only ever accessed as one 8-byte word.
            unsafe {
                match adds {
                    true => arch::add_release(word.as_ptr(), value),
                    false => arch::store_release(word.as_ptr(), value),
                }
            }
            self.wake(pe, word);
            self.signalled(pe);
            true
        }
    }
}
