//! Launches of kernels and of host functions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUhostFn, CUlaunchAttribute, CUlaunchAttributeID as Attribute, CUlaunchConfig};
use cudarc::driver::sys::{CUresult, CUstream};

use crate::entry::{Plain, Ptr, entry_points};
use crate::errors::Outcome;
use crate::launch::{self, Launch, Shape};
use crate::operation::Operation;
use crate::{module, stream};

/// Blocks of a cluster that every device has room for.
const CLUSTER: u32 = 8;

/// `CUlaunchAttribute`, with an integer for its enumeration and bytes for its union.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct LaunchAttribute {
    id: u32,
    _pad: [u8; 4],
    value: [u32; 16],
}

const _: () = assert!(size_of::<LaunchAttribute>() == size_of::<CUlaunchAttribute>());

// SAFETY: integers.
unsafe impl Plain for LaunchAttribute {}

// SAFETY: integers and pointers.
unsafe impl Plain for CUlaunchConfig {}

fn launch(function: u64, shape: Shape, on: u64, values: Ptr<*mut c_void>, extra: Ptr<*mut c_void>) -> Outcome {
    if !extra.is_null() {
        // Parameters packed into one buffer: nobody here launches so.
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let function = module::function(function)?;
    let stream = stream::find(on)?;
    if !Arc::ptr_eq(&function.context, &stream.context) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    stream.submit(Operation::Launch(Arc::new(Launch::new(function, shape, values)?)))
}

/// Does what an attribute asks. What only changes how fast things are is taken and does nothing.
fn apply(shape: &mut Shape, attribute: &LaunchAttribute) -> Outcome {
    use Attribute as A;
    const COOPERATIVE: u32 = A::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u32;
    const CLUSTER_DIMENSION: u32 = A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as u32;
    let harmless = [
        A::CU_LAUNCH_ATTRIBUTE_IGNORE,
        A::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        A::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
        A::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        A::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        A::CU_LAUNCH_ATTRIBUTE_PRIORITY,
        A::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
        A::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        A::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    ];
    match attribute.id {
        COOPERATIVE => shape.cooperative = attribute.value[0] != 0,
        CLUSTER_DIMENSION => {
            let cluster = &attribute.value[..3];
            let whole = cluster.iter().zip(shape.grid).all(|(&part, grid)| part > 0 && grid.is_multiple_of(part));
            if !whole {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            shape.cluster = cluster.iter().fold(1, |blocks: u32, &part| blocks.saturating_mul(part));
            if shape.cluster > CLUSTER {
                return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
            }
        }
        id if harmless.iter().any(|&known| known as u32 == id) => {}
        _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
    Ok(())
}

fn shape_of(config: &CUlaunchConfig) -> Outcome<Shape> {
    let mut shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        cluster: 1,
        cooperative: false,
    };
    // SAFETY: the caller promised as many attributes as the configuration says.
    let attributes: Ptr<LaunchAttribute> = unsafe { crate::entry::Argument::take(config.attrs.cast()) };
    for index in 0..config.numAttrs as usize {
        apply(&mut shape, &attributes.at(index).get()?)?;
    }
    Ok(shape)
}

entry_points! {
    /// How many clusters of a launch a device holds at one time.
    Context fn cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) {
        let shape = shape_of(&config.get()?)?;
        let function = module::function(function.address())?;
        let threads = launch::count(shape.block);
        let of_one = launch::occupancy(&function, threads, shape.shared as usize)?;
        let blocks = function.device()?.sms.saturating_mul(of_one);
        clusters.set((blocks / shape.cluster) as c_int)
    }

    /// Launches a kernel.
    Context fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        on: CUstream,
        values: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function.address(), Shape { grid, block, shared, cluster: 1, cooperative: false }, on.address(), values, extra)
    }

    /// Launches a kernel whose blocks all run at one time.
    Context fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        on: CUstream,
        values: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        // SAFETY: null is good for nothing to be read.
        let extra = unsafe { crate::entry::Argument::take(core::ptr::null_mut::<*mut c_void>()) };
        launch(function.address(), Shape { grid, block, shared, cluster: 1, cooperative: true }, on.address(), values, extra)
    }

    /// Launches a kernel as a configuration says.
    Context fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        values: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = config.get()?;
        let shape = shape_of(&config)?;
        launch(function.address(), shape, config.hStream.addr() as u64, values, extra)
    }

    /// Calls a function of the host in stream order. It must not call the driver.
    Context fn cuLaunchHostFunc(on: CUstream, run: CUhostFn, data: *mut c_void) {
        let run = run.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        stream::find(on.address())?.submit(Operation::Host { run, data: data.address() })
    }
}
