//! The memory of buffers: who uses it, and what has to come before the next use.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use congruent_device::Pod;

use crate::cpu::CpuMemory;
use crate::cuda::{CudaError, DeviceMemory, Pinned};
use crate::machine::Machine;
use crate::shared::Shared;
use crate::{AllocError, Event, WorldFailure};

/// What one buffer has. Launches that were lent it hold it until they are complete.
pub(crate) struct Memory {
    shared: Arc<Shared>,
    /// None where there are no bytes.
    bytes: Option<Bytes>,
    uses: Mutex<Uses>,
}

enum Bytes {
    Cpu(CpuMemory),
    Cuda(DeviceMemory),
    /// Of the host, where the device reaches it: the host accesses it as its own.
    Pinned(CpuMemory, Pinned),
}

/// What a launch does with memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The launches that may still use it: the last one that wrote, and those of each stream that have read since.
#[derive(Default)]
struct Uses {
    write: Option<Use>,
    reads: Vec<Use>,
}

#[derive(Clone)]
struct Use {
    stream: u64,
    /// Complete when the launch is.
    done: Event,
}

impl Memory {
    pub(super) fn new(shared: &Arc<Shared>, bytes: usize) -> Result<Self, AllocError> {
        let made = match shared.machine() {
            _ if bytes == 0 => None,
            Machine::Cpu(_) => Some(Bytes::Cpu(CpuMemory::new(bytes).ok_or(AllocError::NoMemory { bytes })?)),
            Machine::Cuda(pe) => Some(Bytes::Cuda(pe.allocate(bytes).map_err(AllocError::Cuda)?)),
        };
        Ok(Self { shared: Arc::clone(shared), bytes: made, uses: Mutex::default() })
    }

    /// Of the host, for copies that the host does not wait for.
    pub(super) fn of_host(shared: &Arc<Shared>, bytes: usize) -> Result<Self, AllocError> {
        let Machine::Cuda(pe) = shared.machine() else { return Self::new(shared, bytes) };
        if bytes == 0 {
            return Self::new(shared, bytes);
        }
        let pinned = pe.pinned(bytes).map_err(AllocError::Cuda)?;
        let bytes = Some(Bytes::Pinned(CpuMemory::borrowed(pinned.first()), pinned));
        Ok(Self { shared: Arc::clone(shared), bytes, uses: Mutex::default() })
    }

    /// Somebody else's.
    pub(super) fn borrowed(shared: &Arc<Shared>, first: NonNull<u8>) -> Result<Self, CudaError> {
        let bytes = match shared.machine() {
            Machine::Cpu(_) => Bytes::Cpu(CpuMemory::borrowed(first)),
            Machine::Cuda(pe) => Bytes::Cuda(pe.borrow_memory(first.expose_provenance().get() as u64)?),
        };
        Ok(Self { shared: Arc::clone(shared), bytes: Some(bytes), uses: Mutex::default() })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where it begins.
    pub(super) fn address(&self) -> u64 {
        match &self.bytes {
            // Aligned for whatever has no bytes there.
            None => 128,
            Some(Bytes::Cpu(memory) | Bytes::Pinned(memory, _)) => memory.address(),
            Some(Bytes::Cuda(memory)) => memory.address(),
        }
    }

    /// Copies elements from `at` bytes on, when nobody writes them any more.
    ///
    /// # Safety
    /// They are inside, and whoever calls this has borrowed the buffer.
    pub(super) unsafe fn read<T: Pod>(&self, at: usize, out: &mut [T]) -> Result<(), WorldFailure> {
        self.settle(Access::Read)?;
        let out = bytemuck::cast_slice_mut(out);
        match &self.bytes {
            // SAFETY: the caller's promise; the launches that write are complete, and nobody launches others while it is borrowed.
            Some(Bytes::Cpu(memory) | Bytes::Pinned(memory, _)) => unsafe { memory.read(at, out) },
            // SAFETY: as above.
            Some(Bytes::Cuda(memory)) if !out.is_empty() => self.copied(unsafe { memory.read(at, out) })?,
            _ => {}
        }
        Ok(())
    }

    /// Copies `values` over the elements from `at` bytes on, when nobody uses them any more.
    ///
    /// # Safety
    /// They are inside, and whoever calls this has borrowed them exclusively.
    pub(super) unsafe fn write<T: Pod>(&self, at: usize, values: &[T]) -> Result<(), WorldFailure> {
        self.settle(Access::Write)?;
        let bytes = bytemuck::cast_slice(values);
        match &self.bytes {
            // SAFETY: the caller's promise; all launches are complete, and nobody launches others while it is borrowed.
            Some(Bytes::Cpu(memory) | Bytes::Pinned(memory, _)) => unsafe { memory.write(at, bytes) },
            // SAFETY: as above.
            Some(Bytes::Cuda(memory)) if !bytes.is_empty() => self.copied(unsafe { memory.write(at, bytes) })?,
            _ => {}
        }
        Ok(())
    }

    fn copied(&self, outcome: Result<(), CudaError>) -> Result<(), WorldFailure> {
        outcome.map_err(|error| self.shared.machine_failed(&error))
    }

    /// What an access on a stream has to come after: launches on other streams that do what it must not meet.
    pub(super) fn before(&self, access: Access, stream: u64) -> Vec<Event> {
        let uses = self.uses();
        let others = uses.conflicting(access).filter(|used| used.stream != stream);
        others.map(|used| used.done.clone()).collect()
    }

    /// Takes note of a launch on a stream, which came after [`before`](Self::before).
    pub(super) fn used(&self, access: Access, stream: u64, done: &Event) {
        let mut uses = self.uses();
        let used = Use { stream, done: done.clone() };
        match access {
            Access::Write => *uses = Uses { write: Some(used), reads: Vec::new() },
            Access::Read => {
                uses.reads.retain(|read| read.stream != stream);
                uses.reads.push(used);
            }
        }
    }

    /// Waits until no launch does what an access of the host must not meet.
    fn settle(&self, access: Access) -> Result<(), WorldFailure> {
        let uses: Vec<_> = self.uses().conflicting(access).cloned().collect();
        uses.iter().try_for_each(|used| used.done.synchronize())?;
        self.shared.check()
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nobody uses it any more: launches hold what they were lent.
        if let (Machine::Cuda(pe), Some(Bytes::Pinned(_, pinned))) = (self.shared.machine(), self.bytes.take()) {
            pe.keep(pinned);
        }
    }
}

impl Uses {
    fn conflicting(&self, access: Access) -> impl Iterator<Item = &Use> {
        let reads = if access == Access::Write { &self.reads[..] } else { &[] };
        self.write.iter().chain(reads)
    }
}
