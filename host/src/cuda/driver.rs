//! The driver: its library, loaded once, or the virtual driver, which is part of this program.
//!
//! cudarc looks symbols up by itself, in a library of its own choice, and panics where one is missing. So only its types are
//! used here, and every call is made through a table: an old or damaged driver is an error like any other.

use std::error::Error as _;
use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::Library;

use super::calls::Calls;
use super::error::{CudaError, CudaVersion, TEXTS, Texts};
use crate::MachineKind;

/// The name that a driver installs its library under. The one without the number comes with toolkits, too.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver: its launch attributes and stream operations are used.
const OLDEST: CudaVersion = CudaVersion::new(12, 0);

/// Where a driver's functions are.
#[derive(Clone, Copy)]
pub(super) enum Symbols {
    /// In a library, which is never unloaded.
    Library(&'static Library),
    /// In this program: the virtual driver.
    #[cfg(feature = "virtual")]
    Linked,
}

impl Symbols {
    /// A function, if it is there.
    ///
    /// # Safety
    /// `F` is the type of the function that has this name.
    pub(super) unsafe fn find<F: Copy>(self, symbol: &str) -> Option<F> {
        match self {
            // SAFETY: the type is the caller's promise; only the value of the symbol is read, nothing is called.
            Self::Library(library) => unsafe { library.get::<F>(symbol) }.ok().map(|found| *found),
            #[cfg(feature = "virtual")]
            Self::Linked => {
                let found = congruent_virtual_driver::function(symbol)?;
                let is_one = size_of::<F>() == size_of_val(&found);
                // SAFETY: as many bytes; the address is that of a function, of the type that the caller promises.
                is_one.then(|| unsafe { std::mem::transmute_copy(&found) })
            }
        }
    }
}

/// The driver, ready to be called from any thread.
pub struct Driver {
    symbols: Symbols,
    version: CudaVersion,
    pub(super) calls: Calls,
}

impl Driver {
    /// The process's driver. What went wrong the first time is told every time: a library does not come back.
    pub fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::load(LIBRARY)).as_ref().map_err(Clone::clone)
    }

    /// The driver that a machine uses.
    pub(crate) fn of(kind: MachineKind) -> Result<&'static Self, CudaError> {
        match kind {
            #[cfg(feature = "virtual")]
            MachineKind::Virtual => Self::linked(),
            #[cfg(not(feature = "virtual"))]
            MachineKind::Virtual => Err(CudaError::NoVirtual),
            MachineKind::Auto | MachineKind::Cpu | MachineKind::Cuda => Self::get(),
        }
    }

    #[cfg(feature = "virtual")]
    fn linked() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::start(Symbols::Linked)).as_ref().map_err(Clone::clone)
    }

    /// The version of CUDA that the driver is for.
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// Calls that this driver lacks, and the versions that brought them: what needs one of them is refused.
    pub fn missing(&self) -> Vec<(&'static str, CudaVersion)> {
        self.calls.missing()
    }

    /// A function that drivers need not have.
    ///
    /// # Safety
    /// `F` is the type of the function that has this name.
    pub(super) unsafe fn optional<F: Copy>(&self, symbol: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { self.symbols.find(symbol) }
    }

    fn load(name: &str) -> Result<Self, CudaError> {
        Self::start(Symbols::Library(open(name)?))
    }

    fn start(symbols: Symbols) -> Result<Self, CudaError> {
        let mut driver = Self { symbols, version: CudaVersion::new(0, 0), calls: Calls::find(&symbols) };
        // The version first: an old driver also lacks symbols, and its age is the better reason.
        driver.version = driver.read_version()?;
        if driver.version < OLDEST {
            return Err(CudaError::DriverTooOld { found: driver.version, needs: OLDEST });
        }
        // A stream that cannot be asked would be taken for one that has failed, which is idle: this call must be there.
        if let Some(&(symbol, since)) = driver.missing().iter().find(|(symbol, _)| *symbol == "cuStreamQuery") {
            return Err(CudaError::MissingSymbol { symbol, since });
        }
        TEXTS.get_or_init(|| {
            // SAFETY: both take a number and a place for a string (CUDA driver API, error handling).
            let [name, text] = ["cuGetErrorName", "cuGetErrorString"].map(|symbol| unsafe { symbols.find(symbol) });
            Texts { name, text }
        });
        // SAFETY: the one flag that it may get is 0, and it may be called any number of times, from any thread.
        unsafe { driver.init(0) }?;
        Ok(driver)
    }

    fn read_version(&self) -> Result<CudaVersion, CudaError> {
        let mut number: c_int = 0;
        // SAFETY: the place is there; the call needs no initialization before it.
        unsafe { self.driver_get_version(&raw mut number) }?;
        Ok(CudaVersion::of_driver(number))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
