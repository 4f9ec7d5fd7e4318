//! Multicast objects: one address for the memory of several devices.
//!
//! Who belongs to one is kept in the object's own file, so that processes which share it agree: byte `d` says whether
//! device `d` was added. Nothing else is ever there: the object has no memory of its own.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{CUmulticastObjectProp, CUresult};

use super::GRANULARITY;
use super::physical::{self, Physical};
use crate::driver;
use crate::engine::{self, Part, Request};
use crate::entry::Plain;
use crate::errors::Outcome;
use crate::monitor::lock;

/// Devices that there can be.
const MOST: usize = 64;
/// How long it takes until it is looked again whether all devices were added.
const POLL: Duration = Duration::from_micros(200);

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

// SAFETY: integers.
unsafe impl Plain for CUmulticastObjectProp {}

/// What makes physical memory a multicast object.
pub(crate) struct Multicast {
    pub(super) devices: u32,
    bound: Mutex<Vec<Binding>>,
}

struct Binding {
    device: i32,
    offset: u64,
    bytes: u64,
    /// Kept alive as long as it is bound.
    _memory: Arc<Physical>,
}

impl Multicast {
    pub(crate) fn new(devices: u32) -> Self {
        Self { devices, bound: Mutex::default() }
    }
}

/// Checks what object is asked for.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` where devices have none, `CUDA_ERROR_INVALID_VALUE`
pub(crate) fn check(properties: &CUmulticastObjectProp) -> Outcome {
    let driver = driver::get()?;
    if !driver.config.multicast {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let odd = !(properties.size as u64).is_multiple_of(GRANULARITY) || properties.size == 0;
    let devices = properties.numDevices as usize;
    if odd || devices == 0 || devices > driver.devices().len() || properties.flags != 0 {
        return Err(INVALID);
    }
    u32::try_from(properties.handleTypes).map_err(|_| INVALID).and_then(physical::check_handle_types)
}

fn find(handle: u64) -> Outcome<Arc<Physical>> {
    physical::find(handle).ok().filter(|object| object.multicast.is_some()).ok_or(INVALID)
}

/// The devices that were added to an object, by anybody.
fn added(object: &Physical) -> Outcome<[u8; MOST]> {
    let mut members = [0; MOST];
    object.file.read_exact_at(&mut members, 0).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok(members)
}

/// Adds a device.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if it was added, or all were; `CUDA_ERROR_INVALID_DEVICE`
pub(crate) fn add_device(handle: u64, device: i32) -> Outcome {
    let object = find(handle)?;
    let ordinal = driver::get()?.device(device)?.ordinal as usize;
    let members = added(&object)?;
    let asked = object.multicast.as_ref().map_or(0, |multicast| multicast.devices as usize);
    if members[ordinal] != 0 || count(&members) >= asked {
        return Err(INVALID);
    }
    object.file.write_all_at(&[1], ordinal as u64).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

fn count(members: &[u8; MOST]) -> usize {
    members.iter().filter(|&&member| member != 0).count()
}

/// Waits until all devices of an object were added, as mapping and binding do.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM`
pub(crate) fn wait_for_devices(object: &Physical) -> Outcome {
    let Some(multicast) = &object.multicast else { return Ok(()) };
    while count(&added(object)?) < multicast.devices as usize {
        thread::sleep(POLL);
    }
    Ok(())
}

/// Makes memory the part of its device in an object.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for odd or too large ranges, for memory of a device that was not added, and for what is
/// bound already
pub(crate) fn bind(handle: u64, offset: u64, memory: Arc<Physical>, from: u64, bytes: u64) -> Outcome {
    let object = find(handle)?;
    let fits = |offset: u64, whole: u64| offset.checked_add(bytes).is_some_and(|end| end <= whole);
    let odd = [offset, from, bytes].iter().any(|number| !number.is_multiple_of(GRANULARITY));
    let device = usize::try_from(memory.device).map_err(|_| INVALID)?;
    if odd || bytes == 0 || memory.multicast.is_some() || !fits(offset, object.bytes) || !fits(from, memory.bytes) {
        return Err(INVALID);
    }
    wait_for_devices(&object)?;
    if added(&object)?.get(device) != Some(&1) {
        return Err(INVALID);
    }
    let Some(multicast) = &object.multicast else { return Err(INVALID) };
    let mut bound = lock(&multicast.bound);
    let taken = |binding: &Binding| {
        binding.device == memory.device && binding.offset < offset + bytes && offset < binding.offset + binding.bytes
    };
    if bound.iter().any(taken) {
        return Err(INVALID);
    }
    let part = Part { device: memory.device.unsigned_abs(), at: offset, bytes };
    let files = [object.file.as_fd(), memory.file.as_fd()];
    engine::tell(Request::Bind { devices: multicast.devices, part, from }, &files)?;
    bound.push(Binding { device: memory.device, offset, bytes, _memory: memory });
    Ok(())
}

/// Ends what a device has bound in a range, all of it or nothing.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if that is nothing, or not whole
pub(crate) fn unbind(handle: u64, device: i32, offset: u64, bytes: u64) -> Outcome {
    let object = find(handle)?;
    let device = driver::get()?.device(device)?.ordinal;
    let end = offset.checked_add(bytes).ok_or(INVALID)?;
    let Some(multicast) = &object.multicast else { return Err(INVALID) };
    let mut bound = lock(&multicast.bound);
    let meant = |binding: &Binding| {
        binding.device == device && binding.offset >= offset && binding.offset + binding.bytes <= end
    };
    let whole: u64 = bound.iter().filter(|binding| meant(binding)).map(|binding| binding.bytes).sum();
    if whole == 0 || whole != bytes {
        return Err(INVALID);
    }
    let part = Part { device: device.unsigned_abs(), at: offset, bytes };
    engine::tell(Request::Unbind { devices: multicast.devices, part }, &[object.file.as_fd()])?;
    bound.retain(|binding| !meant(binding));
    Ok(())
}
