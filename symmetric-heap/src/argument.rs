//! What a kernel takes as an argument.

use crate::{Element, Place, Pod, Rank, Sym, Tag, TeamView};

/// A value that host and kernel pass between them: plain data, symmetric objects, teams, and structs of these.
///
/// An implementor of one's own is `#[repr(C)]`, so that the host's compiler and the device's lay it out alike:
///
/// ```
/// use congruent_heap::{KernelArg, Semaphore, Sym};
///
/// #[repr(C)]
/// #[derive(Clone, Copy)]
/// struct Halo { cells: Sym<f32>, arrived: Sym<Semaphore>, width: u32, height: u32 }
///
/// impl KernelArg for Halo {
///     fn fits(&self, heap_bytes: u64) -> bool {
///         self.cells.fits(heap_bytes) && self.arrived.fits(heap_bytes)
///     }
/// }
/// ```
pub trait KernelArg: Copy + Send + Sync + 'static {
    /// Whether every symmetric object in it lies inside a heap of this size: a launch refuses those of another world.
    fn fits(&self, heap_bytes: u64) -> bool;
}

impl<T: Pod + Send + Sync> KernelArg for T {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

impl<T: Element> KernelArg for Sym<T> {
    #[inline(always)]
    fn fits(&self, heap_bytes: u64) -> bool {
        // An object ends below `u64::MAX`: a part of one where its whole does or before.
        self.offset() + self.bytes() as u64 <= heap_bytes
    }
}

impl<T: Element, G: Tag + Send + Sync> KernelArg for Place<T, G> {
    fn fits(&self, heap_bytes: u64) -> bool {
        self.sym().fits(heap_bytes)
    }
}

impl<G: Tag + Send + Sync> KernelArg for Rank<G> {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

impl<G: Tag + Send + Sync> KernelArg for TeamView<G> {
    fn fits(&self, heap_bytes: u64) -> bool {
        self.members().fits(heap_bytes) && self.sync().fits(heap_bytes)
    }
}
