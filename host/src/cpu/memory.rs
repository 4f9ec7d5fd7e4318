//! Memory of one PE on the CPU machine that is no symmetric heap.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// Bytes of the process: its own, zeroed when they are made and given back when this is dropped; or somebody else's.
pub(crate) struct CpuMemory {
    first: NonNull<u8>,
    /// Of its own.
    layout: Option<Layout>,
}

/// Where it begins: a multiple of what any element asks for, and of a cache line.
const ALIGN: usize = 128;

// SAFETY: it says of each access who else may have any.
unsafe impl Send for CpuMemory {}
// SAFETY: as above.
unsafe impl Sync for CpuMemory {}

impl CpuMemory {
    /// So many zeroed bytes, or `None` where the process has no room for them.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // Without any there would be nothing to ask for.
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout has a size.
        let first = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        first.expose_provenance();
        Some(Self { first, layout: Some(layout) })
    }

    /// Somebody else's.
    pub(crate) fn borrowed(first: NonNull<u8>) -> Self {
        first.expose_provenance();
        Self { first, layout: None }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.first.addr().get() as u64
    }

    /// Copies bytes from `at` on.
    ///
    /// # Safety
    /// They are inside, and there; nobody writes them meanwhile.
    pub(crate) unsafe fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: the caller's promise; nobody else has `out`.
        unsafe { self.first.as_ptr().add(at).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` over those from `at` on.
    ///
    /// # Safety
    /// They are inside, and there; nobody else accesses them meanwhile.
    pub(crate) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the caller's promise; nobody writes `bytes`, which are borrowed.
        unsafe { self.first.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `new` with this layout, and nobody has it any more: launches hold what they were lent.
            unsafe { alloc::dealloc(self.first.as_ptr(), layout) };
        }
    }
}
