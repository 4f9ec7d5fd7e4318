//! Memory of devices and pinned memory of the host.

use core::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUmemorytype as MemoryType, CUpointer_attribute as PointerAttribute};
use cudarc::driver::sys::{CUresult, CUstream};

use crate::context;
use crate::entry::{Ptr, entry_points};
use crate::errors::Outcome;
use crate::memory::{self, Kind, Range, Side};
use crate::monitor::lock;
use crate::operation::Operation;
use crate::{capture, driver, stream, vmm};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// What is asked of a pointer.
struct Known {
    start: u64,
    bytes: u64,
    on_device: bool,
    device: i32,
    handle_types: u32,
    context: u64,
}

fn known(at: u64) -> Option<Known> {
    memory::with(at, |start, range| {
        let Range { bytes, kind } = range;
        let (on_device, device, handle_types, context) = match kind {
            Kind::Device { context, .. } => (true, context.ordinal, 0, context.handle()),
            Kind::Host { context, .. } | Kind::Registered { context, .. } => {
                (false, context.ordinal, 0, context.handle())
            }
            // Of no context.
            Kind::Mapped(mapping) => (true, mapping.memory.device, mapping.memory.handle_types, 0),
        };
        Known { start, bytes: *bytes, on_device, device, handle_types, context }
    })
}

/// Writes an attribute of a pointer, which has the type that goes with it.
fn attribute(data: Ptr<c_void>, attribute: u32, at: u64) -> Outcome {
    use PointerAttribute as P;
    const CONTEXT: u32 = P::CU_POINTER_ATTRIBUTE_CONTEXT as u32;
    const MEMORY_TYPE: u32 = P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32;
    const DEVICE_POINTER: u32 = P::CU_POINTER_ATTRIBUTE_DEVICE_POINTER as u32;
    const HOST_POINTER: u32 = P::CU_POINTER_ATTRIBUTE_HOST_POINTER as u32;
    const IS_MANAGED: u32 = P::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32;
    const ORDINAL: u32 = P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32;
    const LEGACY_IPC: u32 = P::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as u32;
    const START: u32 = P::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32;
    const SIZE: u32 = P::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32;
    const MAPPED: u32 = P::CU_POINTER_ATTRIBUTE_MAPPED as u32;
    const HANDLE_TYPES: u32 = P::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as u32;
    let known = known(at).ok_or(INVALID)?;
    let memory_type = if known.on_device { MemoryType::CU_MEMORYTYPE_DEVICE } else { MemoryType::CU_MEMORYTYPE_HOST };
    match attribute {
        CONTEXT => data.cast::<u64>().set(known.context),
        MEMORY_TYPE => data.cast::<u32>().set(memory_type as u32),
        DEVICE_POINTER => data.cast::<u64>().set(at),
        HOST_POINTER if known.on_device => Err(INVALID),
        HOST_POINTER => data.cast::<u64>().set(at),
        IS_MANAGED | LEGACY_IPC => data.cast::<u8>().set(0),
        ORDINAL => data.cast::<c_int>().set(known.device),
        START => data.cast::<u64>().set(known.start),
        SIZE => data.cast::<usize>().set(known.bytes as usize),
        MAPPED => data.cast::<u8>().set(1),
        HANDLE_TYPES => data.cast::<u32>().set(known.handle_types),
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

fn allocate_host(given: Ptr<*mut c_void>, bytes: usize, flags: c_uint) -> Outcome {
    // Portable, mapped and write-combined.
    if flags & !7 != 0 {
        return Err(INVALID);
    }
    given.set(core::ptr::null_mut())?;
    let at = memory::allocate_host(context::current()?, bytes)?;
    given.set(core::ptr::with_exposed_provenance_mut(at as usize))
}

entry_points! {
    /// Free bytes of the current device, and all.
    Context fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let device = driver::get()?.device(context::current()?.ordinal)?;
        free.set(device.free() as usize)?;
        total.set(device.memory as usize)
    }

    /// Memory of the current device.
    Context fn cuMemAlloc_v2(given: *mut CUdeviceptr, bytes: usize) {
        capture::refuse_unsafe()?;
        given.set(0)?;
        given.set(memory::allocate(context::current()?, bytes)?)
    }

    /// Frees memory, after all that uses it: it waits for the context.
    Context fn cuMemFree_v2(at: CUdeviceptr) {
        capture::refuse_unsafe()?;
        if at == 0 {
            return Ok(());
        }
        stream::drain(&context::current()?)?;
        memory::free(at)
    }

    /// Memory of the current device that may be used in stream order. It is there at once.
    Context fn cuMemAllocAsync(given: *mut CUdeviceptr, bytes: usize, on: CUstream) {
        let stream = stream::find(on.address())?;
        if lock(&stream.capturing).is_some() {
            // It would become a node that allocates; the virtual driver has none.
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        given.set(0)?;
        given.set(memory::allocate(stream.context.clone(), bytes)?)
    }

    /// Frees memory in stream order.
    Context fn cuMemFreeAsync(at: CUdeviceptr, on: CUstream) {
        let stream = stream::find(on.address())?;
        if lock(&stream.capturing).is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if at == 0 {
            return Ok(());
        }
        Side::Device(at).check(1)?;
        stream.submit(Operation::Free(at))
    }

    /// Pinned memory of the host, without flags.
    Context fn cuMemAllocHost_v2(given: *mut *mut c_void, bytes: usize) {
        allocate_host(given, bytes, 0)
    }

    /// Pinned memory of the host.
    Context fn cuMemHostAlloc(given: *mut *mut c_void, bytes: usize, flags: c_uint) {
        allocate_host(given, bytes, flags)
    }

    /// Frees pinned memory, after all that uses it.
    Context fn cuMemFreeHost(at: *mut c_void) {
        stream::drain(&context::current()?)?;
        memory::free_host(at.address())
    }

    /// Pins memory of the caller.
    Context fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint) {
        // Portable, mapped, of a device, read-only.
        if flags & !0xf != 0 {
            return Err(INVALID);
        }
        memory::register(context::current()?, at.address(), bytes)
    }

    /// Ends that.
    Context fn cuMemHostUnregister(at: *mut c_void) {
        stream::drain(&context::current()?)?;
        memory::unregister(at.address())
    }

    /// Where a device reaches pinned memory: at the same address.
    Context fn cuMemHostGetDevicePointer_v2(given: *mut CUdeviceptr, at: *mut c_void, flags: c_uint) {
        let pinned = known(at.address()).is_some_and(|known| !known.on_device);
        if flags != 0 || !pinned {
            return Err(INVALID);
        }
        given.set(at.address())
    }

    /// Where the allocation around an address begins, and how large it is.
    Context fn cuMemGetAddressRange_v2(start: *mut CUdeviceptr, bytes: *mut usize, at: CUdeviceptr) {
        let known = known(at).filter(|known| known.on_device).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        start.set_if_asked(known.start);
        bytes.set_if_asked(known.bytes as usize);
        Ok(())
    }

    /// One attribute of a pointer.
    Context fn cuPointerGetAttribute(data: *mut c_void, wanted: c_uint, at: CUdeviceptr) {
        if data.is_null() {
            return Err(INVALID);
        }
        attribute(data, wanted, at)
    }

    /// Several attributes of a pointer. What a pointer does not have is 0, for one that the driver does not know all.
    Context fn cuPointerGetAttributes(count: c_uint, wanted: *mut c_uint, data: *mut *mut c_void, at: CUdeviceptr) {
        for index in 0..count as usize {
            // SAFETY: the caller promised a good pointer for each attribute.
            let place: Ptr<c_void> = unsafe { crate::entry::Argument::take(data.at(index).get()?) };
            let wanted = wanted.at(index).get()?;
            match attribute(place, wanted, at) {
                Err(INVALID) => clear(place, wanted)?,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// What a device may do at an address that VMM mapped.
    Driver fn cuMemGetAccess(
        flags: *mut core::ffi::c_ulonglong,
        location: *const cudarc::driver::sys::CUmemLocation,
        at: CUdeviceptr,
    ) {
        let location = vmm::Location { kind: location.cast::<u32>().get()?, id: location.cast::<i32>().at(1).get()? };
        flags.set(vmm::access(at, location.device()?.ordinal)?)
    }
}

/// Writes a zero as wide as the attribute.
fn clear(place: Ptr<c_void>, wanted: u32) -> Outcome {
    use PointerAttribute as P;
    let narrow = [P::CU_POINTER_ATTRIBUTE_IS_MANAGED, P::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE];
    let flag = narrow.iter().chain([&P::CU_POINTER_ATTRIBUTE_MAPPED]).any(|&known| known as u32 == wanted);
    let words = [
        P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        P::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    ];
    if flag {
        place.cast::<u8>().set(0)
    } else if words.iter().any(|&known| known as u32 == wanted) {
        let unknown_device = wanted == P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32;
        place.cast::<i32>().set(if unknown_device { -2 } else { 0 })
    } else {
        place.cast::<u64>().set(0)
    }
}
