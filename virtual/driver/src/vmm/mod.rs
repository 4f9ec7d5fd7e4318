//! Virtual memory management: addresses and memory are got apart, and put together page by page.
//!
//! A reservation is a range of addresses without access. Physical memory is a file in memory, so that another process
//! can have it too. A mapping puts the one into the other, and can be touched once access was set. One process has one
//! page table for all its devices: what one device may touch, all may, and the host as well.

pub(crate) mod multicast;
pub(crate) mod physical;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult;

use crate::driver;
use crate::engine::{self, Request};
use crate::entry::Plain;
use crate::errors::Outcome;
use crate::memory::{self, Kind, Range};
use crate::monitor::lock;
use crate::pages::{self, Access};
use physical::Physical;

/// What sizes and addresses are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;
/// What reservations are multiples of: a page of the host.
const PAGE: u64 = 4096;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Reserved ranges, bytes by first address.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// `CUmemAccessDesc`, with integers for its enumerations.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessOf {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUmemLocation`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

// SAFETY: integers.
unsafe impl Plain for AccessOf {}

const _: () = assert!(size_of::<AccessOf>() == size_of::<cudarc::driver::sys::CUmemAccessDesc>());

/// Physical memory at an address.
pub(crate) struct Mapping {
    pub(crate) memory: Arc<Physical>,
    /// What each device may do.
    access: BTreeMap<i32, Access>,
}

impl Mapping {
    /// What kernels of a device may do.
    pub(crate) fn of(&self, device: i32) -> Access {
        self.access.get(&device).copied().unwrap_or(Access::None)
    }

    /// What the pages allow: the most of what any device may do. A multicast object is for `multimem` instructions
    /// alone, so plain loads and stores of it fault.
    pub(crate) fn protection(&self) -> Access {
        if self.memory.multicast.is_some() {
            return Access::None;
        }
        self.access.values().copied().max().unwrap_or(Access::None)
    }
}

impl Location {
    /// The device that is meant.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a place that is no device, `CUDA_ERROR_INVALID_DEVICE`
    pub(crate) fn device(self) -> Outcome<&'static Arc<crate::device::Device>> {
        const DEVICE: u32 = cudarc::driver::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
        if self.kind != DEVICE {
            return Err(INVALID);
        }
        driver::get()?.device(self.id)
    }
}

/// Reserves addresses, at `wish` if that can be.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for no or odd sizes, `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn reserve(bytes: u64, align: u64, wish: u64) -> Outcome<u64> {
    let align = if align == 0 { GRANULARITY } else { align };
    if bytes == 0 || !bytes.is_multiple_of(PAGE) || !wish.is_multiple_of(PAGE) || !align.is_power_of_two() {
        return Err(INVALID);
    }
    let at = pages::reserve(bytes, align.max(GRANULARITY), wish)?;
    lock(&RESERVED).insert(at, bytes);
    Ok(at)
}

/// Ends a reservation: all of it, with nothing mapped in it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) fn free(at: u64, bytes: u64) -> Outcome {
    let mut reserved = lock(&RESERVED);
    if reserved.get(&at) != Some(&bytes) || memory::with_all(|ranges| touches(ranges, at, bytes)) {
        return Err(INVALID);
    }
    pages::unmap(at, bytes)?;
    reserved.remove(&at);
    Ok(())
}

/// Whether an address is in a reservation.
pub(crate) fn is_reserved(at: u64) -> bool {
    holds(&lock(&RESERVED), at, 1)
}

fn holds(reserved: &BTreeMap<u64, u64>, at: u64, bytes: u64) -> bool {
    let Some(end) = at.checked_add(bytes) else { return false };
    reserved.range(..=at).next_back().is_some_and(|(start, size)| end <= start + size)
}

fn touches(ranges: &BTreeMap<u64, Range>, at: u64, bytes: u64) -> bool {
    ranges.range(..at + bytes).next_back().is_some_and(|(start, range)| start + range.bytes > at)
}

/// Maps the first bytes of physical memory at reserved addresses, without access.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for odd sizes, more bytes than there are, addresses outside one reservation, or mapped
/// already; `CUDA_ERROR_MAP_FAILED`
pub(crate) fn map(at: u64, bytes: u64, memory: Arc<Physical>) -> Outcome {
    if bytes == 0 || !at.is_multiple_of(GRANULARITY) || !bytes.is_multiple_of(GRANULARITY) || bytes > memory.bytes {
        return Err(INVALID);
    }
    let reserved = lock(&RESERVED);
    if !holds(&reserved, at, bytes) {
        return Err(INVALID);
    }
    memory::with_all(|ranges| {
        if touches(ranges, at, bytes) {
            return Err(INVALID);
        }
        engine::tell(Request::Map { at, bytes, object: memory.object() }, &[memory.file.as_fd()])?;
        pages::map(at, bytes, &memory.file)?;
        ranges.insert(at, Range { bytes, kind: Kind::Mapped(Mapping { memory, access: BTreeMap::new() }) });
        Ok(())
    })
}

/// Takes mappings away; the range is reserved as before.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not a number of whole mappings
pub(crate) fn unmap(at: u64, bytes: u64) -> Outcome {
    let gone = memory::with_all(|ranges| {
        let starts = whole(ranges, at, bytes)?;
        pages::clear(at, bytes)?;
        memory::hide(at, bytes);
        Ok::<Vec<_>, CUresult>(starts.iter().filter_map(|start| ranges.remove(start)).collect())
    })?;
    // Outside the lock: the last owner of physical memory gives it back to its device.
    drop(gone);
    Ok(())
}

/// Says who may do what to mappings.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not a number of whole mappings, or for unknown flags;
/// `CUDA_ERROR_INVALID_DEVICE`
pub(crate) fn set_access(at: u64, bytes: u64, wanted: &[AccessOf]) -> Outcome {
    let wanted: Vec<(i32, Access)> =
        wanted.iter().map(|of| Ok((of.location.device()?.ordinal, from_flags(of.flags)?))).collect::<Outcome<_>>()?;
    memory::with_all(|ranges| {
        for start in whole(ranges, at, bytes)? {
            let Some(range) = ranges.get_mut(&start) else { continue };
            if let Kind::Mapped(mapping) = &mut range.kind {
                mapping.access.extend(wanted.iter().copied());
                pages::protect(start, range.bytes, mapping.protection())?;
            }
            memory::show(start, range)?;
        }
        Ok(())
    })
}

/// What a device may do at an address, as flags.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where nothing is mapped
pub(crate) fn access(at: u64, device: i32) -> Outcome<u64> {
    let found = memory::with(at, |_, range| match &range.kind {
        Kind::Mapped(mapping) => Some(mapping.access.get(&device).copied().unwrap_or(Access::None)),
        Kind::Device { .. } | Kind::Host { .. } | Kind::Registered { .. } => None,
    });
    match found.flatten() {
        None => Err(INVALID),
        Some(Access::None) => Ok(0),
        Some(Access::Read) => Ok(1),
        Some(Access::ReadWrite) => Ok(3),
    }
}

/// The physical memory at an address.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where nothing is mapped
pub(crate) fn memory_at(at: u64) -> Outcome<Arc<Physical>> {
    let found = memory::with(at, |_, range| match &range.kind {
        Kind::Mapped(mapping) => Some(mapping.memory.clone()),
        Kind::Device { .. } | Kind::Host { .. } | Kind::Registered { .. } => None,
    });
    found.flatten().ok_or(INVALID)
}

/// A descriptor of what is mapped in a range, all of it. The caller closes it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not a number of whole mappings, `CUDA_ERROR_OPERATING_SYSTEM`
pub(crate) fn describe(at: u64, bytes: u64) -> Outcome<i32> {
    memory::with_all(|ranges| whole(ranges, at, bytes).map(drop))?;
    let copy = memory_at(at)?.file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok(copy.into_raw_fd())
}

fn from_flags(flags: u32) -> Outcome<Access> {
    match flags {
        0 => Ok(Access::None),
        1 => Ok(Access::Read),
        3 => Ok(Access::ReadWrite),
        _ => Err(INVALID),
    }
}

/// The mappings that a range is made of, if it is made of whole ones and has no holes.
fn whole(ranges: &BTreeMap<u64, Range>, at: u64, bytes: u64) -> Outcome<Vec<u64>> {
    let end = at.checked_add(bytes).filter(|&end| end > at).ok_or(INVALID)?;
    let (mut next, mut starts) = (at, Vec::new());
    while next < end {
        let range = ranges.get(&next).ok_or(INVALID)?;
        if !matches!(range.kind, Kind::Mapped(_)) || next + range.bytes > end {
            return Err(INVALID);
        }
        starts.push(next);
        next += range.bytes;
    }
    Ok(starts)
}
