//! Copies on streams, within this PE.

use std::sync::Arc;

use congruent_device::{Pe, Pod, Slice, SliceMut, Sym};

use super::{Buffer, BufferView, BufferViewMut, Lend, Loan};
use crate::cpu::{self, Site};
use crate::cuda::{CudaView, CudaViewMut};
use crate::graph::Work;
use crate::launches::{Launched, Launcher};
use crate::rma::same_length;
use crate::runner::Runner;
use crate::{LaunchError, Stream, World};

/// Where [`World::copy`] copies to: this PE's copy of a symmetric object, a buffer, or a slice of cudarc's.
#[derive(Debug)]
pub enum Target<'c, T> {
    /// This PE's copy.
    Symmetric(Sym<T>),
    /// Elements of a buffer.
    Buffer(BufferViewMut<'c, T>),
    /// Elements of a slice of cudarc's.
    Slice(CudaViewMut<'c, T>),
}

/// Where [`World::copy`] copies from: this PE's copy of a symmetric object, a buffer, a slice of cudarc's, or the host's memory.
#[derive(Debug)]
pub enum Source<'c, T> {
    /// This PE's copy.
    Symmetric(Sym<T>),
    /// Elements of a buffer.
    Buffer(BufferView<'c, T>),
    /// Elements of a slice of cudarc's.
    Slice(CudaView<'c, T>),
    /// Values as they are now.
    Host(&'c [T]),
}

impl World {
    /// Copies `src` to `dst`, when the stream comes to it: between buffers, this PE's copies of symmetric objects and, on a GPU,
    /// cudarc's slices; and from the host's memory, whose values are taken at once. To copy to the host, give a buffer of
    /// [`World::host_buffer`]; or wait for the copy, with [`Buffer::read`] and [`SymVec::read`](crate::SymVec::read).
    ///
    /// ```
    /// # congruent::local(1, |world| {
    /// let (stream, sums) = (world.stream()?, world.alloc::<f32>(100)?);
    /// let mut mine = world.buffer::<f32>(100)?;
    /// world.copy(&stream, &mut mine, &[2.0; 100][..])?;
    /// world.copy(&stream, sums.view(), &mine)?;
    /// world.synchronize(&stream)?;
    /// assert_eq!(sums.to_vec()?, [2.0; 100]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Ordering
    /// After everything that the stream was given before, and before what it is given later; and as a launch that is lent the buffers
    /// and slices.
    ///
    /// # Errors
    /// The lengths differ; an object, a buffer or the stream is not of this world; a slice is of another device or context; values of the
    /// host's and slices in a capture; and see [`LaunchError`]. Nothing is copied then.
    #[track_caller]
    pub fn copy<'c, T: Pod>(
        &self,
        stream: &Stream,
        dst: impl Into<Target<'c, T>>,
        src: impl Into<Source<'c, T>>,
    ) -> Result<(), LaunchError> {
        let (mut dst, mut src) = (dst.into(), src.into());
        same_length(dst.len(), src.len())?;
        let (own, bytes) = (Pe::new(self.shared().pe()), dst.len() * size_of::<T>());
        let mut loan = Loan::new(self, "copy", stream)?;
        let to = match &mut dst {
            Target::Symmetric(sym) => {
                self.admit(stream, "copy", &[((sym.offset(), bytes as u64), None)])?;
                self.address(own, sym.offset())
            }
            Target::Buffer(view) => Lend::<SliceMut<T>>::lend(view, &mut loan)?.into_raw_parts().0,
            Target::Slice(view) => Lend::<SliceMut<T>>::lend(view, &mut loan)?.into_raw_parts().0,
        };
        let (from, staged) = match &mut src {
            Source::Symmetric(sym) => {
                self.admit(stream, "copy", &[((sym.offset(), bytes as u64), None)])?;
                (self.address(own, sym.offset()), None)
            }
            Source::Buffer(view) => (Lend::<Slice<T>>::lend(view, &mut loan)?.into_raw_parts().0, None),
            Source::Slice(view) => (Lend::<Slice<T>>::lend(view, &mut loan)?.into_raw_parts().0, None),
            Source::Host(values) => {
                stream.not_captured(
                    "a copy of the host's memory",
                    "copy it to a buffer before, and that in the capture",
                )?;
                (0, Some(Arc::<[u8]>::from(bytemuck::cast_slice(values))))
            }
        };
        if bytes == 0 {
            return Ok(());
        }
        if to.abs_diff(from) < bytes as u64 {
            return Err(LaunchError::Overlap { call: "copy", instead: "a buffer in between" });
        }
        let launch = self.shared().launches().number(Launched { kernel: "copy", by: Launcher::call() });
        let put = loan.close().put(stream, |lent| match (stream.runner(), staged) {
            (Runner::Cpu(queue, _), staged) => {
                let context = congruent_device::abi::Context { launch, ..self.shared().context() };
                let from = staged.as_ref().map_or(from, |staged| staged.as_ptr().expose_provenance() as u64);
                // SAFETY: both ranges are as long, and are this PE's copy of an object of this world, or elements of a buffer that is
                // lent, or staged; the work holds the last two, and the stream the world's memory.
                let body = unsafe { cpu::copy((to, from, bytes), (lent.clone(), staged)) };
                queue.put(self.shared(), Work { site: Site::one("copy", context, 1), body });
                Ok(())
            }
            (Runner::Cuda(runner, _), None) => Ok(runner.copy(to, from, bytes)?),
            (Runner::Cuda(runner, _), Some(staged)) => Ok(runner.upload(to, staged)?),
        });
        put?;
        if let Target::Slice(view) = &mut dst {
            Lend::<SliceMut<T>>::lent(view, stream)?;
        }
        if let Source::Slice(view) = &mut src {
            Lend::<Slice<T>>::lent(view, stream)?;
        }
        Ok(())
    }
}

impl<T: Pod> Target<'_, T> {
    fn len(&self) -> usize {
        match self {
            Self::Symmetric(sym) => sym.len(),
            Self::Buffer(view) => view.len(),
            Self::Slice(view) => view.len(),
        }
    }
}

impl<T: Pod> Source<'_, T> {
    fn len(&self) -> usize {
        match self {
            Self::Symmetric(sym) => sym.len(),
            Self::Buffer(view) => view.len(),
            Self::Slice(view) => view.len(),
            Self::Host(values) => values.len(),
        }
    }
}

impl<T> From<Sym<T>> for Target<'_, T> {
    fn from(sym: Sym<T>) -> Self {
        Self::Symmetric(sym)
    }
}

impl<'c, T: Pod> From<&'c mut Buffer<T>> for Target<'c, T> {
    fn from(buffer: &'c mut Buffer<T>) -> Self {
        Self::Buffer(buffer.view_mut())
    }
}

impl<'c, T> From<BufferViewMut<'c, T>> for Target<'c, T> {
    fn from(view: BufferViewMut<'c, T>) -> Self {
        Self::Buffer(view)
    }
}

impl<T> From<Sym<T>> for Source<'_, T> {
    fn from(sym: Sym<T>) -> Self {
        Self::Symmetric(sym)
    }
}

impl<'c, T: Pod> From<&'c Buffer<T>> for Source<'c, T> {
    fn from(buffer: &'c Buffer<T>) -> Self {
        Self::Buffer(buffer.view())
    }
}

impl<'c, T> From<BufferView<'c, T>> for Source<'c, T> {
    fn from(view: BufferView<'c, T>) -> Self {
        Self::Buffer(view)
    }
}

impl<'c, T> From<&'c [T]> for Source<'c, T> {
    fn from(values: &'c [T]) -> Self {
        Self::Host(values)
    }
}
