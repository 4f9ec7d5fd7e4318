//! A stream of the CUDA machine: what it can be given.

use std::ffi::c_void;
use std::sync::Arc;

use congruent_device::abi;
use cudarc::driver::sys::{
    CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
    CUstreamBatchMemOpType, CUstreamWriteValue_flags,
};

use super::module::{Entry, Modules};
use super::residents::{Launching, Need, Residents, fits};
use super::stream_state::StreamState;
use super::trace::StreamRow;
use super::waits::AwaitedWord;
use super::{CudaError, Device, Driver};
use crate::{Grid, LaunchError};

/// One PE's queue of launches on its GPU. Dropping it waits for them, for as long as that makes sense.
pub(crate) struct CudaRunner {
    state: Arc<StreamState>,
    device: Arc<Device>,
    modules: Arc<Modules>,
    residents: Arc<Residents>,
    /// Its row of a trace, where one is written.
    row: Option<Arc<StreamRow>>,
}

impl CudaRunner {
    pub(super) fn new(
        state: Arc<StreamState>,
        device: &Arc<Device>,
        modules: &Arc<Modules>,
        residents: &Arc<Residents>,
        row: Option<Arc<StreamRow>>,
    ) -> Self {
        Self { state, device: Arc::clone(device), modules: Arc::clone(modules), residents: Arc::clone(residents), row }
    }

    /// Gives the stream one more thing to do, which traces show by this name.
    pub(super) fn put(
        &self,
        name: &'static str,
        put: impl FnOnce(CUstream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.put_launch(name, 0, put)
    }

    /// The same, which is the launch of this number if that is not 0.
    fn put_launch(
        &self,
        name: &'static str,
        launch: u32,
        put: impl FnOnce(CUstream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let put = || self.state.put(put);
        match &self.row {
            Some(row) => row.around(&self.state, name, launch, put),
            None => put(),
        }
    }

    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.device.bind()
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.device.driver()
    }

    pub(crate) fn state(&self) -> &Arc<StreamState> {
        &self.state
    }

    /// Puts a kernel at the end of the stream, of as many blocks at most as its context has slots if it waits. `places` are those of its
    /// parameters, in their order, the context first.
    pub(crate) fn launch(
        &self,
        entry: &Entry,
        grid: Grid,
        &abi::Context { block_slots: slots, launch, .. }: &abi::Context,
        places: &mut [*mut c_void],
    ) -> Result<(), LaunchError> {
        // This thread may be one that has asked the driver for nothing yet.
        self.device.bind()?;
        let function = self.modules.function(entry)?;
        function.block_fits(entry.name, grid)?;
        if function.waits() && entry.independent {
            return Err(LaunchError::Waits { kernel: entry.name });
        }
        if function.waits() && grid.blocks > slots {
            return Err(LaunchError::NotCoresident { asked: grid.blocks, fits: slots, running: 0 });
        }
        if grid.blocks > MOST_BLOCKS {
            return Err(LaunchError::TooManyBlocks { kernel: entry.name, asked: grid.blocks, fits: MOST_BLOCKS });
        }
        let need = function.waits().then(|| function.need(grid)).transpose()?;
        let _until_launched = need.map(|need| self.admit(need)).transpose()?;
        let (driver, raw, places) = (self.device.driver(), function.raw(), places.as_mut_ptr());
        // A cooperative launch makes sure that its own blocks run at once. Where PEs share a GPU that is not enough, and what
        // `admit` counts is: blocks of all of them. A kernel that never waits may have more than run at once.
        // SAFETY: the function is of a module that is loaded, `places` has one entry for each parameter of it (the kernel's own
        // argument types), and what they point to is copied before the call returns. What the kernel does with memory is
        // argued where it does it; the heap stays mapped until the stream is idle.
        let put = |stream| unsafe {
            match self.device.sharing() {
                1 if function.waits() => {
                    driver.launch_cooperative(raw, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared, stream, places)
                }
                _ => {
                    let none = std::ptr::null_mut();
                    driver.launch(raw, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared, stream, places, none)
                }
            }
        };
        Ok(self.put_launch(entry.name, launch, put)?)
    }

    /// Sees that a kernel that waits finds room beside what other streams run; in a capture, later, for the graph.
    /// What it gives is held until the kernel is launched.
    pub(super) fn admit(&self, need: Need) -> Result<Launching, LaunchError> {
        let (sms, sharing) = (self.device.properties.sms, self.device.sharing());
        if self.state.note(need) {
            return fits(need, self.residents.free().as_slice(), sms, sharing).map(|()| Launching::default());
        }
        self.residents.admit(&self.state, need, sms, sharing)
    }

    /// Puts a copy at the end of the stream. Both ranges are on heaps that this PE reaches, or of buffers that are held, or lent by
    /// cudarc, which frees nothing before the copy is done.
    pub(crate) fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the ranges are there, as the caller checked, and heaps stay mapped until the stream is idle.
        self.put("copy", |stream| unsafe { self.device.driver().memcpy(dst, src, bytes, stream) })
    }

    /// Puts a copy of the host's bytes at the end of the stream, and keeps them until it is done.
    pub(crate) fn upload(&self, dst: u64, bytes: Arc<[u8]>) -> Result<(), CudaError> {
        let (from, count) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the range is memory of the device, as the caller checked, and as long as the bytes, which stay.
        let put = self.put("copy", |stream| unsafe { self.device.driver().memcpy_to_device(dst, from, count, stream) });
        self.state.hold(Arc::new(bytes));
        put
    }

    /// Puts a store of a signal word of some heap at the end of the stream. Whoever sees it sees what the stream did before: the
    /// driver fences before such a write, unless told not to (CUDA Driver API, cuStreamWriteValue64).
    pub(crate) fn store(&self, address: u64, value: u64) -> Result<(), CudaError> {
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the word is on a heap, as the caller checked, and aligned; the heap stays mapped until the stream is idle.
        self.state.put(|stream| unsafe { self.device.driver().stream_write_value_64(stream, address, value, flags) })
    }

    /// Puts stores of words of this PE's heap, one behind the other, at the end of the stream, in as few calls as the driver allows.
    pub(crate) fn store_all(&self, address: u64, words: &[u64]) -> Result<(), CudaError> {
        let stores = words.iter().zip((address..).step_by(8)).map(|(&value, address)| write(address, value));
        let mut stores: Vec<_> = stores.collect();
        stores.chunks_mut(MOST_AT_ONCE).try_for_each(|some| {
            let (count, first) = (some.len() as u32, some.as_mut_ptr());
            // SAFETY: the words are on a heap, as the caller checked, and aligned; the heap stays mapped until the stream is idle.
            // There are as many operations as are told, which the driver copies.
            self.state.put(|stream| unsafe { self.device.driver().stream_batch_mem_op(stream, count, first, 0) })
        })
    }

    /// Makes the stream wait until a signal word of this PE's heap is at least a value.
    pub(crate) fn wait_at_least(&self, word: AwaitedWord) -> Result<(), CudaError> {
        self.state.wait_at_least(word)
    }
}

/// The most blocks of a launch, of any GPU (CUDA C++ Programming Guide, "Compute Capabilities": the x-dimension of a grid).
const MOST_BLOCKS: u32 = i32::MAX as u32;

/// The most operations of a batch (CUDA Driver API, cuStreamBatchMemOp: fewer than 256).
const MOST_AT_ONCE: usize = 255;

/// A store of a word, as part of a batch.
fn write(address: u64, value: u64) -> CUstreamBatchMemOpParams {
    let operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
    let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    let value = WriteValue { value64: value };
    let mut whole = CUstreamBatchMemOpParams { pad: [0; 6] };
    whole.writeValue = WriteParams { operation, address, __bindgen_anon_1: value, flags, alias: 0 };
    whole
}
