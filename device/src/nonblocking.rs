//! Several transfers in flight at once, complete at the closing brace.

use congruent_heap::{Place, Pod, Sym};

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
    /// # One-sided
    /// The group shares the work.
    ///
    /// # Ordering
    /// None between the transfers; a quiet at the end (MM-5).
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
        if let Some(ticket) = self.ctx.start_put(self.group, place, src) {
            self.ctx.end_unless(self.ctx.asked(self.group, ticket));
        }
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
}
