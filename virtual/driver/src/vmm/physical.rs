//! Physical memory: a file in memory, of a device, behind handles.

use core::ffi::c_void;
use std::fs::{self, File};
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUmemAllocationProp, CUresult};

use super::multicast::Multicast;
use super::{GRANULARITY, Location};
use crate::config;
use crate::device::Charge;
use crate::engine::Object;
use crate::entry::Plain;
use crate::errors::Outcome;
use crate::handles::Table;
use crate::monitor::lock;
use crate::pages;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, one way to another process.
pub(crate) const POSIX: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`, the other one.
pub(crate) const FABRIC: u32 = 8;
/// `CUmemFabricHandle`: here a process and a descriptor that it keeps open.
pub(crate) type FabricHandle = [u32; 16];

// SAFETY: integers.
unsafe impl Plain for FabricHandle {}
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;

/// How names of our files begin. A process that is given one reads from the name what it is.
const NAME: &str = "congruent-virtual";

static HANDLES: Table<Handle> = Table::new();

/// A handle, counted: `cuMemRetainAllocationHandle` gives the same one again.
struct Handle {
    memory: Arc<Physical>,
    references: Mutex<u32>,
}

/// Memory of a device, or a multicast object.
pub(crate) struct Physical {
    pub(crate) file: File,
    pub(crate) bytes: u64,
    /// The device; for a multicast object 0.
    pub(crate) device: i32,
    /// How it may be exported.
    pub(crate) handle_types: u32,
    pub(crate) multicast: Option<Multicast>,
    /// What it takes of the device; nothing if it came from another process, which has paid.
    _charge: Option<Charge>,
}

/// `CUmemAllocationProp`, with integers for its enumerations.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

// SAFETY: integers and a pointer.
unsafe impl Plain for Properties {}

const _: () = assert!(size_of::<Properties>() == size_of::<CUmemAllocationProp>());

impl Physical {
    /// What it is to the engine.
    pub(crate) fn object(&self) -> Object {
        match &self.multicast {
            Some(multicast) => Object::Multicast { devices: multicast.devices },
            None => Object::Memory,
        }
    }
}

impl Properties {
    /// Checks what memory is asked for.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_INVALID_DEVICE`, and `CUDA_ERROR_NOT_SUPPORTED` for other ways of export
    pub(crate) fn check(self) -> Outcome {
        if self.kind != PINNED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        check_handle_types(self.handle_types)?;
        self.location.device().map(drop)
    }
}

/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for ways of export that the devices do not have
pub(crate) fn check_handle_types(types: u32) -> Outcome {
    let known = config::get().map_or(0, |config| config.handles);
    if types & !known == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
}

/// New memory, zeroed.
///
/// # Errors
/// Those of [`Properties::check`], `CUDA_ERROR_INVALID_VALUE` for odd sizes, `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn create(bytes: u64, properties: Properties) -> Outcome<u64> {
    properties.check()?;
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let charge = properties.location.device()?.charge(bytes)?;
    let (device, handle_types) = (properties.location.id, properties.handle_types);
    let file = pages::file(&format!("{NAME}/memory/{device}/{handle_types}"), bytes)?;
    Ok(add(Physical { file, bytes, device, handle_types, multicast: None, _charge: Some(charge) }))
}

/// A new multicast object for so many devices, without any yet.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn create_multicast(bytes: u64, devices: u32, handle_types: u32) -> Outcome<u64> {
    let file = pages::file(&format!("{NAME}/multicast/{devices}/{handle_types}"), bytes)?;
    let multicast = Some(Multicast::new(devices));
    Ok(add(Physical { file, bytes, device: 0, handle_types, multicast, _charge: None }))
}

fn add(memory: Physical) -> u64 {
    HANDLES.add(|_| Handle { memory: Arc::new(memory), references: Mutex::new(1) }).0
}

/// The memory of a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) fn find(handle: u64) -> Outcome<Arc<Physical>> {
    entry(handle).map(|entry| entry.memory.clone())
}

fn entry(handle: u64) -> Outcome<Arc<Handle>> {
    HANDLES.get(handle).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Gives one reference of a handle back. Memory ends when it has no handle and no mapping.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) fn release(handle: u64) -> Outcome {
    let entry = entry(handle)?;
    let mut references = lock(&entry.references);
    *references -= 1;
    if *references == 0 {
        HANDLES.remove(handle)?;
    }
    Ok(())
}

/// Another reference to a handle of memory, or a new handle where all were released.
pub(crate) fn retain(memory: &Arc<Physical>) -> u64 {
    let (handle, entry) = match HANDLES.find(|entry| Arc::ptr_eq(&entry.memory, memory)) {
        Some(found) => found,
        None => HANDLES.add(|_| Handle { memory: memory.clone(), references: Mutex::new(0) }),
    };
    *lock(&entry.references) += 1;
    handle
}

/// A descriptor of the memory that another process can import. The caller closes it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if it was not made for that, `CUDA_ERROR_OPERATING_SYSTEM`
pub(crate) fn export(handle: u64, kind: u32) -> Outcome<i32> {
    let memory = find(handle)?;
    if !matches!(kind, POSIX | FABRIC) || memory.handle_types & kind == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let copy = memory.file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok(copy.into_raw_fd())
}

/// As [`export`], as a handle of the fabric. It stays good until this process ends.
///
/// # Errors
/// As [`export`]
pub(crate) fn export_to_fabric(handle: u64) -> Outcome<FabricHandle> {
    let kept_open = export(handle, FABRIC)?;
    let mut fabric = [0; 16];
    fabric[0] = std::process::id();
    fabric[1] = kept_open.unsigned_abs();
    Ok(fabric)
}

/// A handle to memory that was exported, here or in another process. The descriptor stays the caller's.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for what is no descriptor of ours
pub(crate) fn import(descriptor: u64) -> Outcome<u64> {
    // Opened anew rather than duplicated: the number comes from outside and may belong to nothing.
    open(&format!("/proc/self/fd/{descriptor}"))
}

/// As [`import`], of a handle of the fabric.
///
/// # Errors
/// As [`import`]
pub(crate) fn import_from_fabric(handle: FabricHandle) -> Outcome<u64> {
    open(&format!("/proc/{}/fd/{}", handle[0], handle[1]))
}

fn open(path: &str) -> Outcome<u64> {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let name = fs::read_link(path).map_err(|_| invalid)?;
    let name = name.to_str().ok_or(invalid)?.trim_start_matches("/memfd:").trim_end_matches(" (deleted)");
    let mut parts = name.split('/');
    let mut part = || parts.next().ok_or(invalid);
    if part()? != NAME {
        return Err(invalid);
    }
    let (kind, number) = (part()?, part()?.parse::<i32>().map_err(|_| invalid)?);
    let handle_types = part()?.parse().map_err(|_| invalid)?;
    let file = File::options().read(true).write(true).open(path).map_err(|_| invalid)?;
    let bytes = file.metadata().map_err(|_| invalid)?.len();
    let (device, multicast) = match kind {
        "memory" => (number, None),
        _ => (0, Some(Multicast::new(number.unsigned_abs()))),
    };
    Ok(add(Physical { file, bytes, device, handle_types, multicast, _charge: None }))
}

/// What memory was asked for.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) fn properties(handle: u64) -> Outcome<Properties> {
    let memory = find(handle)?;
    Ok(Properties {
        kind: PINNED,
        handle_types: memory.handle_types,
        location: Location { kind: 1, id: memory.device },
        win32: core::ptr::null_mut(),
        flags: [0; 8],
    })
}
