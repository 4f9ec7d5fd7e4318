//! What a launch is given: values as they are, and buffers, which it is lent.

use std::sync::Arc;

use congruent_device::{ChunksMut, KernelArg, KernelArgs, Pod, Relaxed, RowsMut, Slice, SliceMut, TilesMut};

use super::memory::{Access, Memory};
use super::{Buffer, BufferView, BufferViewMut};
use crate::{LaunchError, Stream, World};

/// What can be given to a launch for a kernel's parameter of type `A`.
///
/// | given | for |
/// |---|---|
/// | a value | the same |
/// | `&Buffer`, [`BufferView`] | [`Slice`] |
/// | `&mut Buffer`, [`BufferViewMut`] | [`SliceMut`], [`Relaxed`] |
/// | [`Chunked`] | [`ChunksMut`], [`RowsMut`] |
/// | [`Tiled`] | [`TilesMut`] |
/// | [`Packed`](super::Packed) | what it is of, of [`Pack`](congruent_device::Pack)s |
/// | memory at an address | as a buffer, which [`World::borrow_raw_buffer`] makes of it |
/// | cudarc's `&CudaSlice`, `&CudaView` | [`Slice`] |
/// | cudarc's `&mut CudaSlice`, `&mut CudaViewMut` | [`SliceMut`], [`Relaxed`] |
///
/// A launch on one stream begins when the launches on others are complete that use the same buffer, unless all only read it.
pub trait Lend<A> {
    #[doc(hidden)]
    fn lend(&mut self, loan: &mut Loan<'_>) -> Result<A, LaunchError>;

    /// The launch is on its stream.
    #[doc(hidden)]
    fn lent(&mut self, _stream: &Stream) -> Result<(), LaunchError> {
        Ok(())
    }
}

/// What can be given to a launch for all parameters of a kernel: a tuple of what each of them can be given ([`Lend`]).
///
/// Code that launches any kernel with whatever it takes says so: `where K::Args: Arguments<K::Args>`.
pub trait Arguments<A> {
    #[doc(hidden)]
    fn lend(&mut self, loan: &mut Loan<'_>) -> Result<A, LaunchError>;

    #[doc(hidden)]
    fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError>;
}

/// What one launch is lent. Nobody else makes one, so that nobody else gets at what [`Lend`] gives.
pub struct Loan<'l> {
    kernel: &'static str,
    stream: &'l Stream,
    memory: Vec<(Arc<Memory>, Access)>,
    has_outside: bool,
}

/// What one launch was lent.
pub(crate) struct Closed {
    kernel: &'static str,
    lent: Lent,
    has_outside: bool,
}

/// Why what is lent cannot be in a capture.
const NOT_KEPT: &str =
    "a graph of World::capture keeps buffers of World::buffer, and no others; launch it outside of the capture";

/// Memory of buffers that a launch uses, and how.
#[derive(Clone, Default)]
pub(crate) struct Lent(Arc<[(Arc<Memory>, Access)]>);

impl<'l> Loan<'l> {
    /// For a launch of a kernel on a stream, which is to be of this world.
    pub(crate) fn new(world: &World, kernel: &'static str, stream: &'l Stream) -> Result<Self, LaunchError> {
        world.shared().check_in_full()?;
        if !stream.is_of(world.shared()) {
            return Err(LaunchError::ForeignStream);
        }
        Ok(Self { kernel, stream, memory: Vec::new(), has_outside: false })
    }

    /// The kernel's name.
    pub(crate) fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// The stream, for memory that no buffer has.
    pub(crate) fn outside(&mut self) -> &'l Stream {
        self.has_outside = true;
        self.stream
    }

    /// All that was lent.
    pub(crate) fn close(self) -> Closed {
        Closed { kernel: self.kernel, lent: Lent(self.memory.into()), has_outside: self.has_outside }
    }

    fn take(&mut self, memory: &Arc<Memory>, access: Access) -> Result<(), LaunchError> {
        if !self.stream.is_of(memory.shared()) {
            return Err(LaunchError::ForeignBuffer { kernel: self.kernel });
        }
        self.memory.push((Arc::clone(memory), access));
        Ok(())
    }
}

impl Closed {
    /// Has `put` put what was lent this at the end of a stream, in its order with all that uses the same; or in the capture under way.
    pub(crate) fn put(
        self,
        stream: &Stream,
        put: impl FnOnce(&Lent) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let Self { kernel, lent, has_outside } = self;
        if lent.0.is_empty() && !has_outside {
            return put(&lent);
        }
        let mut captured = stream.captured();
        if !stream.runner().is_recording()? {
            lent.begin(stream)?;
            put(&lent)?;
            return lent.end(stream);
        }
        if has_outside || stream.runner().is_recording_for_others()? {
            return Err(LaunchError::InCapture { call: kernel, why: NOT_KEPT });
        }
        put(&lent)?;
        *captured = Lent(captured.0.iter().chain(&*lent.0).cloned().collect());
        Ok(())
    }
}

impl Lent {
    /// Has a stream wait for the launches on others that this must not meet.
    pub(crate) fn begin(&self, stream: &Stream) -> Result<(), LaunchError> {
        for (memory, access) in &*self.0 {
            for event in memory.before(*access, stream.id()) {
                stream.wait_for_event(&event)?;
            }
        }
        Ok(())
    }

    /// The launch is on its stream: what comes later comes after it, and until then it holds the memory.
    pub(crate) fn end(&self, stream: &Stream) -> Result<(), LaunchError> {
        let Some((first, _)) = self.0.first() else { return Ok(()) };
        stream.hold(self);
        // Without an event nobody knows what may begin, so then nothing does, and this waits for the launch.
        let event = stream.event(false).map_err(|error| {
            let failure = first.shared().machine_failed(&error);
            stream.wait_for(stream.submitted());
            failure
        })?;
        for (memory, access) in &*self.0 {
            memory.used(*access, stream.id(), &event);
        }
        Ok(())
    }
}

impl<A: KernelArg> Lend<A> for A {
    fn lend(&mut self, _loan: &mut Loan<'_>) -> Result<A, LaunchError> {
        Ok(*self)
    }
}

impl<T: Pod> Lend<Slice<T>> for &Buffer<T> {
    fn lend(&mut self, loan: &mut Loan<'_>) -> Result<Slice<T>, LaunchError> {
        self.view().lend(loan)
    }
}

impl<T: Pod> Lend<Slice<T>> for BufferView<'_, T> {
    fn lend(&mut self, loan: &mut Loan<'_>) -> Result<Slice<T>, LaunchError> {
        loan.take(&self.buffer.memory, Access::Read)?;
        // SAFETY: the launch holds the memory until it is complete, and comes after those that write it; those that write it
        // come after this one (`Lent`). The host waits for both. The elements are the buffer's, and aligned.
        Ok(unsafe { Slice::from_raw_parts(self.device_ptr(), self.len()) })
    }
}

macro_rules! exclusive {
    ($($argument:ident)*) => {$(
        impl<T: Pod> Lend<$argument<T>> for &mut Buffer<T> {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<$argument<T>, LaunchError> {
                self.view_mut().lend(loan)
            }
        }

        impl<T: Pod> Lend<$argument<T>> for BufferViewMut<'_, T> {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<$argument<T>, LaunchError> {
                loan.take(&self.view.buffer.memory, Access::Write)?;
                // SAFETY: as of a view, and no other launch reads it meanwhile either; nothing else of this launch does, as it is
                // borrowed exclusively.
                Ok(unsafe { $argument::from_raw_parts(self.view.device_ptr(), self.len()) })
            }
        }
    )*};
}
exclusive! { SliceMut Relaxed }

/// What is lent in parts of so many elements each, the last one shorter: chunks that are each one thread's where the kernel takes
/// [`ChunksMut`], rows that are each one block's where it takes [`RowsMut`].
///
/// [`Buffer::chunks_mut`] makes one; of cudarc's slices, `Chunked::new(&mut slice, size)`.
#[derive(Debug)]
pub struct Chunked<L> {
    whole: L,
    size: usize,
}

impl<L> Chunked<L> {
    /// Parts of `size` elements.
    pub const fn new(whole: L, size: usize) -> Self {
        Self { whole, size }
    }
}

macro_rules! in_parts {
    ($($argument:ident)*) => {$(
        impl<T: Pod, L: Lend<SliceMut<T>>> Lend<$argument<T>> for Chunked<L> {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<$argument<T>, LaunchError> {
                if self.size == 0 {
                    return Err(LaunchError::EmptyParts { kernel: loan.kernel });
                }
                let (address, len) = self.whole.lend(loan)?.into_raw_parts();
                // SAFETY: the same elements, in place of the whole.
                Ok(unsafe { $argument::from_raw_parts(address, len, self.size) })
            }

            fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
                self.whole.lent(stream)
            }
        }
    )*};
}
in_parts! { ChunksMut RowsMut }

/// What is lent as a table in tiles that are each one block's, for a kernel's [`TilesMut`]. Where the tiles do not divide the table the
/// last ones of its rows and columns are smaller.
///
/// What is lent is buffers and their views, [`Packed`](super::Packed) ones, whose columns are counted in packs, and cudarc's slices.
///
/// ```
/// use congruent::device::{TilesMut, kernels};
/// use congruent::{Error, Grid, Tiled};
///
/// kernels! {
///     /// Element `i, j` becomes the product of both.
///     pub fn products(block, ctx, table: TilesMut<u32>) {
///         for ([row, column], mut tile) in table.iter_mut(block) {
///             for ([i, j], element) in tile.iter_mut(block) {
///                 *element = ((row + i) * (column + j)) as u32;
///             }
///         }
///     }
/// }
///
/// congruent::local(1, |world| {
///     let (stream, [rows, columns]) = (world.stream()?, [10, 30]);
///     let mut table = world.buffer::<u32>(rows * columns)?;
///     // Tiles of 4 rows and 8 columns, a block for each.
///     let grid = Grid::tiled([columns, rows], [8, 4], 32);
///     world.run(&stream, products, grid, (Tiled::new(&mut table, columns, [4, 8]),))?;
///     assert_eq!(table.to_vec()?[7 * columns + 6], 42);
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<_, Error>(())
/// ```
#[derive(Debug)]
pub struct Tiled<L> {
    whole: L,
    columns: usize,
    tile: [usize; 2],
}

impl<L> Tiled<L> {
    /// Rows of `columns` elements, one behind the other, in tiles of so many rows and columns.
    pub const fn new(whole: L, columns: usize, tile: [usize; 2]) -> Self {
        Self { whole, columns, tile }
    }
}

impl<T: Pod, L: Lend<SliceMut<T>>> Lend<TilesMut<T>> for Tiled<L> {
    fn lend(&mut self, loan: &mut Loan<'_>) -> Result<TilesMut<T>, LaunchError> {
        let (columns, [height, width]) = (self.columns, self.tile);
        if columns == 0 || height == 0 || width == 0 {
            return Err(LaunchError::EmptyParts { kernel: loan.kernel });
        }
        let (address, len) = self.whole.lend(loan)?.into_raw_parts();
        if !len.is_multiple_of(columns) {
            return Err(LaunchError::PartialRow { kernel: loan.kernel, len, columns });
        }
        // SAFETY: the same elements, in place of the whole.
        Ok(unsafe { TilesMut::from_raw_parts(address, len, columns, height, width) })
    }

    fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
        self.whole.lent(stream)
    }
}

macro_rules! tuples {
    ($($given:ident $argument:ident)*) => {
        impl<$($argument: KernelArg, $given: Lend<$argument>),*> Arguments<($($argument,)*)> for ($($given,)*)
        where
            ($($argument,)*): KernelArgs,
        {
            #[allow(non_snake_case, unused_variables, clippy::unused_unit, reason = "one macro for every length")]
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<($($argument,)*), LaunchError> {
                let ($($given,)*) = self;
                Ok(($($given.lend(loan)?,)*))
            }

            #[allow(non_snake_case, unused_variables, reason = "one macro for every length")]
            fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
                let ($($given,)*) = self;
                $($given.lent(stream)?;)*
                Ok(())
            }
        }
    };
}
tuples!();
tuples!(A1 A);
tuples!(A1 A B1 B);
tuples!(A1 A B1 B C1 C);
tuples!(A1 A B1 B C1 C D1 D);
tuples!(A1 A B1 B C1 C D1 D E1 E);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H I1 I);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H I1 I J1 J);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H I1 I J1 J K1 K);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H I1 I J1 J K1 K L1 L);
tuples!(A1 A B1 B C1 C D1 D E1 E F1 F H1 H I1 I J1 J K1 K L1 L M1 M);
