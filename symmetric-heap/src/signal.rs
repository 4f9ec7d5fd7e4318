//! The words that PEs signal each other with. Both only grow, so a kernel relaunches and a graph replays with no reset.

use crate::{Pe, Place, Rank, Sym};

/// Counts posts from peers against takes by its owner.
///
/// A peer posts (`sem.at(rank).post()`), the owner waits for `n` more posts than it has taken. Because what has been
/// taken lives beside the count, in the heap, the same kernel can be launched again and again. The two counts are 64 bits
/// wide and compared with wrap-around; they lie on different 64-byte lines, so that taking does not disturb the poster.
/// (The idea, expected counts kept in memory, is from MSCCL++'s device semaphores.)
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct Semaphore {
    posted: u64,
    line: [u64; 7],
    taken: u64,
    rest: [u64; 7],
}

/// A word that only grows: peers set or add, the owner waits until it is at least a value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Signal(u64);

impl Semaphore {
    /// Byte offset of the count of posts.
    pub const POSTED: u64 = core::mem::offset_of!(Semaphore, posted) as u64;
    /// Byte offset of the count of takes, touched by the owner alone.
    pub const TAKEN: u64 = core::mem::offset_of!(Semaphore, taken) as u64;
}

const _: () = assert!(size_of::<Semaphore>() == 128 && Semaphore::TAKEN == 64);
const _: () = assert!(size_of::<Signal>() == 8 && align_of::<Signal>() == 8);

/// What a [`Notify`] does to its word.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyOp {
    /// Adds the value: any number of PEs may notify.
    Add,
    /// Stores the value: one PE notifies, with growing values.
    Set,
}

/// A signal that has been prepared and not yet sent. Hand it to `put_signal` or `notify`.
#[must_use = "a Notify does nothing until put_signal or notify sends it"]
#[derive(Clone, Copy, Debug)]
pub struct Notify {
    offset: u64,
    value: u64,
    pe: Pe,
    op: NotifyOp,
}

impl Notify {
    /// Where the word is on its PE's heap.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// The value added or set.
    #[inline(always)]
    pub const fn value(self) -> u64 {
        self.value
    }

    /// The PE that is notified.
    #[inline(always)]
    pub const fn pe(self) -> Pe {
        self.pe
    }

    /// Add or set.
    #[inline(always)]
    pub const fn op(self) -> NotifyOp {
        self.op
    }
}

impl<G> Place<Semaphore, G> {
    /// One post.
    ///
    /// # Panics
    /// Where the place has no semaphore in it.
    #[inline(always)]
    pub fn post(self) -> Notify {
        self.post_n(1)
    }

    /// `n` posts at once; panics as [`post`](Place::post).
    #[inline(always)]
    pub fn post_n(self, n: u64) -> Notify {
        let word = self.elem(0).sym().offset() + Semaphore::POSTED;
        Notify { offset: word, value: n, pe: self.pe(), op: NotifyOp::Add }
    }
}

impl<G> Place<Signal, G> {
    /// Adds `n`: for any number of notifying PEs.
    ///
    /// # Panics
    /// Where the place has no signal in it.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "the name that OpenSHMEM gives this signal operation")]
    pub fn add(self, n: u64) -> Notify {
        Notify { offset: self.elem(0).sym().offset(), value: n, pe: self.pe(), op: NotifyOp::Add }
    }

    /// Stores `value`, which must not be less than what is there: for one notifying PE. Panics as [`add`](Place::add).
    #[inline(always)]
    pub fn set(self, value: u64) -> Notify {
        Notify { offset: self.elem(0).sym().offset(), value, pe: self.pe(), op: NotifyOp::Set }
    }
}

/// A word to wait on, with the PE it is expected from where that is known, so that a fault can name it.
///
/// `sem` and `signal` convert by themselves; [`Sym::from_rank`] names the peer.
#[derive(Clone, Copy, Debug)]
pub struct Awaited<W> {
    word: Sym<W>,
    from: Option<Pe>,
}

impl<W: crate::Element> Awaited<W> {
    /// The word.
    #[inline(always)]
    pub const fn word(self) -> Sym<W> {
        self.word
    }

    /// The PE that is expected to notify.
    #[inline(always)]
    pub const fn from(self) -> Option<Pe> {
        self.from
    }
}

impl<W: crate::Element> From<Sym<W>> for Awaited<W> {
    #[inline(always)]
    fn from(word: Sym<W>) -> Self {
        Self { word, from: None }
    }
}

impl<W: crate::Element> Sym<W> {
    /// This word, expected to be notified by that PE: a wait on it that fails names the PE.
    #[inline(always)]
    pub const fn from_rank<G>(self, rank: Rank<G>) -> Awaited<W> {
        Awaited { word: self, from: Some(rank.pe()) }
    }
}
