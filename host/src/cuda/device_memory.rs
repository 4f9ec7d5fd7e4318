//! Memory of one PE's device that is no symmetric heap.

use super::device::Context;
use super::{CudaError, CudaPe};

/// Memory of the driver's pool, zeroed when it is made, and given back when this is dropped; or memory of somebody else's.
///
/// It is made and given back on the host's own stream, which waits for nothing: to free memory otherwise would wait for kernels
/// (CUDA Driver API, cuMemFree), and those may wait for this very thread.
pub(crate) struct DeviceMemory {
    context: Context,
    address: u64,
    is_own: bool,
}

impl CudaPe {
    /// So many zeroed bytes, one or more.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let (context, mut address) = (self.device.keeper(), 0);
        let driver = context.enter()?;
        // SAFETY: the place for the address is there.
        let made = unsafe { driver.mem_alloc_async(&raw mut address, bytes, context.aside()) };
        made.map_err(|error| self.device.or_full(error, bytes))?;
        let memory = DeviceMemory { context: context.clone(), address, is_own: true };
        // Once the stream has come to its end, the memory may be used from everywhere (CUDA Driver API, cuMemAllocAsync).
        //
        // SAFETY: the memory is as long as is zeroed.
        context.now(|driver, on| unsafe { driver.memset(address, 0, bytes, on) })?;
        Ok(memory)
    }
}

impl DeviceMemory {
    /// Memory that somebody else allocated, and frees.
    pub(super) fn borrowed(context: Context, address: u64) -> Self {
        Self { context, address, is_own: false }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Copies bytes from `at` on.
    ///
    /// # Safety
    /// They are inside, and there; nobody writes them meanwhile.
    pub(crate) unsafe fn read(&self, at: usize, out: &mut [u8]) -> Result<(), CudaError> {
        let from = self.address + at as u64;
        // SAFETY: the caller's promise; `out` is borrowed until the copy is done.
        self.context.now(|driver, on| unsafe { driver.memcpy_to_host(out.as_mut_ptr().cast(), from, out.len(), on) })
    }

    /// Copies `bytes` over those from `at` on.
    ///
    /// # Safety
    /// They are inside, and there; nobody else accesses them meanwhile.
    pub(crate) unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let to = self.address + at as u64;
        // SAFETY: the caller's promise; `bytes` are borrowed until the copy is done.
        self.context.now(|driver, on| unsafe { driver.memcpy_to_device(to, bytes.as_ptr().cast(), bytes.len(), on) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        let Ok(driver) = self.context.enter() else { return };
        // SAFETY: made in `allocate`, freed here only, and nobody uses it any more: launches hold what they were lent.
        let _freed_or_gone_with_the_context = unsafe { driver.mem_free_async(self.address, self.context.aside()) };
    }
}
