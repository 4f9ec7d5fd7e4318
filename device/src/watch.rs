//! What a machine that watches is told: how far a kernel is, and which bytes it moved. Others are told nothing, at no cost.
//!
//! A GPU has no machine that could watch. There, spans are code of their own, which only kernels built with the feature `trace` have: each
//! goes to the host as a printed line does (`print.rs`).

use core::marker::PhantomData;

use congruent_heap::{Pe, Place, Pod};

use crate::{Ctx, Group};

/// A part of a kernel's work, with a name: what a trace shows as a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What is done.
    pub name: &'static str,
    /// Which part of how many, from 0; of 0 where it is not one of several.
    pub part: (u32, u32),
    /// With whom, if with one.
    pub peer: Option<Pe>,
    /// Bytes that it moves or works on.
    pub bytes: u64,
}

impl Mark {
    /// A mark with a name only.
    pub const fn new(name: &'static str) -> Self {
        Self { name, part: (0, 0), peer: None, bytes: 0 }
    }
}

/// What a machine that watches hears.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// A part of the work begins.
    Begin(Mark),
    /// The last part that has begun and not ended ends.
    End,
    /// Bytes went from one PE's heap to another's.
    Moved {
        /// From this PE.
        from: u32,
        /// To this PE.
        to: u32,
        /// How many, flags included.
        bytes: u64,
    },
    /// A signal went to this PE.
    Signalled(u32),
}

/// Ends its part of the work when it goes.
#[must_use = "the part ends when this is dropped"]
pub struct Span<'c> {
    ctx: PhantomData<&'c Ctx<'c>>,
    #[cfg(any(not(target_arch = "nvptx64"), feature = "trace"))]
    open: Option<Open<'c>>,
}

/// A part that somebody watches.
#[cfg(any(not(target_arch = "nvptx64"), feature = "trace"))]
struct Open<'c> {
    ctx: &'c Ctx<'c>,
    #[cfg(target_arch = "nvptx64")]
    mark: Mark,
    #[cfg(target_arch = "nvptx64")]
    begin_ns: u64,
}

impl Ctx<'_> {
    /// Begins a part of the work; it ends when the span goes. Seen in traces (`CONGRUENT_TRACE`) of the CPU machine, beside puts, gets and
    /// waits of a kernel. Traces of GPUs have them of kernels that are built for it, which takes time at each end of a span:
    /// `congruent-build build --features congruent-device/trace`.
    ///
    /// Every thread of a block calls it; the first one's time counts.
    #[inline(always)]
    pub fn span(&self, mark: Mark) -> Span<'_> {
        self.span_of(|| mark)
    }

    /// [`span`](Ctx::span) of a mark that is computed only where somebody watches.
    #[inline(always)]
    pub fn span_of(&self, mark: impl FnOnce() -> Mark) -> Span<'_> {
        #[cfg(not(target_arch = "nvptx64"))]
        if self.lane.watched && self.lane.thread == 0 {
            self.lane.machine.note(Note::Begin(mark()));
            return Span { ctx: PhantomData, open: Some(Open { ctx: self }) };
        }
        #[cfg(all(target_arch = "nvptx64", feature = "trace"))]
        if self.lane.thread() == 0 {
            let open = Open { ctx: self, mark: mark(), begin_ns: self.lane.span_ns() };
            return Span { ctx: PhantomData, open: Some(open) };
        }
        let _unseen = mark;
        Span {
            ctx: PhantomData,
            #[cfg(any(not(target_arch = "nvptx64"), feature = "trace"))]
            open: None,
        }
    }

    /// A put or a get of a range, which ends when the span goes.
    #[inline(always)]
    pub(crate) fn transfer_span(&self, name: &'static str, peer: Pe, bytes: usize) -> Span<'_> {
        self.span_of(|| Mark { peer: Some(peer), bytes: bytes as u64, ..Mark::new(name) })
    }

    /// Tells who watches that the group stores a whole place by what [`direct`](Ctx::direct) gave.
    #[doc(hidden)]
    #[inline(always)]
    pub fn stores_to<T: Pod, G>(&self, group: &impl Group, place: Place<T, G>) {
        self.moved_by(group, self.abi().pe, place.pe().raw(), place.sym().bytes());
    }

    /// Tells who watches that the group moved `bytes` from one PE to another.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn moved_by(&self, group: &impl Group, from: u32, to: u32, bytes: usize) {
        #[cfg(not(target_arch = "nvptx64"))]
        if self.lane.watched && from != to && group.leader() {
            self.lane.machine.note(Note::Moved { from, to, bytes: bytes as u64 });
        }
        let _unseen = (group, from, to, bytes);
    }

    /// Tells who watches that this thread signalled a PE.
    #[inline(always)]
    pub(crate) fn signalled(&self, to: Pe) {
        #[cfg(not(target_arch = "nvptx64"))]
        if self.lane.watched {
            self.lane.machine.note(Note::Signalled(to.raw()));
        }
        let _unseen = to;
    }
}

#[cfg(any(not(target_arch = "nvptx64"), feature = "trace"))]
impl Drop for Span<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(open) = &self.open else { return };
        #[cfg(not(target_arch = "nvptx64"))]
        open.ctx.lane.machine.note(Note::End);
        #[cfg(target_arch = "nvptx64")]
        open.ctx.tell_span(&open.mark, open.begin_ns, open.ctx.lane.span_ns());
    }
}

/// A kernel as a whole, on a GPU: where each of its blocks begins and ends.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[inline(always)]
pub fn whole<'c>(ctx: &'c Ctx<'c>, kernel: &'static str) -> Span<'c> {
    ctx.span_of(|| Mark::new(kernel))
}
