//! One-sided data movement: put and get of ranges, of single values, and strided.
//!
//! Data accesses are relaxed (MM-1): what orders them is a notify, a fence, a quiet or a barrier after them.

use congruent_heap::refuse;
use congruent_heap::{Pe, Place, Pod, Sym};

use crate::arch::Share;
use crate::group::share;
use crate::proxy::Complete;
use crate::{Ctx, Group, Thread, access, arch};

impl Ctx<'_> {
    /// Copies this PE's `src` to `place`.
    ///
    /// # One-sided
    /// The group shares the work, whichever way: it has met since its threads stored what is sent. On return every thread may overwrite
    /// `src`, but the data may not have arrived.
    ///
    /// # Ordering
    /// Ordered before a later notify to the same PE by this group, a fence to it, or a quiet (MM-2, MM-4, MM-5).
    ///
    /// # Panics
    /// Where the lengths differ.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>) {
        match self.start_put(group, place, src) {
            None => group.sync(),
            Some(ticket) => self.end_unless(self.finish(group, place.pe(), ticket, Complete::Locally)),
        }
    }

    /// Copies `place` to this PE's `dst`.
    ///
    /// # One-sided
    /// The group shares the work: it has met since its threads used `dst`. On return the data is in `dst` for every thread of the group.
    ///
    /// # Panics
    /// Where the lengths differ.
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Pod, G>(&self, group: &impl Group, dst: Sym<T>, place: Place<T, G>) {
        match self.start_get(group, dst, place) {
            None => group.sync(),
            Some(ticket) => self.end_unless(self.finish(group, place.pe(), ticket, Complete::AtPeer)),
        }
    }

    /// Stores one value at the first element of `place`. A value of 1, 2, 4 or 8 aligned bytes never tears.
    ///
    /// # One-sided
    /// By the calling thread. Ordered as [`put`](Ctx::put).
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn put_value<T: Pod, G>(&self, place: Place<T, G>, value: T) {
        self.store_at(place.elem(0), value);
    }

    /// Loads the first element of `place`. A value of 1, 2, 4 or 8 aligned bytes never tears.
    ///
    /// # One-sided
    /// By the calling thread; the value is here on return.
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn get_value<T: Pod, G>(&self, place: Place<T, G>) -> T {
        self.load_at(place.elem(0))
    }

    /// Copies `count` elements of this PE's `src`, every `src_stride`-th, to every `dst_stride`-th of `place`
    /// (OpenSHMEM's iput).
    ///
    /// # One-sided
    /// As [`put`](Ctx::put), with strides in elements.
    ///
    /// # Panics
    /// Where a stride is 0 or the elements are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn put_strided<T: Pod, G>(
        &self,
        group: &impl Group,
        place: Place<T, G>,
        dst_stride: usize,
        src: Sym<T>,
        src_stride: usize,
        count: usize,
    ) {
        check_strided(place.sym(), dst_stride, count);
        check_strided(src, src_stride, count);
        let _span = self.transfer_span("put", place.pe(), count * size_of::<T>());
        for i in group.strided(count) {
            self.store_at(place.elem(i * dst_stride), self.load(src, i * src_stride));
        }
        group.sync();
    }

    /// Copies `count` elements of `place`, every `src_stride`-th, to every `dst_stride`-th of this PE's `dst`
    /// (OpenSHMEM's iget).
    ///
    /// # One-sided
    /// As [`get`](Ctx::get), with strides in elements.
    ///
    /// # Panics
    /// Where a stride is 0 or the elements are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn get_strided<T: Pod, G>(
        &self,
        group: &impl Group,
        dst: Sym<T>,
        dst_stride: usize,
        place: Place<T, G>,
        src_stride: usize,
        count: usize,
    ) {
        let (last, failed) = self.start_get_strided(group, (dst, dst_stride), (place, src_stride), count);
        // Each thread's own: what is asked of a peer is complete in order. All come to one vote, whether or not they have asked.
        self.join(group, failed || last.is_some_and(|ticket| !self.complete(place.pe(), ticket, Complete::AtPeer)));
    }

    /// The part of a strided get that moves data; the group is not synchronized after it. Through the proxy, the ticket of what this
    /// thread asked for last, and whether it could not ask.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_get_strided<T: Pod, G>(
        &self,
        group: &impl Group,
        (dst, dst_stride): (Sym<T>, usize),
        (place, src_stride): (Place<T, G>, usize),
        count: usize,
    ) -> (Option<u64>, bool) {
        check_strided(dst, dst_stride, count);
        check_strided(place.sym(), src_stride, count);
        let (mut last, mut failed) = (None, false);
        let _span = self.transfer_span("get", place.pe(), count * size_of::<T>());
        for i in group.strided(count) {
            let (to, from) = (dst.elem(i * dst_stride), place.elem(i * src_stride));
            if !self.is_proxied(place.pe()) {
                self.store(to, 0, self.load_at(from));
            } else if !failed {
                let ticket = self.start_get(&Thread, to, from);
                failed = ticket.is_some_and(|ticket| !self.took(ticket));
                last = ticket.or(last);
            }
        }
        (last, failed)
    }

    /// The part of a put that moves data; the group is not synchronized after it. Through the proxy, the leader's ticket.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_put<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>) -> Option<u64> {
        check_same(place.len(), src.len());
        let _span = self.transfer_span("put", place.pe(), src.bytes());
        if self.is_proxied_for(group, place.pe()) {
            self.moved_by(group, self.abi().pe, place.pe().raw(), src.bytes());
            return Some(if group.leader() { self.ask_put(place, src, None) } else { 0 });
        }
        self.store_range(group, place, src);
        None
    }

    /// Starts a put. On return no thread may overwrite `src`: a quiet, or [`await_proxy`](Ctx::await_proxy) and a meeting of the group,
    /// comes before that.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn put_nbi<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>) {
        if let Some(ticket) = self.start_put(group, place, src) {
            self.end_unless(self.asked(group, ticket));
        }
    }

    /// [`put_nbi`](Ctx::put_nbi) to a PE that loads and stores reach.
    ///
    /// # Panics
    /// Where the PE is reached only through a proxy, and where the lengths differ.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn put_direct<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>) {
        check_same(place.len(), src.len());
        if self.is_proxied_for(group, place.pe()) {
            refuse!("this PE is reached through a proxy");
        }
        self.store_range(group, place, src);
    }

    /// A put by stores, of ranges of one length; the group is not synchronized after it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn store_range<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>, src: Sym<T>) {
        self.moved_by(group, self.abi().pe, place.pe().raw(), src.bytes());
        self.copy_bytes(share(group), place.sym().offset(), place.pe(), src.offset(), self.pe(), src.bytes());
    }

    /// The part of a get that moves data; the group is not synchronized after it. Through the proxy, the leader's ticket.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_get<T: Pod, G>(&self, group: &impl Group, dst: Sym<T>, place: Place<T, G>) -> Option<u64> {
        check_same(dst.len(), place.len());
        let _span = self.transfer_span("get", place.pe(), dst.bytes());
        self.moved_by(group, place.pe().raw(), self.abi().pe, dst.bytes());
        if self.is_proxied_for(group, place.pe()) {
            return Some(if group.leader() { self.ask_get(dst, place) } else { 0 });
        }
        self.copy_bytes(share(group), dst.offset(), self.pe(), place.sym().offset(), place.pe(), dst.bytes());
        None
    }

    outlined! {
        /// A thread's share of a copy between heaps that loads and stores reach.
        pub(crate) fn copy_bytes(&self, share: Share, dst: u64, dst_pe: Pe, src: u64, src_pe: Pe, bytes: usize) {
            let at = |offset, pe| self.locate(Sym::<u8>::from_raw(offset, bytes as u64), pe);
            let (to, from) = (at(dst, dst_pe), at(src, src_pe).cast_const());
            // SAFETY: `locate` gives mapped ranges of the same length on symmetric memory.
            unsafe { arch::copy(share, to, from, bytes) }
        }
    }

    #[inline(always)]
    #[track_caller]
    fn store_at<T: Pod, G>(&self, place: Place<T, G>, value: T) {
        let element = self.reach(place);
        self.moved_by(&Thread, self.abi().pe, place.pe().raw(), size_of::<T>());
        if self.is_proxied(place.pe()) {
            let mut failed = false;
            access::each_word(value, |at, bits| {
                let (remote, bytes) = (place.sym().offset() + at, access::width::<T>() as u64);
                failed = failed || !self.ask_put_word(place.pe(), remote, bytes, bits);
            });
            return self.join(&Thread, failed);
        }
        // SAFETY: `reach` gives mapped memory aligned for T, and the place has an element.
        unsafe { access::store(element, value) }
    }

    #[inline(always)]
    #[track_caller]
    fn load_at<T: Pod, G>(&self, place: Place<T, G>) -> T {
        let element = self.reach(place);
        self.moved_by(&Thread, place.pe().raw(), self.abi().pe, size_of::<T>());
        if self.is_proxied(place.pe()) {
            let mut failed = false;
            let value = access::from_words(|at| {
                let (remote, bytes) = (place.sym().offset() + at, access::width::<T>() as u64);
                let word = if failed { None } else { self.ask_get_word(place.pe(), remote, bytes) };
                failed = word.is_none();
                word.unwrap_or(0)
            });
            self.join(&Thread, failed);
            return value;
        }
        // SAFETY: `reach` gives mapped memory aligned for T, and the place has an element.
        unsafe { access::load(element) }
    }
}

#[inline(always)]
#[track_caller]
pub(crate) fn check_same(dst: usize, src: usize) {
    if dst != src {
        refuse!("destination and source have different lengths");
    }
}

#[inline(always)]
#[track_caller]
fn check_strided<T: Pod>(sym: Sym<T>, stride: usize, count: usize) {
    if stride == 0 {
        refuse!("a stride is at least 1 element");
    }
    if count > 0 && (count - 1).checked_mul(stride).is_none_or(|last| last >= sym.len()) {
        refuse!("strided elements out of bounds");
    }
}
