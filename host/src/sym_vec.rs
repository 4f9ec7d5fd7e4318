//! Symmetric objects as the host owns them.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use congruent_device::{Element, Pe, Pod, Sym};

use crate::AccessError;
use crate::objects::Use;
use crate::shared::Shared;

/// A symmetric object: the same number of elements at the same offset on every PE. Made by [`World::alloc`],
/// or of memory of somebody else's by [`World::import`](crate::World::import).
///
/// Kernels are given its [`view`](SymVec::view). Dropping it never communicates: the object is retired, and its memory is
/// given out again once every PE has retired it and a collective call has told them so.
///
/// [`World::alloc`]: crate::World::alloc
pub struct SymVec<T> {
    sym: Sym<T>,
    shared: Arc<Shared>,
    /// Whether its room is given out again.
    retires: bool,
}

impl<T: Element> SymVec<T> {
    pub(crate) fn new(sym: Sym<T>, shared: Arc<Shared>) -> Self {
        Self { sym, shared, retires: true }
    }

    /// One whose room is never given out again.
    pub(crate) fn kept(sym: Sym<T>, shared: Arc<Shared>) -> Self {
        Self { sym, shared, retires: false }
    }

    /// Whether it is one of those.
    pub(crate) fn is_kept(&self) -> bool {
        !self.retires
    }

    /// The same object with a name, which faults call it by.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.shared.objects().named(self.sym.raw_offset(), name);
        self
    }

    /// What the library uses it for.
    pub(crate) fn used_for(&self, use_for: Use) {
        self.shared.objects().used(self.sym.raw_offset(), use_for);
    }

    /// The object as a kernel argument: `Copy`, the same bits on every PE.
    pub fn view(&self) -> Sym<T> {
        self.sym
    }

    /// Where this PE's copy is in the device's memory, as a `CUdeviceptr`; on the CPU machine in that of the process. For other
    /// libraries of this process.
    ///
    /// It is valid until the object is dropped. To follow it is `unsafe`: other PEs may access the copy at any time. What another
    /// library does on a stream is ordered with launches by the stream ([`World::borrow_stream`](crate::World::borrow_stream)) or by
    /// events, and with other PEs by signals of kernels before and behind it, as a kernel of this world would be.
    pub fn device_ptr(&self) -> u64 {
        let context = self.shared.context();
        context.address(Pe::new(context.pe), self.sym.raw_offset())
    }

    /// Whether it is of this world.
    pub(crate) fn is_of(&self, world: &Shared) -> bool {
        self.shared.id() == world.id()
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.sym.len()
    }

    /// Whether there are no elements, which an allocation never gives.
    pub fn is_empty(&self) -> bool {
        self.sym.is_empty()
    }
}

impl<T: Pod> SymVec<T> {
    /// This PE's copy.
    ///
    /// # Ordering
    /// None against kernels in flight: [`synchronize`](crate::World::synchronize) first.
    ///
    /// # Errors
    /// Where the machine has failed.
    pub fn to_vec(&self) -> Result<Vec<T>, AccessError> {
        let mut copy = vec![T::zeroed(); self.len()];
        self.read(0, &mut copy)?;
        Ok(copy)
    }

    /// Copies elements from `at` on of this PE's copy to `out`.
    ///
    /// # Ordering
    /// As [`to_vec`](SymVec::to_vec).
    ///
    /// # Errors
    /// Where they are not all inside, and nothing is copied; or the machine has failed.
    pub fn read(&self, at: usize, out: &mut [T]) -> Result<(), AccessError> {
        let part = self.part(at, out.len())?;
        Ok(self.shared.read(part.offset(), bytemuck::cast_slice_mut(out))?)
    }

    /// Copies `values` over this PE's elements from `at` on.
    ///
    /// # Ordering
    /// A kernel launched afterwards by this PE sees them.
    ///
    /// # Errors
    /// Where they are not all inside, and nothing is copied; or the machine has failed.
    pub fn write(&self, at: usize, values: &[T]) -> Result<(), AccessError> {
        let part = self.part(at, values.len())?;
        Ok(self.shared.write(part.offset(), bytemuck::cast_slice(values))?)
    }

    /// Stores `value` in every element of this PE's copy.
    ///
    /// # Ordering
    /// As [`write`](SymVec::write).
    ///
    /// # Errors
    /// Where the machine has failed.
    pub fn fill(&self, value: T) -> Result<(), AccessError> {
        // In pieces, so that filling a large object does not double its memory.
        let piece = vec![value; self.len().min(16 << 10)];
        for at in (0..self.len()).step_by(piece.len()) {
            let fits = piece.len().min(self.len() - at);
            self.write(at, &piece[..fits])?;
        }
        Ok(())
    }

    /// The elements in `range`, as a kernel argument.
    ///
    /// # Errors
    /// Where they are not all inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sym<T>, AccessError> {
        let (start, end) = ends(range, self.len());
        self.sym.get(start..end).ok_or(AccessError::OutOfBounds { start, end, len: self.len() })
    }

    fn part(&self, at: usize, len: usize) -> Result<Sym<T>, AccessError> {
        self.slice(at..at.saturating_add(len))
    }
}

/// Where a range of so many elements starts and ends; past all elements where that is no number.
pub(crate) fn ends(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => len,
    };
    (start, end)
}

impl<T> Drop for SymVec<T> {
    fn drop(&mut self) {
        if self.retires {
            self.shared.retired().retire(self.sym.raw_offset());
        }
    }
}

impl<T> fmt::Debug for SymVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymVec({:?})", self.sym)
    }
}
