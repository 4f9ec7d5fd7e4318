//! The driver's error codes, with their names and what they mean in words.

use core::ffi::CStr;
use cudarc::driver::sys::CUresult;

/// What a call comes to: a value, or the code that its caller is given.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

struct Code {
    value: CUresult,
    name: &'static CStr,
    text: &'static CStr,
}

macro_rules! codes {
    ($($code:ident => $text:literal,)*) => {
        /// All of them, in order of their numbers.
        static CODES: &[Code] = &[$(Code {
            value: CUresult::$code,
            name: terminated(concat!(stringify!($code), "\0")),
            text: terminated(concat!($text, "\0")),
        }),*];
    };
}

const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

/// The code of a name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) fn named(name: &str) -> Option<CUresult> {
    CODES.iter().find(|code| code.name.to_bytes() == name.as_bytes()).map(|code| code.value)
}

/// The code of a number; `CUDA_ERROR_UNKNOWN` for one that is none.
pub(crate) fn numbered(code: u32) -> CUresult {
    find(code).map_or(CUresult::CUDA_ERROR_UNKNOWN, |code| code.value)
}

/// The name of a code, given as a number because it comes from outside.
pub(crate) fn name(code: u32) -> Option<&'static CStr> {
    find(code).map(|code| code.name)
}

/// What a code means.
pub(crate) fn text(code: u32) -> Option<&'static CStr> {
    find(code).map(|code| code.text)
}

fn find(code: u32) -> Option<&'static Code> {
    CODES.iter().find(|known| known.value as u32 == code)
}

codes! {
    CUDA_SUCCESS => "no error",
    CUDA_ERROR_INVALID_VALUE => "invalid argument",
    CUDA_ERROR_OUT_OF_MEMORY => "out of memory",
    CUDA_ERROR_NOT_INITIALIZED => "initialization error",
    CUDA_ERROR_DEINITIALIZED => "deinitialized",
    CUDA_ERROR_PROFILER_DISABLED => "profiler disabled",
    CUDA_ERROR_PROFILER_NOT_INITIALIZED => "profiler not initialized",
    CUDA_ERROR_PROFILER_ALREADY_STARTED => "profiler already started",
    CUDA_ERROR_PROFILER_ALREADY_STOPPED => "profiler already stopped",
    CUDA_ERROR_STUB_LIBRARY => "stub library",
    CUDA_ERROR_DEVICE_UNAVAILABLE => "device unavailable",
    CUDA_ERROR_NO_DEVICE => "no CUDA-capable device is detected",
    CUDA_ERROR_INVALID_DEVICE => "invalid device ordinal",
    CUDA_ERROR_DEVICE_NOT_LICENSED => "device not licensed",
    CUDA_ERROR_INVALID_IMAGE => "device kernel image is invalid",
    CUDA_ERROR_INVALID_CONTEXT => "invalid device context",
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT => "context already current",
    CUDA_ERROR_MAP_FAILED => "map failed",
    CUDA_ERROR_UNMAP_FAILED => "unmap failed",
    CUDA_ERROR_ARRAY_IS_MAPPED => "array is mapped",
    CUDA_ERROR_ALREADY_MAPPED => "already mapped",
    CUDA_ERROR_NO_BINARY_FOR_GPU => "no kernel image is available for execution on the device",
    CUDA_ERROR_ALREADY_ACQUIRED => "already acquired",
    CUDA_ERROR_NOT_MAPPED => "not mapped",
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY => "not mapped as array",
    CUDA_ERROR_NOT_MAPPED_AS_POINTER => "not mapped as pointer",
    CUDA_ERROR_ECC_UNCORRECTABLE => "ecc uncorrectable",
    CUDA_ERROR_UNSUPPORTED_LIMIT => "unsupported limit",
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE => "context already in use",
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => "peer access unsupported",
    CUDA_ERROR_INVALID_PTX => "a PTX JIT compilation failed",
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT => "invalid graphics context",
    CUDA_ERROR_NVLINK_UNCORRECTABLE => "nvlink uncorrectable",
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND => "jit compiler not found",
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "the provided PTX was compiled with an unsupported toolchain.",
    CUDA_ERROR_JIT_COMPILATION_DISABLED => "jit compilation disabled",
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY => "unsupported exec affinity",
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC => "unsupported devside sync",
    CUDA_ERROR_CONTAINED => "contained",
    CUDA_ERROR_INVALID_SOURCE => "invalid source",
    CUDA_ERROR_FILE_NOT_FOUND => "file not found",
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND => "shared object symbol not found",
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED => "shared object init failed",
    CUDA_ERROR_OPERATING_SYSTEM => "OS call failed or operation not supported on this OS",
    CUDA_ERROR_INVALID_HANDLE => "invalid resource handle",
    CUDA_ERROR_ILLEGAL_STATE => "the operation cannot be performed in the present state",
    CUDA_ERROR_LOSSY_QUERY => "lossy query",
    CUDA_ERROR_NOT_FOUND => "named symbol not found",
    CUDA_ERROR_NOT_READY => "device not ready",
    CUDA_ERROR_ILLEGAL_ADDRESS => "an illegal memory access was encountered",
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => "launch out of resources",
    CUDA_ERROR_LAUNCH_TIMEOUT => "launch timeout",
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING => "launch incompatible texturing",
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => "peer access already enabled",
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => "peer access not enabled",
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => "primary context active",
    CUDA_ERROR_CONTEXT_IS_DESTROYED => "context is destroyed",
    CUDA_ERROR_ASSERT => "assert",
    CUDA_ERROR_TOO_MANY_PEERS => "too many peers",
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => "host memory already registered",
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => "host memory not registered",
    CUDA_ERROR_HARDWARE_STACK_ERROR => "hardware stack error",
    CUDA_ERROR_ILLEGAL_INSTRUCTION => "illegal instruction",
    CUDA_ERROR_MISALIGNED_ADDRESS => "misaligned address",
    CUDA_ERROR_INVALID_ADDRESS_SPACE => "invalid address space",
    CUDA_ERROR_INVALID_PC => "invalid pc",
    CUDA_ERROR_LAUNCH_FAILED => "unspecified launch failure",
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => "too many blocks in cooperative launch",
    CUDA_ERROR_TENSOR_MEMORY_LEAK => "tensor memory leak",
    CUDA_ERROR_NOT_PERMITTED => "operation not permitted",
    CUDA_ERROR_NOT_SUPPORTED => "operation not supported",
    CUDA_ERROR_SYSTEM_NOT_READY => "system not ready",
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => "system driver mismatch",
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => "compat not supported on device",
    CUDA_ERROR_MPS_CONNECTION_FAILED => "mps connection failed",
    CUDA_ERROR_MPS_RPC_FAILURE => "mps rpc failure",
    CUDA_ERROR_MPS_SERVER_NOT_READY => "mps server not ready",
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED => "mps max clients reached",
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => "mps max connections reached",
    CUDA_ERROR_MPS_CLIENT_TERMINATED => "mps client terminated",
    CUDA_ERROR_CDP_NOT_SUPPORTED => "cdp not supported",
    CUDA_ERROR_CDP_VERSION_MISMATCH => "cdp version mismatch",
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => "operation not permitted when stream is capturing",
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => "operation failed due to a previous error during capture",
    CUDA_ERROR_STREAM_CAPTURE_MERGE => "operation would result in a merge of separate capture sequences",
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED => "stream capture unmatched",
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED => "capturing stream has unjoined work",
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION => "stream capture isolation",
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => "operation would make the legacy stream depend on a capturing blocking stream",
    CUDA_ERROR_CAPTURED_EVENT => "operation not permitted on an event last recorded in a capturing stream",
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => "attempt to terminate a thread-local capture sequence from another thread",
    CUDA_ERROR_TIMEOUT => "timeout",
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => "graph exec update failure",
    CUDA_ERROR_EXTERNAL_DEVICE => "external device",
    CUDA_ERROR_INVALID_CLUSTER_SIZE => "invalid cluster size",
    CUDA_ERROR_FUNCTION_NOT_LOADED => "function not loaded",
    CUDA_ERROR_INVALID_RESOURCE_TYPE => "invalid resource type",
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => "invalid resource configuration",
    CUDA_ERROR_KEY_ROTATION => "key rotation",
    CUDA_ERROR_UNKNOWN => "unknown error",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_are_each_others() {
        assert_eq!(named("CUDA_ERROR_OUT_OF_MEMORY"), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(name(719), Some(c"CUDA_ERROR_LAUNCH_FAILED"));
        assert_eq!(text(719), Some(c"unspecified launch failure"));
        assert_eq!((named("CUDA_ERROR_BAD_LUCK"), name(12345)), (None, None));
        assert!(CODES.iter().all(|code| !code.name.is_empty() && !code.text.is_empty()));
    }
}
