//! Memory of one PE that is no symmetric object.

mod copy;
mod lend;
mod memory;
mod packed;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use congruent_device::Pod;

use crate::sym_vec::ends;
use crate::{AccessError, AllocError, CudaError, World};
pub use copy::{Source, Target};
pub use lend::{Arguments, Chunked, Lend, Tiled};
pub(crate) use lend::{Lent, Loan};
use memory::Memory;
pub use packed::Packed;

/// Elements of one PE's own: no other PE knows of them, and kernels of this one read them as a slice. Made by [`World::buffer`].
///
/// A launch is lent a buffer, as a function borrows a vector: `&buffer` where the kernel takes a [`Slice`], `&mut buffer` where it
/// takes a [`SliceMut`] ([`Lend`] has all). The borrow ends when the launch is on its stream; from there on launches that use the
/// same buffer wait for each other, and the host waits for them, unless all only read. A buffer that is dropped meanwhile is there
/// until the launches are complete that were lent it.
///
/// ```
/// use congruent::device::{Slice, SliceMut, kernels};
/// use congruent::Grid;
///
/// kernels! {
///     /// `y` becomes `a * x + y`.
///     pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>) {
///         let x = &x[..y.len()];
///         for (i, y) in y.iter_mut(block) {
///             *y += a * x[i];
///         }
///     }
/// }
///
/// congruent::local(2, |world| {
///     let (mut x, mut y) = (world.buffer::<f32>(1000)?, world.buffer::<f32>(1000)?);
///     x.fill(1.0)?;
///     y.fill(2.0)?;
///     let stream = world.stream()?;
///     world.launch(&stream, axpy, Grid::new(2, 128), (3.0, &x, &mut y))?;
///     assert_eq!(y.to_vec()?, [5.0; 1000]);           // waits for the launch
///     Ok::<_, congruent::Error>(())
/// })?;
/// # Ok::<_, congruent::Error>(())
/// ```
///
/// [`Slice`]: congruent_device::Slice
/// [`SliceMut`]: congruent_device::SliceMut
pub struct Buffer<T> {
    memory: Arc<Memory>,
    len: usize,
    elements: PhantomData<T>,
}

/// Some elements of a [`Buffer`], to be read: what [`Buffer::slice`] gives.
pub struct BufferView<'b, T> {
    buffer: &'b Buffer<T>,
    range: Range<usize>,
}

/// Some elements of a [`Buffer`], to be written: what [`Buffer::slice_mut`] and [`Buffer::split_at_mut`] give.
pub struct BufferViewMut<'b, T> {
    view: BufferView<'b, T>,
    exclusively: PhantomData<&'b mut T>,
}

impl World {
    /// Allocates `len` zeroed elements of this PE's own, which no other PE knows of. Any length, also none.
    ///
    /// # Errors
    /// Where there is no memory for them.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let bytes = buffer_bytes::<T>(len)?;
        self.shared().check().map_err(crate::CollectiveError::from)?;
        Ok(Buffer { memory: Arc::new(Memory::new(self.shared(), bytes)?), len, elements: PhantomData })
    }

    /// Allocates `len` zeroed elements in the host's memory, where the device reaches them, too: what a stream copies from and to while
    /// the host goes on. On a GPU it is pinned. Kernels may be lent it as any buffer; it is slow for them.
    ///
    /// Making the first ones may wait for all kernels of the device: make them before those run that wait for other PEs. What is dropped
    /// is used again by later ones.
    ///
    /// ```
    /// # congruent::local(1, |world| {
    /// let (stream, sums) = (world.stream()?, world.alloc::<f32>(100)?);
    /// let mut host = world.host_buffer::<f32>(100)?;
    /// sums.fill(2.0)?;
    /// world.copy(&stream, &mut host, sums.view())?;       // returns at once
    /// assert_eq!(host.to_vec()?, [2.0; 100]);             // waits for the copy
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`buffer`](World::buffer).
    pub fn host_buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let bytes = buffer_bytes::<T>(len)?;
        self.shared().check().map_err(crate::CollectiveError::from)?;
        Ok(Buffer { memory: Arc::new(Memory::of_host(self.shared(), bytes)?), len, elements: PhantomData })
    }

    /// `len` elements that another library of this process allocated, as a buffer: memory of this PE's device, by its `CUdeviceptr`;
    /// on the CPU machine memory of the process. Launches are lent it, whole or in parts, and copies reach it, as any other buffer.
    /// Its owner frees it.
    ///
    /// ```
    /// # congruent::local(1, |world| {
    /// let mut theirs = vec![1.0_f32; 100];                            // on a GPU: of cuBLAS, of PyTorch
    /// let (address, stream) = (theirs.as_mut_ptr().expose_provenance() as u64, world.stream()?);
    /// // SAFETY: 100 numbers, which nobody else uses until `lent` is dropped, and the stream has been waited for.
    /// let mut lent = unsafe { world.borrow_raw_buffer::<f32>(address, 100) }?;
    /// let mut ours = world.buffer::<f32>(100)?;
    /// ours.fill(2.0)?;
    /// world.copy(&stream, &mut lent, &ours)?;
    /// world.synchronize(&stream)?;
    /// drop(lent);
    /// assert_eq!(theirs, [2.0; 100]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Among what this world is given, that of a buffer. With what its owner does there, that of the streams: both use one
    /// ([`borrow_stream`](World::borrow_stream)), or they wait for each other's events.
    ///
    /// # Errors
    /// The address is null, or not aligned as the elements are; on a GPU it is memory of another device, or of none and not pinned; more
    /// bytes than an address space has; the world has failed.
    ///
    /// # Safety
    /// So many elements are at the address, in memory that kernels of this PE reach. It stays allocated until the buffer, all launches
    /// and copies that were lent it, and the graphs that keep it are gone. Until then nobody else accesses it while one of those runs or
    /// a method of the buffer is called, unless all only read.
    pub unsafe fn borrow_raw_buffer<T: Pod>(&self, address: u64, len: usize) -> Result<Buffer<T>, AllocError> {
        if len == 0 {
            return self.buffer(0);
        }
        buffer_bytes::<T>(len)?;
        self.shared().check().map_err(crate::CollectiveError::from)?;
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize)).ok_or(AllocError::Null)?;
        if !address.is_multiple_of(align_of::<T>() as u64) {
            return Err(AllocError::Cuda(CudaError::Misaligned { address, align: align_of::<T>() }));
        }
        let memory = Memory::borrowed(self.shared(), first).map_err(AllocError::Cuda)?;
        Ok(Buffer { memory: Arc::new(memory), len, elements: PhantomData })
    }
}

/// The bytes of a buffer.
fn buffer_bytes<T>(len: usize) -> Result<usize, AllocError> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
    bytes.ok_or(AllocError::TooLarge { len, size: size_of::<T>() })
}

impl<T: Pod> Buffer<T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    ///
    /// # Ordering
    /// Waits for the launches that write them.
    ///
    /// # Errors
    /// Where the world has failed.
    pub fn to_vec(&self) -> Result<Vec<T>, AccessError> {
        let mut copy = vec![T::zeroed(); self.len];
        self.read(0, &mut copy)?;
        Ok(copy)
    }

    /// Copies elements from `at` on to `out`.
    ///
    /// # Ordering
    /// As [`to_vec`](Buffer::to_vec).
    ///
    /// # Errors
    /// Where they are not all inside, and nothing is copied; or the world has failed.
    pub fn read(&self, at: usize, out: &mut [T]) -> Result<(), AccessError> {
        let part = self.part(at..at.saturating_add(out.len()))?;
        // SAFETY: the elements are inside, and this buffer is borrowed.
        Ok(unsafe { self.memory.read(part.start * size_of::<T>(), out) }?)
    }

    /// Copies `values` over the elements from `at` on.
    ///
    /// # Ordering
    /// Waits for the launches that use them. A kernel launched afterwards sees them.
    ///
    /// # Errors
    /// As [`read`](Buffer::read).
    pub fn write(&mut self, at: usize, values: &[T]) -> Result<(), AccessError> {
        let part = self.part(at..at.saturating_add(values.len()))?;
        // SAFETY: the elements are inside, and this buffer is borrowed exclusively.
        Ok(unsafe { self.memory.write(part.start * size_of::<T>(), values) }?)
    }

    /// Stores `value` in every element.
    ///
    /// # Ordering
    /// As [`write`](Buffer::write).
    ///
    /// # Errors
    /// Where the world has failed.
    pub fn fill(&mut self, value: T) -> Result<(), AccessError> {
        // In pieces, so that filling a large buffer does not double its memory.
        let piece = vec![value; self.len.min(16 << 10)];
        for at in (0..self.len).step_by(piece.len().max(1)) {
            let fits = piece.len().min(self.len - at);
            self.write(at, &piece[..fits])?;
        }
        Ok(())
    }

    /// The elements in `range`, to be read by a launch.
    ///
    /// # Errors
    /// Where they are not all inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferView<'_, T>, AccessError> {
        Ok(BufferView { buffer: self, range: self.part(range)? })
    }

    /// The elements in `range`, to be written by a launch.
    ///
    /// # Errors
    /// Where they are not all inside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferViewMut<'_, T>, AccessError> {
        let range = self.part(range)?;
        Ok(BufferViewMut { view: BufferView { buffer: self, range }, exclusively: PhantomData })
    }

    /// The elements before `mid` and those from there on, to be written by one launch or two.
    ///
    /// # Errors
    /// Where there are not so many.
    pub fn split_at_mut(&mut self, mid: usize) -> Result<[BufferViewMut<'_, T>; 2], AccessError> {
        let parts = [self.part(..mid)?, self.part(mid..)?];
        Ok(parts.map(|range| BufferViewMut { view: BufferView { buffer: self, range }, exclusively: PhantomData }))
    }

    /// All elements in chunks or rows of `size`: see [`Chunked`].
    pub fn chunks_mut(&mut self, size: usize) -> Chunked<&mut Self> {
        Chunked::new(self, size)
    }

    /// Where the elements are in the device's memory, as a `CUdeviceptr`; on the CPU machine in that of the process.
    ///
    /// It is valid until the buffer is dropped and no launch uses it any more. To follow it is `unsafe`: whoever does sees to it
    /// that no launch of this world uses the buffer at the same time, unless all only read.
    pub fn device_ptr(&self) -> u64 {
        self.memory.address()
    }

    fn view(&self) -> BufferView<'_, T> {
        BufferView { buffer: self, range: 0..self.len }
    }

    fn view_mut(&mut self) -> BufferViewMut<'_, T> {
        BufferViewMut { view: self.view(), exclusively: PhantomData }
    }

    fn part(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, AccessError> {
        let (start, end) = ends(range, self.len);
        if start <= end && end <= self.len {
            Ok(start..end)
        } else {
            Err(AccessError::OutOfBounds { start, end, len: self.len })
        }
    }
}

impl<T: Pod> BufferView<'_, T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// As [`Buffer::device_ptr`], of its first element.
    pub fn device_ptr(&self) -> u64 {
        self.buffer.device_ptr() + (self.range.start * size_of::<T>()) as u64
    }
}

impl<T: Pod> BufferViewMut<'_, T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// As [`Buffer::device_ptr`], of its first element.
    pub fn device_ptr(&self) -> u64 {
        self.view.device_ptr()
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

impl<T> fmt::Debug for BufferView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:?}]", self.buffer, self.range)
    }
}

impl<T> fmt::Debug for BufferViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}
