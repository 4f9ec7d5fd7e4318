//! The CUDA machine: kernels run on a GPU, from PTX.
//!
//! PEs of one process that share a GPU share its primary context, and each has streams of its own. cudarc stays in this folder.

#![allow(clippy::disallowed_types, reason = "a flag between host threads")]

mod agree;
mod calls;
mod control;
mod device;
mod driver;
mod error;
mod files;
mod heap;
mod memory;
mod module;
pub(crate) mod monitor;
mod native;
mod stream;
#[cfg(test)]
mod tests;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use congruent_device::abi;
use cudarc::driver::result;

pub(crate) use device::{Device, Properties};
pub(crate) use driver::Driver;
pub use error::{CudaError, CudaVersion};
pub(crate) use heap::CudaHeap;
pub(crate) use module::Entry;
pub(crate) use stream::{CudaRunner, Lane};

use crate::bootstrap::Control;
use crate::tunables::{TextKey, Tunables};
use agree::agree;
use control::ControlBlock;
use module::Modules;

/// One PE's GPU, or its share of one.
pub(crate) struct CudaPe {
    pe: u32,
    device: Arc<Device>,
    modules: Arc<Modules>,
    heap: ManuallyDrop<CudaHeap>,
    control: ManuallyDrop<ControlBlock>,
    /// Whether a kernel still runs that nobody waits for any more: its memory must stay.
    abandoned: AtomicBool,
    /// Those that are still there: the world is idle when they all are.
    streams: Mutex<Vec<Weak<Lane>>>,
}

impl CudaPe {
    /// Whether this process finds a driver with a GPU that the machine can use.
    pub(crate) fn is_usable() -> bool {
        Driver::get().and_then(Properties::all).is_ok_and(|all| all.iter().any(|device| device.lacks().is_none()))
    }

    /// Takes this PE's share of a GPU and sets its heap aside.
    ///
    /// # Collective
    /// All PEs succeed, or all fail.
    pub(crate) fn new(control: &Control, tunables: &Tunables, heap_bytes: u64) -> Result<Self, CudaError> {
        let driver = agree(control, Driver::get())?;
        agree(control, tunables.text(TextKey::Ptx).map_or(Ok(()), files::read))?;
        let ordinal = tunables.text(TextKey::Device).and_then(|ordinal| ordinal.parse().ok());
        let device = Device::choose(driver, control, ordinal)?;
        // SAFETY: no slice of cudarc's is made in this context, so there are no events that order them. With tracking on, the
        // first stream would wait for everything in the context: for kernels of other PEs too, which wait for this one.
        unsafe { device.context().disable_event_tracking() };
        let heap = CudaHeap::reserve(&device, control, heap_bytes, heap_bytes)?;
        let block = agree(control, ControlBlock::new(&device))?;
        let device = Arc::new(device);
        Ok(Self {
            pe: control.pe(),
            modules: Arc::new(Modules::new(&device)),
            device,
            heap: ManuallyDrop::new(heap),
            control: ManuallyDrop::new(block),
            abandoned: AtomicBool::new(false),
            streams: Mutex::default(),
        })
    }

    /// What it is, in a few words.
    pub(crate) fn describe(&self) -> String {
        let (name, pes) = (&self.device.properties.name, self.device.sharing());
        format!("cuda, {name}{}", if pes > 1 { format!(", shared by {pes} PEs") } else { String::new() })
    }

    pub(crate) fn heap(&self) -> &CudaHeap {
        &self.heap
    }

    /// Its control block: host memory that kernels reach at the same address.
    pub(crate) fn control(&self) -> *mut abi::Control {
        self.control.as_ptr()
    }

    /// A new stream.
    pub(crate) fn stream(&self) -> Result<CudaRunner, CudaError> {
        let runner = CudaRunner::new(&self.device, &self.modules)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(runner.lane()));
        Ok(runner)
    }

    /// Whether no launch of any stream is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes().iter().all(|lane| lane.is_idle())
    }

    /// Gives up on kernels that do not end: their memory is kept until the process ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// The streams that are still there.
    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the range is on this PE's heap, which is mapped, and as long as `out`.
        let copied = unsafe { result::memcpy_dtoh_sync(out, self.at(offset)) };
        copied.map_err(CudaError::of("cuMemcpyDtoH"))
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the range is on this PE's heap, which is mapped, and as long as `bytes`.
        let copied = unsafe { result::memcpy_htod_sync(self.at(offset), bytes) };
        copied.map_err(CudaError::of("cuMemcpyHtoD"))
    }

    /// Zeroes bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the range is on this PE's heap, which is mapped.
        let zeroed = unsafe { result::memset_d8_sync(self.at(offset), 0, bytes) };
        // A memset returns before it is done (CUDA Driver API, "API synchronization behavior"), and what comes next may be on
        // another stream.
        let done = zeroed.and_then(|()| {
            // SAFETY: the null stream of the context that is bound.
            unsafe { result::stream::synchronize(result::stream::null()) }
        });
        done.map_err(CudaError::of("cuMemsetD8"))
    }

    fn at(&self, offset: u64) -> u64 {
        self.heap.base() + u64::from(self.pe) * self.heap.stride() + offset
    }
}

impl Drop for CudaPe {
    fn drop(&mut self) {
        if *self.abandoned.get_mut() {
            return;
        }
        // SAFETY: each is dropped here only, and not used after.
        unsafe {
            ManuallyDrop::drop(&mut self.control);
            ManuallyDrop::drop(&mut self.heap);
        }
    }
}
