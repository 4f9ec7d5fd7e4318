//! What the virtual driver has beside the driver's functions, for the tests that use it.

use core::ffi::c_char;

use cudarc::driver::sys::CUresult;

use crate::entry::{Argument, Ptr};
use crate::native::{self, NativeBody};
use crate::{engine, fault};

/// Registers the native body of the kernel `name`, in place of an earlier one; none takes it away. Launches look for it
/// when they are made: without a body they give `CUDA_ERROR_NOT_FOUND`.
///
/// # Safety
/// `name` is null or ends with a zero. `run` takes parameters as the PTX of that name declares them, may be called on
/// any thread until the process ends, and never unwinds: it is a plain C function, which reports what goes wrong in it
/// by [`congruentVirtualTrap`].
#[cfg_attr(feature = "library", unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named in the manner of the driver's functions")]
pub unsafe extern "C" fn congruentVirtualBody(name: *const c_char, run: NativeBody) -> CUresult {
    // SAFETY: null or a text, as the caller promises.
    let name: Ptr<c_char> = unsafe { name.take() };
    match name.text() {
        Ok(name) => {
            native::register(name, run);
            CUresult::CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Called by a body: faults its context as a trap does on a GPU. From then on every call in that context gives
/// `CUDA_ERROR_LAUNCH_FAILED`, until the process ends, and nothing that was put on its streams begins any more. Blocks
/// that run go on: nobody can stop native code.
///
/// Gives `CUDA_ERROR_INVALID_CONTEXT` on a thread that runs no block.
#[cfg_attr(feature = "library", unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named in the manner of the driver's functions")]
pub extern "C" fn congruentVirtualTrap() -> CUresult {
    match native::trap() {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}

/// How often a function was called in this process, by its exported name; calls that failed count. 0 for names that
/// there are not.
///
/// # Safety
/// `name` is null or ends with a zero.
#[cfg_attr(feature = "library", unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named in the manner of the driver's functions")]
pub unsafe extern "C" fn congruentVirtualCalls(name: *const c_char) -> u64 {
    // SAFETY: null or a text, as the caller promises.
    let name: Ptr<c_char> = unsafe { name.take() };
    name.text().map_or(0, |name| fault::calls(&name))
}

/// How many instructions the lanes of this process's virtual GPUs have executed: one of a whole warp counts 32. 0 where the job has
/// an engine for all its processes.
#[cfg_attr(feature = "library", unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named in the manner of the driver's functions")]
pub extern "C" fn congruentVirtualExecuted() -> u64 {
    engine::executed()
}
