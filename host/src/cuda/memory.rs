//! Addresses, device memory, and the one mapped at the other. Each is given back when it is dropped.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUmulticastObjectProp, CUresult,
};

use super::device::{Context, Device};
use super::error::CudaError;
use super::shareable::{FABRIC, HandleKind, ShareableHandle};

/// A range of addresses that the driver gives to nobody else in this process.
pub(super) struct Range {
    context: Context,
    base: u64,
    bytes: usize,
}

impl Range {
    /// Where the driver likes, at a multiple of `alignment`.
    pub(super) fn anywhere(context: &Context, bytes: usize, alignment: usize) -> Result<Self, CudaError> {
        Self::reserve(context, bytes, alignment, 0)
    }

    /// At `address`, or nothing if anything is there.
    pub(super) fn at(context: &Context, bytes: usize, address: u64) -> Result<Option<Self>, CudaError> {
        match Self::reserve(context, bytes, 0, address) {
            // The driver takes the address as a wish.
            Ok(range) => Ok((range.base == address).then_some(range)),
            Err(error) if taken(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn reserve(context: &Context, bytes: usize, alignment: usize, wish: u64) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut base = 0;
        // SAFETY: the place for the address is there; the call changes no memory in use, whatever is wished for.
        unsafe { driver.mem_address_reserve(&raw mut base, bytes, alignment, wish, 0) }?;
        Ok(Self { context: context.clone(), base, bytes })
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }
}

/// Whether a reservation failed for the address or the size, and another might not.
pub(super) fn taken(error: &CudaError) -> bool {
    error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) || error.is(CUresult::CUDA_ERROR_INVALID_VALUE)
}

impl Drop for Range {
    fn drop(&mut self) {
        // Here and in the other drops: a failure leaves nothing to do. It is that of a context that is lost, which takes
        // all it has with it.
        //
        // SAFETY: the range is this one's own, of this size, and what was mapped in it is unmapped: `Mapped` is dropped
        // before the range that it is in (the order of `Mapping`'s fields).
        let _ = unsafe { self.context.driver().mem_address_free(self.base, self.bytes) };
    }
}

/// A chunk of one PE's part of the heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Where it begins in the part.
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// The driver's handle of its memory.
    pub(super) handle: CUmemGenericAllocationHandle,
}

/// Memory of a device, or a multicast object, without an address.
pub(super) struct Allocation {
    context: Context,
    handle: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// On this device; `bytes` is a multiple of its granularity.
    pub(super) fn create(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        let context = device.keeper();
        let driver = context.enter()?;
        let (mut handle, properties) = (0, properties(device));
        // SAFETY: the place for the handle is there, and the properties are of a device that exists.
        let made = unsafe { driver.mem_create(&raw mut handle, bytes, &raw const properties, 0) };
        made.map_err(|error| device.or_full(error, bytes))?;
        Ok(Self { context: context.clone(), handle })
    }

    /// A multicast object, which has no memory of its own.
    pub(super) fn multicast(context: &Context, properties: &CUmulticastObjectProp) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut handle = 0;
        // SAFETY: the place for the handle is there, and the properties are as the driver's API lays them out.
        unsafe { driver.multicast_create(&raw mut handle, properties) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// The memory of somebody else that is mapped at `address`, and how much of it is mapped there.
    pub(super) fn mapped_at(device: &Device, address: u64) -> Result<(Self, usize), CudaError> {
        let context = device.keeper();
        let driver = context.enter()?;
        let foreign = |reason: String| CudaError::Foreign { address, reason };
        let (mut handle, mut start, mut bytes) = (0, 0, 0);
        // SAFETY: the place for the handle is there, and the driver refuses addresses at which it has mapped nothing.
        let found = unsafe {
            driver.mem_retain_allocation_handle(&raw mut handle, ptr::with_exposed_provenance_mut(address as usize))
        };
        found.map_err(|error| foreign(format!("the driver has no allocation of its own there ({error})")))?;
        let allocation = Self { context: context.clone(), handle };
        // SAFETY: the places for both numbers are there.
        unsafe { driver.mem_get_address_range(&raw mut start, &raw mut bytes, address) }?;
        if start != address {
            return Err(foreign(format!(
                "it is {} bytes behind the start of its mapping",
                address.wrapping_sub(start)
            )));
        }
        let mut properties = properties(device);
        // SAFETY: the place for the properties is there, and the handle is the one that was just given.
        unsafe { driver.mem_get_allocation_properties(&raw mut properties, handle) }?;
        let (here, place) = (device.ordinal(), properties.location);
        if place.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE || place.id != here {
            return Err(foreign(format!("it is of device {}, and this PE computes on device {here}", place.id)));
        }
        let (needs, has) = (device.handle_kind().of_driver().0, properties.requestedHandleTypes.0);
        if needs & !has != 0 {
            let made = "cuMemCreate was called without the requestedHandleTypes that take it to other processes";
            return Err(foreign(format!("{made} ({needs} is needed, {has} was given)")));
        }
        Ok((allocation, bytes))
    }

    /// What stands for this memory in any process.
    pub(super) fn export(&self, kind: HandleKind) -> Result<ShareableHandle, CudaError> {
        let driver = self.context.enter()?;
        if kind == HandleKind::Fabric {
            let mut handle = [0; FABRIC];
            // SAFETY: a handle of this kind is written as so many bytes (CUDA Driver API, virtual memory management).
            unsafe { driver.mem_export(handle.as_mut_ptr().cast(), self.handle, kind.of_driver(), 0) }?;
            return Ok(ShareableHandle::Fabric(handle));
        }
        let mut fd: c_int = -1;
        // SAFETY: a handle of the other kind is written as an `int` (same place); of none, the driver refuses.
        unsafe { driver.mem_export((&raw mut fd).cast(), self.handle, kind.of_driver(), 0) }?;
        // SAFETY: the descriptor is new, and whoever exports it closes it (same place).
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Programs that this process starts have no use for it. It is closed soon in any case.
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        Ok(ShareableHandle::File(fd))
    }

    /// The memory that came from another process.
    pub(super) fn import(context: &Context, shareable: &mut ShareableHandle) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut handle = 0;
        let (shareable, kind) = match shareable {
            // The pointer is the descriptor's number (CUDA Driver API, `cuMemImportFromShareableHandle`).
            ShareableHandle::File(fd) => (ptr::without_provenance_mut(fd.as_raw_fd() as usize), HandleKind::Files),
            ShareableHandle::Fabric(handle) => (handle.as_mut_ptr().cast(), HandleKind::Fabric),
        };
        // SAFETY: it stays what it is for the call; the driver refuses what is not its own.
        unsafe { driver.mem_import(&raw mut handle, shareable, kind.of_driver()) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    /// What it was made in.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's own. Mappings keep the memory alive beyond it.
        let _ = unsafe { self.context.driver().mem_release(self.handle) };
    }
}

/// Memory at an address.
pub(super) struct Mapped {
    address: u64,
    bytes: usize,
    allocation: Arc<Allocation>,
}

impl Mapped {
    /// Maps memory of `bytes` bytes at `address` in `range`, for the devices given to read and write.
    pub(super) fn new(
        allocation: impl Into<Arc<Allocation>>,
        range: &Range,
        address: u64,
        bytes: usize,
        devices: &[c_int],
    ) -> Result<Self, CudaError> {
        let allocation = allocation.into();
        let driver = allocation.context.enter()?;
        let inside = address >= range.base && address + bytes as u64 <= range.base + range.bytes as u64;
        if !inside {
            return Err(CudaError::NoAddress { bytes: bytes as u64 });
        }
        // SAFETY: the addresses are of a range of this process, as just checked; the driver refuses those in use.
        unsafe { driver.mem_map(address, bytes, 0, allocation.handle, 0) }?;
        let mapped = Self { address, bytes, allocation };
        let access: Vec<_> = devices
            .iter()
            .map(|ordinal| CUmemAccessDesc {
                location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: *ordinal },
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: the mapping was just made, and the list is as long as is said.
        unsafe { driver.mem_set_access(address, bytes, access.as_ptr(), access.len()) }?;
        Ok(mapped)
    }

    /// Writes zeros; they are there when this returns.
    pub(super) fn zero(&self) -> Result<(), CudaError> {
        let (at, bytes) = (self.address, self.bytes);
        // SAFETY: the range is this mapping's own, and nobody else knows it yet.
        self.allocation.context.now(|driver, on| unsafe { driver.memset(at, 0, bytes, on) })
    }

    pub(super) fn export(&self, kind: HandleKind) -> Result<ShareableHandle, CudaError> {
        self.allocation.export(kind)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Gives the addresses back, and tells where that fails.
    pub(super) fn unmap(mut self) -> Result<(), CudaError> {
        self.unmap_once()
    }

    fn unmap_once(&mut self) -> Result<(), CudaError> {
        match std::mem::take(&mut self.bytes) {
            0 => Ok(()),
            // SAFETY: the range is this mapping's own, mapped as a whole. Whoever uses its addresses keeps the `CudaHeap` alive
            // meanwhile, and has waited for its kernels.
            bytes => unsafe { self.allocation.context.driver().mem_unmap(self.address, bytes) },
        }
    }

    /// The chunk that it is of the part that begins at `part`, if it is of that part.
    pub(super) fn chunk(&self, part: std::ops::Range<u64>) -> Option<Chunk> {
        let inside = part.contains(&self.address);
        inside.then(|| Chunk { offset: self.address - part.start, bytes: self.bytes, handle: self.allocation.handle() })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.unmap_once();
    }
}

/// The step in which the device gives memory out, in bytes.
pub(super) fn granularity(device: &Device) -> Result<usize, CudaError> {
    let driver = device.keeper().enter()?;
    let (mut bytes, properties) = (0, properties(device));
    let kind = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the place for the number is there, and the properties are of a device that exists.
    unsafe { driver.mem_get_allocation_granularity(&raw mut bytes, &raw const properties, kind) }?;
    Ok(bytes.max(1))
}

/// Memory on this device, that other processes and network cards can reach where the device allows it.
fn properties(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: device.handle_kind().of_driver(),
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.ordinal() },
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(device.properties.rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}
