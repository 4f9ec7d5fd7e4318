//! Bulk work on symmetric memory: combine several sources into several destinations, and fill.
//!
//! Safe to call and vectorised on every machine, so that algorithms need neither `unsafe` nor word loops. Accesses are
//! relaxed and may tear (MM-1); order comes from notify and wait, as for put and get.

use congruent_heap::{Place, Pod, Sym};

use crate::group::share;
use crate::rma::check_same;
use crate::{Ctx, Group, arch};

impl Ctx<'_> {
    /// For every `i`: combines element `i` of all sources with `op`, left to right, and stores it at element `i` of every
    /// destination. Sources and destinations may be on any PE that loads and stores reach; a destination may be a source.
    ///
    /// # One-sided
    /// The group shares the work by a division of `0..len` that depends on nothing but its size; element `i` is always
    /// combined in the order of the sources. On return every thread may overwrite the sources.
    ///
    /// # Ordering
    /// As [`put`](Ctx::put) for the destinations.
    ///
    /// # Panics
    /// Where the lengths differ, or a place is reached only through a proxy.
    #[inline(always)]
    #[track_caller]
    pub fn combine<T: Pod, G, const D: usize, const S: usize>(
        &self,
        group: &impl Group,
        dst: [Place<T, G>; D],
        src: [Place<T, G>; S],
        op: impl Fn(T, T) -> T,
    ) {
        let len = src[0].len();
        let dst = dst.map(|place| {
            check_same(place.len(), len);
            self.near(place)
        });
        let src = src.map(|place| {
            check_same(place.len(), len);
            self.near(place).cast_const()
        });
        // SAFETY: `reach` gives mapped ranges of `len` elements, aligned for T.
        unsafe { arch::combine(share(group), dst, src, len, &op) };
        group.sync();
    }

    /// Where a place is that loads and stores reach.
    #[inline(always)]
    #[track_caller]
    fn near<T: Pod, G>(&self, place: Place<T, G>) -> *mut T {
        if self.is_proxied(place.pe()) {
            panic!("combine works on peers that loads and stores reach; this one is reached through a proxy");
        }
        self.reach(place)
    }

    /// Stores `value` in every element of this PE's `dst`.
    ///
    /// # One-sided
    /// The group shares the work.
    #[inline(always)]
    #[track_caller]
    pub fn fill<T: Pod>(&self, group: &impl Group, dst: Sym<T>, value: T) {
        let first = self.locate(dst, self.pe());
        // SAFETY: `locate` gives a mapped range of `len` elements, aligned for T.
        unsafe { arch::fill(share(group), first, dst.len(), value) };
        group.sync();
    }

    /// Copies this PE's `src` to this PE's `dst`.
    ///
    /// # One-sided
    /// The group shares the work; on return the data is in `dst` for every thread of the group.
    ///
    /// # Panics
    /// Where the lengths differ.
    #[inline(always)]
    #[track_caller]
    pub fn copy<T: Pod>(&self, group: &impl Group, dst: Sym<T>, src: Sym<T>) {
        check_same(dst.len(), src.len());
        let (to, from) = (self.locate(dst, self.pe()), self.locate(src, self.pe()));
        // SAFETY: `locate` gives mapped ranges of the same length.
        unsafe { arch::copy(share(group), to.cast(), from.cast_const().cast(), dst.bytes()) };
        group.sync();
    }
}
