//! The devices, and which of them a PE computes on.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUGPUDirectRDMAWritesOrdering as Order, CUflushGPUDirectRDMAWritesOptions as Flush};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUresult, CUstream, CUuuid};

use super::agree::gather;
use super::connections::mps_listens;
use super::driver::Driver;
use super::error::CudaError;
use super::objects::{Primary, RawStream};
use super::shareable::HandleKind;
use crate::bootstrap::{Control, neighbours};

/// What tells one device from all others, also between processes that number them differently.
pub(super) type Uuid = [u8; 16];

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// Its index among those that this process sees.
    pub ordinal: u32,
    /// As the driver says it.
    pub name: String,
    /// What tells it from all other devices, also between processes that number them differently.
    pub uuid: [u8; 16],
    /// Compute capability.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Shared memory that a block can have, in bytes.
    pub shared: u32,
    /// In bytes.
    pub memory: u64,
    /// Whether addresses and memory can be managed apart, which the heap rests on.
    pub virtual_memory: bool,
    /// Whether memory can be handed to other processes as a file descriptor.
    pub posix_handles: bool,
    /// Whether memory can be handed to other hosts of an NVLink fabric.
    pub fabric_handles: bool,
    /// Whether one store can reach many devices.
    pub multicast: bool,
    /// Whether network cards can reach the heap.
    pub rdma: bool,
    /// Whether it can be given to them as a dma-buf.
    pub dma_buf: bool,
    /// Whether what they wrote comes in order for all devices, without being flushed.
    pub rdma_ordered: bool,
    /// Whether the host can flush it.
    pub rdma_flush: bool,
    /// Whether all blocks of a launch can be promised to run at once.
    pub cooperative: bool,
    /// Whether an MPS lets processes run on it at once.
    pub mps: bool,
}

impl Properties {
    /// Of all devices that this process sees. Nothing is started on them.
    pub fn all(driver: &Driver) -> Result<Vec<Self>, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: the place for the number is there.
        unsafe { driver.device_get_count(&raw mut count) }?;
        (0..count).map(|ordinal| Self::of(driver, ordinal)).collect()
    }

    fn of(driver: &Driver, ordinal: c_int) -> Result<Self, CudaError> {
        let mut device: CUdevice = 0;
        // SAFETY: the place for the device is there.
        unsafe { driver.device_get(&raw mut device, ordinal) }?;
        let mut name = [0_u8; 256];
        // SAFETY: the place is as long as is said, and the device is of `cuDeviceGet`.
        unsafe { driver.device_get_name(name.as_mut_ptr().cast(), name.len() as c_int, device) }?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above.
        unsafe { driver.device_get_uuid(&raw mut uuid, device) }?;
        let mut memory = 0;
        // SAFETY: as above.
        unsafe { driver.device_total_mem(&raw mut memory, device) }?;
        let number = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: as above.
            unsafe { driver.device_get_attribute(&raw mut value, attribute, device) }?;
            Ok::<_, CudaError>(u32::try_from(value).unwrap_or(0))
        };
        // A driver that does not know an attribute does not know what it stands for either.
        let can = |attribute| number(attribute).is_ok_and(|value| value != 0);
        Ok(Self {
            ordinal: device.unsigned_abs(),
            name,
            uuid: uuid.bytes.map(|byte| byte as u8),
            compute: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            sms: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            memory: memory as u64,
            virtual_memory: can(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            posix_handles: can(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            fabric_handles: can(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            multicast: can(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
            rdma: can(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
            dma_buf: can(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            rdma_ordered: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
                .is_ok_and(|order| order >= Order::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES as u32),
            rdma_flush: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)
                .is_ok_and(|ways| ways & Flush::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as u32 != 0),
            cooperative: can(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
            // Drivers before CUDA 12.3 do not know the attribute.
            mps: number(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).map_or_else(|_| mps_listens(), |value| value != 0),
        })
    }

    /// What the machine needs and this device lacks.
    pub fn lacks(&self) -> Option<&'static str> {
        if !self.virtual_memory {
            return Some("virtual memory management (cuMemCreate and cuMemMap)");
        }
        (!self.cooperative).then_some("launching all blocks of a kernel at once")
    }
}

/// What every call about memory needs: the driver, and a context that lives as long as what was made in it.
#[derive(Clone)]
pub(super) struct Context {
    driver: &'static Driver,
    primary: Arc<Primary>,
    /// A stream that nobody else knows, for what the host itself copies and fills. The legacy stream, which calls without a
    /// stream take, waits for every blocking stream (CUDA Driver API, "Stream synchronization behavior"): for a borrowed one, and
    /// so for whatever that waits for.
    aside: Arc<RawStream>,
}

impl Context {
    fn new(driver: &'static Driver, ordinal: usize, theirs: Option<Arc<CudaContext>>) -> Result<Self, CudaError> {
        let primary = Arc::new(match theirs {
            Some(theirs) => Primary::of(driver, theirs),
            None => Primary::retain(driver, ordinal)?,
        });
        let aside = Self::aside_of(&primary)?;
        Ok(Self { driver, primary, aside })
    }

    /// One for all PEs of the process on the device: each stream takes a hardware queue.
    fn aside_of(primary: &Arc<Primary>) -> Result<Arc<RawStream>, CudaError> {
        static ALL: Mutex<Vec<Weak<RawStream>>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = all.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.find(|stream| stream.primary().raw() == primary.raw()) {
            return Ok(known);
        }
        let made = Arc::new(RawStream::new(primary)?);
        all.retain(|stream| stream.strong_count() > 0);
        all.push(Arc::downgrade(&made));
        Ok(made)
    }

    /// Does what `put` puts on the host's own stream, and waits for it: copies and fills, which wait for nothing themselves.
    pub(super) fn now(
        &self,
        put: impl FnOnce(&'static Driver, CUstream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (driver, stream) = (self.enter()?, self.aside());
        // SAFETY: the stream lives as long as this, and is of the context that this thread has.
        let wait = || unsafe { driver.stream_synchronize(stream) };
        // Where nothing can be waited for, nothing may begin.
        wait()?;
        put(driver, stream)?;
        // An error may be another call's, and the caller takes the memory back: nothing may go on there. A context that is lost
        // gives it twice, and does nothing more.
        wait().inspect_err(|_| _ = wait())
    }

    /// The host's own stream.
    pub(super) fn aside(&self) -> CUstream {
        self.aside.raw()
    }

    /// The driver, whether or not this thread has a context.
    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The driver, once the context is the calling thread's.
    pub(super) fn enter(&self) -> Result<&'static Driver, CudaError> {
        self.primary.enter()
    }
}

/// The device of one PE, with the context that it computes in.
pub(crate) struct Device {
    pub(crate) properties: Properties,
    context: Context,
    /// The PEs of this host, in order.
    near: Vec<u32>,
    /// The devices of all PEs, in PE order.
    uuids: Vec<Uuid>,
    /// The devices that this process sees.
    visible: Vec<Uuid>,
    /// How memory gets to PEs of other processes.
    handle_kind: HandleKind,
}

impl Device {
    /// Collective: the device of this PE, which is that of a context of cudarc's, or one of those `listed`, or else of all: the first PE of
    /// a host has the first, the next the second, and from the first again when there are more PEs than devices.
    ///
    /// Which devices there are, and in which order, the user tells the driver by `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn choose(
        driver: &'static Driver,
        control: &Control,
        listed: &[u32],
        theirs: Option<Arc<CudaContext>>,
    ) -> Result<Self, CudaError> {
        let near = neighbours(control)?;
        let turn = near.iter().filter(|&&pe| pe < control.pe()).count();
        let asked = listed.get(turn % listed.len().max(1)).copied();
        let chosen = Self::open(driver, asked, theirs, turn as u32);
        let told = |chosen: &Self| [&chosen.properties.uuid[..], &[HandleKind::ways(&chosen.properties)]].concat();
        let told = gather(control, chosen.as_ref().map(told).map_err(Clone::clone))?;
        let mut chosen = chosen?;
        chosen.handle_kind = HandleKind::common(told.iter().map(|told| told.last().copied().unwrap_or(0)));
        let uuid = |told: Vec<u8>| told.first_chunk().copied().unwrap_or_default();
        chosen.near = near;
        chosen.uuids = told.into_iter().map(uuid).collect();
        Ok(chosen)
    }

    fn open(
        driver: &'static Driver,
        asked: Option<u32>,
        theirs: Option<Arc<CudaContext>>,
        turn: u32,
    ) -> Result<Self, CudaError> {
        let devices = Properties::all(driver)?;
        let asked = theirs.as_ref().map(|theirs| theirs.ordinal() as u32).or(asked);
        let ordinal = pick(devices.len(), asked, turn)?;
        let visible = devices.iter().map(|device| device.uuid).collect();
        let properties = devices.into_iter().nth(ordinal).ok_or(CudaError::NoDevice)?;
        if let Some(what) = properties.lacks() {
            return Err(CudaError::Unsupported { what, device: properties.name });
        }
        let context = Context::new(driver, ordinal, theirs)?;
        Ok(Self {
            properties,
            context,
            near: Vec::new(),
            uuids: Vec::new(),
            visible,
            handle_kind: HandleKind::default(),
        })
    }

    /// How memory of the job's devices gets to PEs of other processes.
    pub(super) fn handle_kind(&self) -> HandleKind {
        self.handle_kind
    }

    /// The driver that the device was found by.
    pub(crate) fn driver(&self) -> &'static Driver {
        self.context.driver
    }

    /// The context: the device's primary one, which all PEs of a process on this device share, unless the program gave another.
    pub(super) fn context(&self) -> &Arc<Primary> {
        &self.context.primary
    }

    /// The same, for what is made in it and outlives this `Device`.
    pub(super) fn keeper(&self) -> &Context {
        &self.context
    }

    /// The PEs of this host, in order, whose memory this device may reach.
    pub(super) fn near(&self) -> &[u32] {
        &self.near
    }

    /// The PEs of this host with their devices.
    fn devices(&self) -> impl Iterator<Item = (u32, &Uuid)> {
        self.near.iter().filter_map(|&pe| Some((pe, self.uuids.get(pe as usize)?)))
    }

    /// How many PEs of the job compute on this device, this one included.
    pub(crate) fn sharing(&self) -> u32 {
        self.devices().filter(|(_, uuid)| **uuid == self.properties.uuid).count() as u32
    }

    /// How many PEs the job has, where they are several and all compute on this device.
    pub(super) fn shared_by_all(&self) -> Option<u32> {
        let pes = self.sharing();
        (pes > 1 && pes as usize == self.uuids.len()).then_some(pes)
    }

    /// Two PEs of the job that compute on one device, the first that do.
    pub(super) fn shared(&self) -> Option<(usize, usize)> {
        let mut others = self.devices();
        others.find_map(|(other, uuid)| {
            let one = self.devices().find(|(one, theirs)| *one < other && *theirs == uuid)?;
            Some((one.0 as usize, other as usize))
        })
    }

    /// The PEs of this host that compute on other devices.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = (u32, &Uuid)> {
        self.devices().filter(|(_, uuid)| **uuid != self.properties.uuid)
    }

    /// The index in this process of PE `pe`'s device, unless this process does not see it.
    pub(super) fn ordinal_of(&self, pe: u32) -> Option<c_int> {
        let uuid = self.uuids.get(pe as usize)?;
        self.visible.iter().position(|visible| visible == uuid).and_then(|ordinal| ordinal.try_into().ok())
    }

    /// This device's index as the driver writes it.
    pub(super) fn ordinal(&self) -> c_int {
        self.context.primary.device()
    }

    /// Makes the context the calling thread's, as calls about memory and launches need it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.context.enter().map(|_| ())
    }

    /// A new stream of the context.
    pub(super) fn new_stream(&self) -> Result<Arc<RawStream>, CudaError> {
        RawStream::new(&self.context.primary).map(Arc::new)
    }

    /// Why so many bytes could not be had: where the device is full, how full it is.
    pub(super) fn or_full(&self, error: CudaError, bytes: usize) -> CudaError {
        if !error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
            return error;
        }
        match self.free_memory() {
            Ok((free, total)) => CudaError::OutOfMemory { asked: bytes as u64, free, total },
            Err(_) => error,
        }
    }

    /// How much memory of the device is free, and how much it has, in bytes.
    pub(crate) fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let driver = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places for both numbers are there, and this thread has a context.
        unsafe { driver.mem_get_info(&raw mut free, &raw mut total) }?;
        Ok((free as u64, total as u64))
    }
}

/// Which of `count` devices.
fn pick(count: usize, asked: Option<u32>, turn: u32) -> Result<usize, CudaError> {
    match asked {
        _ if count == 0 => Err(CudaError::NoDevice),
        Some(ordinal) if ordinal as usize >= count => Err(CudaError::NoSuchDevice { ordinal, count: count as u32 }),
        Some(ordinal) => Ok(ordinal as usize),
        None => Ok(turn as usize % count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_take_turns_on_devices_unless_one_is_asked_for() {
        let turns: Vec<_> = (0..5).map(|pe| pick(2, None, pe).unwrap()).collect();
        assert_eq!(turns, [0, 1, 0, 1, 0]);
        assert_eq!(pick(2, Some(1), 0), Ok(1));
        assert_eq!(pick(2, Some(2), 0), Err(CudaError::NoSuchDevice { ordinal: 2, count: 2 }));
        assert_eq!(pick(0, None, 0), Err(CudaError::NoDevice));
        assert_eq!(pick(0, Some(0), 0), Err(CudaError::NoDevice));
    }

    #[test]
    fn a_device_without_virtual_memory_is_refused_for_that() {
        let mut device = Properties {
            ordinal: 0,
            name: "a device".into(),
            uuid: [0; 16],
            compute: (9, 0),
            sms: 132,
            shared: 227 << 10,
            memory: 1 << 30,
            virtual_memory: true,
            posix_handles: true,
            fabric_handles: false,
            multicast: false,
            rdma: false,
            dma_buf: false,
            rdma_ordered: false,
            rdma_flush: false,
            cooperative: true,
            mps: false,
        };
        assert_eq!(device.lacks(), None);
        device.virtual_memory = false;
        assert!(device.lacks().is_some_and(|what| what.contains("virtual memory")));
    }
}
