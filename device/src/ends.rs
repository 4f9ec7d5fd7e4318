//! What a bulk operation reads from and writes to: places as they are, or packets that carry their own flags.
//!
//! In *packets* (NCCL's LL protocol) every 8-byte word is 4 bytes of data and a 4-byte flag, so that data and the news of its
//! arrival are one access: no signal, no fence, twice the bytes (MM-8). In *lines* (LL128) the last 8 bytes of each line are the
//! flag: 15/16 of the bytes are data, but the line must arrive as a whole, which only some hardware grants.

use congruent_heap::refuse;
use core::marker::PhantomData;

use congruent_heap::abi::NO_PE;
use congruent_heap::{Pe, Place, Pod, World};

use crate::arch::{self, Form};
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

/// One source or destination of a bulk operation: elements on a PE that loads and stores reach, as they are, or in packets or
/// lines.
///
/// Packed sources are awaited: whoever reads packets or lines gives the flag that they were written with, and waits until the
/// words carry it. So a flag must not be found in the words before they are written, and words that are written again get
/// another one.
// No enum: a field that only some variants had would be undefined in the others, and a GPU's compiler keeps a register for
// such a field through every loop around it.
#[derive(Debug)]
pub struct End<T, G = World> {
    memory: Place<u8, G>,
    len: usize,
    /// The form in the lowest byte, as [`Form::of`] has it, and above it the PE that is to send, all ones where it is not known.
    kind: u32,
    flag: u32,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, G> End<T, G> {
    /// The elements as they are.
    #[inline(always)]
    pub fn plain(place: Place<T, G>) -> Self {
        let (memory, len) = (place.bytes(), place.len());
        Self { memory, len, kind: kind(Form::PLAIN, NO_PE), flag: 0, element: PhantomData }
    }

    /// `len` elements in packets at the start of `words`.
    ///
    /// # Panics
    /// Where `words` is too short or does not start on a multiple of 16 bytes, or elements have not 1, 2, 4 or 8 bytes.
    #[inline(always)]
    #[track_caller]
    pub fn packets(words: Place<u64, G>, len: usize, flag: u32) -> Self {
        if !8usize.is_multiple_of(size_of::<T>()) {
            refuse!("packets carry elements of 1, 2, 4 or 8 bytes");
        }
        if !words.sym().offset().is_multiple_of(16) {
            refuse!("packets start on a multiple of 16 bytes");
        }
        Self::packed(words, len, Form::PACKETS, flag)
    }

    /// `len` elements in lines of `line` bytes at the start of `words`.
    ///
    /// # Panics
    /// Where `words` is too short or does not start on a multiple of `line`, `line` is not 16, 32, 64 or 128, or elements do
    /// not fill words: their size divides 8.
    #[inline(always)]
    #[track_caller]
    pub fn lines(words: Place<u64, G>, len: usize, flag: u32, line: u32) -> Self {
        if !matches!(line, 16 | 32 | 64 | 128) {
            refuse!("lines have 16, 32, 64 or 128 bytes");
        }
        if !8usize.is_multiple_of(size_of::<T>()) {
            refuse!("lines carry elements of 1, 2, 4 or 8 bytes");
        }
        if !words.sym().offset().is_multiple_of(line.into()) {
            refuse!("lines start on a multiple of their size");
        }
        Self::packed(words, len, line, flag)
    }

    #[inline(always)]
    #[track_caller]
    fn packed(words: Place<u64, G>, len: usize, form: u32, flag: u32) -> Self {
        // Computed for each end, and not for lines of every size before a loop over ends.
        let bytes = arch::anew((len * size_of::<T>()) as u64) as usize;
        let needs = packed_words(bytes, if form == Form::PACKETS { 0 } else { form });
        if words.len() < needs {
            refuse!("too few words for these elements in packets");
        }
        let memory = words.slice(..needs).bytes();
        Self { memory, len, kind: kind(form, NO_PE), flag, element: PhantomData }
    }

    /// The same, of a PE that is to send it: what a fault says where it does not.
    #[must_use]
    #[inline(always)]
    pub const fn from_pe(mut self, sender: Pe) -> Self {
        self.kind = kind(self.form(), sender.raw());
        self
    }

    /// The memory that it takes.
    #[inline(always)]
    pub const fn memory(&self) -> Place<u8, G> {
        self.memory
    }

    /// Whether the elements are as they are.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.form() == Form::PLAIN
    }

    /// How many elements.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    const fn form(&self) -> u32 {
        self.kind & FORM
    }

    /// The PE that is to send it, or [`NO_PE`].
    #[inline(always)]
    const fn sender(&self) -> u32 {
        if self.kind >> SENDER == NO_PE >> SENDER { NO_PE } else { self.kind >> SENDER }
    }

    /// The same bytes, as bytes.
    #[inline(always)]
    pub fn bytes(self) -> End<u8, G> {
        let Self { memory, len, kind, flag, .. } = self;
        End { memory, len: len * size_of::<T>(), kind, flag, element: PhantomData }
    }
}

/// The bits of the form, and where the sender is.
const FORM: u32 = 0xff;
const SENDER: u32 = 8;

#[inline(always)]
const fn kind(form: u32, sender: u32) -> u32 {
    form | sender << SENDER
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
        _ => refuse!(const "lines have 16, 32, 64 or 128 bytes"),
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
        End::plain(choose(self, i))
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

/// Ends under the context that resolves them.
pub(crate) struct Resolved<'c, E, T> {
    ctx: &'c Ctx<'c>,
    ends: E,
    len: usize,
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
        Self { ctx, ends, len, element: PhantomData }
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
        let end = self.ends.get(i);
        let memory = end.memory;
        // Ends are computed by anybody, and again each time. Of a number that it knows, the compiler would choose the address.
        check_same(arch::anew(end.len as u64) as usize, self.len);
        let start = self.ctx.near(memory);
        let last = start.wrapping_add(memory.len().saturating_sub(8)).cast();
        let form = Form::of(end.form(), end.flag);
        arch::End { start, form, last, offset: memory.sym().offset(), sender: end.sender() }
    }
}

impl<T, G> Clone for End<T, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, G> Copy for End<T, G> {}
impl<T: Pod, G> From<Place<T, G>> for End<T, G> {
    #[inline(always)]
    fn from(place: Place<T, G>) -> Self {
        Self::plain(place)
    }
}
