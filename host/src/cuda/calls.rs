//! The driver's calls that this crate makes by itself. One that the driver lacks is an error where it is used.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUfunction, CUmodule, CUstream};
use cudarc::driver::sys::{CUdevice_attribute, CUjit_option, CUresult};
use cudarc::driver::sys::{CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp};
use cudarc::driver::sys::{CUmemAllocationGranularity_flags, CUmemGenericAllocationHandle, CUuuid};
use cudarc::driver::sys::{CUmulticastGranularity_flags, CUmulticastObjectProp};
use cudarc::driver::sys::{CUstreamBatchMemOpParams, CUstreamCaptureMode};
use libloading::Library;

use super::driver::Driver;
use super::error::{Code, CudaError, CudaVersion};

/// A row is: the method's name, the symbol, the version that brought it, the parameters. The types are those of cudarc's
/// bindings, which the compiler checks; only the result is a plain number here.
macro_rules! calls {
    ($($name:ident = $symbol:ident since ($major:literal, $minor:literal) ($($parameter:ident: $kind:ty),*);)*) => {
        $(const _: unsafe fn($($kind),*) -> CUresult = sys::$symbol;)*

        /// What was found of the calls.
        pub(super) struct Calls {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> Code>,)*
        }

        impl Calls {
            pub(super) fn find(library: &Library) -> Self {
                Self {
                    // SAFETY: the symbol is of the driver's API, and its type is cudarc's binding of it, as checked above;
                    // a `Code` is the number that the API returns.
                    $($name: unsafe { find(library, stringify!($symbol)) },)*
                }
            }

            /// The calls that are missing, and the versions that brought them.
            pub(super) fn missing(&self) -> Vec<(&'static str, CudaVersion)> {
                let found = [$((self.$name.is_some(), stringify!($symbol), CudaVersion::new($major, $minor)),)*];
                found.into_iter().filter(|(found, ..)| !found).map(|(_, symbol, since)| (symbol, since)).collect()
            }
        }

        impl Driver {
            $(
                #[doc = concat!("`", stringify!($symbol), "`, from CUDA ", $major, ".", $minor, " on.")]
                ///
                /// # Safety
                /// What the driver's documentation of the call asks of its parameters.
                pub(crate) unsafe fn $name(&self, $($parameter: $kind),*) -> Result<(), CudaError> {
                    let since = CudaVersion::new($major, $minor);
                    let missing = CudaError::MissingSymbol { symbol: stringify!($symbol), since };
                    let call = self.calls.$name.ok_or(missing)?;
                    // SAFETY: the library is never unloaded; the rest is the caller's promise.
                    CudaError::check(stringify!($symbol), unsafe { call($($parameter),*) })
                }
            )*
        }
    };
}

calls! {
    device_get = cuDeviceGet since (2, 0) (device: *mut CUdevice, ordinal: c_int);
    device_get_count = cuDeviceGetCount since (2, 0) (count: *mut c_int);
    device_get_name = cuDeviceGetName since (2, 0) (name: *mut c_char, bytes: c_int, device: CUdevice);
    device_get_uuid = cuDeviceGetUuid_v2 since (11, 4) (uuid: *mut CUuuid, device: CUdevice);
    device_get_attribute = cuDeviceGetAttribute since (2, 0)
        (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    device_total_mem = cuDeviceTotalMem_v2 since (3, 2) (bytes: *mut usize, device: CUdevice);
    device_can_access_peer = cuDeviceCanAccessPeer since (4, 0) (can: *mut c_int, device: CUdevice, peer: CUdevice);

    ctx_set_current = cuCtxSetCurrent since (4, 0) (context: CUcontext);
    stream_synchronize = cuStreamSynchronize since (2, 0) (stream: CUstream);

    mem_get_info = cuMemGetInfo_v2 since (3, 2) (free: *mut usize, total: *mut usize);

    mem_address_reserve = cuMemAddressReserve since (10, 2)
        (address: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: c_ulonglong);
    mem_address_free = cuMemAddressFree since (10, 2) (address: CUdeviceptr, bytes: usize);
    mem_get_allocation_granularity = cuMemGetAllocationGranularity since (10, 2)
        (bytes: *mut usize, properties: *const CUmemAllocationProp, kind: CUmemAllocationGranularity_flags);
    mem_create = cuMemCreate since (10, 2)
        (handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp,
         flags: c_ulonglong);
    mem_release = cuMemRelease since (10, 2) (handle: CUmemGenericAllocationHandle);
    mem_map = cuMemMap since (10, 2)
        (address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
    mem_unmap = cuMemUnmap since (10, 2) (address: CUdeviceptr, bytes: usize);
    mem_set_access = cuMemSetAccess since (10, 2)
        (address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    mem_get_address_range = cuMemGetAddressRange_v2 since (3, 2)
        (start: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    mem_retain_allocation_handle = cuMemRetainAllocationHandle since (11, 0)
        (handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
    mem_get_allocation_properties = cuMemGetAllocationPropertiesFromHandle since (10, 2)
        (properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
    mem_export = cuMemExportToShareableHandle since (10, 2)
        (shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType,
         flags: c_ulonglong);
    mem_import = cuMemImportFromShareableHandle since (10, 2)
        (handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType);

    multicast_create = cuMulticastCreate since (12, 1)
        (handle: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp);
    multicast_add_device = cuMulticastAddDevice since (12, 1) (handle: CUmemGenericAllocationHandle, device: CUdevice);
    multicast_bind_mem = cuMulticastBindMem since (12, 1)
        (handle: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle,
         memory_offset: usize, bytes: usize, flags: c_ulonglong);
    multicast_unbind = cuMulticastUnbind since (12, 1)
        (handle: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize);
    multicast_get_granularity = cuMulticastGetGranularity since (12, 1)
        (bytes: *mut usize, properties: *const CUmulticastObjectProp, kind: CUmulticastGranularity_flags);

    module_load_data_ex = cuModuleLoadDataEx since (2, 1)
        (module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
         values: *mut *mut c_void);
    func_load = cuFuncLoad since (12, 4) (function: CUfunction);

    thread_exchange_stream_capture_mode = cuThreadExchangeStreamCaptureMode since (10, 1)
        (mode: *mut CUstreamCaptureMode);
    stream_get_ctx = cuStreamGetCtx since (9, 2) (stream: CUstream, context: *mut CUcontext);
    stream_write_value_64 = cuStreamWriteValue64_v2 since (11, 7)
        (stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
    stream_batch_mem_op = cuStreamBatchMemOp_v2 since (11, 7)
        (stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags: c_uint);
    stream_wait_value_64 = cuStreamWaitValue64_v2 since (11, 7)
        (stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
}

/// A function of the library, if it is there.
///
/// # Safety
/// `F` is the type of the function that has this name.
pub(super) unsafe fn find<F: Copy>(library: &Library, symbol: &str) -> Option<F> {
    // SAFETY: the type is the caller's promise; only the value of the symbol is read, nothing is called.
    unsafe { library.get::<F>(symbol) }.ok().map(|found| *found)
}
