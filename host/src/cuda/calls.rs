//! The driver's calls that this crate makes by itself. One that the driver lacks is an error where it is used.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
};
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute, CUjit_option, CUresult};
use cudarc::driver::sys::{CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget};
use cudarc::driver::sys::{CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemRangeHandleType};
use cudarc::driver::sys::{CUmemAllocationGranularity_flags, CUmemGenericAllocationHandle, CUuuid};
use cudarc::driver::sys::{CUmulticastGranularity_flags, CUmulticastObjectProp, CUpointer_attribute};
use cudarc::driver::sys::{CUstreamBatchMemOpParams, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::driver::{Driver, Symbols};
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
            pub(super) fn find(symbols: &Symbols) -> Self {
                Self {
                    // SAFETY: the symbol is of the driver's API, and its type is cudarc's binding of it, as checked above;
                    // a `Code` is the number that the API returns.
                    $($name: unsafe { symbols.find(stringify!($symbol)) },)*
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
                #[allow(clippy::too_many_arguments, reason = "as many as the driver's call has")]
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
    init = cuInit since (2, 0) (flags: c_uint);
    driver_get_version = cuDriverGetVersion since (2, 2) (version: *mut c_int);

    device_get = cuDeviceGet since (2, 0) (device: *mut CUdevice, ordinal: c_int);
    device_get_count = cuDeviceGetCount since (2, 0) (count: *mut c_int);
    device_get_name = cuDeviceGetName since (2, 0) (name: *mut c_char, bytes: c_int, device: CUdevice);
    device_get_uuid = cuDeviceGetUuid_v2 since (11, 4) (uuid: *mut CUuuid, device: CUdevice);
    device_get_attribute = cuDeviceGetAttribute since (2, 0)
        (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    device_total_mem = cuDeviceTotalMem_v2 since (3, 2) (bytes: *mut usize, device: CUdevice);
    device_can_access_peer = cuDeviceCanAccessPeer since (4, 0) (can: *mut c_int, device: CUdevice, peer: CUdevice);

    primary_ctx_retain = cuDevicePrimaryCtxRetain since (7, 0) (context: *mut CUcontext, device: CUdevice);
    primary_ctx_release = cuDevicePrimaryCtxRelease_v2 since (11, 0) (device: CUdevice);
    ctx_set_current = cuCtxSetCurrent since (4, 0) (context: CUcontext);

    stream_create = cuStreamCreate since (2, 0) (stream: *mut CUstream, flags: c_uint);
    stream_destroy = cuStreamDestroy_v2 since (4, 0) (stream: CUstream);
    stream_query = cuStreamQuery since (2, 0) (stream: CUstream);
    stream_is_capturing = cuStreamIsCapturing since (10, 0) (stream: CUstream, status: *mut CUstreamCaptureStatus);
    stream_begin_capture = cuStreamBeginCapture_v2 since (10, 1) (stream: CUstream, mode: CUstreamCaptureMode);
    stream_end_capture = cuStreamEndCapture since (10, 0) (stream: CUstream, graph: *mut CUgraph);
    event_create = cuEventCreate since (2, 0) (event: *mut CUevent, flags: c_uint);
    event_destroy = cuEventDestroy_v2 since (4, 0) (event: CUevent);
    event_record = cuEventRecord since (2, 0) (event: CUevent, stream: CUstream);
    event_query = cuEventQuery since (2, 0) (event: CUevent);
    event_elapsed_time = cuEventElapsedTime since (2, 0) (milliseconds: *mut f32, start: CUevent, end: CUevent);
    stream_wait_event = cuStreamWaitEvent since (3, 2) (stream: CUstream, event: CUevent, flags: c_uint);

    graph_instantiate = cuGraphInstantiateWithFlags since (11, 4)
        (executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    graph_launch = cuGraphLaunch since (10, 0) (executable: CUgraphExec, stream: CUstream);
    graph_exec_destroy = cuGraphExecDestroy since (10, 0) (executable: CUgraphExec);
    graph_destroy = cuGraphDestroy since (10, 0) (graph: CUgraph);

    mem_host_alloc = cuMemHostAlloc since (2, 2) (memory: *mut *mut c_void, bytes: usize, flags: c_uint);
    mem_free_host = cuMemFreeHost since (2, 0) (memory: *mut c_void);
    memcpy_to_device = cuMemcpyHtoDAsync_v2 since (3, 2)
        (to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    memcpy_to_host = cuMemcpyDtoHAsync_v2 since (3, 2)
        (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    memcpy = cuMemcpyAsync since (4, 0)
        (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    memset = cuMemsetD8Async since (3, 2) (at: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    stream_synchronize = cuStreamSynchronize since (2, 0) (stream: CUstream);

    flush_rdma_writes = cuFlushGPUDirectRDMAWrites since (11, 3)
        (target: CUflushGPUDirectRDMAWritesTarget, scope: CUflushGPUDirectRDMAWritesScope);

    mem_get_range_handle = cuMemGetHandleForAddressRange since (11, 7)
        (handle: *mut c_void, address: CUdeviceptr, bytes: usize, kind: CUmemRangeHandleType, flags: c_ulonglong);

    mem_alloc_async = cuMemAllocAsync since (11, 2) (memory: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    mem_free_async = cuMemFreeAsync since (11, 2) (memory: CUdeviceptr, stream: CUstream);
    pointer_get_attribute = cuPointerGetAttribute since (4, 0)
        (value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
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
    module_unload = cuModuleUnload since (2, 0) (module: CUmodule);
    module_get_function = cuModuleGetFunction since (2, 0)
        (function: *mut CUfunction, module: CUmodule, name: *const c_char);
    func_get_attribute = cuFuncGetAttribute since (2, 2)
        (value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    func_set_attribute = cuFuncSetAttribute since (9, 0)
        (function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    blocks_per_multiprocessor = cuOccupancyMaxActiveBlocksPerMultiprocessor since (6, 5)
        (blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize);
    launch = cuLaunchKernel since (4, 0)
        (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
         block_z: c_uint, shared: c_uint, stream: CUstream, places: *mut *mut c_void, extra: *mut *mut c_void);
    launch_cooperative = cuLaunchCooperativeKernel since (9, 0)
        (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
         block_z: c_uint, shared: c_uint, stream: CUstream, places: *mut *mut c_void);
    func_load = cuFuncLoad since (12, 4) (function: CUfunction);

    thread_exchange_stream_capture_mode = cuThreadExchangeStreamCaptureMode since (10, 1)
        (mode: *mut CUstreamCaptureMode);
    stream_get_ctx = cuStreamGetCtx since (9, 2) (stream: CUstream, context: *mut CUcontext);
    stream_write_value_64 = cuStreamWriteValue64_v2 since (11, 7)
        (stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
    stream_write_value_32 = cuStreamWriteValue32_v2 since (11, 7)
        (stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
    stream_batch_mem_op = cuStreamBatchMemOp_v2 since (11, 7)
        (stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags: c_uint);
    stream_wait_value_64 = cuStreamWaitValue64_v2 since (11, 7)
        (stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
}
