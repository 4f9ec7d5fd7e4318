//! Bulk work on symmetric memory: fold several sources into several destinations, and fill.
//!
//! Safe to call and vectorised on every machine, so that algorithms need neither `unsafe` nor word loops. Accesses are
//! relaxed and may tear (MM-1); order comes from notify and wait, as for put and get.

use congruent_heap::refuse;
use congruent_heap::{Pe, Place, Pod, Sym};

use crate::group::share;
use crate::rma::check_same;
use crate::{Ctx, Group, Keep, Operand, Operands, Reducer, arch};

/// A fold, but for what combines the elements: who works, on which operands.
#[doc(hidden)]
pub struct Fold<'f, B, D, S> {
    pub(crate) ctx: &'f Ctx<'f>,
    pub(crate) group: &'f B,
    pub(crate) dst: D,
    pub(crate) src: S,
    /// Bytes of each operand.
    pub(crate) bytes: usize,
    /// How many members' contributions are in the result, if these are all: then it is finished. Otherwise 0.
    pub(crate) members: u32,
}

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
    /// Where the lengths differ, or a place is reached only through a proxy; on a GPU also of more than 8 GiB that are not aligned to 16
    /// bytes.
    #[inline(always)]
    #[track_caller]
    pub fn combine<T: Pod, G, const D: usize, const S: usize>(
        &self,
        group: &impl Group,
        dst: [Place<T, G>; D],
        src: [Place<T, G>; S],
        op: impl Fn(T, T) -> T + Copy,
    ) {
        let bytes = src.first().map_or(0, |place| place.sym().bytes());
        self.fold(group, bytes, self.array(dst), self.array(src), op, 0);
    }

    /// Operands have `bytes` bytes each. For every `i`: combines element `i` of all sources with `op`, in their order, and stores it at
    /// element `i` of every destination; finished, where it has the contributions of all `members`, which is not 0 then. A destination may be a source.
    /// Packed sources are awaited, packed destinations need no signal.
    ///
    /// # One-sided
    /// As [`combine`](Ctx::combine).
    ///
    /// # Ordering
    /// As [`put`](Ctx::put) for plain destinations. What comes in packets is there when it is read; it orders nothing else
    /// (MM-8).
    ///
    /// # Panics
    /// Where the lengths differ, there is no source, or elements that do not fill words of 8 bytes are packed. Of a
    /// [`Reduction`](crate::Reduction) also where an operand is not aligned for its type or ends within an element, and on a GPU
    /// where the group is less than a block. On a GPU also of more than 8 GiB for one group, where plain operands are not aligned to 16
    /// bytes, any is packed, or a [`Reduction`](crate::Reduction) is no sum of `f32`, `f16` or `bf16`.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn fold<T: Pod>(
        &self,
        group: &impl Group,
        bytes: usize,
        dst: impl Operands,
        src: impl Operands,
        op: impl Reducer<T>,
        members: usize,
    ) {
        let fold = Fold::new(self, group, bytes, dst, src, members);
        // SAFETY: operands are made by `operand`, `packets` and `lines`: mapped, aligned for their form. That all are of one
        // length is checked where each is looked at.
        let failed = !unsafe { op.fold(&fold) };
        fold.meet(failed);
        fold.tell();
    }

    /// [`fold`](Ctx::fold) of operands whose bytes are as they are, so that nothing is awaited. The group is not synchronized after it:
    /// it meets before it folds again, and before a thread overwrites a source.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_fold<T: Pod>(
        &self,
        group: &impl Group,
        bytes: usize,
        dst: impl Operands,
        src: impl Operands,
        op: impl Reducer<T>,
        members: usize,
    ) {
        let fold = Fold::new(self, group, bytes, dst, src, members);
        fold.awaits_nothing();
        // SAFETY: as in `fold`.
        let _nothing_is_awaited = unsafe { op.fold(&fold) };
        fold.tell();
    }

    /// [`fold`](Ctx::fold) that leaves its last meeting to the caller. True where what this thread awaited has not come: the group then
    /// ends, by [`join`](Ctx::join).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn fold_unmet<T: Pod>(
        &self,
        group: &impl Group,
        bytes: usize,
        dst: impl Operands,
        src: impl Operands,
        op: impl Reducer<T>,
        members: usize,
    ) -> bool {
        let fold = Fold::new(self, group, bytes, dst, src, members);
        // SAFETY: as in `fold`.
        let failed = !unsafe { op.fold(&fold) };
        // Who is woken finds what every thread of the group has stored.
        #[cfg(not(target_arch = "nvptx64"))]
        fold.meet(failed);
        fold.tell();
        failed
    }

    /// Sends the bytes of `src` to every destination, in its form.
    ///
    /// # One-sided
    /// As [`fold`](Ctx::fold), of one source.
    ///
    /// # Ordering
    /// As [`fold`](Ctx::fold).
    ///
    /// # Panics
    /// As [`fold`](Ctx::fold).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn transfer(&self, group: &impl Group, dst: impl Operands, src: Operand) {
        self.fold::<u8>(group, src.bytes, dst, [src], Keep, 0);
    }

    /// Where a place is that loads and stores reach.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn near<T: Pod, G>(&self, place: Place<T, G>) -> *mut T {
        if self.is_proxied(place.pe()) {
            refuse!("folds work on peers that loads and stores reach; this one is reached through a proxy");
        }
        let pe = Pe::new(arch::opaque(place.pe().raw().into()) as u32);
        self.locate(place.sym(), pe)
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

    /// Stores `value` in every element of a place.
    ///
    /// # One-sided
    /// The group shares the work.
    ///
    /// # Ordering
    /// As [`put`](Ctx::put).
    ///
    /// # Panics
    /// Where the place is reached only through a proxy.
    #[inline(always)]
    #[track_caller]
    pub fn fill_at<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, value: T) {
        self.start_fill_at(group, place, value);
        group.sync();
    }

    /// [`fill_at`](Ctx::fill_at); the group is not synchronized after it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_fill_at<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, value: T) {
        let first = self.near(place);
        self.moved_by(group, self.abi().pe, place.pe().raw(), place.sym().bytes());
        // SAFETY: `near` gives a mapped range of `len` elements, aligned for T.
        unsafe { arch::fill(share(group), first, place.len(), value) };
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
        self.start_copy(group, dst, src);
        group.sync();
    }

    /// [`copy`](Ctx::copy); the group is not synchronized after it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn start_copy<T: Pod>(&self, group: &impl Group, dst: Sym<T>, src: Sym<T>) {
        check_same(dst.len(), src.len());
        self.copy_bytes(share(group), dst.offset(), self.pe(), src.offset(), self.pe(), dst.bytes());
    }
}

impl<'f, B: Group, D: Operands, S: Operands> Fold<'f, B, D, S> {
    #[inline(always)]
    #[track_caller]
    fn new(ctx: &'f Ctx<'f>, group: &'f B, bytes: usize, dst: D, src: S, members: usize) -> Self {
        if src.count() == 0 {
            refuse!("a fold needs a source");
        }
        Self { ctx, group, bytes, dst, src, members: members as u32 }
    }

    /// The end of a fold, which of plain operands never failed.
    #[inline(always)]
    #[track_caller]
    fn meet(&self, failed: bool) {
        if const { D::PLAIN && S::PLAIN } {
            self.group.sync();
        } else {
            self.ctx.join(self.group, failed);
        }
    }

    #[inline(always)]
    fn awaits_nothing(&self) {
        const { assert!(D::PLAIN && S::PLAIN, "what is packed is awaited") };
    }

    /// Tells who watches what came from other PEs, and who waits and watches what went to them.
    #[cfg(not(target_arch = "nvptx64"))]
    fn tell(&self) {
        let (ctx, own) = (self.ctx, self.ctx.pe().raw());
        if !self.group.leader() {
            return;
        }
        for source in (0..self.src.count()).map(|i| self.src.get(i)) {
            ctx.moved_by(self.group, source.pe, own, source.extent());
        }
        for destination in (0..self.dst.count()).map(|i| self.dst.get(i)) {
            ctx.sent(self.group, &destination);
        }
    }

    /// GPUs are not watched, and nobody sleeps there.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn tell(&self) {}
}
