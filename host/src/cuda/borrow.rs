//! Streams that somebody else made: another library's of the same process, such as PyTorch.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;

use super::lane::Lane;
use super::{CudaError, CudaPe, CudaRunner, connections};
use crate::machine::Machine;
use crate::runner::Runner;
use crate::{LaunchError, Stream, World};

/// The handle of the default stream that each thread has for itself (`CU_STREAM_PER_THREAD`).
const PER_THREAD: usize = 2;

impl World {
    /// A stream of cudarc's, which it keeps alive. Launches are ordered with what else is put on it.
    ///
    /// The world uses the primary context of its PE's device, which is the one of `CudaContext::new`. While the stream is captured by
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
}

impl CudaPe {
    fn share(&self, stream: &Arc<CudaStream>) -> Result<CudaRunner, CudaError> {
        let is_ours = stream.context().cu_ctx() == self.device.context().raw();
        if !is_ours || stream.cu_stream().addr() == PER_THREAD {
            return Err(CudaError::ForeignContext { device: self.device.properties.ordinal });
        }
        let lane = connections::count(&self.device, Lane::shared(&self.device, stream))?;
        Ok(self.register(lane))
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
        let lane = connections::count(&self.device, Lane::borrowed(&self.device, stream))?;
        Ok(self.register(lane))
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
