//! Heaps in the memory of GPUs as a proxy accesses them: by copies, by writes of a stream, and for atomics by a kernel of one block.
//!
//! All go over a stream of the proxy's own, and are waited for. Kernels that wait hold their multiprocessors, so a block is kept free
//! for the proxy's ([`Residents`](super::residents::Residents)).
//!
//! # Order
//! What a stream does begins when all before it is complete (CUDA C++ Programming Guide, "Streams"). A stream's write of a word fences
//! before it, unless told not to (CUDA Driver API, cuStreamWriteValue64), and the kernel before its atomic: so who acquires the word sees
//! what was copied before (MM-2). What a network's device wrote is flushed before that, where it has to be (CUDA Driver API,
//! cuFlushGPUDirectRDMAWrites).

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use congruent_device::{Kernel, KernelArgs, Pe, Relaxed, Sym, abi};
use congruent_stream_kernels as kernels;
use congruent_transports::{Access, Atomic};
use cudarc::driver::sys::{
    CUflushGPUDirectRDMAWritesScope as Scope, CUflushGPUDirectRDMAWritesTarget as Target, CUmemRangeHandleType,
    CUstreamCaptureMode, CUstreamWriteValue_flags,
};

use super::stream::CudaRunner;
use super::{CudaError, CudaPe, Entry, Pinned, StreamState, connections, monitor};
use crate::Grid;

/// One PE's access, and that of its peers on the same host.
pub(crate) struct HeapAccess {
    runner: CudaRunner,
    /// Without routes: the kernel reaches what it is told to.
    context: abi::Context,
    /// Where the kernel leaves what was there, and behind that bytes on their way: memory of the host that is not pinned is copied at once or
    /// not at all, however long that takes (CUDA Driver API, "API synchronization behavior").
    room: Mutex<Pinned>,
    patience: Duration,
    /// Whether network devices may be given the heap.
    rdma: bool,
    /// And as a dma-buf.
    dma_buf: bool,
    /// Whether what they wrote has to be flushed.
    flushes: bool,
    /// Whether the proxy's thread may ask for anything while others capture streams.
    relaxed: OnceLock<CUstreamCaptureMode>,
}

/// The kernel of atomics.
const ATOMIC: Entry = entry(&kernels::atomic);
/// Bytes of the room for a reply, and for what is copied at once.
const REPLY: usize = 64;
const COPIED: usize = 64 << 10;
/// Its one block.
const GRID: Grid = Grid::one(32);

const fn entry<K: Kernel>(_: &K) -> Entry {
    Entry::of::<K>()
}

impl CudaPe {
    /// How the proxy of the PE that `context` describes accesses heaps. Nothing that it does takes longer than `patience`.
    pub(crate) fn heap_access(
        &self,
        context: abi::Context,
        patience: Duration,
        gpu_direct: bool,
    ) -> Result<HeapAccess, CudaError> {
        let state = connections::count(&self.device, StreamState::new(&self.device)?)?;
        let function = self.modules.function(&ATOMIC)?;
        self.residents.keep_free(function.need(GRID)?);
        let runner = CudaRunner::new(state, &self.device, &self.modules, &self.residents, None);
        let room = Mutex::new(Pinned::new(&self.device, REPLY + COPIED)?);
        let context = abi::Context { routes: 0, ring: 0, ..context };
        let known = &self.device.properties;
        let rdma = gpu_direct && known.rdma && (known.rdma_ordered || known.rdma_flush);
        Ok(HeapAccess {
            runner,
            context,
            room,
            patience,
            rdma,
            dma_buf: rdma && known.dma_buf,
            flushes: rdma && !known.rdma_ordered,
            relaxed: OnceLock::new(),
        })
    }
}

impl HeapAccess {
    /// The stream, for the one thread that uses it.
    fn stream(&self) -> &CudaRunner {
        self.relaxed.get_or_init(|| monitor::relax(self.runner.driver()));
        &self.runner
    }

    /// Waits for all that was put on the stream.
    fn settle(&self) -> Result<(), String> {
        let (state, began) = (self.runner.state(), Instant::now());
        let is_done = state.wait_for(state.submitted(), || began.elapsed() < self.patience);
        match is_done.map_err(told)? {
            true => Ok(()),
            false => Err(format!("the GPU has not come to what its proxy asked for in {:?}", self.patience)),
        }
    }

    /// The PE, and the offset in its heap. `None` for memory of the host.
    fn place(&self, at: *const u8) -> Option<(Pe, u64)> {
        let abi::Context { base, stride, npes, .. } = self.context;
        let from_first = (at.addr() as u64).checked_sub(base)?;
        let pe = from_first / stride;
        (pe < npes.into()).then(|| (Pe::new(pe as u32), from_first % stride))
    }

    /// Copies between heaps and memory that is pinned.
    fn copy_pinned(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String> {
        self.stream().copy(to.expose_provenance() as u64, from.expose_provenance() as u64, bytes).map_err(told)?;
        self.settle()
    }

    fn room(&self) -> MutexGuard<'_, Pinned> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Access for HeapAccess {
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String> {
        let (to_heap, from_heap) = (self.place(to).is_some(), self.place(from).is_some());
        if to_heap && from_heap {
            return self.copy_pinned(to, from, bytes);
        }
        let room = self.room();
        for at in (0..bytes).step_by(COPIED) {
            let some = COPIED.min(bytes - at);
            // SAFETY: so many bytes of the caller's are there from `at` on, and there is room for them behind the reply, which nobody else
            // uses while the lock is held.
            unsafe {
                let (to, from, room) = (to.add(at), from.add(at), room.first().as_ptr().add(REPLY));
                if from_heap {
                    self.copy_pinned(room, from, some)?;
                    to.copy_from_nonoverlapping(room, some);
                } else {
                    room.copy_from_nonoverlapping(from, some);
                    self.copy_pinned(to, room, some)?;
                }
            }
        }
        Ok(())
    }

    unsafe fn load(&self, from: *const u8, bytes: usize) -> Result<u64, String> {
        let mut word = [0; 8];
        // SAFETY: the caller's promise, and a word has at most 8 bytes.
        unsafe { self.copy(word.as_mut_ptr(), from, bytes.min(8)) }?;
        Ok(u64::from_le_bytes(word))
    }

    unsafe fn store(&self, to: *mut u8, bytes: usize, value: u64) -> Result<(), String> {
        let address = to.expose_provenance() as u64;
        match bytes {
            // A byte comes whole however it is copied.
            1 => {
                let byte = value as u8;
                // SAFETY: the caller's promise; the byte stays until the copy is done.
                return unsafe { self.copy(to, &raw const byte, 1) };
            }
            2 => {
                let (op, kind) = (abi::AtomicOp::Swap, abi::NumberKind::Unsigned);
                // SAFETY: the caller's promise.
                return unsafe { self.atomic(to, Atomic { op, kind, bytes: 2, value, expected: 0 }) }.map(drop);
            }
            4 => self.stream().store_half(address, value as u32),
            _ => self.stream().store(address, value),
        }
        .map_err(told)?;
        self.settle()
    }

    unsafe fn atomic(&self, at: *mut u8, atomic: Atomic) -> Result<u64, String> {
        let Atomic { op, kind, bytes, value, expected } = atomic;
        let (pe, offset) = self.place(at).ok_or("an atomic on memory that is no heap")?;
        let room = self.room();
        let word = room.first().cast::<u64>();
        // SAFETY: an aligned word, mapped for the device at the same address, until this PE's machine is gone. Only this launch, which is
        // waited for under the lock, has it.
        let left = unsafe { Relaxed::<u64>::from_raw_parts(word.as_ptr().expose_provenance() as u64, 1) };
        let args = (Sym::<u8>::from_raw(offset, bytes), op as u32, kind as u32, value, expected, left);
        // As that PE, whose own word it is.
        let context = abi::Context { pe: pe.raw(), ..self.context };
        let mut places = vec![(&raw const context).cast_mut().cast()];
        args.places(|place| places.push(place.cast_mut()));
        self.stream().launch(&ATOMIC, GRID, &context, &mut places).map_err(told)?;
        self.settle()?;
        // SAFETY: as above, and the launch is over.
        Ok(unsafe { word.read_volatile() })
    }

    /// Lanes of a GPU poll, and nobody sleeps.
    unsafe fn wake(&self, _sleepers: *const u8, _word: *const u8) {}

    fn is_host(&self) -> bool {
        false
    }

    fn admits_devices(&self) -> bool {
        self.rdma
    }

    unsafe fn dma_buf(&self, from: *const u8, bytes: usize) -> Option<OwnedFd> {
        if !self.dma_buf || self.stream().bind().is_err() {
            return None;
        }
        let (mut file, address, kind): (c_int, _, _) =
            (-1, from.addr() as u64, CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
        let place = (&raw mut file).cast();
        // SAFETY: the context is this thread's, the range is of the heap, and there is room for a descriptor. Where not all of it is
        // mapped, or it is no whole pages, the driver refuses it.
        let given = unsafe { self.runner.driver().mem_get_range_handle(place, address, bytes, kind, 0) };
        // SAFETY: a descriptor that the driver has opened for this caller.
        (given.is_ok() && file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn flush(&self) -> Result<(), String> {
        if !self.flushes {
            return Ok(());
        }
        let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES;
        self.stream().bind().map_err(told)?;
        // SAFETY: the context is this thread's.
        unsafe { self.runner.driver().flush_rdma_writes(target, scope) }.map_err(told)
    }
}

impl fmt::Debug for HeapAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapAccess").field("pe", &self.context.pe).finish_non_exhaustive()
    }
}

impl CudaRunner {
    /// Puts a store of a word of 4 bytes of some heap at the end of the stream, as [`store`](Self::store).
    fn store_half(&self, address: u64, value: u32) -> Result<(), CudaError> {
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        let (driver, state) = (self.driver(), self.state());
        // SAFETY: the word is on a heap, as the caller checked, and aligned; the heap stays mapped until the stream is idle.
        state.put(|stream| unsafe { driver.stream_write_value_32(stream, address, value, flags) })
    }
}
