//! How a buffer is divided: first among the members of a team, then among the blocks of a launch, then into chunks that
//! travel one by one.

use congruent_device::{Element, Sym};

/// Parts start on multiples of this many bytes, so that vector accesses stay aligned.
const GRAIN: usize = 128;

/// Part `index` of `count` parts of a range, each of the same size but the last ones, which are shorter or empty.
///
/// Sizes are rounded up to 128 bytes, so parts of aligned buffers are aligned. Everyone who computes a division of the same
/// length into the same count gets the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which part.
    pub index: usize,
    /// Of how many.
    pub count: usize,
}

impl Share {
    /// Part `index` of `count`.
    pub const fn new(index: usize, count: usize) -> Self {
        Self { index, count }
    }

    /// This part of `whole`.
    #[inline(always)]
    pub fn of<T: Element>(self, whole: Sym<T>) -> Sym<T> {
        let each = Self::largest::<T>(whole.len(), self.count);
        let start = (self.index * each).min(whole.len());
        whole.slice(start..(start + each).min(whole.len()))
    }

    /// This part of chunk `i` of `whole`, which is divided into so many chunks.
    #[inline(always)]
    pub(crate) fn of_chunks<T: Element>(self, whole: Sym<T>, i: usize, chunks: usize) -> Sym<T> {
        let each = Self::largest::<T>(whole.len(), chunks);
        Self::of_chunk(self.index, whole, i, Self::lengths::<T>(each, self.count))
    }

    /// This part of chunk `i` of `whole`, of which each chunk has so many elements and each part of one so many
    /// ([`lengths`](Self::lengths)), but that the buffer may end before.
    #[inline(always)]
    pub(crate) fn of_chunk<T: Element>(index: usize, whole: Sym<T>, i: usize, [each, part]: [usize; 2]) -> Sym<T> {
        let end = ((i + 1) * each).min(whole.len());
        let start = (i * each + index * part).min(end);
        whole.slice(start..(start + part).min(end))
    }

    /// Elements of a chunk, and of each of so many parts of it.
    #[inline(always)]
    pub(crate) fn lengths<T>(chunk: usize, count: usize) -> [usize; 2] {
        [chunk, if count == 1 { chunk } else { Self::largest::<T>(chunk, count) }]
    }

    /// Elements of the largest part of `len` in `count` parts.
    #[inline(always)]
    pub fn largest<T>(len: usize, count: usize) -> usize {
        let grain = const { if size_of::<T>() < GRAIN { GRAIN / size_of::<T>() } else { 1 } };
        len.div_ceil(count).next_multiple_of(grain)
    }
}
