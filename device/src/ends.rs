//! What a bulk operation reads from and writes to: places as they are, or packets that carry their own flags.
//!
//! In *packets* (NCCL's LL protocol) every 8-byte word is 4 bytes of data and a 4-byte flag, so that data and the news of its
//! arrival are one access: no signal, no fence, twice the bytes (MM-8). In *lines* (LL128) the last 8 bytes of each line are the
//! flag: 15/16 of the bytes are data, but the line must arrive as a whole, which only some hardware grants.

use congruent_heap::refuse;
use core::marker::PhantomData;

use congruent_heap::{Place, Pod, World};

use crate::arch;
use crate::{Ctx, rma::check_same};

/// The sources or the destinations of a bulk operation, all of the same length: an array of places or of [`End`]s, or
/// what [`ends`] makes.
pub trait Ends<T: Pod> {
    /// The team whose ranks they are at.
    type Team;
    /// How many.
    fn count(&self) -> usize;
    /// Number `i`.
    fn get(&self, i: usize) -> End<T, Self::Team>;
}

/// One source or destination of a bulk operation.
#[derive(Debug)]
pub enum End<T, G = World> {
    /// The elements as they are, on a PE that loads and stores reach.
    Plain(Place<T, G>),
    /// In packets or lines. A source is awaited.
    Packed(Packed<T, G>),
}

/// Elements in packets or lines, in words of a PE that loads and stores reach.
///
/// Whoever reads them gives the flag that they were written with, and waits until the words carry it. So a flag must not be
/// found in the words before they are written, and words that are written again get another one.
#[derive(Debug)]
pub struct Packed<T, G = World> {
    words: Place<u64, G>,
    len: usize,
    flag: u32,
    /// Bytes of a line; 0 for packets.
    line: u32,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, G> Packed<T, G> {
    /// `len` elements in packets at the start of `words`.
    ///
    /// # Panics
    /// Where `words` is too short, or elements have not 1, 2, 4 or 8 bytes.
    #[inline(always)]
    #[track_caller]
    pub fn packets(words: Place<u64, G>, len: usize, flag: u32) -> Self {
        if !8usize.is_multiple_of(size_of::<T>()) {
            refuse!("packets carry elements of 1, 2, 4 or 8 bytes");
        }
        Self::new(words, len, flag, 0)
    }

    /// `len` elements in lines of `line` bytes at the start of `words`.
    ///
    /// # Panics
    /// Where `words` is too short, `line` is not 16, 32, 64 or 128, or elements do not fill words: their size divides 8.
    #[inline(always)]
    #[track_caller]
    pub fn lines(words: Place<u64, G>, len: usize, flag: u32, line: u32) -> Self {
        if !matches!(line, 16 | 32 | 64 | 128) {
            refuse!("lines have 16, 32, 64 or 128 bytes");
        }
        if !8usize.is_multiple_of(size_of::<T>()) {
            refuse!("lines carry elements of 1, 2, 4 or 8 bytes");
        }
        Self::new(words, len, flag, line)
    }

    /// The words that it takes.
    #[inline(always)]
    pub const fn words(&self) -> Place<u64, G> {
        self.words
    }

    #[inline(always)]
    #[track_caller]
    fn new(words: Place<u64, G>, len: usize, flag: u32, line: u32) -> Self {
        let needs = packed_words(len * size_of::<T>(), line);
        if words.len() < needs {
            refuse!("too few words for these elements in packets");
        }
        Self { words: words.slice(..needs), len, flag, line, element: PhantomData }
    }
}

/// How many 8-byte words `bytes` bytes take in packets (`line` 0), or in lines of `line` bytes.
#[inline(always)]
pub const fn packed_words(bytes: usize, line: u32) -> usize {
    // By constants, because a GPU divides 64-bit numbers in a function.
    let lines = match line {
        0 => return bytes.div_ceil(4),
        16 => bytes.div_ceil(8),
        32 => bytes.div_ceil(24),
        64 => bytes.div_ceil(56),
        128 => bytes.div_ceil(120),
        _ => refuse!("lines have 16, 32, 64 or 128 bytes"),
    };
    lines * (line as usize / 8)
}

/// `count` ends, computed one by one.
#[inline(always)]
pub fn ends<T: Pod, G>(count: usize, get: impl Fn(usize) -> End<T, G>) -> impl Ends<T, Team = G> {
    Computed { count, get, element: PhantomData }
}

struct Computed<T, G, F> {
    count: usize,
    get: F,
    element: PhantomData<fn() -> End<T, G>>,
}

impl<T: Pod, G, F: Fn(usize) -> End<T, G>> Ends<T> for Computed<T, G, F> {
    type Team = G;
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    fn get(&self, i: usize) -> End<T, G> {
        (self.get)(i)
    }
}

/// Element `i`, the last one past the end, by comparisons: an array that is indexed is in memory, which on a GPU is slow.
#[inline(always)]
fn choose<V: Copy, const N: usize>(values: &[V; N], i: usize) -> V {
    let mut chosen = values[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        if i == k {
            chosen = values[k];
        }
    }
    chosen
}

impl<T: Pod, G, const N: usize> Ends<T> for [Place<T, G>; N] {
    type Team = G;
    #[inline(always)]
    fn count(&self) -> usize {
        N
    }
    #[inline(always)]
    fn get(&self, i: usize) -> End<T, G> {
        End::Plain(choose(self, i))
    }
}

impl<T: Pod, G, const N: usize> Ends<T> for [End<T, G>; N] {
    type Team = G;
    #[inline(always)]
    fn count(&self) -> usize {
        N
    }
    #[inline(always)]
    fn get(&self, i: usize) -> End<T, G> {
        choose(self, i)
    }
}

impl<T: Pod, G> End<T, G> {
    /// The same bytes, as bytes.
    #[inline(always)]
    pub fn bytes(self) -> End<u8, G> {
        match self {
            Self::Plain(place) => End::Plain(place.bytes()),
            Self::Packed(Packed { words, len, flag, line, .. }) => {
                End::Packed(Packed { words, len: len * size_of::<T>(), flag, line, element: PhantomData })
            }
        }
    }

    /// How many elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(place) => place.len(),
            Self::Packed(packed) => packed.len,
        }
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its bytes are: PE and how many.
    #[inline(always)]
    pub(crate) fn wire(&self) -> (u32, usize) {
        match self {
            Self::Plain(place) => (place.pe().raw(), place.sym().bytes()),
            Self::Packed(packed) => (packed.words.pe().raw(), packed.words.sym().bytes()),
        }
    }
}

/// Ends under the context that resolves them.
pub(crate) struct Resolved<'c, E, T> {
    ctx: &'c Ctx<'c>,
    ends: E,
    element: PhantomData<fn() -> T>,
}

impl<'c, T: Pod, E: Ends<T>> Resolved<'c, E, T> {
    /// Checks that every end has `len` elements.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn new(ctx: &'c Ctx<'_>, ends: E, len: usize) -> Self {
        for i in 0..ends.count() {
            check_same(ends.get(i).len(), len);
        }
        Self { ctx, ends, element: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn each(&self) -> impl Iterator<Item = End<T, E::Team>> {
        (0..self.ends.count()).map(|i| self.ends.get(i))
    }
}

impl<T: Pod, E: Ends<T>> arch::Ends for Resolved<'_, E, T> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.ends.count()
    }

    #[inline(always)]
    fn end(&self, i: usize) -> arch::End {
        match self.ends.get(i) {
            End::Plain(place) => {
                let start = self.ctx.near(place);
                arch::End { start: start.cast(), form: arch::Form::Plain, last: start.cast(), offset: 0, pe: 0 }
            }
            End::Packed(packed) => {
                let (sym, flag) = (packed.words.sym(), packed.flag);
                let start = self.ctx.near(packed.words);
                let form = match packed.line {
                    0 => arch::Form::Packets { flag },
                    bytes => arch::Form::Lines { flag, bytes },
                };
                let last = start.wrapping_add(sym.len().saturating_sub(1));
                arch::End { start: start.cast(), form, last, offset: sym.offset(), pe: packed.words.pe().raw() }
            }
        }
    }
}

impl<T, G> Clone for End<T, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, G> Copy for End<T, G> {}
impl<T, G> Clone for Packed<T, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, G> Copy for Packed<T, G> {}
impl<T, G> From<Place<T, G>> for End<T, G> {
    #[inline(always)]
    fn from(place: Place<T, G>) -> Self {
        Self::Plain(place)
    }
}
impl<T, G> From<Packed<T, G>> for End<T, G> {
    #[inline(always)]
    fn from(packed: Packed<T, G>) -> Self {
        Self::Packed(packed)
    }
}
