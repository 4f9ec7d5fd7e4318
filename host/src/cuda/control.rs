//! The control block of a PE on a GPU: host memory that kernels reach too, so that host and kernels tell each other that it is over
//! without a stream, which a kernel that hangs would block.

use std::ptr::NonNull;

use congruent_device::abi;
use cudarc::driver::sys;

use super::{CudaError, Device, Driver};

/// Pinned host memory, mapped for every context of the process.
pub(super) struct ControlBlock(NonNull<Pinned>, &'static Driver);

#[repr(C)]
struct Pinned {
    control: abi::Control,
    /// Where the monitor copies a word of the heap to.
    word: u64,
}

// SAFETY: host threads access the block through atomics, and its record only after its state says it is complete (see
// `Shared::fault`).
unsafe impl Send for ControlBlock {}
// SAFETY: as above.
unsafe impl Sync for ControlBlock {}

impl ControlBlock {
    /// A zeroed block.
    pub(super) fn new(device: &Device) -> Result<Self, CudaError> {
        device.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let (driver, mut memory) = (device.driver(), std::ptr::null_mut());
        // SAFETY: it only allocates; the memory is freed once, on drop.
        unsafe { driver.mem_host_alloc(&raw mut memory, size_of::<Pinned>(), flags) }?;
        let block = NonNull::new(memory.cast::<Pinned>()).map(|block| Self(block, driver));
        let lacks = || CudaError::Unsupported { what: "pinned host memory", device: device.properties.name.clone() };
        let block = block.ok_or_else(lacks)?;
        // SAFETY: the memory is as large, aligned to a page, and this thread's alone; zero bytes are valid integers.
        unsafe { block.0.as_ptr().write_bytes(0, 1) };
        Ok(block)
    }

    /// Where it is, for host and kernels alike: with unified addressing, which every GPU of compute capability 2.0 and later has,
    /// mapped host memory has one address (CUDA C++ Programming Guide, "Unified Virtual Address Space").
    pub(super) fn as_ptr(&self) -> *mut abi::Control {
        self.0.as_ptr().cast()
    }

    /// A word for the monitor alone.
    pub(super) fn word(&self) -> *mut u64 {
        // SAFETY: the field is inside the block, which lives as long as this.
        unsafe { &raw mut (*self.0.as_ptr()).word }
    }
}

impl Drop for ControlBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed here only. Kernels that use it are over: the world waits for them, or gives them up
        // together with the context.
        let _freed_or_gone_with_the_context = unsafe { self.1.mem_free_host(self.0.as_ptr().cast()) };
    }
}
