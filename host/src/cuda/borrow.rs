//! Streams, events and memory that somebody else made: another library's of the same process, such as PyTorch.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUmemorytype, CUpointer_attribute, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::device_memory::DeviceMemory;
use super::stream_state::StreamState;
use super::{CudaError, CudaPe, CudaRunner, connections};
use crate::machine::Machine;
use crate::runner::Runner;
use crate::{Builder, Event, LaunchError, Stream, World};

/// The handle of the default stream that each thread has for itself (`CU_STREAM_PER_THREAD`).
const PER_THREAD: usize = 2;

impl Builder {
    /// The contexts that PEs compute in, in PE order and from the first again where there are more PEs: cudarc's, which the world keeps.
    /// They choose the devices as well. Without, a PE computes in the primary context of its device, which is the one of
    /// [`CudaContext::new`], the CUDA runtime and PyTorch. On the CPU machine they are not used.
    ///
    /// A GPU runs one context at a time, unless an MPS serves it: give the PEs of a process that share one the same.
    ///
    /// ```no_run
    /// use congruent::cudarc::driver::CudaContext;
    /// use congruent::{Error, World};
    ///
    /// let context = CudaContext::new_non_primary(0, 0)?;
    /// World::builder().contexts([context.clone()]).local(1, |world| {
    ///     let stream = world.borrow_stream(&context.new_stream()?)?;
    ///     Ok::<_, Error>(world.synchronize(&stream)?)
    /// })?;
    /// # Ok::<_, Error>(())
    /// ```
    #[must_use]
    pub fn contexts(mut self, contexts: impl IntoIterator<Item = Arc<CudaContext>>) -> Self {
        self.contexts = contexts.into_iter().collect();
        self
    }
}

impl World {
    /// A stream of cudarc's, which it keeps alive. Launches are ordered with what else is put on it.
    ///
    /// The world uses the primary context of its PE's device, which is the one of `CudaContext::new`, unless [`Builder::contexts`] gave
    /// another. While the stream is captured by
    /// its owner it takes no launches: the graph would not keep the world.
    ///
    /// # Errors
    /// On the CPU machine; the stream is of another context or device, or is the default stream of each thread; the process has more
    /// streams on the device than `CUDA_DEVICE_MAX_CONNECTIONS` has hardware queues.
    pub fn borrow_stream(&self, stream: &Arc<CudaStream>) -> Result<Stream, LaunchError> {
        let Machine::Cuda(pe) = self.shared().machine() else { return Err(LaunchError::NoStreamToBorrow) };
        let runner = pe.share(stream)?;
        self.stream_on(|_| Ok(Runner::Cuda(runner, Arc::clone(self.shared()))))
    }

    /// A stream of somebody else's, given as its `CUstream` or `cudaStream_t`: PyTorch's `torch.cuda.current_stream().cuda_stream`,
    /// cudarc's `CudaStream::cu_stream`. Null is the legacy default stream. Launches are ordered with what its owner puts on it.
    ///
    /// The world uses the primary context of its PE's device, which is the one that the CUDA runtime, PyTorch and cudarc's
    /// `CudaContext::new` have.
    ///
    /// While its owner captures the stream, what it is given becomes part of the owner's graph, and the world knows nothing of that
    /// graph's launches: the owner waits for them. To wait for the stream itself meanwhile fails.
    ///
    /// # Errors
    /// On the CPU machine; the stream is of another context, or is the default stream of each thread; the process has more
    /// streams on the device than `CUDA_DEVICE_MAX_CONNECTIONS` has hardware queues.
    ///
    /// # Safety
    /// The handle is null or that of a stream of this process, and the stream is not destroyed before the `Stream` given is
    /// dropped. Graphs of the owner that have launches of this world in them are not launched after the world is dropped, and
    /// their last launch is complete before.
    pub unsafe fn borrow_raw_stream(&self, stream: *mut c_void) -> Result<Stream, LaunchError> {
        let Machine::Cuda(pe) = self.shared().machine() else { return Err(LaunchError::NoStreamToBorrow) };
        // SAFETY: the caller's promise.
        let runner = unsafe { pe.borrow(stream.cast()) }?;
        self.stream_on(|_| Ok(Runner::Cuda(runner, Arc::clone(self.shared()))))
    }

    /// An event of cudarc's as one of this world's: streams of the world wait for it ([`Stream::wait`]), and the host. It is the point
    /// where it was recorded last; one that never was is complete. For the time between two ([`Event::elapsed`]) both were made with
    /// `CU_EVENT_DEFAULT`.
    ///
    /// ```no_run
    /// use congruent::cudarc::driver::CudaContext;
    ///
    /// congruent::local(1, |world| {
    ///     let theirs = CudaContext::new(world.device().unwrap_or(0) as usize)?.new_stream()?;
    ///     let x = theirs.clone_htod(&[1.0_f32; 100])?;
    ///     let copied = world.import_event(theirs.record_event(None)?)?;
    ///     let ours = world.stream()?;
    ///     ours.wait(&copied)?;                            // what `ours` is given from here on comes after the copy
    ///     let computed = ours.record_event()?;
    ///     world.borrow_stream(&theirs)?.wait(&computed)?; // and what `theirs` is given from here on after that
    ///     # drop(x);
    ///     Ok::<_, congruent::Error>(())
    /// })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// On the CPU machine; the event is of another context or device; it was recorded in a capture, or one is under way that keeps this
    /// thread from asking (`CU_STREAM_CAPTURE_MODE_GLOBAL`): that capture fails then as well.
    pub fn import_event(&self, event: CudaEvent) -> Result<Event, LaunchError> {
        let Machine::Cuda(pe) = self.shared().machine() else { return Err(LaunchError::NoStreamToBorrow) };
        if event.context().cu_ctx() != pe.device.context().raw() {
            return Err(CudaError::ForeignContext { device: pe.device.properties.ordinal }.into());
        }
        let event = super::CudaEvent::imported(pe.device.context(), event);
        // A stream of ours that waited for a point in a capture would become part of it. Nobody else can record the event any more.
        let captured = [CUresult::CUDA_ERROR_CAPTURED_EVENT, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED];
        match event.is_complete() {
            Err(error) if captured.iter().any(|&code| error.is(code)) => Err(CudaError::Captured.into()),
            asked => asked.map(|_| Event::of_cuda(self.shared(), event)).map_err(LaunchError::Cuda),
        }
    }
}

impl Event {
    /// The event as the driver knows it, for other libraries of this process to wait for; `None` on the CPU machine. It is valid as
    /// long as this event or a clone is there, and is neither recorded again nor destroyed. A stream of cudarc's waits for it without:
    /// [`World::borrow_stream`] and [`Stream::wait`].
    pub fn cu_event(&self) -> Option<CUevent> {
        self.cuda().map(super::CudaEvent::raw)
    }
}

impl CudaPe {
    /// Memory that somebody else allocated: on this device, or of the host's and pinned.
    pub(crate) fn borrow_memory(&self, address: u64) -> Result<DeviceMemory, CudaError> {
        self.device.bind()?;
        let (driver, mut kind, mut theirs) = (self.device.driver(), 0_u32, 0_i32);
        let known = [
            (CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast::<c_void>()),
            (CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut theirs).cast()),
        ]
        .into_iter()
        // SAFETY: each value has the type of its attribute (CUDA Driver API, cuPointerGetAttribute).
        .try_for_each(|(attribute, value)| unsafe { driver.pointer_get_attribute(value, attribute, address) });
        let (ours, theirs) = (self.device.properties.ordinal, theirs.unsigned_abs());
        match known {
            Err(error) if error.is(CUresult::CUDA_ERROR_INVALID_VALUE) => Err(CudaError::UnknownAddress { address }),
            Ok(()) if kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 && theirs != ours => {
                Err(CudaError::LentOfDevice { theirs, ours })
            }
            known => known.map(|()| DeviceMemory::borrowed(self.device.keeper().clone(), address)),
        }
    }

    fn share(&self, stream: &Arc<CudaStream>) -> Result<CudaRunner, CudaError> {
        let is_ours = stream.context().cu_ctx() == self.device.context().raw();
        if !is_ours || stream.cu_stream().addr() == PER_THREAD {
            return Err(CudaError::ForeignContext { device: self.device.properties.ordinal });
        }
        let state = connections::count(&self.device, StreamState::shared(&self.device, stream))?;
        Ok(self.register(state))
    }

    /// # Safety
    /// As [`World::borrow_raw_stream`].
    unsafe fn borrow(&self, stream: CUstream) -> Result<CudaRunner, CudaError> {
        self.device.bind()?;
        let mut context = std::ptr::null_mut();
        if stream.addr() != PER_THREAD {
            // SAFETY: the place for the context is there, and the stream lives, as the caller promises.
            unsafe { self.device.driver().stream_get_ctx(stream, &raw mut context) }?;
        }
        if context != self.device.context().raw() {
            return Err(CudaError::ForeignContext { device: self.device.properties.ordinal });
        }
        let state = connections::count(&self.device, StreamState::borrowed(&self.device, stream))?;
        Ok(self.register(state))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, LaunchError, MachineKind, World};

    #[test]
    fn the_cpu_machine_has_no_stream_to_borrow() {
        let program = |world: &mut World| {
            // SAFETY: null is the default stream of any GPU.
            let borrowed = unsafe { world.borrow_raw_stream(std::ptr::null_mut()) };
            assert!(matches!(borrowed.err(), Some(LaunchError::NoStreamToBorrow)));
            Ok::<_, Error>(())
        };
        World::builder().machine(MachineKind::Cpu).width(1).heap(16 << 20).local(1, program).unwrap();
    }
}
