//! Multicast: one address for an object on all members of a team, to which the NVLink switch replicates stores, and from which it reduces loads.
//!
//! Machines without such links have none; [`Team::multicast`] tells. Accesses are relaxed (MM-1), and what goes through a
//! multicast address is ordered with what goes through members' own addresses by MM-9.

use core::ops::RangeBounds;
#[cfg(target_arch = "nvptx64")]
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::refuse;
use congruent_heap::{KernelArg, Pod, Sym, Tag, World};

use crate::group::share;
use crate::multimem::MultimemReduction;
use crate::rma::check_same;
use crate::{Ctx, Group, Team, arch};

/// A symmetric object on all members of a team at once. [`Team::multicast`] makes one.
pub struct Multicast<'c, T, G = World> {
    team: Team<'c, G>,
    sym: Sym<T>,
}

impl<'c, G: Tag> Team<'c, G> {
    /// The object on all members at once, or `None` where the team has no multicast, or the kernel is compiled for GPUs without.
    ///
    /// # Panics
    /// Where the object, or the team, is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn multicast<T: Pod>(&self, sym: Sym<T>) -> Option<Multicast<'c, T, G>> {
        if !sym.fits(self.ctx.abi().heap_bytes) {
            refuse!("a symmetric object reaches past the heap: is it of another world?");
        }
        self.check_window();
        (arch::MULTICAST && self.view.window() != 0).then_some(Multicast { team: *self, sym })
    }
}

impl<T: Pod, G: Tag> Multicast<'_, T, G> {
    /// The object.
    #[inline(always)]
    pub const fn sym(&self) -> Sym<T> {
        self.sym
    }

    /// How many elements.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.sym.len()
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.sym.is_empty()
    }

    /// Elements `range` on all members; panics as [`Sym::slice`].
    #[inline(always)]
    #[track_caller]
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        Self { team: self.team, sym: self.sym.slice(range) }
    }
}

impl Ctx<'_> {
    /// Stores this PE's `src` in `dst` on every member of the team, this one included: each byte leaves this PE once.
    ///
    /// # One-sided
    /// The group shares the work; on return every thread may overwrite the source. `dst` may be on the same elements as `src`.
    ///
    /// # Ordering
    /// As [`put`](Ctx::put), to all members (MM-9).
    ///
    /// # Panics
    /// Where the lengths differ, or source and destination are not whole words of 4 bytes, aligned.
    #[inline(always)]
    #[track_caller]
    pub fn put_multicast<T: Pod, G: Tag>(&self, group: &impl Group, dst: Multicast<'_, T, G>, src: Sym<T>) {
        self.start_put_multicast(group, dst, src);
        group.sync();
    }

    /// [`put_multicast`](Ctx::put_multicast); the group is not synchronized after it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_put_multicast<T: Pod, G: Tag>(&self, group: &impl Group, dst: Multicast<'_, T, G>, src: Sym<T>) {
        check_same(dst.len(), src.len());
        check_words(src, 4);
        check_words(dst.sym, 4);
        let from = self.locate(src, self.pe());
        // SAFETY: `locate` and `multicast` checked both ranges, of the same whole number of words.
        unsafe { arch::multicast_put(share(group), &dst, from.cast_const().cast(), src.bytes()) };
    }

    /// Combines `src` of all members of the team into this PE's `dst`: the switch combines, and each result arrives once.
    ///
    /// In which order it combines floats, and how the sum is rounded, is not said: two calls may differ in the last
    /// bits. A machine that emulates it combines in rank order and rounds once.
    ///
    /// # One-sided
    /// The group shares the work. `dst` may be on the same elements as `src`.
    ///
    /// # Ordering
    /// As [`get`](Ctx::get), from all members (MM-9).
    ///
    /// # Panics
    /// Where the lengths differ, or source and destination are not whole [words](crate::MultimemType::word), aligned.
    #[inline(always)]
    #[track_caller]
    pub fn reduce_multicast<T: Pod, G: Tag>(
        &self,
        group: &impl Group,
        dst: Sym<T>,
        src: Multicast<'_, T, G>,
        how: MultimemReduction,
    ) {
        self.start_reduce_multicast(group, dst, src, how);
        group.sync();
    }

    /// [`reduce_multicast`](Ctx::reduce_multicast); the group is not synchronized after it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_reduce_multicast<T: Pod, G: Tag>(
        &self,
        group: &impl Group,
        dst: Sym<T>,
        src: Multicast<'_, T, G>,
        how: MultimemReduction,
    ) {
        check_same(dst.len(), src.len());
        check_words(dst, how.number().word());
        check_words(src.sym, how.number().word());
        let to = self.locate(dst, self.pe());
        // SAFETY: `locate` and `multicast` checked both ranges, of the same whole number of words.
        unsafe { arch::multicast_reduce(share(group), to.cast(), &src, dst.bytes(), how) };
    }

    /// Combines `src` of all members of the team, and stores the result in `dst` on every member.
    ///
    /// The order is as for [`reduce_multicast`](Ctx::reduce_multicast). All members get the same bits.
    ///
    /// # One-sided
    /// The group shares the work. `dst` may be `src`.
    ///
    /// # Ordering
    /// As [`reduce_multicast`](Ctx::reduce_multicast) and [`put_multicast`](Ctx::put_multicast).
    ///
    /// # Panics
    /// As [`reduce_multicast`](Ctx::reduce_multicast).
    #[inline(always)]
    #[track_caller]
    pub fn all_reduce_multicast<T: Pod, G: Tag>(
        &self,
        group: &impl Group,
        dst: Multicast<'_, T, G>,
        src: Multicast<'_, T, G>,
        how: MultimemReduction,
    ) {
        self.start_all_reduce_multicast(group, dst, src, how);
        group.sync();
    }

    /// [`all_reduce_multicast`](Ctx::all_reduce_multicast); the group is not synchronized after it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_all_reduce_multicast<T: Pod, G: Tag>(
        &self,
        group: &impl Group,
        dst: Multicast<'_, T, G>,
        src: Multicast<'_, T, G>,
        how: MultimemReduction,
    ) {
        check_same(dst.len(), src.len());
        check_words(dst.sym, how.number().word());
        check_words(src.sym, how.number().word());
        // SAFETY: `multicast` checked both ranges, of the same whole number of words.
        unsafe { arch::multicast_all_reduce(share(group), &dst, &src, src.sym.bytes(), how) };
    }
}

#[inline(always)]
#[track_caller]
fn check_words<T: Pod>(sym: Sym<T>, word: usize) {
    if !(sym.offset() as usize | sym.bytes()).is_multiple_of(word) {
        refuse!("multimem instructions work on whole words, aligned; store what is narrower to each member");
    }
}

impl<T: Pod, G: Tag> arch::Replicas for Multicast<'_, T, G> {
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn address(&self) -> *mut u8 {
        // `multicast` checked that there is such a window, and that the object is inside.
        with_exposed_provenance_mut(self.team.ctx.abi().multicast(self.team.view.window(), self.sym.offset()) as usize)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn count(&self) -> usize {
        self.team.size()
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn replica(&self, i: usize) -> *mut u8 {
        self.team.ctx.near(self.sym.at(self.team.rank(i))).cast()
    }
}

impl<T, G> Clone for Multicast<'_, T, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, G> Copy for Multicast<'_, T, G> {}
