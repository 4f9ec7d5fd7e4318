//! Virtual memory management and multicast objects. They belong to devices, not to contexts.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle};
use cudarc::driver::sys::{CUmulticastObjectProp, CUresult};

use crate::entry::entry_points;
use crate::errors::Outcome;
use crate::vmm::physical::{self, FabricHandle, Properties};
use crate::vmm::{self, AccessOf, GRANULARITY, multicast};
use crate::{driver, memory};

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Flags are for the future; what is not 0 is refused.
fn no_flags(flags: u64) -> Outcome {
    if flags == 0 { Ok(()) } else { Err(INVALID) }
}

entry_points! {
    /// Reserves addresses.
    Driver fn cuMemAddressReserve(
        given: *mut CUdeviceptr,
        bytes: usize,
        align: usize,
        wish: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        given.set(0)?;
        given.set(vmm::reserve(bytes as u64, align as u64, wish)?)
    }

    /// Ends a reservation.
    Driver fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) {
        vmm::free(at, bytes as u64)
    }

    /// Physical memory of a device.
    Driver fn cuMemCreate(
        given: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        given.set(0)?;
        given.set(physical::create(bytes as u64, properties.cast::<Properties>().get()?)?)
    }

    /// Gives a handle back; memory stays as long as it is mapped.
    Driver fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        physical::release(handle)
    }

    /// Maps physical memory, or a multicast object, at reserved addresses. Nobody has access yet.
    Driver fn cuMemMap(
        at: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        if offset != 0 {
            // The driver demands this, for now, as it says.
            return Err(INVALID);
        }
        let memory = physical::find(handle)?;
        multicast::wait_for_devices(&memory)?;
        vmm::map(at, bytes as u64, memory)
    }

    /// Takes mappings away.
    Driver fn cuMemUnmap(at: CUdeviceptr, bytes: usize) {
        vmm::unmap(at, bytes as u64)
    }

    /// Says which devices may do what to mappings.
    Driver fn cuMemSetAccess(at: CUdeviceptr, bytes: usize, wanted: *const CUmemAccessDesc, count: usize) {
        let wanted = wanted.cast::<AccessOf>();
        let wanted = (0..count).map(|index| wanted.at(index).get()).collect::<Outcome<Vec<_>>>()?;
        vmm::set_access(at, bytes as u64, &wanted)
    }

    /// What sizes and addresses must be multiples of, at least or for speed: the same here.
    Driver fn cuMemGetAllocationGranularity(given: *mut usize, properties: *const CUmemAllocationProp, option: c_uint) {
        properties.cast::<Properties>().get()?.check()?;
        if option > 1 {
            return Err(INVALID);
        }
        given.set(GRANULARITY as usize)
    }

    /// What stands for physical memory in another process.
    Driver fn cuMemExportToShareableHandle(
        given: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: c_uint,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        if given.is_null() {
            return Err(INVALID);
        }
        if kind == physical::FABRIC {
            return given.cast::<FabricHandle>().set(physical::export_to_fabric(handle)?);
        }
        given.cast::<c_int>().set(physical::export(handle, kind)?)
    }

    /// A descriptor of the memory in a range. It is a file, for which no kernel has a dma-buf: who asks for one there is refused.
    Driver fn cuMemGetHandleForAddressRange(
        given: *mut c_void,
        at: CUdeviceptr,
        bytes: usize,
        kind: c_uint,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        if !driver::get()?.config.rdma || kind != DMA_BUF {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        given.cast::<c_int>().set(vmm::describe(at, bytes as u64)?)
    }

    /// A handle from a descriptor, which is given in the pointer itself, or from a handle of the fabric.
    Driver fn cuMemImportFromShareableHandle(
        given: *mut CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: c_uint,
    ) {
        given.set(0)?;
        given.set(match kind {
            physical::POSIX => physical::import(shareable.address())?,
            physical::FABRIC => physical::import_from_fabric(shareable.cast::<FabricHandle>().get()?)?,
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        })
    }

    /// A handle of what is mapped at an address.
    Driver fn cuMemRetainAllocationHandle(given: *mut CUmemGenericAllocationHandle, at: *mut c_void) {
        if given.is_null() {
            return Err(INVALID);
        }
        given.set(physical::retain(&vmm::memory_at(at.address())?))
    }

    /// What physical memory was asked for.
    Driver fn cuMemGetAllocationPropertiesFromHandle(
        given: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ) {
        given.cast::<Properties>().set(physical::properties(handle)?)
    }

    /// A multicast object.
    Driver fn cuMulticastCreate(
        given: *mut CUmemGenericAllocationHandle,
        properties: *const CUmulticastObjectProp,
    ) {
        let properties = properties.get()?;
        multicast::check(&properties)?;
        given.set(0)?;
        let handle_types = u32::try_from(properties.handleTypes).map_err(|_| INVALID)?;
        given.set(physical::create_multicast(properties.size as u64, properties.numDevices, handle_types)?)
    }

    /// Adds a device to a multicast object.
    Driver fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, device: CUdevice) {
        multicast::add_device(handle, driver::get()?.device(device)?.ordinal)
    }

    /// Binds physical memory into a multicast object.
    Driver fn cuMulticastBindMem(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        from: usize,
        bytes: usize,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        multicast::bind(handle, offset as u64, physical::find(memory)?, from as u64, bytes as u64)
    }

    /// Binds what is mapped at an address into a multicast object.
    Driver fn cuMulticastBindAddr(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        at: CUdeviceptr,
        bytes: usize,
        flags: c_ulonglong,
    ) {
        no_flags(flags)?;
        let start = memory::with(at, |start, _| start).ok_or(INVALID)?;
        multicast::bind(handle, offset as u64, vmm::memory_at(at)?, at - start, bytes as u64)
    }

    /// Ends what a device has bound in a range of a multicast object.
    Driver fn cuMulticastUnbind(handle: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize) {
        multicast::unbind(handle, device, offset as u64, bytes as u64)
    }

    /// What sizes of multicast objects must be multiples of.
    Driver fn cuMulticastGetGranularity(given: *mut usize, properties: *const CUmulticastObjectProp, option: c_uint) {
        multicast::check(&properties.get()?)?;
        if option > 1 {
            return Err(INVALID);
        }
        given.set(GRANULARITY as usize)
    }
}
