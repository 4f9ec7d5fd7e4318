//! The control block of a PE on a GPU: host memory that kernels reach too, so that host and kernels tell each other that it is over
//! without a stream, which a kernel that hangs would block.

use std::ptr::NonNull;
use std::sync::{MutexGuard, PoisonError};

use congruent_device::abi;
use cudarc::driver::sys;

use super::{CudaError, CudaPe, Device, Driver};

/// Zeroed memory of the host, pinned and mapped for every context of the process. Kernels reach it at the host's address: with unified
/// addressing, which every GPU of compute capability 2.0 and later has, mapped host memory has one address (CUDA C++ Programming
/// Guide, "Unified Virtual Address Space").
pub(crate) struct Pinned {
    first: NonNull<u8>,
    bytes: usize,
    driver: &'static Driver,
}

// SAFETY: it only owns the memory; whoever uses it argues how.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// The block, in pinned memory. Host threads access it through atomics, and its record only after its state says it is complete (see
/// `Shared::fault`).
pub(super) struct ControlBlock(Pinned);

#[repr(C)]
struct Words {
    control: abi::Control,
    /// Where the monitor copies a word of the heap to.
    word: u64,
}

impl Pinned {
    /// So many bytes, which begin with a page.
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        device.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let (driver, mut memory) = (device.driver(), std::ptr::null_mut());
        // SAFETY: it only allocates; the memory is freed once, on drop.
        unsafe { driver.mem_host_alloc(&raw mut memory, bytes, flags) }?;
        let pinned = NonNull::new(memory.cast::<u8>()).map(|first| Self { first, bytes, driver });
        let lacks = || CudaError::Unsupported { what: "pinned host memory", device: device.properties.name.clone() };
        let mut pinned = pinned.ok_or_else(lacks)?;
        pinned.zero();
        Ok(pinned)
    }

    fn zero(&mut self) {
        // SAFETY: the memory is as large, and this thread's alone.
        unsafe { self.as_ptr().write_bytes(0, self.bytes) };
    }

    /// Where it begins.
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// Where it is, for host and kernels alike.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }
}

impl CudaPe {
    /// So many zeroed bytes of pinned memory at least, of what was given back if that is enough.
    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned, CudaError> {
        let fits = {
            let mut spare = self.spare();
            let fitting = spare.iter().enumerate().filter(|(_, pinned)| pinned.bytes >= bytes);
            let smallest = fitting.min_by_key(|(_, pinned)| pinned.bytes).map(|(index, _)| index);
            smallest.map(|index| spare.swap_remove(index))
        };
        match fits {
            Some(mut pinned) => {
                pinned.zero();
                Ok(pinned)
            }
            None => Pinned::new(&self.device, bytes),
        }
    }

    /// Takes pinned memory back, for the next who needs some. It is not freed before the machine is gone: the driver may wait for all
    /// kernels then (CUDA C++ Programming Guide, "Implicit Synchronization"), and those may wait for this very thread.
    pub(crate) fn keep(&self, pinned: Pinned) {
        self.spare().push(pinned);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Pinned>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed here only. Kernels that use it are over: the world waits for them, or gives them up
        // together with the context.
        let _freed_or_gone_with_the_context = unsafe { self.driver.mem_free_host(self.as_ptr().cast()) };
    }
}

impl ControlBlock {
    /// A zeroed block.
    pub(super) fn new(device: &Device) -> Result<Self, CudaError> {
        Pinned::new(device, size_of::<Words>()).map(Self)
    }

    /// Where it is, for host and kernels alike.
    pub(super) fn as_ptr(&self) -> *mut abi::Control {
        self.0.as_ptr().cast()
    }

    /// A word for the monitor alone.
    pub(super) fn word(&self) -> *mut u64 {
        // SAFETY: the field is inside the block, which lives as long as this.
        unsafe { &raw mut (*self.0.as_ptr().cast::<Words>()).word }
    }
}
