//! Contexts.

use core::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUcontext, CUctxCreateParams, CUdevice, CUflushGPUDirectRDMAWritesScope as Scope, CUresult};

use crate::capture;
use crate::context::{self, Context};
use crate::driver;
use crate::entry::entry_points;
use crate::stream;
use std::sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const SCOPE_OWNER: c_uint = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as c_uint;
const SCOPE_ALL: c_uint = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES as c_uint;

/// A context as callers name it.
fn handle(context: &Arc<Context>) -> CUcontext {
    core::ptr::without_provenance_mut(context.handle() as usize)
}

entry_points! {
    /// Takes part in a device's primary context.
    Driver fn cuDevicePrimaryCtxRetain(given: *mut CUcontext, device: CUdevice) {
        let context = &driver::get()?.device(device)?.context;
        given.set(handle(context))?;
        context.retain();
        Ok(())
    }

    /// Ends one part in a device's primary context; the last one destroys what is in it.
    Driver fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        driver::get()?.device(device)?.context.release()
    }

    /// Flags of a device's primary context, and whether anybody has part in it.
    Driver fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let context = &driver::get()?.device(device)?.context;
        flags.set(0)?;
        active.set(c_int::from(context.is_active()))
    }

    /// Makes a context on a device, and the thread's current one. Its parameters are those of none: no partition, no graphics.
    Driver fn cuCtxCreate_v4(given: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) {
        let ordinal = driver::get()?.device(device)?.ordinal;
        if !parameters.is_null() || flags != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let context = context::create(ordinal);
        given.set(handle(&context))?;
        context::push(context);
        Ok(())
    }

    /// Destroys a context that a program made; a primary one is not for destroying.
    Driver fn cuCtxDestroy_v2(context: CUcontext) {
        context::destroy(context.address())
    }

    /// Makes a context the thread's current one; null takes it off.
    Driver fn cuCtxSetCurrent(context: CUcontext) {
        let found = if context.is_null() { None } else { Some(context::find(context.address())?) };
        context::set_current(found);
        Ok(())
    }

    /// The thread's current context, null where there is none.
    Driver fn cuCtxGetCurrent(given: *mut CUcontext) {
        given.set(context::current().map_or(core::ptr::null_mut(), |context| handle(&context)))
    }

    /// Puts a context above the thread's current one.
    Driver fn cuCtxPushCurrent_v2(context: CUcontext) {
        context::push(context::find(context.address())?);
        Ok(())
    }

    /// Takes the thread's current context off.
    Driver fn cuCtxPopCurrent_v2(given: *mut CUcontext) {
        let popped = context::pop()?;
        given.set_if_asked(handle(&popped));
        Ok(())
    }

    /// The device of the current context.
    Context fn cuCtxGetDevice(device: *mut CUdevice) {
        device.set(context::current()?.ordinal)
    }

    /// Waits for all that the current context was given.
    Context fn cuCtxSynchronize() {
        let streams = stream::of(&context::current()?);
        capture::refuse_waiting(&streams)?;
        streams.iter().try_for_each(|stream| stream.synchronize())
    }

    /// Makes what network devices wrote visible. Memory of virtual GPUs is the host's, where it is visible at once.
    Context fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) {
        let known = target == 0 && [SCOPE_OWNER, SCOPE_ALL].contains(&scope);
        match driver::get()?.config.rdma {
            true if known => Ok(()),
            true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            false => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// The lowest and the highest priority of streams.
    Context fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        least.set_if_asked(stream::PRIORITIES.0);
        greatest.set_if_asked(stream::PRIORITIES.1);
        Ok(())
    }

    /// Lets the current context reach the memory of another one's device. Memory of VMM needs no such permission.
    Context fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID);
        }
        context::current()?.reach(context::find(peer.address())?.ordinal)
    }
}
