//! The driver's library: loaded once, and known to be complete before anything calls it.
//!
//! cudarc looks symbols up at their first use and panics where one is missing. So every symbol that the parts of cudarc
//! used here will call is looked up first, and an old or damaged driver is an error like any other.

use std::error::Error as _;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::calls::{Calls, find};
use super::error::{Code, CudaError, CudaVersion, TEXTS, Texts};

/// The name that a driver installs its library under. The one without the number comes with toolkits, too.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver: its launch attributes and stream operations are used.
const OLDEST: CudaVersion = CudaVersion::new(12, 0);

/// What cudarc calls for contexts, streams, events, modules, launches, copies and graphs; and the version of CUDA that
/// brought each.
const OF_CUDARC: &[(&str, CudaVersion)] = &{
    const fn since(symbol: &'static str, major: u32, minor: u32) -> (&'static str, CudaVersion) {
        (symbol, CudaVersion::new(major, minor))
    }
    [
        since("cuGetErrorName", 6, 0),
        since("cuGetErrorString", 6, 0),
        since("cuInit", 2, 0),
        since("cuDeviceGet", 2, 0),
        since("cuDeviceGetAttribute", 2, 0),
        since("cuDevicePrimaryCtxRetain", 7, 0),
        since("cuDevicePrimaryCtxRelease_v2", 11, 0),
        since("cuCtxGetCurrent", 4, 0),
        since("cuCtxSetCurrent", 4, 0),
        since("cuStreamCreate", 2, 0),
        since("cuStreamDestroy_v2", 4, 0),
        since("cuStreamSynchronize", 2, 0),
        since("cuStreamQuery", 2, 0),
        since("cuStreamBeginCapture_v2", 10, 1),
        since("cuStreamEndCapture", 10, 0),
        since("cuStreamIsCapturing", 10, 0),
        since("cuEventCreate", 2, 0),
        since("cuEventDestroy_v2", 4, 0),
        since("cuEventRecord", 2, 0),
        since("cuEventQuery", 2, 0),
        since("cuModuleUnload", 2, 0),
        since("cuModuleGetFunction", 2, 0),
        since("cuFuncGetAttribute", 2, 2),
        since("cuLaunchKernel", 4, 0),
        since("cuLaunchCooperativeKernel", 9, 0),
        since("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6, 5),
        since("cuMemHostAlloc", 2, 2),
        since("cuMemFreeHost", 2, 0),
        since("cuMemcpyHtoDAsync_v2", 3, 2),
        since("cuMemcpyDtoHAsync_v2", 3, 2),
        since("cuMemsetD8Async", 3, 2),
        since("cuMemcpyDtoDAsync_v2", 3, 2),
        since("cuGraphInstantiateWithFlags", 11, 4),
        since("cuGraphLaunch", 10, 0),
        since("cuGraphExecDestroy", 10, 0),
        since("cuGraphDestroy", 10, 0),
    ]
};

/// The driver, ready to be called from any thread.
pub(crate) struct Driver {
    library: &'static Library,
    version: CudaVersion,
    pub(super) calls: Calls,
}

impl Driver {
    /// The process's driver. What went wrong the first time is told every time: a library does not come back.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::load(LIBRARY)).as_ref().map_err(Clone::clone)
    }

    /// The version of CUDA that the driver is for.
    pub(crate) fn version(&self) -> CudaVersion {
        self.version
    }

    /// Calls that this driver lacks, and the versions that brought them: what needs one of them is refused.
    pub(crate) fn missing(&self) -> Vec<(&'static str, CudaVersion)> {
        self.calls.missing()
    }

    /// A function that drivers need not have.
    ///
    /// # Safety
    /// `F` is the type of the function that has this name.
    pub(super) unsafe fn optional<F: Copy>(&self, symbol: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { find(self.library, symbol) }
    }

    fn load(name: &str) -> Result<Self, CudaError> {
        let library = open(name)?;
        // The version first: an old driver also lacks symbols, and its age is the better reason.
        let version = version(library)?;
        if version < OLDEST {
            return Err(CudaError::DriverTooOld { found: version, needs: OLDEST });
        }
        for &(symbol, since) in OF_CUDARC {
            // SAFETY: any function can be looked at as one without parameters, as long as nobody calls it.
            unsafe { find::<unsafe extern "C" fn()>(library, symbol) }
                .ok_or(CudaError::MissingSymbol { symbol, since })?;
        }
        one_library(library)?;
        TEXTS.get_or_init(|| {
            // SAFETY: both take a number and a place for a string (CUDA driver API, error handling).
            let [name, text] = ["cuGetErrorName", "cuGetErrorString"].map(|symbol| unsafe { find(library, symbol) });
            Texts { name, text }
        });
        // SAFETY: `cuInit` takes flags and returns a number (CUDA driver API, initialization).
        let init: Option<unsafe extern "C" fn(c_uint) -> Code> = unsafe { find(library, "cuInit") };
        let init = init.ok_or(CudaError::MissingSymbol { symbol: "cuInit", since: CudaVersion::new(2, 0) })?;
        // SAFETY: the one flag that it may get is 0, and it may be called any number of times, from any thread.
        CudaError::check("cuInit", unsafe { init(0) })?;
        Ok(Self { library, version, calls: Calls::find(library) })
    }
}

/// Loads the library for good: the driver keeps threads and handlers of its own, and cannot be unloaded under them.
fn open(name: &str) -> Result<&'static Library, CudaError> {
    // SAFETY: the library's initializers are those of the driver, which every CUDA program runs; or of what the user
    // put in its place by LD_LIBRARY_PATH, as much theirs to choose as the program itself.
    let library = unsafe { Library::new(name) }.map_err(|error| {
        // What the loader said is the error's source.
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        CudaError::NoLibrary { reason }
    })?;
    Ok(Box::leak(Box::new(library)))
}

fn version(library: &Library) -> Result<CudaVersion, CudaError> {
    let symbol = "cuDriverGetVersion";
    // SAFETY: the call takes a place for a number (CUDA driver API, version management).
    let get: Option<unsafe extern "C" fn(*mut c_int) -> Code> = unsafe { find(library, symbol) };
    let get = get.ok_or(CudaError::MissingSymbol { symbol, since: CudaVersion::new(2, 2) })?;
    let mut number = 0;
    // SAFETY: the place is there; the call needs no initialization before it.
    CudaError::check(symbol, unsafe { get(&raw mut number) })?;
    Ok(CudaVersion::of_driver(number))
}

/// cudarc tries `libcuda.so` and other names first. Two libraries in one process would not know each other's handles.
fn one_library(ours: &Library) -> Result<(), CudaError> {
    // SAFETY: as in `open`: it loads what the user's library path leads to.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoLibrary { reason: format!("{LIBRARY} was there and is gone") });
    }
    // SAFETY: the library was found a moment ago, and cudarc keeps it from here on.
    let theirs = unsafe { sys::culib() };
    // SAFETY: only the addresses of the functions are compared; nothing is called.
    let [ours, theirs] = [ours, theirs].map(|library| unsafe { find::<*const ()>(library, "cuInit") });
    if ours == theirs { Ok(()) } else { Err(CudaError::TwoLibraries) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_names_it() {
        let failed = Driver::load("libcongruent-no-such-driver.so.1").err();
        let Some(CudaError::NoLibrary { reason }) = failed else { panic!("{failed:?}") };
        assert!(reason.contains("libcongruent-no-such-driver.so.1"), "{reason}");
    }

    /// The C library is no driver.
    #[test]
    fn a_library_without_the_calls_is_an_error_that_names_one() {
        let failed = Driver::load("libc.so.6").err();
        assert!(matches!(failed, Some(CudaError::MissingSymbol { symbol: "cuDriverGetVersion", .. })), "{failed:?}");
    }

    #[test]
    fn asking_again_tells_the_same() {
        assert_eq!(Driver::get().map(Driver::version), Driver::get().map(Driver::version));
    }

    #[test]
    fn every_symbol_is_of_a_driver_that_is_accepted_and_stands_once() {
        let names: BTreeSet<_> = OF_CUDARC.iter().map(|(symbol, _)| symbol).collect();
        assert_eq!(names.len(), OF_CUDARC.len());
        assert!(OF_CUDARC.iter().all(|(symbol, since)| symbol.starts_with("cu") && *since <= OLDEST));
    }
}
