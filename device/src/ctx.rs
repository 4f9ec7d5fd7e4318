//! The context: which PE this is, where the heaps are, and this PE's own memory.

use congruent_heap::refuse;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::{Element, KernelArg, Pe, Place, Pod, Sym, Tag, TeamView, World};
use congruent_heap::{abi, is_inside};

use crate::arch::{self, Lane, Word};
use crate::poll::Polled;
use crate::{Chunks, Elements, Rows, Team, access};

/// What a kernel communicates through: its first argument, never a global.
///
/// Operations take their group first, then the destination, then the source, then what follows. Those without a group are
/// done by each thread that calls them.
pub struct Ctx<'m> {
    #[cfg(not(target_arch = "nvptx64"))]
    abi: abi::Context,
    pub(crate) lane: Lane<'m>,
    /// Since when this lane pauses (`pause.rs`).
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) pausing: core::cell::Cell<u64>,
    #[cfg(not(target_arch = "nvptx64"))]
    in_session: core::cell::Cell<bool>,
}

impl<'m> Ctx<'m> {
    /// The context of a lane. For machines; a kernel is given its context.
    ///
    /// # Safety
    /// `abi` describes memory that stays mapped, with its provenance exposed, for as long as the kernel runs: every PE's
    /// heap, the control block, and the tables and the multicast windows where there are any.
    #[doc(hidden)]
    #[inline(always)]
    #[cfg(not(target_arch = "nvptx64"))]
    pub unsafe fn new(abi: abi::Context, lane: Lane<'m>) -> Self {
        let pausing = core::cell::Cell::new(crate::pause::NOT_PAUSING);
        Self { abi, lane, pausing, in_session: core::cell::Cell::new(false) }
    }

    /// The context of the kernel that this thread runs, which is in its block's shared memory.
    ///
    /// # Safety
    /// The kernel was entered by [`enter`](crate::enter), whose contract holds.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) unsafe fn of_kernel() -> Self {
        Self { lane: Lane::new() }
    }

    /// What the host has told this launch.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub(crate) fn abi(&self) -> &abi::Context {
        &self.abi
    }

    /// What the host has told this launch: in the block's shared memory, so that no register holds it from one use to the next.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn abi(&self) -> &abi::Context {
        // SAFETY: there is a context where the kernel was entered (`of_kernel`), and it does not change.
        unsafe { &*arch::context() }
    }

    /// Says whether this block has a session, and gives what was said before. For the block's leader, and for collectives: a
    /// session's state has one place for each block ([`Kept`](crate::Kept)).
    #[doc(hidden)]
    #[inline(always)]
    pub fn set_in_session(&self, now: bool) -> bool {
        #[cfg(not(target_arch = "nvptx64"))]
        return self.in_session.replace(now);
        // SAFETY: `enter` has set it, in the block's shared memory, and one thread of the block uses it since.
        #[cfg(target_arch = "nvptx64")]
        return unsafe { core::mem::replace(&mut *arch::in_session(), u64::from(now)) } != 0;
    }

    /// Whether this lane unwinds from a panic: what it holds is given up, not given back. Never on a GPU, where a kernel ends at once.
    #[doc(hidden)]
    #[inline(always)]
    pub fn unwinds(&self) -> bool {
        #[cfg(not(target_arch = "nvptx64"))]
        return std::thread::panicking();
        #[cfg(target_arch = "nvptx64")]
        return false;
    }

    /// This PE.
    #[inline(always)]
    pub fn pe(&self) -> Pe {
        Pe::new(self.abi().pe)
    }

    /// How many PEs the world has.
    #[inline(always)]
    pub fn npes(&self) -> usize {
        self.abi().npes as usize
    }

    /// Index of this block in the launch.
    #[inline(always)]
    pub fn block_index(&self) -> usize {
        self.lane.block() as usize
    }

    /// How many blocks the launch has.
    #[inline(always)]
    pub fn blocks(&self) -> usize {
        self.lane.blocks() as usize
    }

    /// The team of all PEs, in which rank and PE have the same number.
    #[inline(always)]
    pub fn world(&self) -> Team<'_, World> {
        let words = abi::SyncLayout::new(self.abi().npes).words(self.abi().block_slots);
        let sync = Sym::from_raw(self.abi().world_sync, words);
        // The first window, where there are any, is the world's.
        let window = self.abi().windows.min(1);
        Team::new(self, TeamView::strided(0, 1, self.abi().npes, self.abi().pe, sync).with_window(window))
    }

    /// A team that the kernel was given as an argument.
    ///
    /// # Panics
    /// Where the team is of another world.
    #[inline(always)]
    #[track_caller]
    pub fn team<G: Tag>(&self, view: TeamView<G>) -> Team<'_, G> {
        Team::new(self, view).checked()
    }

    /// The same of a view that [`team`](Ctx::team) was given before.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn known_team<G: Tag>(&self, view: TeamView<G>) -> Team<'_, G> {
        Team::new(self, view)
    }

    /// Element `i` of this PE's copy, relaxed: it is whatever some PE stored there last, as far as this thread can know.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn load<T: Pod>(&self, sym: Sym<T>, i: usize) -> T {
        let element = self.element(sym, i);
        // SAFETY: `element` is inside this PE's heap, which `Ctx::new` vouches for, and aligned.
        unsafe { access::load(element) }
    }

    /// Stores element `i` of this PE's copy, relaxed.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn store<T: Pod>(&self, sym: Sym<T>, i: usize, value: T) {
        let element = self.element(sym, i);
        // SAFETY: `element` is inside this PE's heap, which `Ctx::new` vouches for, and aligned.
        unsafe { access::store(element, value) }
    }

    /// This PE's copy as a plain slice, for compilers to optimise.
    ///
    /// # Safety
    /// For as long as the slice lives nobody writes these elements: no thread of this PE, and no put, atomic or proxy of
    /// any other. A wait or a team barrier before it, and another before the next write, is how programs grant that.
    #[inline(always)]
    pub unsafe fn settled<T: Pod>(&self, sym: Sym<T>) -> &[T] {
        let start = self.own(sym);
        // SAFETY: inside this PE's heap, aligned, any bytes are a valid Pod; the caller vouches that nobody writes.
        unsafe { core::slice::from_raw_parts(start, sym.len()) }
    }

    /// This PE's copy as memory that the launch has for itself, each element one thread's, for plain accesses: as a buffer's in a
    /// [`SliceMut`](crate::SliceMut).
    ///
    /// # Safety
    /// Between the wait or team barrier before it and the next one behind it, by which others learn that the elements are written
    /// (MM-1), nobody else reads or writes them: no put, atomic or proxy of any PE, and no thread of this one but through such a view, which
    /// all threads make alike, and each has one of at a time.
    #[inline(always)]
    pub unsafe fn settled_mut<T: Pod>(&self, sym: Sym<T>) -> Elements<'_, T> {
        // SAFETY: inside this PE's heap, aligned, and the launch has them for itself, as the caller vouches.
        unsafe { Elements::new(self.own(sym), sym.len()) }
    }

    /// The same in chunks of `size` elements, each of them one thread's: as in a [`ChunksMut`](crate::ChunksMut).
    ///
    /// # Panics
    /// Where the size is 0.
    ///
    /// # Safety
    /// As [`settled_mut`](Ctx::settled_mut).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn settled_chunks_mut<T: Pod>(&self, sym: Sym<T>, size: usize) -> Chunks<'_, T> {
        if size == 0 {
            refuse!("a chunk has one element or more");
        }
        // SAFETY: as above.
        unsafe { Chunks::new(self.own(sym), sym.len(), size) }
    }

    /// The same in rows of `width` elements, each of them one block's: as in a [`RowsMut`](crate::RowsMut).
    ///
    /// # Panics
    /// Where the width is 0.
    ///
    /// # Safety
    /// As [`settled_mut`](Ctx::settled_mut).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn settled_rows_mut<T: Pod>(&self, sym: Sym<T>, width: usize) -> Rows<'_, T> {
        if width == 0 {
            refuse!("a row has one element or more");
        }
        // SAFETY: as above.
        unsafe { Rows::new(self.own(sym), sym.len(), width) }
    }

    /// Where a place is in this PE's address space, for accesses of your own; null where only a proxy reaches it.
    ///
    /// It is valid for `len` elements until the kernel ends, and to follow it is `unsafe`: any PE may access the place at any time,
    /// so that only relaxed accesses of whole words may meet those of others (MM-1), and plain ones only where nobody else's can come
    /// between a wait or a barrier and the next one.
    ///
    /// # Panics
    /// Where the place is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn address<T: Element, G>(&self, place: Place<T, G>) -> *mut T {
        let first = self.reach(place);
        if self.is_proxied(place.pe()) { core::ptr::null_mut() } else { first }
    }

    #[inline(always)]
    #[track_caller]
    fn element<T: Pod>(&self, sym: Sym<T>, i: usize) -> *mut T {
        if i >= sym.len() {
            refuse!("symmetric index out of bounds");
        }
        // SAFETY: `own` checked all `len` elements, and `i < len`.
        unsafe { self.own(sym).add(i) }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check_pe(&self, pe: Pe) {
        if pe.raw() >= self.abi().npes {
            refuse!("a rank names a PE that this world lacks: is it of another world?");
        }
    }

    /// Where `sym` is on `pe`: every element mapped and aligned.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn locate<T: Element>(&self, sym: Sym<T>, pe: Pe) -> *mut T {
        let address = self.address_of(sym.offset(), sym.len() as u64, (size_of::<T>(), align_of::<T>()), pe);
        with_exposed_provenance_mut(address as usize)
    }

    outlined! {
        /// The address of `len` elements of this size and alignment at `offset` of `pe`'s heap, which are there.
        pub(crate) fn address_of(&self, offset: u64, len: u64, element: (usize, usize), pe: Pe) -> u64 {
            if !is_inside(offset, len, element, self.abi().heap_bytes) {
                refuse!("a symmetric object reaches past the heap: is it of another world?");
            }
            self.check_pe(pe);
            self.abi().address(pe, offset)
        }
    }

    /// Where `sym` is on this PE.
    #[inline(always)]
    #[track_caller]
    fn own<T: Element>(&self, sym: Sym<T>) -> *mut T {
        if !sym.fits(self.abi().heap_bytes) {
            refuse!("a symmetric object reaches past the heap: is it of another world?");
        }
        with_exposed_provenance_mut(self.abi().address(self.pe(), sym.offset()) as usize)
    }

    /// Where a place is.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn reach<T: Element, G>(&self, place: Place<T, G>) -> *mut T {
        self.locate(place.sym(), place.pe())
    }

    /// The word at `offset` of `pe`'s heap.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn word(&self, offset: u64, pe: Pe) -> Polled {
        self.word_of(offset, pe)
    }

    /// The same, of any width.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn word_of<W: Word + Element>(&self, offset: u64, pe: Pe) -> Polled<W> {
        // As `locate`, in a few instructions where it is.
        let offset = arch::opaque(offset);
        if !is_inside(offset, 1, (size_of::<W>(), align_of::<W>()), self.abi().heap_bytes) {
            refuse!("a symmetric object reaches past the heap: is it of another world?");
        }
        self.check_pe(pe);
        let word = with_exposed_provenance_mut(self.abi().address(pe, offset) as usize);
        // SAFETY: it is on that heap, which `Ctx::new` vouches for, and aligned.
        unsafe { Polled::new(word) }
    }

    /// Wakes who sleeps on `word` of `pe`.
    #[inline(always)]
    pub(crate) fn wake(&self, pe: Pe, word: Polled) {
        let header = self.abi().address(pe, core::mem::offset_of!(abi::HeapHeader, sleepers) as u64);
        // SAFETY: every heap starts with a HeapHeader, and the word is mapped and aligned.
        unsafe { arch::wake(&self.lane, with_exposed_provenance_mut(header as usize), word.as_ptr()) }
    }
}
