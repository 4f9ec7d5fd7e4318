//! What a kernel takes as an argument.

use crate::{Element, Place, Pod, Rank, Sym, Tag, TeamView};

/// A value that host and kernel pass between them: plain data, symmetric objects, teams, and structs and enums that
/// [`kernel_arg!`](crate::kernel_arg) declares.
///
/// # Safety
/// The host's bytes mean the same to a kernel in another memory, compiled by another compiler: the layout is fixed
/// (`repr(C)`, or a primitive's), there is no reference to the host's memory in it, and the value is valid on the device as it
/// is on the host. [`fits`](KernelArg::fits) asks every symmetric object in it.
pub unsafe trait KernelArg: Copy + Send + Sync + 'static {
    /// What the kernel's body sees of it, for as long as the kernel runs: most often the value itself.
    type In<'k>;

    /// What the kernel's body sees of it.
    ///
    /// # Safety
    /// In a kernel that was launched with this argument, whose end outlives `'k`, and once for each of its threads.
    unsafe fn open<'k>(self) -> Self::In<'k>;

    /// Whether every symmetric object in it lies inside a heap of this size: a launch refuses those of another world.
    fn fits(&self, heap_bytes: u64) -> bool;

    /// The most blocks of a launch that it is for: a launch of more is refused.
    fn most_blocks(&self) -> u32 {
        u32::MAX
    }
}

/// Declares a struct of kernel arguments, or an enum without fields, that is a kernel argument itself.
///
/// It is `Copy`, and laid out alike by the host's compiler and the device's: a struct is `repr(C)`, an enum `repr(u32)`. A
/// field that is no [`KernelArg`], such as a reference to the host's memory, does not compile. A struct that serves launches of
/// so many blocks only says how many after its fields: `most_blocks = Self::blocks;`, a function of `&Self`. It may have a constant as a
/// parameter: `struct Row<const LEN: usize> { … }`.
///
/// ```
/// use congruent_heap::{KernelArg, Semaphore, Sym, kernel_arg};
///
/// kernel_arg! {
///     /// The rim of a PE's part.
///     #[derive(Debug)]
///     pub struct Halo { pub cells: Sym<f32>, pub arrived: Sym<Semaphore>, width: u32, height: u32 }
/// }
/// let halo = Halo { cells: Sym::from_raw(128, 8), arrived: Sym::from_raw(0, 1), width: 4, height: 2 };
/// assert!(halo.fits(160) && !halo.fits(159));
/// ```
#[macro_export]
macro_rules! kernel_arg {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<const $constant:ident: $of:ty>)? {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),+ $(,)?
        }
        $(most_blocks = $most:expr;)?
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name $(<const $constant: $of>)? { $($(#[$field_meta])* $field_vis $field: $type),+ }

        // SAFETY: repr(C), and every field is a kernel argument, which is asked whether it fits.
        unsafe impl $(<const $constant: $of>)? $crate::KernelArg for $name $(<$constant>)? {
            type In<'k> = Self;

            #[inline(always)]
            unsafe fn open<'k>(self) -> Self::In<'k> {
                self
            }

            #[inline(always)]
            fn fits(&self, heap_bytes: u64) -> bool {
                $(<$type as $crate::KernelArg>::fits(&self.$field, heap_bytes))&&+
            }

            fn most_blocks(&self) -> u32 {
                let most = u32::MAX;
                $(let most = most.min(<$type as $crate::KernelArg>::most_blocks(&self.$field));)+
                $(let most = most.min($most(self));)?
                most
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident $(= $value:literal)?),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[repr(u32)]
        #[derive(Clone, Copy)]
        $vis enum $name { $($(#[$variant_meta])* $variant $(= $value)?),+ }

        // SAFETY: repr(u32), and no variant has a field.
        unsafe impl $crate::KernelArg for $name {
            type In<'k> = Self;

            #[inline(always)]
            unsafe fn open<'k>(self) -> Self::In<'k> {
                self
            }

            #[inline(always)]
            fn fits(&self, _heap_bytes: u64) -> bool {
                true
            }
        }
    };
}

// SAFETY: bytemuck's contract for Pod (any bytes are valid, no padding, no references) with a layout that is fixed.
unsafe impl<T: Pod + Send + Sync> KernelArg for T {
    type In<'k> = Self;

    #[inline(always)]
    unsafe fn open<'k>(self) -> Self::In<'k> {
        self
    }

    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

// SAFETY: repr(C): an offset and a length, the same on every PE.
unsafe impl<T: Element> KernelArg for Sym<T> {
    type In<'k> = Self;

    #[inline(always)]
    unsafe fn open<'k>(self) -> Self::In<'k> {
        self
    }

    #[inline(always)]
    fn fits(&self, heap_bytes: u64) -> bool {
        self.is_inside(heap_bytes)
    }
}

// SAFETY: repr(C): a symmetric object and a number.
unsafe impl<T: Element, G: Tag + Send + Sync> KernelArg for Place<T, G> {
    type In<'k> = Self;

    #[inline(always)]
    unsafe fn open<'k>(self) -> Self::In<'k> {
        self
    }

    fn fits(&self, heap_bytes: u64) -> bool {
        self.sym().fits(heap_bytes)
    }
}

// SAFETY: repr(C): numbers.
unsafe impl<G: Tag + Send + Sync> KernelArg for Rank<G> {
    type In<'k> = Self;

    #[inline(always)]
    unsafe fn open<'k>(self) -> Self::In<'k> {
        self
    }

    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

// SAFETY: repr(C): numbers and symmetric objects, each of which is asked.
unsafe impl<G: Tag + Send + Sync> KernelArg for TeamView<G> {
    type In<'k> = Self;

    #[inline(always)]
    unsafe fn open<'k>(self) -> Self::In<'k> {
        self
    }

    fn fits(&self, heap_bytes: u64) -> bool {
        self.members().fits(heap_bytes) && self.sync().fits(heap_bytes)
    }
}
