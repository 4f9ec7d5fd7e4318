//! Shared memory: arrays of a block, in phases between its syncs.

use core::marker::PhantomData;

use congruent_heap::refuse;

use crate::arch::{self, Room, SharedAt};
use crate::sealed::Sealed;
use crate::{Block, Group, Pod};

/// The shared memory of a block: arrays of plain data that a kernel names behind its arguments, as
/// `; shared: ([f32; 256], [u32])`. A kernel is given one for each thread of a block.
///
/// A kernel uses it in phases. Each begins with [`sync`](Shared::sync), which waits for the block and gives each array anew; an array
/// is used in one way in a phase:
///
/// - [`part`](SharedArray::part): each thread reads and writes elements of its own;
/// - [`all`](SharedArray::all): every thread reads all;
/// - [`cells`](SharedArray::cells): every thread reads, writes and adds wherever it likes.
///
/// What is written in a phase is read in a later one. The next sync ends what the one before gave, so that nothing of a phase is used
/// past it: such a program does not compile. All threads of a block go through the same phases, as for every operation of a group;
/// where they do not, they read old values or new ones, and nothing else.
///
/// Lengths are known when the kernel is compiled, but that the last array may be a slice: it has the bytes that the launch asks for
/// (`Grid::with_shared`). Before something is written, an array holds anything; on the CPU machine its bytes are all ones, which is NaN.
///
/// ```
/// use congruent_device::{Group, Sym, kernels};
///
/// kernels! {
///     /// Counts how often each byte occurs: in shared memory, then together.
///     pub fn histogram(block, ctx, bytes: Sym<u8>, counts: Sym<u32>; shared: ([u32; 256],)) {
///         let (bins,) = shared.sync(block);
///         bins.part(block).fill_with(|_| 0);
///         let (bins,) = shared.sync(block);
///         let bins = bins.cells();
///         for i in block.strided(bytes.len()) {
///             bins.add(ctx.load(bytes, i).into(), 1);
///         }
///         let (bins,) = shared.sync(block);
///         let bins = bins.all();
///         for i in block.strided(bins.len()) {
///             ctx.add(counts.elem(i).at(ctx.world().me()), bins.get(i));
///         }
///     }
/// }
/// ```
pub struct Shared<'k, A: ?Sized + SharedArrays> {
    room: Room,
    arrays: PhantomData<&'k mut A>,
}

impl<A: ?Sized + SharedArrays> Shared<'_, A> {
    /// The shared memory of a kernel's block. For `kernels!`; a kernel is given it.
    ///
    /// # Safety
    /// Each thread of the block calls it once, with one type, before anything that depends on the thread. The room has
    /// [`BYTES`](SharedArrays::BYTES) bytes, aligned to 16, and the bytes of the last array behind them, and is the block's until its
    /// last thread ends.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn of(block: &Block<'_>) -> Self {
        const { crate::kernels::arrays_fit::<A>() };
        // SAFETY: the caller's contract.
        Self { room: unsafe { arch::room::<A>(block.as_lane()) }, arrays: PhantomData }
    }

    /// Waits for the block, ends the phase before, and gives each array anew. What any thread wrote before is there, and what it has
    /// begun to copy ([`SharedCells::copy_async`]).
    #[inline(always)]
    #[track_caller]
    pub fn sync(&mut self, block: &Block<'_>) -> A::Phase<'_> {
        // Always: what is still on its way would be stored beside what the next phase reads.
        arch::copies_done();
        block.sync();
        A::phase(self.room)
    }

    /// As [`sync`](Shared::sync), but copies that were begun since the last `N` of these calls, this one included, may still be on
    /// their way: so a kernel has `N + 1` stages, of which it computes on one while others are fetched. What is being copied holds anything,
    /// and is not to be touched.
    ///
    /// PTX has a group of copies for what is begun between two of these calls (`cp.async.commit_group`), CUDA C++ a stage of a
    /// `cuda::pipeline`.
    #[inline(always)]
    #[track_caller]
    pub fn sync_stage<const N: usize>(&mut self, block: &Block<'_>) -> A::Phase<'_> {
        arch::stage_done::<N>();
        block.sync();
        A::phase(self.room)
    }
}

impl<A: ?Sized + SharedArrays> Drop for Shared<'_, A> {
    /// What was still being copied is not stored to memory that another block has by then.
    #[inline(always)]
    fn drop(&mut self) {
        arch::copies_done();
    }
}

/// The arrays of a [`Shared`]: a tuple of one to six, `[T; N]` each, and the last may be `[T]`.
pub trait SharedArrays: Sealed {
    /// Bytes of the arrays whose length is known.
    const BYTES: usize;
    /// Bytes of an element of the array that a launch says the length of; 0 where there is none.
    const ITEM: usize;
    /// What a phase has: a [`SharedArray`] for each.
    type Phase<'p>;
    #[doc(hidden)]
    fn phase<'p>(room: Room) -> Self::Phase<'p>;
}

/// The type of one array.
pub trait SharedType: Sealed {
    /// What it is of.
    type Item: Pod;
    /// Its bytes, up to where the next one begins; 0 where a launch says how many.
    const BYTES: usize;
    /// Bytes of an element, where a launch says how many there are.
    const ITEM: usize;
    #[doc(hidden)]
    fn phase<'p>(room: Room, at: usize) -> SharedArray<'p, Self::Item>;
}

impl<T: Pod, const N: usize> Sealed for [T; N] {}
impl<T: Pod> Sealed for [T] {}

impl<T: Pod, const N: usize> SharedType for [T; N] {
    type Item = T;
    const BYTES: usize = {
        assert!(align_of::<T>() <= 16, "arrays begin at multiples of 16 bytes");
        (N * size_of::<T>()).next_multiple_of(16)
    };
    const ITEM: usize = 0;
    #[inline(always)]
    fn phase<'p>(room: Room, at: usize) -> SharedArray<'p, T> {
        SharedArray { start: room.known(at), len: N, of: PhantomData }
    }
}

impl<T: Pod> SharedType for [T] {
    type Item = T;
    const BYTES: usize = {
        assert!(align_of::<T>() <= 16, "arrays begin at multiples of 16 bytes");
        0
    };
    const ITEM: usize = size_of::<T>();
    #[inline(always)]
    fn phase<'p>(room: Room, _at: usize) -> SharedArray<'p, T> {
        let (start, bytes) = room.rest();
        SharedArray { start, len: bytes / size_of::<T>().max(1), of: PhantomData }
    }
}

macro_rules! tuples {
    ($($($name:ident)* | $last:ident;)*) => {$(
        impl<$($name: SharedType,)* $last: SharedType + ?Sized> Sealed for ($($name,)* $last,) {}

        impl<$($name: SharedType,)* $last: SharedType + ?Sized> SharedArrays for ($($name,)* $last,) {
            const BYTES: usize = $($name::BYTES +)* $last::BYTES;
            const ITEM: usize = $last::ITEM;
            type Phase<'p> = ($(SharedArray<'p, $name::Item>,)* SharedArray<'p, $last::Item>,);
            #[inline(always)]
            #[allow(unused_mut, unused_assignments, reason = "one macro for every length")]
            fn phase<'p>(room: Room) -> Self::Phase<'p> {
                let mut at = 0;
                ($({
                    let array = $name::phase(room, at);
                    at += $name::BYTES;
                    array
                },)* $last::phase(room, at),)
            }
        }
    )*};
}
tuples! {
    | A;
    A | B;
    A B | C;
    A B C | D;
    A B C D | E;
    A B C D E | F;
}

/// No shared memory.
impl Sealed for () {}
impl SharedArrays for () {
    const BYTES: usize = 0;
    const ITEM: usize = 0;
    type Phase<'p> = ();
    #[inline(always)]
    fn phase<'p>(_room: Room) -> Self::Phase<'p> {}
}

/// One array of a block's shared memory in one phase, before it is said how it is used. Given by [`Shared::sync`].
pub struct SharedArray<'p, T> {
    start: SharedAt,
    len: usize,
    of: PhantomData<&'p mut [T]>,
}

impl<'p, T: Pod> SharedArray<'p, T> {
    /// Elements of this thread's own: those of a block whose index is its rank, and every [`size`](Group::size)-th from there.
    #[inline(always)]
    pub fn part(self, block: &Block<'_>) -> SharedPart<'p, T> {
        SharedPart { rank: block.rank(), step: block.size(), array: self }
    }

    /// All elements, to read.
    #[inline(always)]
    pub fn all(self) -> SharedAll<'p, T> {
        SharedAll(self)
    }

    /// All elements, to read and to write.
    #[inline(always)]
    pub fn cells(self) -> SharedCells<'p, T> {
        SharedCells(self)
    }

    /// The first `mid` elements and those behind them, as two arrays that are used each in its own way.
    ///
    /// # Panics
    /// Where there are fewer.
    #[inline(always)]
    #[track_caller]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        if mid > self.len {
            refuse!("the launch has less shared memory than the kernel needs: see Grid::with_shared");
        }
        let behind = Self { start: self.start.behind::<T>(mid), len: self.len - mid, of: PhantomData };
        (Self { len: mid, ..self }, behind)
    }

    /// The same bytes as elements of another type; those of a last one that is not whole are left out.
    #[inline(always)]
    pub fn cast<U: Pod>(self) -> SharedArray<'p, U> {
        const { assert!(align_of::<U>() <= 16, "arrays begin at multiples of 16 bytes") };
        SharedArray { start: self.start, len: self.len * size_of::<T>() / size_of::<U>().max(1), of: PhantomData }
    }

    /// How many elements it has.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, i: usize) {
        if i >= self.len {
            refuse!("index of shared memory out of bounds");
        }
    }

    #[inline(always)]
    #[track_caller]
    fn load(&self, i: usize) -> T {
        self.check(i);
        // SAFETY: `i` is checked, and the array is there for as long as its phase.
        unsafe { arch::shared_load(self.start, i) }
    }

    #[inline(always)]
    #[track_caller]
    fn store(&self, i: usize, value: T) {
        self.check(i);
        // SAFETY: as for load.
        unsafe { arch::shared_store(self.start, i, value) }
    }
}

/// A thread's own elements of an array in a phase.
pub struct SharedPart<'p, T> {
    array: SharedArray<'p, T>,
    rank: usize,
    step: usize,
}

impl<T: Pod> SharedPart<'_, T> {
    /// Sets each to what `value` gives for its index.
    #[inline(always)]
    #[track_caller]
    pub fn fill_with(&mut self, mut value: impl FnMut(usize) -> T) {
        for i in (self.rank..self.array.len).step_by(self.step) {
            self.array.store(i, value(i));
        }
    }

    /// Sets each to what `change` makes of its index and what it was.
    #[inline(always)]
    #[track_caller]
    pub fn update(&mut self, mut change: impl FnMut(usize, T) -> T) {
        for i in (self.rank..self.array.len).step_by(self.step) {
            self.array.store(i, change(i, self.array.load(i)));
        }
    }
}

/// All elements of an array in a phase in which nobody writes it.
pub struct SharedAll<'p, T>(SharedArray<'p, T>);

impl<T: Pod> SharedAll<'_, T> {
    /// Where it begins.
    #[inline(always)]
    pub(crate) fn start(&self) -> SharedAt {
        self.0.start
    }

    /// How many elements it has.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Element `i`. One of 16 bytes, such as a `[f32; 4]`, is one access.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: usize) -> T {
        self.0.load(i)
    }
}

/// All elements of an array in a phase in which every thread may write any of them. Nothing orders the accesses of two threads: who
/// reads what another writes in the phase gets the old value or the new one.
pub struct SharedCells<'p, T>(SharedArray<'p, T>);

impl<T: Pod> SharedCells<'_, T> {
    /// Where it begins.
    #[inline(always)]
    pub(crate) fn start(&self) -> SharedAt {
        self.0.start
    }

    /// How many elements it has.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Element `i`. One of 16 bytes, such as a `[f32; 4]`, is one access.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn load(&self, i: usize) -> T {
        self.0.load(i)
    }

    /// Stores element `i`; one of 16 bytes by one access.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn store(&self, i: usize, value: T) {
        self.0.store(i, value);
    }

    /// Begins to copy element `at` of `from` to element `i`, or zeros where `from` has none there: it is done at the next
    /// [`Shared::sync`], and the thread goes on meanwhile. A GPU has an instruction for it that needs no registers (`cp.async`);
    /// the CPU copies at once.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn copy_async(&self, i: usize, from: Global<'_, T>, at: usize) {
        const { assert!(size_of::<T>() == 16 && align_of::<T>() == 16, "16 bytes at a time, aligned") };
        self.0.check(i);
        let is_there = at < from.0.len();
        let element = from.0.as_ptr().wrapping_add(at);
        // SAFETY: `i` is checked; an element is read where it is there, in global memory, and nobody writes it ([`Global::of`]).
        unsafe { arch::copy_later(self.0.start, i, element, is_there) }
    }
}

/// Elements in the memory that all threads see: what [`SharedCells::copy_async`] copies from.
#[derive(Clone, Copy)]
pub struct Global<'g, T>(&'g [T]);

impl<'g, T: Pod> Global<'g, T> {
    /// A slice that is there: what a launch was lent, or a settled part of symmetric memory.
    ///
    /// # Panics
    /// Where it is on a GPU thread's own stack.
    ///
    /// # Safety
    /// Nobody writes what is copied from it until the next [`Shared::sync`], which a borrow that ends before does not say.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn of(elements: &'g [T]) -> Self {
        if !elements.is_empty() && !arch::is_global(elements.as_ptr()) {
            refuse!("only what is in global memory can be copied asynchronously");
        }
        Self(elements)
    }

    /// Those in a range.
    ///
    /// # Panics
    /// Where they are not all inside.
    #[inline(always)]
    #[track_caller]
    pub fn slice(&self, range: core::ops::Range<usize>) -> Self {
        Self(&self.0[range])
    }

    /// How many.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: SharedAtomic> SharedCells<'_, T> {
    /// Adds to element `i`, atomically, and gives what it was. Integers wrap around.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn add(&self, i: usize, value: T) -> T {
        self.0.check(i);
        // SAFETY: `i` is checked, and the array is there for as long as its phase.
        unsafe { T::shared_add(self.0.start, i, value) }
    }
}

/// A number that threads add to in shared memory: `u32`, `i32`, `u64` and `f32`.
pub trait SharedAtomic: Pod + Sealed {
    #[doc(hidden)]
    unsafe fn shared_add(start: SharedAt, i: usize, value: Self) -> Self;
}

macro_rules! atomics {
    ($($type:ty)*) => {$(
        impl SharedAtomic for $type {
            #[inline(always)]
            unsafe fn shared_add(start: SharedAt, i: usize, value: Self) -> Self {
                // SAFETY: the caller's contract.
                unsafe { arch::SharedAdd::add(start, i, value) }
            }
        }
    )*};
}
atomics! { u32 i32 u64 f32 }
