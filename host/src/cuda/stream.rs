//! A stream of the CUDA machine.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaStream, DriverError, result, sys};

use super::module::{Entry, Modules};
use super::{CudaError, Device};
use crate::{Grid, LaunchError};

/// One PE's queue of launches on its GPU. Dropping it waits for them, for as long as that makes sense.
pub(crate) struct CudaRunner {
    lane: Arc<Lane>,
    device: Arc<Device>,
    modules: Arc<Modules>,
}

/// The driver's stream, and how far it is.
pub(crate) struct Lane {
    stream: Arc<CudaStream>,
    device: Arc<Device>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    submitted: u64,
    completed: u64,
}

/// How long a stream is polled without a pause, and how long the pauses are then.
const EAGER: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(50);

impl CudaRunner {
    pub(super) fn new(device: &Arc<Device>, modules: &Arc<Modules>) -> Result<Self, CudaError> {
        let stream = device.context().new_stream().map_err(CudaError::of("cuStreamCreate"))?;
        let lane = Arc::new(Lane { stream, device: Arc::clone(device), counts: Mutex::default() });
        Ok(Self { lane, device: Arc::clone(device), modules: Arc::clone(modules) })
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Puts a kernel at the end of the stream. `places` are those of its parameters, in their order.
    pub(crate) fn launch(&self, entry: &Entry, grid: Grid, places: &mut [*mut c_void]) -> Result<(), LaunchError> {
        let function = self.modules.function(entry)?;
        let most = function.most_threads();
        if grid.threads > most {
            return Err(LaunchError::TooManyThreads { kernel: entry.name, asked: grid.threads, fits: most });
        }
        let fits = function.most_blocks(grid.threads, &self.device)?;
        if grid.blocks > fits {
            return Err(LaunchError::NotCoresident { asked: grid.blocks, fits });
        }
        let shape = ((grid.blocks, 1, 1), (grid.threads, 1, 1));
        let stream = self.lane.stream.cu_stream();
        // A cooperative launch makes sure that its own blocks run at once. Where PEs share a GPU that is not enough, and what
        // `most_blocks` counts is: blocks of all of them.
        // SAFETY: the function is of a module that is loaded, `places` has one entry for each parameter of it (the kernel's own
        // argument types), and what they point to is copied before the call returns. What the kernel does with memory is
        // argued where it does it; the heap stays mapped until the stream is idle.
        let launched = unsafe {
            match self.device.sharing() {
                1 => result::launch_cooperative_kernel(function.raw(), shape.0, shape.1, 0, stream, places),
                _ => result::launch_kernel(function.raw(), shape.0, shape.1, 0, stream, places),
            }
        };
        launched.map_err(CudaError::of("cuLaunchKernel"))?;
        self.lane.counts().submitted += 1;
        Ok(())
    }
}

impl Lane {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.counts().submitted
    }

    /// Whether everything launched so far is complete. A stream that has failed is.
    pub(crate) fn is_idle(&self) -> bool {
        !matches!(self.poll(), Ok(false))
    }

    /// Whether everything launched so far is complete.
    pub(crate) fn poll(&self) -> Result<bool, CudaError> {
        let before = self.counts().submitted;
        self.device.bind()?;
        // SAFETY: the stream is owned by this lane.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_SUCCESS => {
                let mut counts = self.counts();
                counts.completed = counts.completed.max(before);
                Ok(true)
            }
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            error => Err(CudaError::of("cuStreamQuery")(DriverError(error))),
        }
    }

    /// Waits until its first `count` launches are complete, for as long as `patient` says. False when it lost patience.
    pub(crate) fn wait_for(&self, count: u64, patient: impl Fn() -> bool) -> Result<bool, CudaError> {
        let began = Instant::now();
        while self.counts().completed < count {
            if self.poll()? {
                break;
            }
            if !patient() {
                return Ok(false);
            }
            if began.elapsed() > EAGER {
                std::thread::sleep(PAUSE);
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(true)
    }
}
