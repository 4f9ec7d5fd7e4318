//! Multicast windows: addresses that name an offset of the heap on every member of a team at once.
//!
//! A window is a multicast object with the members' devices in it, each with its part of the heap bound to it, mapped at
//! the context's `multicast`. An object has a device once, so members with a device in common have no window. A number is taken
//! in all PEs or in none; teams that share no PE and are made together share a number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUmulticastGranularity_flags, CUmulticastObjectProp};

use super::agree::{agree, gather};
use super::device::Device;
use super::error::CudaError;
use super::heap::CudaHeap;
use super::memory::{Allocation, Chunk, Mapped, Range};
use super::module::lacks_multimem;
use super::shareable::{HandleKind, ShareableHandle};
use crate::bootstrap::Control;

/// How many windows there are, the world's included. Switches hold a few dozen multicast objects for all jobs that they serve.
pub(crate) const WINDOWS: u32 = 16;

/// One PE's windows.
pub(crate) struct Windows {
    /// By number, from 1 on. They go before the addresses that they are at.
    taken: Mutex<Vec<Option<Taken>>>,
    range: Range,
    stride: u64,
}

struct Taken {
    /// The heap offset of the team's words: it goes with them.
    of: u64,
    /// Where this PE is of the team.
    window: Option<Window>,
}

/// What is bound goes first.
struct Window {
    bound: Bound,
    _mapped: Mapped,
}

/// What of this PE's heap a multicast object reaches.
struct Bound {
    object: Arc<Allocation>,
    device: i32,
    /// Offset and bytes of each.
    chunks: Vec<(u64, usize)>,
}

/// Collective: the step in bytes that heaps of up to `heap_max` bytes need for multicast, or why there can be none, alike on
/// all PEs.
///
/// # Errors
/// Where the PEs lost each other.
pub(super) fn step(device: &Device, control: &Control, heap_max: u64) -> Result<Result<u64, String>, CudaError> {
    let npes = control.npes();
    if npes == 1 {
        return Ok(Err("the world has one PE".to_owned()));
    }
    if let Some((one, other)) = device.shared() {
        return Ok(Err(format!("PEs {one} and {other} have one device, and a multicast object has each device once")));
    }
    let told = granularity(device, npes, heap_max)
        .map_or_else(|why| [b"-", why.as_bytes()].concat(), |step| [b"+", &step.to_le_bytes()[..]].concat());
    let mut most = 1;
    for (pe, told) in gather(control, Ok(told))?.iter().enumerate() {
        match told.split_first() {
            Some((b'+', step)) => most = most.max(step.try_into().map_or(1, u64::from_le_bytes)),
            _ => return Ok(Err(format!("PE {pe}: {}", String::from_utf8_lossy(told.get(1..).unwrap_or_default())))),
        }
    }
    Ok(Ok(most))
}

/// The step of this device, or what it lacks.
fn granularity(device: &Device, npes: u32, heap_max: u64) -> Result<u64, String> {
    let name = &device.properties.name;
    if !device.properties.multicast {
        return Err(format!("{name} has no multicast"));
    }
    if device.handle_kind() == HandleKind::Unshared {
        return Err(format!("{name} and the other PEs' devices have no way in common to hand multicast objects over"));
    }
    // Windows promise multicast to the fixed kernels, so there are none where those come without.
    if let Some(lacks) = lacks_multimem(device).map_err(|error| error.to_string())? {
        return Err(lacks);
    }
    let driver = device.keeper().enter().map_err(|error| error.to_string())?;
    let (mut bytes, properties) = (0, properties(device, heap_max as usize, npes));
    let kind = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    // SAFETY: the place for the number is there, and the properties are as the driver's API lays them out.
    let asked = unsafe { driver.multicast_get_granularity(&raw mut bytes, &raw const properties, kind) };
    asked.map(|()| bytes.max(1) as u64).map_err(|error| error.to_string())
}

impl Windows {
    /// Collective: addresses for [`WINDOWS`] windows onto the heap, and no window yet.
    pub(super) fn reserve(device: &Device, control: &Control, heap: &CudaHeap) -> Result<Self, CudaError> {
        let (bytes, stride) = (u64::from(WINDOWS).checked_mul(heap.stride()), heap.stride());
        let bytes = bytes.ok_or(CudaError::NoAddress { bytes: u64::MAX });
        let range =
            bytes.and_then(|bytes| Range::anywhere(device.keeper(), bytes as usize, heap.granularity() as usize));
        let range = agree(control, range)?;
        Ok(Self { taken: Mutex::new((0..WINDOWS).map(|_| None).collect()), range, stride })
    }

    /// Where window 1 begins.
    pub(super) fn base(&self) -> u64 {
        self.range.base()
    }

    /// Collective over all PEs: a window for each of these teams, which share no PE, all of one number. Those of one member get
    /// none. `of` is the heap offset of the teams' words.
    ///
    /// All PEs succeed, or all fail for the same cause and nothing is kept.
    pub(super) fn open(
        &self,
        device: &Device,
        control: &Control,
        heap: &CudaHeap,
        teams: &[Vec<u32>],
        of: u64,
    ) -> Result<u32, CudaError> {
        let mut taken = self.taken();
        let free = taken.iter().position(Option::is_none).ok_or(CudaError::NoWindow { windows: WINDOWS })?;
        let team = teams.iter().find(|team| team.len() > 1 && team.contains(&control.pe()));
        let object = join(device, control, team.map_or(&[], Vec::as_slice), self.stride)?;
        let window = object.map(|object| {
            let mut bound = Bound { object: Arc::new(object), device: device.ordinal(), chunks: Vec::new() };
            heap.chunks().iter().try_for_each(|chunk| bound.add(chunk))?;
            let address = self.range.base() + free as u64 * self.stride;
            let object = Arc::clone(&bound.object);
            let _mapped = Mapped::new(object, &self.range, address, self.stride as usize, &[device.ordinal()])?;
            Ok(Window { bound, _mapped })
        });
        let window = agree(control, window.transpose())?;
        taken[free] = Some(Taken { of, window });
        Ok(free as u32 + 1)
    }

    /// Gives back the window of the teams whose words began at `of`, if they had one. No kernel uses it any more, in any PE.
    pub(super) fn close(&self, of: u64) {
        for taken in self.taken().iter_mut() {
            drop(taken.take_if(|taken| taken.of == of));
        }
    }

    /// Binds what the heap has grown by, in every window that this PE has: all or nothing.
    pub(super) fn bind(&self, chunk: &Chunk) -> Result<(), CudaError> {
        let bound = self.bounds(|bound| bound.add(chunk));
        bound.inspect_err(|_| self.unbind(chunk))
    }

    /// Undoes [`bind`](Self::bind), where another PE failed.
    pub(super) fn unbind(&self, chunk: &Chunk) {
        let _cannot_fail = self.bounds(|bound| {
            bound.remove(chunk.offset);
            Ok(())
        });
    }

    fn bounds(&self, mut each: impl FnMut(&mut Bound) -> Result<(), CudaError>) -> Result<(), CudaError> {
        let mut taken = self.taken();
        let windows = taken.iter_mut().flatten().filter_map(|taken| taken.window.as_mut());
        windows.map(|window| &mut window.bound).try_for_each(&mut each)
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Option<Taken>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    fn add(&mut self, chunk: &Chunk) -> Result<(), CudaError> {
        let driver = self.object.context().enter()?;
        let (object, offset, bytes) = (self.object.handle(), chunk.offset as usize, chunk.bytes);
        // SAFETY: the object and the memory are the process's own, and the memory is as long as is said. All devices of the
        // object were added, so that the call does not wait.
        unsafe { driver.multicast_bind_mem(object, offset, chunk.handle, 0, bytes, 0) }?;
        self.chunks.push((chunk.offset, bytes));
        Ok(())
    }

    fn remove(&mut self, offset: u64) {
        for (offset, bytes) in self.chunks.extract_if(.., |(at, _)| *at == offset) {
            let driver = self.object.context().driver();
            // SAFETY: this is of this device, bound by `add`, and no kernel uses it any more.
            let _lost_with_the_context =
                unsafe { driver.multicast_unbind(self.object.handle(), self.device, offset as usize, bytes) };
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let offsets: Vec<_> = self.chunks.iter().map(|(offset, _)| *offset).collect();
        offsets.into_iter().for_each(|offset| self.remove(offset));
    }
}

/// Collective over all PEs: a multicast object with the devices of all members of this PE's team, if it has one. The first
/// member makes it and hands it to the others.
fn join(device: &Device, control: &Control, team: &[u32], bytes: u64) -> Result<Option<Allocation>, CudaError> {
    let (pe, context) = (control.pe(), device.keeper());
    let leader = team.first().copied();
    let made = if leader == Some(pe) {
        let object = Allocation::multicast(context, &properties(device, bytes as usize, team.len() as u32));
        object.and_then(|object| Ok(Some((object.export(device.handle_kind())?, object))))
    } else {
        Ok(None)
    };
    let made = agree(control, made)?;
    let what = "handing a multicast object to the other PEs";
    let handed =
        device.handle_kind().exchange(control, made.as_ref().map(|(shareable, _)| shareable), device.near(), what)?;
    let take = |all: Vec<Option<ShareableHandle>>| match (made, leader) {
        (Some((_, object)), _) => Ok(Some(object)),
        (None, None) => Ok(None),
        (None, Some(leader)) => {
            let mut shareable = all.into_iter().nth(leader as usize).flatten().ok_or(CudaError::Apart)?;
            Allocation::import(context, &mut shareable).map(Some)
        }
    };
    let joined = handed.and_then(take).and_then(|object| {
        if let Some(object) = &object {
            // SAFETY: the object is the process's own, and the device is of `cuDeviceGet`.
            unsafe { context.enter()?.multicast_add_device(object.handle(), device.ordinal()) }?;
        }
        Ok(object)
    });
    // What comes next waits in the driver until all devices are there, so nobody goes on before they are.
    agree(control, joined)
}

/// An object that holds so many bytes of each of so many devices.
fn properties(device: &Device, bytes: usize, devices: u32) -> CUmulticastObjectProp {
    let handles = device.handle_kind().of_driver();
    CUmulticastObjectProp { numDevices: devices, size: bytes, handleTypes: handles.0.into(), flags: 0 }
}
