//! Bulk work on symmetric memory: fold several sources into several destinations, and fill.
//!
//! Safe to call and vectorised on every machine, so that algorithms need neither `unsafe` nor word loops. Accesses are
//! relaxed and may tear (MM-1); order comes from notify and wait, as for put and get.

use congruent_heap::refuse;
use congruent_heap::{Pe, Place, Pod, Sym};

use crate::ends::Resolved;
use crate::group::share;
use crate::poll::Patience;
use crate::rma::check_same;
use crate::sealed::Sealed;
use crate::{Ctx, End, Ends, Group, arch, ends};

/// How values of `T` become one: taken up one after the other, in the order of the sources, and given as a `T` at the end.
pub trait Fold<T> {
    /// Whether the sum is the first value as it is, bit for bit, whatever its type.
    #[doc(hidden)]
    const ONLY_MOVES: bool = false;
    /// What the sum so far is held in.
    type Acc: Copy;
    /// The sum of the first value.
    fn first(&self, value: T) -> Self::Acc;
    /// The sum with one more value.
    fn next(&self, sum: Self::Acc, value: T) -> Self::Acc;
    /// What the whole sum is.
    fn last(&self, sum: Self::Acc) -> T;
}

/// Runs a [`FoldJob`] with a type and a fold that it knows: what [`Ctx::fold_as`] takes.
pub trait FoldChoice: Copy {
    /// Whether it is of one or a few types only, so that on a GPU a group that is less than a block may fold inline.
    const IS_SMALL: bool = false;
    /// Calls [`FoldJob::run`] once and gives its result.
    fn run<J: FoldJob>(self, job: J) -> J::Output;
    /// All that it is, in three words: on a GPU the job runs in a function of its own, which takes words only.
    fn encode(self) -> [u64; 3];
    /// What [`encode`](FoldChoice::encode) was called on.
    fn decode(words: [u64; 3]) -> Self;
}

/// What is to be done with a fold, once its type is known.
pub trait FoldJob: Sealed {
    /// What comes of it.
    type Output;
    /// Runs it on elements of `T`.
    ///
    /// # Panics
    /// Where an end is not aligned for `T` or ends within an element.
    fn run<T: Pod, F: Fold<T>>(self, fold: &F) -> Self::Output;
}

/// Moves bytes as they are.
#[derive(Clone, Copy)]
struct Moving;

impl FoldChoice for Moving {
    const IS_SMALL: bool = true;
    #[inline(always)]
    fn run<J: FoldJob>(self, job: J) -> J::Output {
        job.run::<u8, _>(&First)
    }
    #[inline(always)]
    fn encode(self) -> [u64; 3] {
        [0; 3]
    }
    #[inline(always)]
    fn decode(_words: [u64; 3]) -> Self {
        Self
    }
}

/// The first value.
struct First;

impl<T: Copy> Fold<T> for First {
    const ONLY_MOVES: bool = true;
    type Acc = T;
    #[inline(always)]
    fn first(&self, value: T) -> T {
        value
    }
    #[inline(always)]
    fn next(&self, sum: T, _value: T) -> T {
        sum
    }
    #[inline(always)]
    fn last(&self, sum: T) -> T {
        sum
    }
}

/// Folds with a function of two values.
struct Combining<F>(F);

impl<T: Copy, F: Fn(T, T) -> T> Fold<T> for Combining<F> {
    type Acc = T;
    #[inline(always)]
    fn first(&self, value: T) -> T {
        value
    }
    #[inline(always)]
    fn next(&self, sum: T, value: T) -> T {
        (self.0)(sum, value)
    }
    #[inline(always)]
    fn last(&self, sum: T) -> T {
        sum
    }
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
        self.fold(group, dst, src, Combining(op));
    }

    /// The same as [`combine`](Ctx::combine) for any [`Ends`], with sums that are held in a type of their own. Packed sources
    /// are awaited, packed destinations need no signal.
    ///
    /// # One-sided
    /// As [`combine`](Ctx::combine).
    ///
    /// # Ordering
    /// As [`put`](Ctx::put) for plain destinations. What comes in packets is there when it is read; it orders nothing else
    /// (MM-8).
    ///
    /// # Panics
    /// Where the lengths differ, there is no source, or an end is reached only through a proxy.
    #[inline(always)]
    #[track_caller]
    pub fn fold<T: Pod>(&self, group: &impl Group, dst: impl Ends<T>, src: impl Ends<T>, fold: impl Fold<T>) {
        self.fold_by(group, dst, src, |dst, src, len| {
            let patience = Patience { waiter: self.waiter(), budget_ns: self.abi.deadline_ns };
            // SAFETY: the ends resolve to mapped ranges of `len` elements, aligned for T where they are plain.
            unsafe { arch::fold(share(group), dst, src, len, &fold, patience) }
        });
    }

    /// The same as [`fold`](Ctx::fold), with type and fold chosen at run time: `choice` is given the job, and runs it with
    /// the type that the bytes are of.
    ///
    /// # One-sided
    /// As [`combine`](Ctx::combine).
    ///
    /// # Ordering
    /// As [`fold`](Ctx::fold).
    ///
    /// # Panics
    /// As [`fold`](Ctx::fold), where an end is not aligned for the type or ends within an element, and on a GPU where the
    /// group is less than a block.
    #[inline(always)]
    #[track_caller]
    pub fn fold_as(&self, group: &impl Group, dst: impl Ends<u8>, src: impl Ends<u8>, choice: impl FoldChoice) {
        self.fold_by(group, dst, src, |dst, src, bytes| {
            let patience = Patience { waiter: self.waiter(), budget_ns: self.abi.deadline_ns };
            // SAFETY: the ends resolve to mapped ranges of `bytes` bytes.
            unsafe { arch::fold_chosen(group, dst, src, bytes, choice, patience) }
        });
    }

    #[inline(always)]
    #[track_caller]
    fn fold_by<T: Pod, D: Ends<T>, S: Ends<T>>(
        &self,
        group: &impl Group,
        dst: D,
        src: S,
        fold: impl FnOnce(&Resolved<'_, D, T>, &Resolved<'_, S, T>, usize) -> bool,
    ) {
        if src.count() == 0 {
            refuse!("a fold needs a source");
        }
        let len = src.get(0).len();
        let (dst, src) = (Resolved::new(self, dst, len), Resolved::new(self, src, len));
        let failed = !fold(&dst, &src, len);
        self.join(group, failed);
        for memory in src.each().map(|end| end.memory()) {
            self.moved_by(group, memory.pe().raw(), self.abi.pe, memory.len());
        }
        for end in dst.each() {
            let memory = end.memory();
            self.moved_by(group, self.abi.pe, memory.pe().raw(), memory.len());
            if group.leader() && !end.is_plain() {
                self.wake_last(memory);
            }
        }
    }

    /// Sends the elements of `src` to every destination, in its form.
    ///
    /// # One-sided
    /// As [`fold`](Ctx::fold), of one source.
    ///
    /// # Ordering
    /// As [`fold`](Ctx::fold).
    ///
    /// # Panics
    /// As [`fold`](Ctx::fold).
    #[inline(always)]
    #[track_caller]
    pub fn transfer<T: Pod, G>(&self, group: &impl Group, dst: impl Ends<T>, src: End<T, G>) {
        let dst = ends(dst.count(), move |i| dst.get(i).bytes());
        self.fold_as(group, dst, [src.bytes()], Moving);
    }

    /// Where a place is that loads and stores reach.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn near<T: Pod, G>(&self, place: Place<T, G>) -> *mut T {
        if self.is_proxied(place.pe()) {
            refuse!("folds work on peers that loads and stores reach; this one is reached through a proxy");
        }
        let pe = Pe::new(arch::anew(place.pe().raw().into()) as u32);
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
        let first = self.near(place);
        self.moved_by(group, self.abi.pe, place.pe().raw(), place.sym().bytes());
        // SAFETY: `near` gives a mapped range of `len` elements, aligned for T.
        unsafe { arch::fill(share(group), first, place.len(), value) };
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
