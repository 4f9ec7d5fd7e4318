//! Copies and fills, at once and in stream order.

use core::ffi::{c_uchar, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use crate::entry::{Ptr, entry_points};
use crate::errors::Outcome;
use crate::memory::Side;
use crate::monitor::lock;
use crate::operation::Operation;
use crate::{capture, context, stream};

/// Does an operation on the legacy stream and waits for it, as calls without a stream do.
fn now(operation: Operation) -> Outcome {
    let context = context::current()?;
    capture::refuse_implicit(&context)?;
    capture::refuse_unsafe()?;
    let legacy = context.legacy()?;
    legacy.submit(operation)?;
    legacy.synchronize()
}

fn copy_now(to: Side, from: Side, bytes: usize) -> Outcome {
    to.check(bytes)?;
    from.check(bytes)?;
    if bytes == 0 { Ok(()) } else { now(Operation::Copy { to, from, bytes }) }
}

/// Copies in stream order. Memory of the host that is not pinned is read before the call returns and written before it
/// returns, as the driver does it through memory of its own: callers rely on the first.
fn copy_later(to: Side, from: Side, bytes: usize, on: u64) -> Outcome {
    to.check(bytes)?;
    from.check(bytes)?;
    let stream = stream::find(on)?;
    if bytes == 0 {
        return Ok(());
    }
    let captures = lock(&stream.capturing).is_some();
    if captures || !(from.is_pageable() || to.is_pageable()) {
        return stream.submit(Operation::Copy { to, from, bytes });
    }
    if from.is_pageable() && !to.is_pageable() {
        // SAFETY: the caller promised so many bytes to read.
        let source: Ptr<u8> = unsafe { crate::entry::Argument::take(from.pointer()) };
        return stream.submit(Operation::Staged { to, bytes: Ptr::bytes(source, bytes)?.into() });
    }
    stream.submit(Operation::Copy { to, from, bytes })?;
    stream.synchronize()
}

fn filling(at: u64, pattern: &[u8], count: usize) -> Outcome<Operation> {
    if !at.is_multiple_of(pattern.len() as u64) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Side::Device(at).check(pattern.len().saturating_mul(count))?;
    Ok(Operation::Fill { at, pattern: Arc::from(pattern), count })
}

entry_points! {
    /// Copies between any two places.
    Context fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy_now(Side::of(to), Side::of(from), bytes)
    }

    /// Copies from the host to a device.
    Context fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) {
        copy_now(Side::Device(to), Side::Host(from.address()), bytes)
    }

    /// Copies from a device to the host.
    Context fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        copy_now(Side::Host(to.address()), Side::Device(from), bytes)
    }

    /// Copies between devices, or within one.
    Context fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy_now(Side::Device(to), Side::Device(from), bytes)
    }

    /// Copies between any two places in stream order.
    Context fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, on: CUstream) {
        copy_later(Side::of(to), Side::of(from), bytes, on.address())
    }

    /// Copies from the host to a device in stream order.
    Context fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, on: CUstream) {
        copy_later(Side::Device(to), Side::Host(from.address()), bytes, on.address())
    }

    /// Copies from a device to the host in stream order.
    Context fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, on: CUstream) {
        copy_later(Side::Host(to.address()), Side::Device(from), bytes, on.address())
    }

    /// Copies between devices, or within one, in stream order.
    Context fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, on: CUstream) {
        copy_later(Side::Device(to), Side::Device(from), bytes, on.address())
    }

    /// Fills with a byte.
    Context fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) {
        now(filling(at, &[value], count)?)
    }

    /// Fills with a word of 4 bytes.
    Context fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) {
        now(filling(at, &value.to_le_bytes(), count)?)
    }

    /// Fills with a byte in stream order.
    Context fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, on: CUstream) {
        stream::find(on.address())?.submit(filling(at, &[value], count)?)
    }

    /// Fills with a word of 4 bytes in stream order.
    Context fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, on: CUstream) {
        stream::find(on.address())?.submit(filling(at, &value.to_le_bytes(), count)?)
    }
}
