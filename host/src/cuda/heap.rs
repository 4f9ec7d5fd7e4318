//! The symmetric heap in device memory: all PEs' parts at the same addresses, in each of them.
//!
//! PE `p`'s part is at `base + p * stride` everywhere, on every device that this process's PEs use. A part begins with
//! the memory that it has now; the addresses after it are kept for growth, up to the stride, so that nothing ever moves.
//! Parts of other processes of the host come as file descriptors or fabric handles; those of other hosts are not mapped. Where all PEs are threads, they share one mapping, because a
//! process can map an address once only.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::agree::{agree, gather};
use super::device::{Context, Device};
use super::error::CudaError;
use super::memory::{Allocation, Chunk, Mapped, Range, granularity, taken};
use super::shareable::{HandleKind, ShareableHandle};
use crate::bootstrap::Control;

/// How many addresses the PEs try before they give up.
const ATTEMPTS: u32 = 16;

/// A range that neither programs, libraries nor the CPU machine's heaps use.
const REGION: u64 = 0x2000_0000_0000;
const REGION_BYTES: u64 = 0x1000_0000_0000;

/// The symmetric heap of a job, as one PE has it.
pub(crate) struct CudaHeap {
    mapping: Arc<Mapping>,
    pe: u32,
    npes: u32,
    stride: u64,
    granularity: u64,
    /// What each part has now, holes included.
    part_bytes: AtomicU64,
    /// Where memory was imported and released again, and how much.
    holes: Mutex<Vec<(u64, u64)>>,
    /// What was asked for, and what of the device was free before, in bytes.
    asked: u64,
    free_before: u64,
    beyond: u64,
}

/// Memory that is mapped in the parts, and is not theirs yet. Dropped, it is given back.
pub(super) struct Growth {
    /// This PE's own first.
    parts: Vec<Mapped>,
    chunk: Chunk,
}

impl Growth {
    /// This PE's own.
    pub(super) fn chunk(&self) -> &Chunk {
        &self.chunk
    }
}

/// What this process has mapped. The parts go before the addresses that they are at.
struct Mapping {
    parts: Mutex<Vec<Mapped>>,
    range: Range,
}

impl CudaHeap {
    /// Collective: `heap_bytes` of this device's memory for every PE, zeroed, and addresses for growth up to `heap_max`;
    /// both are rounded up to the devices' granularity, and that to `step`, a power of two.
    ///
    /// All PEs succeed, or all fail for the same cause.
    pub(crate) fn reserve(
        device: &Device,
        control: &Control,
        heap_bytes: u64,
        heap_max: u64,
        step: u64,
    ) -> Result<Self, CudaError> {
        let context = device.keeper();
        let free_before = agree(control, reachable(device, control))?;
        let granularity = granularity(device).map(|bytes| step.max(bytes as u64));
        let Sizes { granularity, part_bytes, stride, all } = common_sizes(control, granularity, heap_bytes, heap_max)?;
        let mapping = match control.commons() {
            Some(commons) => {
                let made = (control.pe() == 0).then(|| {
                    let range = Range::anywhere(context, all as usize, granularity as usize);
                    let range = range
                        .map_err(|error| if taken(&error) { CudaError::NoAddress { bytes: all } } else { error })?;
                    commons.put(Some(Arc::new(Mapping { parts: Mutex::default(), range })));
                    Ok(())
                });
                agree(control, made.unwrap_or(Ok(())))?;
                let mapping = commons.take();
                agree(control, Ok(()))?;
                if control.pe() == 0 {
                    commons.put(None);
                }
                mapping.ok_or(CudaError::Apart)?
            }
            None => {
                let range = reserve_everywhere(control, context, all, granularity)?;
                Arc::new(Mapping { parts: Mutex::default(), range })
            }
        };
        let mut heap = Self {
            mapping,
            pe: control.pe(),
            npes: control.npes(),
            stride,
            granularity,
            part_bytes: AtomicU64::new(0),
            holes: Mutex::default(),
            asked: heap_bytes,
            free_before,
            beyond: 0,
        };
        heap.commit(heap.extend(device, control, part_bytes)?);
        heap.measure(device, control)?;
        Ok(heap)
    }

    /// Collective: looks what the device has lost since before the heap was reserved, for [`bytes_used`](Self::bytes_used).
    pub(super) fn measure(&mut self, device: &Device, control: &Control) -> Result<(), CudaError> {
        let after = device.free_memory().map(|(free, _)| free);
        // Nobody goes on, and takes memory for something else, before all have looked.
        let after = agree(control, after)?;
        let sharing = u64::from(device.sharing().max(1));
        self.beyond = (self.free_before.saturating_sub(after) / sharing).saturating_sub(self.asked);
        Ok(())
    }

    /// Collective: maps what parts of `to_bytes`, rounded up, have more than now. What is new is zeroed; it is theirs once all PEs
    /// [`commit`](Self::commit). Nothing where they are as large already.
    ///
    /// All PEs succeed, or all fail for the same cause and the heap is as it was.
    pub(super) fn grow(&self, device: &Device, control: &Control, to_bytes: u64) -> Result<Option<Growth>, CudaError> {
        let part_bytes = agreed_size(&gather(control, Ok(to_bytes.to_le_bytes().to_vec()))?)?;
        let part_bytes = part_bytes.checked_next_multiple_of(self.granularity).filter(|bytes| *bytes <= self.stride);
        let part_bytes = part_bytes.ok_or(CudaError::GrowthLimit { to_bytes, limit: self.stride })?;
        let grows = part_bytes > self.part_bytes();
        grows.then(|| self.extend(device, control, part_bytes)).transpose()
    }

    /// Collective: maps memory of somebody else's, `needs` bytes at least, in a hole of its size or behind what the parts have. It is
    /// theirs once all PEs [`commit`](Self::commit), and keeps what is in it.
    ///
    /// All PEs succeed, or all fail for the same cause and the heap is as it was.
    pub(super) fn import(
        &self,
        device: &Device,
        control: &Control,
        address: u64,
        needs: u64,
    ) -> Result<Growth, CudaError> {
        let found = Allocation::mapped_at(device, address).and_then(|(memory, bytes)| {
            let short = format!("{bytes} bytes are mapped there, and {needs} are needed");
            let odd = format!("its {bytes} bytes are no multiple of {}, as parts of heaps are", self.granularity);
            match bytes as u64 {
                bytes if bytes < needs => Err(CudaError::Foreign { address, reason: short }),
                bytes if !bytes.is_multiple_of(self.granularity) => Err(CudaError::Foreign { address, reason: odd }),
                bytes => Ok((memory, bytes)),
            }
        });
        let (memory, bytes) = agree(control, found)?;
        let bytes = agreed_size(&gather(control, Ok(bytes.to_le_bytes().to_vec()))?)?;
        let hole = self.holes().iter().find(|hole| hole.1 == bytes).map(|hole| hole.0);
        let offset = hole.unwrap_or_else(|| self.part_bytes());
        let to_bytes = offset.saturating_add(bytes);
        if to_bytes > self.stride {
            return Err(CudaError::GrowthLimit { to_bytes, limit: self.stride });
        }
        self.map(device, control, offset..to_bytes, Ok(memory), |_| Ok(()))
    }

    /// Collective: unmaps the chunk at an offset of every part, and leaves a hole. No PE uses it any more.
    ///
    /// All PEs succeed, or all fail for the same cause and what could be unmapped is.
    pub(super) fn release(&self, control: &Control, chunk: &Chunk) -> Result<(), CudaError> {
        let is_there = |part: &mut Mapped| (part.address() - self.base()) % self.stride == chunk.offset;
        // Where all PEs are threads, the first one does it for all.
        let gone: Vec<_> = {
            let mut parts = self.mapping.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.extract_if(.., is_there).collect()
        };
        let outcomes: Vec<_> = gone.into_iter().map(Mapped::unmap).collect();
        agree(control, outcomes.into_iter().collect::<Result<(), _>>())?;
        self.holes().push((chunk.offset, chunk.bytes as u64));
        Ok(())
    }

    fn holes(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.holes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts have what they have grown by. No PE fails from here on.
    pub(super) fn commit(&self, growth: Growth) {
        self.mapping.parts.lock().unwrap_or_else(PoisonError::into_inner).extend(growth.parts);
        self.holes().retain(|hole| hole.0 != growth.chunk.offset);
        self.part_bytes.fetch_max(growth.chunk.offset + growth.chunk.bytes as u64, Ordering::AcqRel);
    }

    /// Maps new memory between the parts' size and `part_bytes`, on every PE, zeroed before anyone else can see it.
    fn extend(&self, device: &Device, control: &Control, part_bytes: u64) -> Result<Growth, CudaError> {
        let memory = Allocation::create(device, (part_bytes - self.part_bytes()) as usize);
        self.map(device, control, self.part_bytes()..part_bytes, memory, Mapped::zero)
    }

    /// Maps every PE's memory in this range of its part, on every PE; each prepares its own first.
    fn map(
        &self,
        device: &Device,
        control: &Control,
        place: std::ops::Range<u64>,
        memory: Result<Allocation, CudaError>,
        prepare: impl FnOnce(&Mapped) -> Result<(), CudaError>,
    ) -> Result<Growth, CudaError> {
        let (context, offset) = (device.keeper(), place.start);
        let bytes = (place.end - offset) as usize;
        let range = &self.mapping.range;
        let address = |pe: u32| range.base() + u64::from(pe) * self.stride + offset;
        let in_process = control.in_process();
        let devices = if in_process { devices(device, self.npes) } else { vec![device.ordinal()] };
        let mine = memory
            .and_then(|memory| Ok((memory.handle(), Mapped::new(memory, range, address(self.pe), bytes, &devices)?)))
            .and_then(|(handle, mapped)| prepare(&mapped).map(|()| (Chunk { offset, bytes, handle }, mapped)));
        // Where all PEs are threads, every one maps its own for all.
        let mine = mine.and_then(|(chunk, mapped)| {
            let shareable = if in_process { None } else { Some(mapped.export(device.handle_kind())?) };
            Ok((chunk, mapped, shareable))
        });
        let (chunk, mapped, shareable) = agree(control, mine)?;
        let mut parts = vec![mapped];
        if let Some(shareable) = shareable {
            let what = "handing device memory to the other PEs";
            let theirs = device.handle_kind().exchange(control, Some(&shareable), device.near(), what)?;
            let map = |(pe, mut shareable): (u32, ShareableHandle)| {
                let memory = Allocation::import(context, &mut shareable)?;
                Mapped::new(memory, range, address(pe), bytes, &devices)
            };
            let all = |shareables: Vec<Option<ShareableHandle>>| {
                let shareables = (0..).zip(shareables).filter_map(|(pe, shareable)| Some((pe, shareable?)));
                shareables.map(map).collect::<Result<Vec<_>, _>>()
            };
            parts.extend(agree(control, theirs.and_then(all))?);
        }
        Ok(Growth { parts, chunk })
    }

    /// Where PE 0's part begins, on every PE.
    pub(crate) fn base(&self) -> u64 {
        self.mapping.range.base()
    }

    /// From one PE's part to the next, in bytes: what a part can grow to.
    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    /// Where this PE's own part begins.
    pub(crate) fn own(&self) -> u64 {
        self.base() + u64::from(self.pe) * self.stride
    }

    /// What each part has now, in bytes.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.part_bytes.load(Ordering::Acquire)
    }

    /// The step in which parts grow, in bytes.
    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// What making the heap took of this PE's device beyond the heap that was asked for, in bytes, this PE's share: what
    /// rounding added, and what the driver keeps for itself. Other programs on the device blur it.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.beyond
    }

    /// The chunks of this PE's own part, for multicast objects.
    pub(super) fn chunks(&self) -> Vec<Chunk> {
        let own = self.own()..self.own() + self.stride;
        let parts = self.mapping.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().filter_map(|part| part.chunk(own.clone())).collect()
    }

    /// The chunk of this PE's own part that begins at an offset.
    pub(super) fn chunk_at(&self, offset: u64) -> Option<Chunk> {
        self.chunks().into_iter().find(|chunk| chunk.offset == offset)
    }
}

/// Looks whether this device can do what a heap of this job needs. What of its memory is free before, in bytes.
fn reachable(device: &Device, control: &Control) -> Result<u64, CudaError> {
    if !control.in_process() && device.near().len() > 1 && device.handle_kind() == HandleKind::Unshared {
        let what =
            "handing memory to another process, as a file descriptor or a fabric handle, by all PEs' devices alike,";
        return Err(CudaError::Unsupported { what, device: device.properties.name.clone() });
    }
    for (pe, _) in device.elsewhere() {
        // A device that this process does not see may be within reach all the same: mapping its memory will tell.
        let Some(ordinal) = device.ordinal_of(pe) else { continue };
        let mut can: c_int = 0;
        // SAFETY: the place for the answer is there, and both are devices of this process.
        unsafe { device.driver().device_can_access_peer(&raw mut can, device.ordinal(), ordinal) }?;
        if can == 0 {
            return Err(CudaError::Unreachable { from: control.pe(), to: pe });
        }
    }
    device.free_memory().map(|(free, _)| free)
}

/// The devices that PEs of this process compute on, where all PEs are of this process.
fn devices(device: &Device, npes: u32) -> Vec<c_int> {
    let mut devices: Vec<_> = (0..npes).filter_map(|pe| device.ordinal_of(pe)).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// What all PEs have alike, in bytes.
#[derive(Debug, PartialEq)]
struct Sizes {
    granularity: u64,
    part_bytes: u64,
    stride: u64,
    /// All parts together.
    all: u64,
}

fn common_sizes(
    control: &Control,
    granularity: Result<u64, CudaError>,
    heap_bytes: u64,
    heap_max: u64,
) -> Result<Sizes, CudaError> {
    let heap_max = heap_max.max(heap_bytes);
    let granularities = gather(control, granularity.map(|bytes| bytes.to_le_bytes().to_vec()))?;
    agreed_size(&gather(control, Ok(heap_bytes.to_le_bytes().to_vec()))?)?;
    agreed_size(&gather(control, Ok(heap_max.to_le_bytes().to_vec()))?)?;
    // Each is a power of two, so that the largest is a multiple of all.
    let granularity = granularities.iter().map(|bytes| number(bytes)).max().unwrap_or(1);
    let npes = control.npes();
    sizes(granularity, heap_bytes, heap_max, npes).ok_or(CudaError::Size { heap_bytes, heap_max, npes })
}

fn sizes(granularity: u64, heap_bytes: u64, heap_max: u64, npes: u32) -> Option<Sizes> {
    let part_bytes = heap_bytes.checked_next_multiple_of(granularity).filter(|bytes| *bytes != 0)?;
    let stride = heap_max.max(heap_bytes).checked_next_multiple_of(granularity)?;
    let all = stride.checked_mul(u64::from(npes)).filter(|bytes| *bytes <= REGION_BYTES / 2)?;
    Some(Sizes { granularity, part_bytes, stride, all })
}

/// The size that all PEs told, or the first PE that told another.
fn agreed_size(told: &[Vec<u8>]) -> Result<u64, CudaError> {
    let sizes: Vec<_> = told.iter().map(|bytes| number(bytes)).collect();
    let first = sizes.first().copied().unwrap_or(0);
    match (0..).zip(sizes).find(|(_, size)| *size != first) {
        Some((pe, theirs)) => Err(CudaError::Mismatch { pe, theirs, first }),
        None => Ok(first),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Finds a range that is free in all PEs: PE 0 proposes, all try, all tell.
fn reserve_everywhere(control: &Control, context: &Context, bytes: u64, granularity: u64) -> Result<Range, CudaError> {
    for attempt in 0..ATTEMPTS {
        let proposal = if control.pe() == 0 { propose(context, bytes, granularity, attempt) } else { Ok(0) };
        let proposals = gather(control, proposal.map(|address| address.to_le_bytes().to_vec()))?;
        let address = proposals.first().map_or(0, |address| number(address));
        let mine = if address == 0 { Ok(None) } else { Range::at(context, bytes as usize, address) };
        let told = mine.as_ref().map(|range| vec![u8::from(range.is_some())]).map_err(Clone::clone);
        let outcomes = gather(control, told)?;
        if let (Some(range), true) = (mine?, outcomes.iter().all(|outcome| outcome[..] == [1])) {
            return Ok(range);
        }
    }
    Err(CudaError::NoAddress { bytes })
}

/// By turns an address that the driver would choose here, and likely in processes that are alike; and a random one.
fn propose(context: &Context, bytes: u64, granularity: u64, attempt: u32) -> Result<u64, CudaError> {
    let mut random = [0; 8];
    if !attempt.is_multiple_of(2) && getrandom::fill(&mut random).is_ok() {
        let places = (REGION_BYTES - bytes) / granularity;
        return Ok(REGION + u64::from_le_bytes(random) % places * granularity);
    }
    match Range::anywhere(context, bytes as usize, granularity as usize) {
        Ok(free) => Ok(free.base()),
        Err(error) if taken(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn parts_and_strides_are_whole_steps() {
        let expected = Sizes { granularity: 2 * MIB, part_bytes: 4 * MIB, stride: 6 * MIB, all: 18 * MIB };
        assert_eq!(sizes(2 * MIB, 3 * MIB, 5 * MIB, 3), Some(expected));
        let smallest = sizes(2 * MIB, 1, 0, 2);
        assert!(smallest.is_some_and(|sizes| sizes.part_bytes == sizes.stride && sizes.all == 4 * MIB));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert_eq!(sizes(2 * MIB, 0, 4 * MIB, 2), None);
        assert_eq!(sizes(2 * MIB, u64::MAX, 0, 2), None);
        assert_eq!(sizes(2 * MIB, 2 * MIB, u64::MAX / 2, 4), None);
        assert_eq!(sizes(2 * MIB, 2 * MIB, REGION_BYTES, 1), None);
    }

    #[test]
    fn the_first_that_differs_is_named() {
        let told = |sizes: &[u64]| sizes.iter().map(|size| size.to_le_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(agreed_size(&told(&[8, 8, 8])), Ok(8));
        assert_eq!(agreed_size(&told(&[8, 8, 9])), Err(CudaError::Mismatch { pe: 2, theirs: 9, first: 8 }));
    }
}
