//! Memory of somebody else's that becomes a symmetric object.

use std::any::type_name;
use std::ffi::c_void;
use std::sync::Arc;

use congruent_device::{Element, Sym};

use super::memory::Chunk;
use super::{CudaError, CudaPe};
use crate::bootstrap::Control;
use crate::machine::Machine;
use crate::{AllocError, CollectiveError, SymVec, World};

/// Why memory was not imported, or not released. All PEs hear of the same cause, and the heaps are as they were.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The call is not alike on all PEs, or the world has failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// No elements, or more than an address space has.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// What is to be released was not imported.
    #[error(
        "the object is of none of this world's imported memory: release what World::import gave, and drop other objects"
    )]
    NotImported,
    /// There is no device whose memory it could be.
    #[error("the CPU machine imports no memory: allocate on the heap and copy, or run on a GPU")]
    NotOnGpu,
    /// The driver or the memory is not as it must be.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl World {
    /// Makes device memory of somebody else's a symmetric object of `len` elements, without a copy: another library's memory,
    /// which kernels of all PEs then reach. Each PE gives its own, of the same size, from `cuMemCreate` and mapped by one
    /// `cuMemMap`; what is in it stays. `cuMemAlloc`'s memory, and so `cudaMalloc`'s, is refused, as it cannot be mapped twice.
    ///
    /// The memory stays part of the heap until it is [released](World::release_imported) or the world is dropped, also after its owner
    /// has given it back; dropping the object does not make its room free. It takes addresses that the heap could have grown by: see
    /// `CONGRUENT_HEAP_MAX`.
    ///
    /// # Collective
    /// Every PE gives memory for the same type and length.
    ///
    /// # Errors
    /// On the CPU machine; where on any PE the memory is not of its device, not a whole mapping, not exportable to PEs of other
    /// processes (`requestedHandleTypes`), not of a size in steps of the heap's granularity, or of another size than on PE 0; where
    /// no addresses are left.
    ///
    /// # Safety
    /// `memory` is the address of device memory that no one accesses otherwise while a kernel or a call of this world does, and
    /// that is mapped when this is called. Its bytes are valid as elements of `T`.
    pub unsafe fn import<T: Element>(&mut self, memory: *mut c_void, len: usize) -> Result<SymVec<T>, ImportError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(AllocError::TooLarge { len, size: size_of::<T>() })? as u64;
        self.agree(format!("importing {len} elements of {} ({} bytes each)", type_name::<T>(), size_of::<T>()))?;
        if bytes == 0 {
            return Err(AllocError::Zero.into());
        }
        let Machine::Cuda(pe) = self.shared().machine() else { return Err(ImportError::NotOnGpu) };
        let imported = pe.import(self.shared().control(), memory.expose_provenance() as u64, bytes);
        let (from, to) = imported.map_err(|error| self.not_imported(error))?;
        let offset = self.grown_by_import(from, to).ok_or(AllocError::TooLarge { len, size: size_of::<T>() })?;
        tracing::info!(pe = self.shared().pe(), bytes = to - from, "memory was imported");
        Ok(SymVec::kept(Sym::from_raw(offset, len as u64), Arc::clone(self.shared())))
    }

    /// Undoes an [import](World::import): no PE has the memory any more when this returns, and once its owner gives it back, it is free.
    /// Waits for the launches of all PEs. The next import of memory of the same size has the same place on the heap.
    ///
    /// # Collective
    /// Every PE releases the same object.
    ///
    /// # Errors
    /// The object was not imported by this world; the driver refuses, and what it has not given back stays until the world is dropped. The
    /// object is dropped in any case.
    ///
    /// # Safety
    /// From here on no PE uses the object, nor any view of it: no launch and no call that it is given to, and no graph that has such a
    /// launch.
    pub unsafe fn release_imported<T: Element>(&mut self, object: SymVec<T>) -> Result<(), ImportError> {
        let offset = object.view().raw_offset();
        let imported = match self.shared().machine() {
            Machine::Cuda(pe) if object.is_of(self.shared()) && object.is_kept() => pe.heap.chunk_at(offset),
            Machine::Cuda(_) | Machine::Cpu(_) => None,
        };
        drop(object);
        let what = if imported.is_some() { "imported" } else { "no imported" };
        self.agree(format!("releasing {what} memory at {offset}"))?;
        let chunk = imported.ok_or(ImportError::NotImported)?;
        self.shared().wait_idle();
        self.agree("releasing, when all PEs are idle".into())?;
        if let Machine::Cuda(pe) = self.shared().machine() {
            pe.release(self.shared().control(), &chunk).map_err(|error| self.not_imported(error))?;
        }
        tracing::info!(pe = self.shared().pe(), bytes = chunk.bytes, "imported memory was released");
        Ok(())
    }

    fn not_imported(&self, error: CudaError) -> ImportError {
        match error {
            CudaError::Control(lost) => self.shared().lost(lost).into(),
            error => ImportError::Cuda(error),
        }
    }
}

impl CudaPe {
    /// Collective: every part has the memory at `address`, from the first offset given to the second.
    fn import(&self, control: &Control, address: u64, needs: u64) -> Result<(u64, u64), CudaError> {
        let growth = self.heap.import(&self.device, control, address, needs)?;
        let (from, bytes) = (growth.chunk().offset, growth.chunk().bytes as u64);
        self.take(control, growth)?;
        Ok((from, from + bytes))
    }

    /// Collective: no kernel of any PE uses the chunk of imported memory any more, and neither the heap nor windows have it from here on.
    fn release(&self, control: &Control, chunk: &Chunk) -> Result<(), CudaError> {
        if let Ok(windows) = &*self.windows {
            windows.unbind(chunk);
        }
        self.heap.release(control, chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, MachineKind};

    #[test]
    fn the_cpu_machine_imports_no_memory() {
        let program = |world: &mut World| {
            let before = world.heap_stats();
            // SAFETY: the address is not used on this machine.
            let refused = unsafe { world.import::<u64>(std::ptr::null_mut(), 8) };
            assert!(matches!(refused, Err(ImportError::NotOnGpu)), "{refused:?}");
            assert_eq!(world.heap_stats(), before);
            let own = world.alloc::<u64>(8)?;
            // SAFETY: nobody uses it.
            let refused = unsafe { world.release_imported(own) };
            assert!(matches!(refused, Err(ImportError::NotImported)), "{refused:?}");
            Ok::<_, Error>(())
        };
        World::builder().machine(MachineKind::Cpu).width(1).heap(16 << 20).local(2, program).unwrap();
    }
}
