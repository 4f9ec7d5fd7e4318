//! Memory of one PE that is no symmetric object: what a kernel is lent of it, and what its body sees.
//!
//! No other PE knows it, so a launch can have it for itself: what is only read is a slice, and what is written is divided among
//! the launch's threads. How it is divided is in the argument's type, and so the same for every thread: parts of two threads never
//! overlap.
//!
//! | the host lends | the kernel takes | its body sees |
//! |---|---|---|
//! | `&buffer` | [`Slice<T>`] | `&[T]` |
//! | `&mut buffer` | [`SliceMut<T>`] | [`Elements`]: each element is one thread's |
//! | `buffer.chunks_mut(n)` | [`ChunksMut<T>`] | [`Chunks`]: each chunk of `n` elements is one thread's |
//! | `buffer.chunks_mut(n)` | [`RowsMut<T>`] | [`Rows`]: each row of `n` elements is one block's, and of those each is one thread's |
//! | `Tiled::new(&mut buffer, …)` | [`TilesMut<T>`] | [`Tiles`]: each tile of a table is one block's, and of those each is one thread's |
//! | `&mut buffer` | [`Relaxed<T>`] | [`Peer`]: all of it is everybody's, by relaxed loads and stores |

use core::marker::PhantomData;
use core::ptr::with_exposed_provenance_mut;
use core::slice;

use congruent_heap::{KernelArg, Pod, refuse};

use crate::arch;
use crate::direct::Peer;
use crate::group::Strided;
use crate::{Block, Group};

/// Memory lent to a launch: where it is, and how many elements.
#[repr(C)]
struct Lent<T> {
    address: u64,
    len: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Lent<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Lent<T> {}

macro_rules! lent {
    ($(
        $(#[$meta:meta])*
        $name:ident $(by $($size:ident)+)? => $in:ty: |$first:ident, $len:ident| $open:expr;
    )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        pub struct $name<T> {
            lent: Lent<T>,
            $($($size: u64,)+)?
        }

        impl<T: Pod> $name<T> {
            /// Memory at an address of the device's, for a launch.
            ///
            /// # Safety
            /// `address` is that of `len` initialized elements, aligned for `T`, and stays so until every launch is complete that
            /// it is given to. Until then nobody else writes them, and unless this is a [`Slice`], nobody else reads them.
            #[inline(always)]
            pub const unsafe fn from_raw_parts(address: u64, len: usize $($(, $size: usize)+)?) -> Self {
                $($(if $size == 0 {
                    refuse!(const "a chunk, a row or a tile has one element or more");
                })+)?
                Self { lent: Lent { address, len: len as u64, element: PhantomData }, $($($size: $size as u64),+)? }
            }
        }

        impl<T> $name<T> {
            /// The address, and how many elements.
            #[inline(always)]
            pub const fn into_raw_parts(self) -> (u64, usize) {
                (self.lent.address, self.lent.len as usize)
            }
        }

        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}

        // SAFETY: repr(C): numbers. The address is the device's, as whoever made it has promised.
        unsafe impl<T: Pod + Send + Sync> KernelArg for $name<T> {
            type In<'k> = $in;

            #[inline(always)]
            unsafe fn open<'k>(self) -> Self::In<'k> {
                let $first = with_exposed_provenance_mut::<T>(self.lent.address as usize);
                let $len = self.lent.len as usize;
                $($(let $size = self.$size as usize;)+)?
                $open
            }

            fn fits(&self, _heap_bytes: u64) -> bool {
                true
            }
        }
    )*};
}

lent! {
    /// Elements that a launch reads. A kernel that takes it sees a `&[T]`, of which loads are plain and cached.
    ///
    /// ```
    /// use congruent_device::{Slice, SliceMut, kernels};
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
    /// ```
    Slice => &'k [T]: |first, len|
        // SAFETY: so many initialized elements that nobody writes, until the launch is complete (`from_raw_parts`).
        unsafe { slice::from_raw_parts(first, len) };

    /// Elements that a launch has for itself, each of them one thread's. A kernel that takes it sees [`Elements`].
    SliceMut => Elements<'k, T>: |first, len|
        // SAFETY: so many initialized elements, which the launch has for itself (`from_raw_parts`).
        unsafe { Elements::new(first, len) };

    /// Elements that a launch has for itself, in chunks that are each one thread's. A kernel that takes it sees [`Chunks`].
    ChunksMut by size => Chunks<'k, T>: |first, len|
        // SAFETY: as above, and `from_raw_parts` refuses chunks of none.
        unsafe { Chunks::new(first, len, size) };

    /// Elements that a launch has for itself, in rows that are each one block's. A kernel that takes it sees [`Rows`].
    RowsMut by width => Rows<'k, T>: |first, len|
        // SAFETY: as above, and `from_raw_parts` refuses rows of none.
        unsafe { Rows::new(first, len, width) };

    /// Rows of `columns` elements that a launch has for itself, in tiles of `height` rows and `width` columns that are each one block's.
    /// Elements behind the last whole row are nobody's. A kernel that takes it sees [`Tiles`].
    ///
    /// ```
    /// use congruent_device::{TilesMut, kernels};
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
    /// ```
    TilesMut by columns height width => Tiles<'k, T>: |first, len|
        // SAFETY: as above, and `from_raw_parts` refuses rows and tiles of none.
        unsafe { Tiles::new(first, len, columns, [height, width]) };

    /// Elements that a launch has for itself, where any thread loads and stores any of them. A kernel that takes it sees a
    /// [`Peer`], whose accesses are relaxed.
    Relaxed => Peer<'k, T>: |first, len|
        // SAFETY: so many elements, mapped and aligned, until the launch is complete (`from_raw_parts`), and whoever accesses them
        // has this view.
        unsafe { Peer::new(first, len) };
}

/// The elements of a [`SliceMut`], each of them one thread's of the launch.
pub struct Elements<'k, T> {
    first: *mut T,
    len: usize,
    kernel: PhantomData<&'k mut [T]>,
}

impl<T: Pod> Elements<'_, T> {
    /// # Safety
    /// So many initialized elements, aligned, that the launch has for itself while this lives, divided in this way alone.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T, len: usize) -> Self {
        Self { first, len, kernel: PhantomData }
    }

    /// How many elements all threads have together.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This thread's elements, each with its index. All threads of the launch have all of them together; which one has which is
    /// the machine's choice: neighbours of a warp have neighbouring elements on a GPU, and a thread of a CPU has some in a row.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = (usize, &mut T)> {
        let first = self.first;
        // SAFETY: an index inside, which no other thread is given, as all divide alike; nor this one again while the reference
        // lives, which borrows `self`.
        of_launch::<T>(block, self.len).map(move |i| (i, unsafe { &mut *first.add(i) }))
    }

    /// Where the elements begin, for accesses of your own.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.first
    }
}

/// The chunks of a [`ChunksMut`], each of them one thread's of the launch.
pub struct Chunks<'k, T> {
    first: *mut T,
    len: usize,
    size: usize,
    kernel: PhantomData<&'k mut [T]>,
}

impl<T: Pod> Chunks<'_, T> {
    /// # Safety
    /// As [`Elements::new`]. A chunk has one element or more.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T, len: usize, size: usize) -> Self {
        Self { first, len, size, kernel: PhantomData }
    }

    /// How many chunks all threads have together; the last one may be shorter than the others.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.size)
    }

    /// This thread's chunks, each with its index, divided as [`Elements::iter_mut`] divides elements.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = (usize, &mut [T])> {
        let Self { first, len, size, .. } = *self;
        of_launch::<()>(block, self.count()).map(move |i| {
            let start = i * size;
            // SAFETY: inside, and the chunks of other indices are elsewhere; for the rest as `Elements::iter_mut`.
            (i, unsafe { slice::from_raw_parts_mut(first.add(start), size.min(len - start)) })
        })
    }
}

/// The rows of a [`RowsMut`], each of them one block's of the launch, and of its elements each one thread's.
pub struct Rows<'k, T> {
    first: *mut T,
    len: usize,
    width: usize,
    kernel: PhantomData<&'k mut [T]>,
}

impl<T: Pod> Rows<'_, T> {
    /// # Safety
    /// As [`Elements::new`]. A row has one element or more.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T, len: usize, width: usize) -> Self {
        Self { first, len, width, kernel: PhantomData }
    }

    /// How many rows all blocks have together; the last one may be shorter than the others.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.width)
    }

    /// This block's rows, each with its index: every so many-th as there are blocks.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = (usize, Row<'_, T>)> {
        let Self { first, len, width, .. } = *self;
        let (mut index, blocks) = (block.index(), block.count());
        Strided::new(index * width, blocks * width, len).map(move |start| {
            // SAFETY: inside the allocation, as `start` is less than `len`.
            let row = Row { first: unsafe { first.add(start) }, len: width.min(len - start), rows: PhantomData };
            let this = index;
            index += blocks;
            (this, row)
        })
    }
}

/// One row of [`Rows`].
pub struct Row<'r, T> {
    first: *mut T,
    len: usize,
    rows: PhantomData<&'r mut [T]>,
}

impl<T: Pod> Row<'_, T> {
    /// How many elements all threads of the block have together.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none, which is so of no row.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This thread's elements, each with its index in the row, divided among the block's threads as [`Elements::iter_mut`] divides them.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = (usize, &mut T)> {
        let first = self.first;
        // SAFETY: an index inside, which no other thread of the block is given, nor one of another block, which has other rows;
        // nor this one again while the reference lives, which borrows `self`.
        part::<T>(block.rank(), block.size(), self.len).map(move |i| (i, unsafe { &mut *first.add(i) }))
    }
}

/// The tiles of a [`TilesMut`], each of them one block's of the launch, and of its elements each one thread's.
pub struct Tiles<'k, T> {
    first: *mut T,
    extents: [usize; 2],
    tile: [usize; 2],
    kernel: PhantomData<&'k mut [T]>,
}

impl<T: Pod> Tiles<'_, T> {
    /// # Safety
    /// As [`Elements::new`]. A row has one element or more, and so has a tile.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T, len: usize, columns: usize, tile: [usize; 2]) -> Self {
        Self { first, extents: [len / columns, columns], tile, kernel: PhantomData }
    }

    /// How many rows and columns the table has.
    #[inline(always)]
    pub fn extents(&self) -> [usize; 2] {
        self.extents
    }

    /// How many tiles all blocks have together, by rows and by columns; the last ones may be smaller than the others.
    #[inline(always)]
    pub fn count(&self) -> [usize; 2] {
        let ([rows, columns], [height, width]) = (self.extents, self.tile);
        [rows.div_ceil(height), columns.div_ceil(width)]
    }

    /// This block's tiles, each with the row and the column where it begins: every so many-th as there are blocks, along the rows. So the
    /// one tile of a block in a grid of a block for each (`Grid::tiled`) is where its [`index_in`](Block::index_in) says.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = ([usize; 2], TileMut<'_, T>)> {
        let Self { first, extents: [rows, columns], tile: [height, width], .. } = *self;
        let [down, across] = self.count();
        Strided::new(block.index(), block.count(), down * across).map(move |index| {
            let [row, column] = [index / across * height, index % across * width];
            let extents = [height.min(rows - row), width.min(columns - column)];
            // SAFETY: inside the allocation, as `row` is less than `rows` and `column` than `columns`.
            let first = unsafe { first.add(row * columns + column) };
            ([row, column], TileMut { first, extents, columns, tiles: PhantomData })
        })
    }
}

/// One tile of [`Tiles`].
pub struct TileMut<'t, T> {
    first: *mut T,
    extents: [usize; 2],
    /// From one row to the next.
    columns: usize,
    tiles: PhantomData<&'t mut [T]>,
}

impl<T: Pod> TileMut<'_, T> {
    /// How many rows and columns all threads of the block have together.
    #[inline(always)]
    pub fn extents(&self) -> [usize; 2] {
        self.extents
    }

    /// This thread's elements, each with its row and its column in the tile, divided among the block's threads as
    /// [`Elements::iter_mut`] divides them.
    #[inline(always)]
    pub fn iter_mut(&mut self, block: &Block<'_>) -> impl Iterator<Item = ([usize; 2], &mut T)> {
        let Self { first, extents: [height, width], columns, .. } = *self;
        part::<()>(block.rank(), block.size(), height * width).map(move |place| {
            let [i, j] = [place / width, place % width];
            // SAFETY: a row and a column inside, so that it is inside the allocation and in no other tile, as `j` does not reach the
            // tile beside this one, and rows do not overlap. No other thread of the block is given this place, nor one of another block,
            // which has other tiles; nor this one again while the reference lives, which borrows `self`.
            ([i, j], unsafe { &mut *first.add(i * columns + j) })
        })
    }
}

/// This thread's part of `0..len`, divided among all threads of the launch: indices of elements of type `T`, or `()` of what has no size
/// that the compiler knows.
#[inline(always)]
fn of_launch<T>(block: &Block<'_>, len: usize) -> impl Iterator<Item = usize> {
    let rank = block.index() * block.size() + block.rank();
    part::<T>(rank, block.count() * block.size(), len)
}

/// The part of `0..len` that thread `rank` of so many has, likewise.
#[inline(always)]
fn part<T>(rank: usize, threads: usize, len: usize) -> impl Iterator<Item = usize> {
    let (next, step, end) = arch::divide(len, rank, threads);
    Strided::new(next, step, end).inspect(|_| arch::turn::<T>())
}
