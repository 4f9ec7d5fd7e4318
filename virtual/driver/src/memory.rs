//! Memory that the driver knows: allocated on a device, pinned on the host, or mapped by VMM.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult;

use crate::config::Engine;
use crate::context::Context;
use crate::device::{Charge, Device};
use crate::driver;
use crate::engine::{self, Object, Request};
use crate::errors::Outcome;
use crate::monitor::lock;
use crate::pages::{self, Access, Pages};
use crate::say::say;
use crate::vmm::{self, Mapping};

/// Allocations are of whole parts of this many bytes, and aligned to them, as the driver's are.
const UNIT: u64 = 512;

/// All that is known, by its first address. Ranges do not overlap.
static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

/// A range of addresses.
pub(crate) struct Range {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
}

/// What a range is.
pub(crate) enum Kind {
    /// Made by `cuMemAlloc`.
    Device { context: Arc<Context>, _pages: Pages, _charge: Charge },
    /// Made by `cuMemHostAlloc`.
    Host { context: Arc<Context>, _pages: Pages },
    /// The caller's own, made known by `cuMemHostRegister`.
    Registered { context: Arc<Context> },
    /// Made by `cuMemMap`.
    Mapped(Mapping),
}

/// Where an operation reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Memory that a device reaches, which the driver must know.
    Device(u64),
    /// Any memory of the host.
    Host(u64),
}

impl Side {
    /// A unified address: a device's if the driver knows it, else the host's.
    pub(crate) fn of(at: u64) -> Self {
        let known = with(at, |_, _| ()).is_some() || vmm::is_reserved(at);
        if known { Self::Device(at) } else { Self::Host(at) }
    }

    pub(crate) fn pointer(self) -> *mut u8 {
        let (Self::Device(at) | Self::Host(at)) = self;
        core::ptr::with_exposed_provenance_mut(at as usize)
    }

    /// Whether it is there for so many bytes. What the host says of its own memory is believed.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`
    pub(crate) fn check(self, bytes: usize) -> Outcome {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(at) if covers(&lock(&RANGES), at, bytes as u64) => Ok(()),
            Self::Device(_) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Whether it is memory of the host that the driver does not know, which copies must not leave for later.
    pub(crate) fn is_pageable(self) -> bool {
        matches!(self, Self::Host(at) if with(at, |_, _| ()).is_none())
    }
}

/// Whether known ranges with access lie side by side over all of it.
fn covers(ranges: &BTreeMap<u64, Range>, at: u64, bytes: u64) -> bool {
    let Some(end) = at.checked_add(bytes) else { return false };
    let mut reached = at;
    while reached < end {
        let Some((&start, range)) = ranges.range(..=reached).next_back() else { return false };
        let open = match &range.kind {
            Kind::Mapped(mapping) => mapping.protection() != Access::None,
            Kind::Device { .. } | Kind::Host { .. } | Kind::Registered { .. } => true,
        };
        if !open || reached >= start + range.bytes {
            return false;
        }
        reached = start + range.bytes;
    }
    true
}

/// Looks at the range that an address is in, if there is one.
pub(crate) fn with<T>(at: u64, look: impl FnOnce(u64, &Range) -> T) -> Option<T> {
    let ranges = lock(&RANGES);
    let (&start, range) = ranges.range(..=at).next_back()?;
    (at < start + range.bytes).then(|| look(start, range))
}

/// All ranges that touch an interval, to look at and change.
pub(crate) fn with_all<T>(look: impl FnOnce(&mut BTreeMap<u64, Range>) -> T) -> T {
    look(&mut lock(&RANGES))
}

/// Memory of a device, zeroed.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for nothing, `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn allocate(context: Arc<Context>, bytes: usize) -> Outcome<u64> {
    let bytes = rounded(bytes)?;
    let charge = driver::get()?.device(context.ordinal)?.charge(bytes)?;
    insert(bytes, Object::Unwritten, |pages| Kind::Device { context, _pages: pages, _charge: charge })
}

/// Pinned memory of the host, zeroed.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for nothing, `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn allocate_host(context: Arc<Context>, bytes: usize) -> Outcome<u64> {
    insert(rounded(bytes)?, Object::Memory, |pages| Kind::Host { context, _pages: pages })
}

fn rounded(bytes: usize) -> Outcome<u64> {
    match (bytes as u64).checked_next_multiple_of(UNIT) {
        None => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        Some(0) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        Some(bytes) => Ok(bytes),
    }
}

fn insert(bytes: u64, object: Object, kind: impl FnOnce(Pages) -> Kind) -> Outcome<u64> {
    let file = pages::file("congruent-virtual-memory", bytes)?;
    let pages = Pages::of(&file, bytes)?;
    let at = pages.at();
    let range = Range { bytes, kind: kind(pages) };
    let mut ranges = lock(&RANGES);
    engine::tell(Request::Map { at, bytes, object }, &[file.as_fd()])?;
    show(at, &range)?;
    ranges.insert(at, range);
    Ok(at)
}

/// The host writes memory. Who looks for reads of what nobody wrote is told, before it does.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` where there is no engine any more
pub(crate) fn host_writes(to: Side, bytes: usize) -> Outcome {
    match to {
        Side::Device(at) if driver::get()?.config.races => {
            engine::tell(Request::Written { at, bytes: bytes as u64 }, &[])
        }
        _ => Ok(()),
    }
}

/// Tells each device what it may do with a range.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` where there is no engine any more
pub(crate) fn show(at: u64, range: &Range) -> Outcome {
    let devices = driver::get()?.devices().iter();
    let access = devices.map(|device| (device.ordinal.unsigned_abs(), range.access(device))).collect();
    engine::tell(Request::Allow { at, access }, &[])
}

/// The same of all ranges.
///
/// # Errors
/// As [`show`]
pub(crate) fn show_all() -> Outcome {
    let ranges = lock(&RANGES);
    let mut shown = ranges.iter().filter(|(_, range)| !matches!(range.kind, Kind::Registered { .. }));
    shown.try_for_each(|(&at, range)| show(at, range))
}

/// Takes a range away from all devices.
pub(crate) fn hide(at: u64, bytes: u64) {
    // An engine that is gone has nothing that could be taken away.
    let _hidden = engine::tell(Request::Unmap { at, bytes }, &[]);
}

impl Range {
    /// What a device's kernels may do there.
    fn access(&self, device: &Device) -> Access {
        match &self.kind {
            Kind::Device { context, .. } if !device.context.reaches(context.ordinal) => Access::None,
            Kind::Device { .. } | Kind::Host { .. } | Kind::Registered { .. } => Access::ReadWrite,
            Kind::Mapped(mapping) => mapping.of(device.ordinal),
        }
    }
}

/// Makes memory of the caller known.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for nothing, `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if a part is known, and
/// `CUDA_ERROR_NOT_SUPPORTED` where kernels run as PTX: what they reach are files, which other processes can have too
pub(crate) fn register(context: Arc<Context>, at: u64, bytes: usize) -> Outcome {
    let end =
        at.checked_add(bytes as u64).filter(|&end| at > 0 && end > at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if driver::get()?.config.engine == Engine::Ptx {
        say("memory that the driver did not allocate cannot be registered");
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let mut ranges = lock(&RANGES);
    let before = ranges.range(..end).next_back();
    if before.is_some_and(|(&start, range)| start + range.bytes > at) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges.insert(at, Range { bytes: bytes as u64, kind: Kind::Registered { context } });
    Ok(())
}

/// Ends a registration.
///
/// # Errors
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED` if none begins there
pub(crate) fn unregister(at: u64) -> Outcome {
    let registered = |kind: &Kind| matches!(kind, Kind::Registered { .. });
    take(at, registered).map(drop).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
}

/// Frees what [`allocate`] gave. The caller has let all that uses it come to its end.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if it gave nothing there
pub(crate) fn free(at: u64) -> Outcome {
    take(at, |kind| matches!(kind, Kind::Device { .. })).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Frees what [`allocate_host`] gave.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if it gave nothing there
pub(crate) fn free_host(at: u64) -> Outcome {
    take(at, |kind| matches!(kind, Kind::Host { .. })).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Takes out the range that begins at an address, if it is of the kind asked for.
fn take(at: u64, chosen: impl Fn(&Kind) -> bool) -> Option<Range> {
    let mut ranges = lock(&RANGES);
    let range = ranges.get(&at).is_some_and(|range| chosen(&range.kind)).then(|| ranges.remove(&at))??;
    hide(at, range.bytes);
    Some(range)
}

/// Frees all that a context has, as its end does. Mappings belong to no context and stay.
pub(crate) fn end_all(context: &Arc<Context>) {
    if context.fault().is_some() {
        // A kernel that nobody could stop may still use the memory.
        return;
    }
    let gone: Vec<(u64, Range)> = {
        let of = |kind: &Kind| match kind {
            Kind::Device { context: of, .. } | Kind::Host { context: of, .. } | Kind::Registered { context: of } => {
                Arc::ptr_eq(of, context)
            }
            Kind::Mapped(_) => false,
        };
        lock(&RANGES).extract_if(.., |_, range| of(&range.kind)).collect()
    };
    gone.iter().for_each(|(at, range)| hide(*at, range.bytes));
}
