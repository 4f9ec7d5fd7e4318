//! What can go wrong with the driver, its devices and their memory.

use std::ffi::{CStr, c_char, c_uint};
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys;

use crate::bootstrap::ControlError;

/// Why the CUDA machine cannot do something.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver's library.
    #[error(
        "the CUDA driver's library cannot be loaded: {reason}; install NVIDIA's driver 525 or newer (in a container: give it \
         the GPUs), or run on the CPU"
    )]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// This program has no virtual GPUs.
    #[error("CONGRUENT_MACHINE=virtual: this program was built without the feature `virtual` of the crate congruent")]
    NoVirtual,
    /// The driver lacks a call.
    #[error(
        "the CUDA driver has no {symbol}, which came with CUDA {since}: install a driver for CUDA {since} or newer"
    )]
    MissingSymbol {
        /// The call's name in the library.
        symbol: &'static str,
        /// The version of CUDA that brought it.
        since: CudaVersion,
    },
    /// The driver is older than anything that was tried.
    #[error("the CUDA driver is for CUDA {found}, and CUDA {needs} is needed: install a newer driver")]
    DriverTooOld {
        /// What the driver says of itself.
        found: CudaVersion,
        /// The oldest that is good.
        needs: CudaVersion,
    },
    /// Contexts of another driver.
    #[error(
        "CONGRUENT_MACHINE=virtual: Builder::contexts gave contexts of the driver that cudarc finds, and the virtual GPUs have one of their \
         own in this program; give none there"
    )]
    OtherDriver,
    /// A driver, but nothing for it to drive.
    #[error("the CUDA driver finds no GPU: look at CUDA_VISIBLE_DEVICES, and at `nvidia-smi -L`, or run on the CPU")]
    NoDevice,
    /// A device was asked for that is not there.
    #[error(
        "there is no device {ordinal}, devices are 0..{count}: give one of them to CONGRUENT_DEVICE or Builder::devices, or leave it out"
    )]
    NoSuchDevice {
        /// The device asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The device or its driver cannot do what the machine rests on.
    #[error("{what} is not supported by {device}: choose another device with CONGRUENT_DEVICE, or run on the CPU")]
    Unsupported {
        /// What is missing.
        what: &'static str,
        /// The device's name.
        device: String,
    },
    /// A call of the driver failed.
    #[error("{call}: {name} ({code}), {text}; {}", advice(*code))]
    Call {
        /// The call.
        call: &'static str,
        /// The driver's number for the failure.
        code: u32,
        /// The driver's name for it.
        name: String,
        /// The driver's words for it.
        text: String,
    },
    /// The device's memory is not enough.
    #[error(
        "{asked} bytes of device memory were asked for and {free} of {total} are free: give a smaller CONGRUENT_HEAP, or run \
         fewer PEs on a device"
    )]
    OutOfMemory {
        /// How much was asked for, in bytes.
        asked: u64,
        /// How much was free, in bytes.
        free: u64,
        /// How much the device has, in bytes.
        total: u64,
    },
    /// No address was free in all PEs.
    #[error(
        "no range of {bytes} bytes of addresses is free in all PEs: give a smaller CONGRUENT_HEAP_MAX, and look for a limit on \
         address space (ulimit -v)"
    )]
    NoAddress {
        /// The size of the range.
        bytes: u64,
    },
    /// Two devices that cannot read each other's memory.
    #[error(
        "the device of PE {from} cannot access the memory of PE {to}'s device: choose devices that `nvidia-smi topo -p2p r` \
         shows as OK, or put all PEs on one device with CONGRUENT_DEVICE"
    )]
    Unreachable {
        /// The PE whose device would access.
        from: u32,
        /// The PE whose memory it is.
        to: u32,
    },
    /// The size asked for is zero, or more than addresses there are.
    #[error(
        "heaps of {heap_bytes} bytes, at most {heap_max}, for each of {npes} PEs: give 1 or more, and no more than fits"
    )]
    Size {
        /// The size of one PE's heap.
        heap_bytes: u64,
        /// What it may grow to.
        heap_max: u64,
        /// The number of PEs.
        npes: u32,
    },
    /// The PEs ask for heaps of different sizes.
    #[error("PE {pe} asks for a heap of {theirs} bytes and PE 0 for {first}: give all PEs the same size")]
    Mismatch {
        /// The first PE that differs from PE 0.
        pe: u32,
        /// The size it asks for.
        theirs: u64,
        /// The size PE 0 asks for.
        first: u64,
    },
    /// A heap cannot be as large as was asked for later.
    #[error("the heap cannot grow to {to_bytes} bytes, its addresses end at {limit}: give a larger CONGRUENT_HEAP_MAX")]
    GrowthLimit {
        /// The size asked for.
        to_bytes: u64,
        /// The most that it can have.
        limit: u64,
    },
    /// Memory of somebody else's that cannot be part of the heap.
    #[error(
        "the memory at {address:#x} cannot be imported: {reason}; give a whole mapping of cuMemMap, of one cuMemCreate on this PE's \
         device"
    )]
    Foreign {
        /// Where it is.
        address: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A PE of this host did not hand over the device memory that it was to share.
    #[error("a PE of this host did not hand over the device memory that it was to share")]
    Apart,
    /// The system refused something that is not the driver's.
    #[error("{doing}: {reason}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
    /// A kernel without PTX.
    #[error(
        "kernel {kernel} has no PTX, which GPUs run: run `congruent-build build` in its crate, and name the crate's module \
         (`kernels! {{ in crate::PTX; ... }}`), or give the file that it wrote in CONGRUENT_PTX"
    )]
    NoPtx {
        /// The kernel.
        kernel: &'static str,
    },
    /// PTX, but none that the GPU can run.
    #[error("the PTX of {module} is for {has}, and this GPU is {device}: build it for that, or an older one")]
    NoImage {
        /// The crate, or the file.
        module: &'static str,
        /// What there is.
        has: String,
        /// What the GPU is.
        device: String,
    },
    /// PTX that was made of other sources than this program.
    #[error(
        "the PTX of {module} was built from other sources than this program: kernel {kernel} takes parameters of {} bytes there, \
         and the host gives {}; build it again with congruent-build",
        list(has),
        list(needs)
    )]
    OtherPtx {
        /// The crate, or the file.
        module: &'static str,
        /// The kernel.
        kernel: &'static str,
        /// Bytes of each parameter that the PTX declares, the context first.
        has: Vec<usize>,
        /// Bytes that they would have to be.
        needs: Vec<usize>,
    },
    /// PTX that the driver's compiler refuses.
    #[error("the driver refuses the PTX of {module} for {arch}: {log}; rebuild it, or install a newer driver")]
    BadPtx {
        /// The crate, or the file.
        module: &'static str,
        /// What it is for.
        arch: &'static str,
        /// What the compiler said.
        log: String,
    },
    /// PTX of a version that came after the driver.
    #[error(
        "the PTX of {module} for {arch} is too new for the driver: {log}; install a newer driver, or build older PTX"
    )]
    PtxTooNew {
        /// The crate, or the file.
        module: &'static str,
        /// What it is for.
        arch: &'static str,
        /// What the compiler said.
        log: String,
    },
    /// A file of `CONGRUENT_PTX`.
    #[error("CONGRUENT_PTX names {path}, which is no PTX: {reason}; give a file that congruent-build wrote")]
    PtxFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A stream whose owner captures it, or which a capture of this world is for already; an event that was recorded in a capture.
    #[error(
        "the stream is being captured, and neither it nor an event that was recorded there can be waited for, nor can it be captured \
         again: do that after the capture, and record events outside of it"
    )]
    Captured,
    /// A borrowed stream of another context, or such an event.
    #[error(
        "the stream or event is not of the context on device {device} that this PE computes in, the primary one unless Builder::contexts \
         gave another: give one that was made there (by the CUDA runtime, with cudaSetDevice({device})), and not the default stream of \
         each thread"
    )]
    ForeignContext {
        /// The PE's device.
        device: u32,
    },
    /// A slice, or memory at an address, of another device.
    #[error(
        "the memory that was lent is of device {theirs}, and this PE computes on device {ours}: allocate it there, or choose the PE's device with \
         Builder::devices or CONGRUENT_DEVICE"
    )]
    LentOfDevice {
        /// Its device.
        theirs: u32,
        /// The PE's device.
        ours: u32,
    },
    /// A slice of another context.
    #[error(
        "the slice is of a context of device {device} that this world does not use: allocate it in that of CudaContext::new({device}), or \
         give the world its context with Builder::contexts"
    )]
    SliceOfContext {
        /// The device of both.
        device: u32,
    },
    /// An address that the driver does not know.
    #[error(
        "address {address:#x} is no memory of a device, nor pinned memory of the host: give the address that its allocation on the device \
         gave, or copy the host's memory to a buffer (World::copy)"
    )]
    UnknownAddress {
        /// The address.
        address: u64,
    },
    /// Memory that begins where elements cannot.
    #[error(
        "elements were to begin at {address:#x}, which is no multiple of {align}, as they need it: give memory that does"
    )]
    Misaligned {
        /// Where it begins.
        address: u64,
        /// What its elements need.
        align: usize,
    },
    /// Multicast was asked for and cannot be had.
    #[error("no multicast, which CONGRUENT_NVLS_ENABLE=1 asks for: {reason}; set it to 2 to do without")]
    NoMulticast {
        /// Why not.
        reason: String,
    },
    /// All multicast windows are taken.
    #[error("all {windows} multicast windows are taken: drop teams, and their windows are free once all PEs have")]
    NoWindow {
        /// How many there are, the world's included.
        windows: u32,
    },
    /// More streams on one device than its hardware queues.
    #[error(
        "{streams} streams of this process on one device, one of them the library's own, share {connections} hardware queues, and \
         two in one queue can wait for each other for ever: {}make fewer streams, or make the PEs processes",
        more_queues(*.connections, *.advised)
    )]
    TooManyStreams {
        /// The streams, the one that was asked for and the library's own included.
        streams: usize,
        /// The queues.
        connections: usize,
        /// What `CUDA_DEVICE_MAX_CONNECTIONS` can be for as many PEs on the device.
        advised: usize,
    },
    /// It failed on another PE.
    #[error("PE {pe}: {message}")]
    Peer {
        /// The PE where it failed.
        pe: u32,
        /// What that PE reports.
        message: String,
    },
    /// The PEs lost each other meanwhile.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl CudaError {
    /// Nothing for a call that succeeded, else the error that the driver reports for `call`.
    pub(crate) fn check(call: &'static str, result: impl Into<Code>) -> Result<(), Self> {
        match result.into().0 {
            0 => Ok(()),
            code => Err(Self::of_code(call, code)),
        }
    }

    fn of_code(call: &'static str, code: u32) -> Self {
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32 {
            return Self::NoDevice;
        }
        if code == sys::CUresult::CUDA_ERROR_NOT_READY as u32 {
            // The answer to a question that is asked all the time: nobody reads it, so it is not put into words.
            return Self::Call { call, code, name: String::new(), text: String::new() };
        }
        let texts = TEXTS.get();
        let name = texts.and_then(|texts| texts.name(code)).unwrap_or_else(|| "an error without a name".into());
        let text =
            texts.and_then(|texts| texts.text(code)).unwrap_or_else(|| "which this driver does not explain".into());
        Self::Call { call, code, name, text }
    }

    /// Whether it is a call that failed with this code.
    pub(super) fn is(&self, expected: sys::CUresult) -> bool {
        matches!(self, Self::Call { code, .. } if *code == expected as u32)
    }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What to do about a failed call, by the driver's number for the failure.
fn advice(code: u32) -> &'static str {
    match code {
        2 => "free device memory, or give smaller heaps",
        34 => "take the CUDA toolkit's `stubs` folder out of LD_LIBRARY_PATH",
        46 => "another process has the device for itself; look at `nvidia-smi -q -d COMPUTE`",
        100..=101 => "look at CUDA_VISIBLE_DEVICES",
        200 | 209 | 218 | 222 | 300 => "rebuild the kernels' PTX for this device and driver",
        214 | 700 | 702 | 710 | 714..=719 => {
            "the device's context is lost: end this process, and look for the kernel at fault"
        }
        217 | 708 => "choose devices that `nvidia-smi topo -p2p r` shows as OK",
        800 => "fabric handles need a channel in /dev/nvidia-caps-imex-channels that this user may open",
        801 => "`congruent doctor` tells what the device supports",
        802 | 803 | 804 | 999 => {
            "restart the machine, or its NVIDIA services, so that driver and library are of one version"
        }
        _ => "`congruent doctor` tells what was found on this machine",
    }
}

/// What a call of the driver returns. It is a number and not cudarc's enum, because a newer driver may return one that
/// the enum does not have.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Code(pub(super) c_uint);

impl From<sys::CUresult> for Code {
    fn from(result: sys::CUresult) -> Self {
        Self(result as u32)
    }
}

/// How to have more hardware queues, where there can be more.
fn more_queues(connections: usize, advised: usize) -> String {
    if connections >= advised {
        return String::new();
    }
    format!("set CUDA_DEVICE_MAX_CONNECTIONS={advised} before the program starts, ")
}

/// A version of CUDA, such as 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The number before the point.
    pub major: u32,
    /// The number after it.
    pub minor: u32,
}

impl CudaVersion {
    pub(super) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// From the driver's way to write it: 12080 is 12.8.
    pub(super) fn of_driver(number: i32) -> Self {
        let number = number.max(0).unsigned_abs();
        Self::new(number / 1000, number % 1000 / 10)
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `cuGetErrorName` or `cuGetErrorString`.
pub(super) type Describe = unsafe extern "C" fn(c_uint, *mut *const c_char) -> Code;

/// The driver's own words, once it is loaded.
pub(super) static TEXTS: OnceLock<Texts> = OnceLock::new();

pub(super) struct Texts {
    pub(super) name: Option<Describe>,
    pub(super) text: Option<Describe>,
}

impl Texts {
    fn name(&self, code: u32) -> Option<String> {
        ask(self.name?, code)
    }

    fn text(&self, code: u32) -> Option<String> {
        ask(self.text?, code)
    }
}

fn ask(describe: Describe, code: u32) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: the call takes any number and writes one pointer, to a string of the library or null (CUDA driver API, error
    // handling). The library is never unloaded.
    let answer = unsafe { describe(code, &raw mut words) };
    if answer.0 != 0 || words.is_null() {
        return None;
    }
    // SAFETY: as above: it is a string that ends with a zero and lives as long as the library.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_no_error_and_a_failure_keeps_its_call_and_number() {
        assert_eq!(CudaError::check("cuInit", sys::CUresult::CUDA_SUCCESS), Ok(()));
        let failed = CudaError::check("cuMemMap", Code(1)).unwrap_err();
        assert!(matches!(failed, CudaError::Call { call: "cuMemMap", code: 1, .. }), "{failed:?}");
        assert!(failed.is(sys::CUresult::CUDA_ERROR_INVALID_VALUE) && !failed.is(sys::CUresult::CUDA_ERROR_UNKNOWN));
        assert_eq!(CudaError::check("cuInit", Code(100)), Err(CudaError::NoDevice));
    }

    /// A number that no driver of today returns.
    #[test]
    fn numbers_of_later_drivers_are_errors_too() {
        let text = CudaError::check("cuMemMap", Code(4321)).unwrap_err().to_string();
        assert!(text.starts_with("cuMemMap: ") && text.contains("(4321)") && text.contains("doctor"), "{text}");
    }

    #[test]
    fn versions_are_read_and_ordered_as_the_driver_writes_them() {
        let version = CudaVersion::of_driver(12080);
        assert_eq!((version, version.to_string().as_str()), (CudaVersion::new(12, 8), "12.8"));
        assert!(CudaVersion::of_driver(11080) < CudaVersion::new(12, 0));
        assert!(CudaVersion::of_driver(13000) > version);
        assert_eq!(CudaVersion::of_driver(-1), CudaVersion::new(0, 0));
    }
}
