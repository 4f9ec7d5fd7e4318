//! Symmetric objects: [`Sym`] is the same bits on every PE, [`Place`] is one PE's copy of it.

use crate::refuse;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};

use crate::{Element, Pe, Pod, Rank};

/// `len` elements of `T` at the same offset of every PE's heap.
///
/// A `Sym` is a name, not memory: it is `Copy`, it has the same bits on every PE, and nothing can be read through it
/// without a context. [`at`](Sym::at) names one PE's copy. Ranges are checked once, when the range is made.
///
/// ```
/// use congruent_heap::Sym;
/// let rows: Sym<f32> = Sym::from_raw(4096, 100);
/// assert_eq!(rows.slice(10..20).len(), 10);
/// assert_eq!(rows.chunk(3, 8).len(), 13);              // 100 elements in 8 chunks: 13 each, the last one shorter
/// assert_eq!(rows.chunk(7, 8).len(), 9);
/// assert!(rows.get(90..101).is_none());
/// ```
#[repr(C)]
pub struct Sym<T> {
    offset: u64,
    len: u64,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> Sym<T> {
    /// A symmetric object at `offset` bytes from the start of the heap. Programs get theirs from the host's `SymVec`.
    ///
    /// Safe, because a context checks every object against its heap before it follows it, and every value that may live
    /// on the heap may be torn.
    ///
    /// # Panics
    /// Where `offset` is not aligned for `T`, or the object would reach past the largest address. On a GPU where it is followed.
    pub const fn from_raw(offset: u64, len: u64) -> Self {
        const { assert!(size_of::<T>() > 0, "a symmetric element has a size") };
        let object = Self { offset, len, element: PhantomData };
        if !cfg!(target_arch = "nvptx64") && !object.is_inside(i64::MAX as u64) {
            refuse!(const "a symmetric object is aligned for its type and fits in the address space");
        }
        object
    }

    /// Whether it is aligned for `T` and inside a heap of this size.
    #[inline(always)]
    pub(crate) const fn is_inside(self, heap_bytes: u64) -> bool {
        is_inside(self.offset, self.len, (size_of::<T>(), align_of::<T>()), heap_bytes)
    }

    /// No elements.
    pub const fn empty() -> Self {
        Self::from_raw(0, 0)
    }

    /// Bytes from the start of the heap.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// How many elements.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// How many bytes.
    #[inline(always)]
    pub const fn bytes(self) -> usize {
        self.len as usize * size_of::<T>()
    }

    /// Elements `range`, still symmetric, or `None` where they are not all inside.
    #[inline(always)]
    pub fn get(self, range: impl RangeBounds<usize>) -> Option<Self> {
        let (start, end) = self.ends(range);
        (start <= end && end <= self.len()).then(|| self.part(start, end))
    }

    /// Elements `range`, still symmetric.
    ///
    /// # Panics
    /// Where the range is not inside. In a kernel a panic ends the launch with a fault that says so.
    #[inline(always)]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
        // Not by `get`: on a GPU the fields of an option cost registers also where it is none.
        let (start, end) = self.ends(range);
        if start > end || end > self.len() {
            refuse!("symmetric slice out of bounds");
        }
        self.part(start, end)
    }

    /// Where a range starts and ends; past all elements where that is no number.
    #[inline(always)]
    fn ends(self, range: impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(&a) => a,
            Bound::Excluded(&a) => a.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&b) => b.saturating_add(1),
            Bound::Excluded(&b) => b,
            Bound::Unbounded => self.len(),
        };
        (start, end)
    }

    /// Element `i`, still symmetric.
    ///
    /// # Panics
    /// Where `i` is not inside, as [`slice`](Sym::slice).
    #[inline(always)]
    #[track_caller]
    pub fn elem(self, i: usize) -> Self {
        if i >= self.len() {
            refuse!("symmetric element out of bounds");
        }
        self.part(i, i + 1)
    }

    /// Chunk `i` of `n` equal ones: `ceil(len / n)` elements each, the last ones shorter or empty.
    ///
    /// # Panics
    /// Where `i >= n`.
    #[inline(always)]
    #[track_caller]
    pub fn chunk(self, i: usize, n: usize) -> Self {
        if i >= n {
            refuse!("symmetric chunk out of bounds");
        }
        let each = self.len().div_ceil(n);
        let start = (i * each).min(self.len());
        self.part(start, (start + each).min(self.len()))
    }

    /// The same bytes as elements of another plain type.
    ///
    /// # Panics
    /// Where the start is not aligned for `U`, or the bytes are not a whole number of them.
    #[inline(always)]
    #[track_caller]
    pub const fn cast<U: Pod>(self) -> Sym<U>
    where
        T: Pod,
    {
        const { assert!(size_of::<U>() > 0, "a symmetric element has a size") };
        if !self.bytes().is_multiple_of(size_of::<U>()) {
            refuse!(const "a symmetric object is cast to a type whose size divides it");
        }
        if !self.offset.is_multiple_of(align_of::<U>() as u64) {
            refuse!(const "a symmetric object is cast to a type whose alignment it has");
        }
        // It fits in the address space, as it did before.
        Sym { offset: self.offset, len: (self.bytes() / size_of::<U>()) as u64, element: PhantomData }
    }

    /// This object on that PE.
    #[inline(always)]
    pub const fn at<G>(self, rank: Rank<G>) -> Place<T, G> {
        Place { sym: self, pe: rank.pe(), team: PhantomData }
    }

    #[inline(always)]
    fn part(self, start: usize, end: usize) -> Self {
        Self { offset: self.offset + (start * size_of::<T>()) as u64, len: (end - start) as u64, element: PhantomData }
    }
}

/// Whether `len` elements of this size and alignment at `offset` are aligned and inside a heap of `heap_bytes` bytes.
#[doc(hidden)]
#[inline(always)]
pub const fn is_inside(offset: u64, len: u64, (size, align): (usize, usize), heap_bytes: u64) -> bool {
    match len.checked_mul(size as u64) {
        Some(bytes) => bytes <= heap_bytes && offset <= heap_bytes - bytes && offset & (align as u64 - 1) == 0,
        None => false,
    }
}

impl<T> Sym<T> {
    /// [`offset`](Sym::offset), where `T` is not known to be an element.
    #[doc(hidden)]
    pub const fn raw_offset(self) -> u64 {
        self.offset
    }
}

impl<T> Clone for Sym<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Sym<T> {}
impl<T> PartialEq for Sym<T> {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset && self.len == other.len
    }
}
impl<T> Eq for Sym<T> {}
impl<T> fmt::Debug for Sym<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sym<{}>[{:#x}; {}]", core::any::type_name::<T>(), self.offset, self.len)
    }
}

/// A symmetric object on one PE: the destination of a put, the source of a get.
#[repr(C)]
pub struct Place<T, G = crate::World> {
    sym: Sym<T>,
    pe: Pe,
    team: PhantomData<G>,
}

impl<T: Pod, G> Place<T, G> {
    /// The same bytes, as bytes.
    #[inline(always)]
    pub const fn bytes(self) -> Place<u8, G> {
        Place { sym: self.sym.cast(), pe: self.pe, team: PhantomData }
    }
}

impl<T: Element, G> Place<T, G> {
    /// The object.
    #[inline(always)]
    pub const fn sym(self) -> Sym<T> {
        self.sym
    }

    /// The PE.
    #[inline(always)]
    pub const fn pe(self) -> Pe {
        self.pe
    }

    /// How many elements.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.sym.len()
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.sym.is_empty()
    }

    /// Elements `range` at the same PE; panics as [`Sym::slice`].
    #[inline(always)]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
        Self { sym: self.sym.slice(range), ..self }
    }

    /// Element `i` at the same PE; panics as [`Sym::elem`].
    #[inline(always)]
    #[track_caller]
    pub fn elem(self, i: usize) -> Self {
        Self { sym: self.sym.elem(i), ..self }
    }
}

impl<T, G> Clone for Place<T, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, G> Copy for Place<T, G> {}
impl<T, G> fmt::Debug for Place<T, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.sym, self.pe)
    }
}
