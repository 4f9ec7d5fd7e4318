//! Memory that the driver knows: allocated on a device, pinned on the host, or mapped by VMM.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use congruent_virtual_gpu::{self as gpu, Backing, Segment, Window};
use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::device::{Charge, Device};
use crate::driver;
use crate::errors::Outcome;
use crate::monitor::lock;
use crate::pages::{self, Access, Pages};
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
    Device { context: Arc<Context>, memory: Arc<Segment>, _charge: Charge },
    /// Made by `cuMemHostAlloc`.
    Host { context: Arc<Context>, memory: Arc<Segment> },
    /// The caller's own, made known by `cuMemHostRegister`; the memory begins at the multiple of 8 before it.
    Registered { context: Arc<Context>, memory: Arc<Segment> },
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
    insert(bytes, |memory| Kind::Device { context, memory, _charge: charge })
}

/// Pinned memory of the host, zeroed.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for nothing, `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn allocate_host(context: Arc<Context>, bytes: usize) -> Outcome<u64> {
    insert(rounded(bytes)?, |memory| Kind::Host { context, memory })
}

fn rounded(bytes: usize) -> Outcome<u64> {
    match (bytes as u64).checked_next_multiple_of(UNIT) {
        None => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        Some(0) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        Some(bytes) => Ok(bytes),
    }
}

fn insert(bytes: u64, kind: impl FnOnce(Arc<Segment>) -> Kind) -> Outcome<u64> {
    let pages = Pages::zeroed(bytes)?;
    let at = pages.at();
    add(&mut lock(&RANGES), at, Range { bytes, kind: kind(pages.segment()) });
    Ok(at)
}

fn add(ranges: &mut BTreeMap<u64, Range>, at: u64, range: Range) {
    show(at, &range);
    ranges.insert(at, range);
}

/// Tells each device what it may do with a range.
pub(crate) fn show(at: u64, range: &Range) {
    let Ok(driver) = driver::get() else { return };
    for device in driver.devices() {
        match range.window(at, device) {
            Some(window) => device.space.map(window),
            None => device.space.unmap(at, range.bytes),
        }
    }
}

/// The same of all ranges.
pub(crate) fn show_all() {
    lock(&RANGES).iter().for_each(|(&at, range)| show(at, range));
}

/// Takes a range away from all devices.
pub(crate) fn hide(at: u64, bytes: u64) {
    let Ok(driver) = driver::get() else { return };
    driver.devices().iter().for_each(|device| device.space.unmap(at, bytes));
}

impl Range {
    /// What a device's kernels have there; nothing without access.
    fn window(&self, at: u64, device: &Device) -> Option<Window> {
        let all = gpu::Access::ReadWrite;
        let (backing, access) = match &self.kind {
            Kind::Device { context, memory, .. } => {
                let reached = device.context.reaches(context.ordinal);
                (Backing::Memory(memory.clone(), 0), if reached { all } else { gpu::Access::None })
            }
            Kind::Host { memory, .. } => (Backing::Memory(memory.clone(), 0), all),
            Kind::Registered { memory, .. } => (Backing::Memory(memory.clone(), at % 8), all),
            Kind::Mapped(mapping) => (mapping.memory.backing()?, mapping.of(device.ordinal)),
        };
        (access > gpu::Access::None).then_some(Window { at, bytes: self.bytes, backing, access })
    }
}

/// Makes memory of the caller known.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for nothing, `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if a part is known
pub(crate) fn register(context: Arc<Context>, at: u64, bytes: usize) -> Outcome {
    let end =
        at.checked_add(bytes as u64).filter(|&end| at > 0 && end > at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut ranges = lock(&RANGES);
    let before = ranges.range(..end).next_back();
    if before.is_some_and(|(&start, range)| start + range.bytes > at) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let memory = pages::borrowed(at - at % 8, bytes as u64 + at % 8);
    add(&mut ranges, at, Range { bytes: bytes as u64, kind: Kind::Registered { context, memory } });
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
            Kind::Device { context: of, .. }
            | Kind::Host { context: of, .. }
            | Kind::Registered { context: of, .. } => Arc::ptr_eq(of, context),
            Kind::Mapped(_) => false,
        };
        lock(&RANGES).extract_if(.., |_, range| of(&range.kind)).collect()
    };
    gone.iter().for_each(|(at, range)| hide(*at, range.bytes));
}
