//! The context: which PE this is, where the heaps are, and this PE's own memory.

use congruent_heap::refuse;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi;
use congruent_heap::{Element, KernelArg, Pe, Place, Pod, Sym, Tag, TeamView, World};

use crate::arch::{self, Lane};
use crate::poll::Polled;
use crate::{Team, access};

/// What a kernel communicates through: its first argument, never a global.
///
/// Operations take their group first, then the destination, then the source, then what follows. Those without a group are
/// done by each thread that calls them.
pub struct Ctx<'m> {
    pub(crate) abi: abi::Context,
    pub(crate) lane: Lane<'m>,
    /// Since when this lane pauses (`pause.rs`).
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) pausing: core::cell::Cell<u64>,
}

impl<'m> Ctx<'m> {
    /// The context of a lane. For machines; a kernel is given its context.
    ///
    /// # Safety
    /// `abi` describes memory that stays mapped, with its provenance exposed, for as long as the kernel runs: every PE's
    /// heap, the control block, and the tables and the multicast windows where there are any.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn new(abi: abi::Context, lane: Lane<'m>) -> Self {
        Self {
            abi,
            lane,
            #[cfg(not(target_arch = "nvptx64"))]
            pausing: core::cell::Cell::new(crate::pause::NOT_PAUSING),
        }
    }

    /// This PE.
    #[inline(always)]
    pub fn pe(&self) -> Pe {
        Pe::new(self.abi.pe)
    }

    /// How many PEs the world has.
    #[inline(always)]
    pub fn npes(&self) -> usize {
        self.abi.npes as usize
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
        let words = abi::SyncLayout::new(self.abi.npes).words(self.abi.block_slots);
        let sync = Sym::from_raw(self.abi.world_sync, words);
        // The first window, where there are any, is the world's.
        let window = self.abi.windows.min(1);
        Team::new(self, TeamView::strided(0, 1, self.abi.npes, self.abi.pe, sync).with_window(window))
    }

    /// A team that the kernel was given as an argument.
    #[inline(always)]
    pub fn team<G: Tag>(&self, view: TeamView<G>) -> Team<'_, G> {
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
        let start = self.locate(sym, self.pe());
        // SAFETY: inside this PE's heap, aligned, any bytes are a valid Pod; the caller vouches that nobody writes.
        unsafe { core::slice::from_raw_parts(start, sym.len()) }
    }

    /// Whether the launch is ending: another PE failed or a wait of this one expired. A loop that does not wait asks this.
    #[inline(always)]
    pub fn aborted(&self) -> bool {
        self.waiter().aborted()
    }

    #[inline(always)]
    #[track_caller]
    fn element<T: Pod>(&self, sym: Sym<T>, i: usize) -> *mut T {
        if i >= sym.len() {
            refuse!("symmetric index out of bounds");
        }
        // SAFETY: `locate` checked all `len` elements, and `i < len`.
        unsafe { self.locate(sym, self.pe()).add(i) }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check_pe(&self, pe: Pe) {
        if pe.raw() >= self.abi.npes {
            refuse!("a rank names a PE that this world lacks: is it of another world?");
        }
    }

    /// Where `sym` is on `pe`: every element mapped and aligned.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn locate<T: Element>(&self, sym: Sym<T>, pe: Pe) -> *mut T {
        if !sym.fits(self.abi.heap_bytes) {
            refuse!("a symmetric object reaches past the heap: is it of another world?");
        }
        self.check_pe(pe);
        with_exposed_provenance_mut(self.abi.address(pe, sym.offset()) as usize)
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
        let word = self.locate(Sym::<u64>::from_raw(arch::anew(offset), 1), pe);
        // SAFETY: `locate` checked that it is on that heap, which `Ctx::new` vouches for, and aligned.
        unsafe { Polled::new(word) }
    }

    /// Wakes who sleeps on `word` of `pe`.
    #[inline(always)]
    pub(crate) fn wake(&self, pe: Pe, word: Polled) {
        let header = self.abi.address(pe, core::mem::offset_of!(abi::HeapHeader, sleepers) as u64);
        // SAFETY: every heap starts with a HeapHeader, and the word is mapped and aligned.
        unsafe { arch::wake(&self.lane, with_exposed_provenance_mut(header as usize), word.as_ptr()) }
    }

    /// Wakes who sleeps on packets or lines that have been written.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn wake_last<G>(&self, memory: Place<u8, G>) {
        if memory.len() >= size_of::<u64>() {
            let offset = memory.sym().offset() + (memory.len() - size_of::<u64>()) as u64;
            self.wake(memory.pe(), self.word(offset, memory.pe()));
        }
    }
}
