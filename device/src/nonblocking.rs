//! Several transfers in flight at once, complete at the closing brace.

use congruent_heap::{Notify, Place, Pod, Sym};

use crate::{Ctx, Group};

/// What [`Ctx::nonblocking`] lends to its closure.
pub struct Nonblocking<'c, 'm, P> {
    ctx: &'c Ctx<'m>,
    group: &'c P,
}

impl<'m> Ctx<'m> {
    /// Runs `body`, which starts transfers, and waits until all of them are complete.
    ///
    /// A source may not be overwritten, nor a destination read, inside the body; after it both may. The scope cannot be
    /// left without completion, so there is no request to forget.
    ///
    /// What never waits is no method of [`Nonblocking`], and may be called in the body too: [`put_value`](Ctx::put_value),
    /// [`put_strided`](Ctx::put_strided), [`notify`](Ctx::notify), and the atomics that give no old value. They are complete at the
    /// closing brace as well.
    ///
    /// ```
    /// use congruent_device::{Group, Semaphore, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Sends each PE its row and counts it there, with one wait for all of them.
    ///     pub fn scatter(block, ctx, rows: Sym<f32>, inbox: Sym<f32>, full: Sym<Semaphore>, sent: Sym<u64>) {
    ///         let world = ctx.world();
    ///         ctx.nonblocking(block, |nb| {
    ///             for rank in world.ranks() {
    ///                 let row = rows.chunk(rank.index(), world.size());
    ///                 nb.put_signal(inbox.at(rank), row, full.at(rank).post());
    ///                 if block.leader() { ctx.add(sent.at(rank), 1); }
    ///             }
    ///         });
    ///     }
    /// }
    /// ```
    ///
    /// # One-sided
    /// The group shares the work.
    ///
    /// # Ordering
    /// None between the transfers, but of a [`put_signal`](Nonblocking::put_signal) and a notify as MM-2 has it; a quiet at the end
    /// (MM-5).
    #[inline(always)]
    #[track_caller]
    pub fn nonblocking<P: Group, R>(&self, group: &P, body: impl FnOnce(&Nonblocking<'_, 'm, P>) -> R) -> R {
        let result = body(&Nonblocking { ctx: self, group });
        self.quiet(group);
        group.sync();
        result
    }
}

impl<P: Group> Nonblocking<'_, '_, P> {
    /// Starts to copy this PE's `src` to `place`.
    ///
    /// # Panics
    /// Where the lengths differ.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Pod, G>(&self, place: Place<T, G>, src: Sym<T>) {
        self.ctx.put_nbi(self.group, place, src);
    }

    /// Starts to copy `place` to this PE's `dst`.
    ///
    /// # Panics
    /// Where the lengths differ.
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Pod, G>(&self, dst: Sym<T>, place: Place<T, G>) {
        if let Some(ticket) = self.ctx.start_get(self.group, dst, place) {
            self.ctx.end_unless(self.ctx.asked(self.group, ticket));
        }
    }

    /// Starts to copy this PE's `src` to `place`, and to send the signal: the peer that sees the signal sees the data.
    ///
    /// # Ordering
    /// As [`Ctx::put_signal`] (MM-2): it covers too what this group has put to that PE before, in this body and in front of it.
    ///
    /// # Panics
    /// Where the lengths differ, or the signal is for another PE than the data.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal<T: Pod, G>(&self, place: Place<T, G>, src: Sym<T>, notify: Notify) {
        if let Some(ticket) = self.ctx.start_put_signal(self.group, place, src, notify) {
            self.ctx.end_unless(self.ctx.asked(self.group, ticket));
        }
    }

    /// Starts to copy `count` elements of `place`, every `src_stride`-th, to every `dst_stride`-th of this PE's `dst`.
    ///
    /// # Panics
    /// Where a stride is 0 or the elements are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn get_strided<T: Pod, G>(
        &self,
        dst: Sym<T>,
        dst_stride: usize,
        place: Place<T, G>,
        src_stride: usize,
        count: usize,
    ) {
        let (_, failed) = self.ctx.start_get_strided(self.group, (dst, dst_stride), (place, src_stride), count);
        self.ctx.join(self.group, failed);
    }
}
