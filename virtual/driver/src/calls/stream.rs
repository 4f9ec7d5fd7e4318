//! Streams, and words in memory that they write and wait for.

use core::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUevent, CUresult, CUstream, CUstreamBatchMemOpParams};
use cudarc::driver::sys::{CUstreamBatchMemOpType as MemOp, cuuint32_t, cuuint64_t};

use crate::entry::{Plain, entry_points};
use crate::errors::Outcome;
use crate::monitor::lock;
use crate::operation::{Operation, Until, Word};
use crate::{capture, context, event, stream};

/// Flags of a wait that are more than the comparison: flush what other devices wrote, which is never behind here.
const FLUSH: u32 = 1 << 30;

/// `CUstreamBatchMemOpParams` where it writes or waits, with an integer for its enumeration.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchOperation {
    kind: u32,
    at: u64,
    value: u64,
    flags: u32,
    _rest: [u64; 2],
}

const _: () = assert!(size_of::<BatchOperation>() == size_of::<CUstreamBatchMemOpParams>());

// SAFETY: integers.
unsafe impl Plain for BatchOperation {}

/// Puts one operation of a batch on a stream. Barriers and flushes are done by the order that streams have anyway.
fn submit(on: u64, operation: BatchOperation) -> Outcome {
    const WAIT_FOUR: u32 = MemOp::CU_STREAM_MEM_OP_WAIT_VALUE_32 as u32;
    const WAIT_EIGHT: u32 = MemOp::CU_STREAM_MEM_OP_WAIT_VALUE_64 as u32;
    const WRITE_FOUR: u32 = MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_32 as u32;
    const WRITE_EIGHT: u32 = MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_64 as u32;
    const FLUSH_WRITES: u32 = MemOp::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES as u32;
    const BARRIER: u32 = MemOp::CU_STREAM_MEM_OP_BARRIER as u32;
    let BatchOperation { kind, at, value, flags, .. } = operation;
    match kind {
        // The narrow value is the first half of the wide one.
        WAIT_FOUR => wait(on, at, Word::Four(value as u32), flags),
        WAIT_EIGHT => wait(on, at, Word::Eight(value), flags),
        WRITE_FOUR => write(on, at, Word::Four(value as u32), flags),
        WRITE_EIGHT => write(on, at, Word::Eight(value), flags),
        FLUSH_WRITES | BARRIER => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn as_stream(handle: u64) -> CUstream {
    core::ptr::without_provenance_mut(handle as usize)
}

fn write(on: u64, at: u64, word: Word, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    word.check(at)?;
    stream::find(on)?.submit(Operation::Write { at, word })
}

fn wait(on: u64, at: u64, word: Word, flags: u32) -> Outcome {
    let until = Until::from_flags(flags & !FLUSH)?;
    word.check(at)?;
    stream::find(on)?.submit(Operation::Wait { at, word, until })
}

entry_points! {
    /// A new stream.
    Context fn cuStreamCreate(given: *mut CUstream, flags: c_uint) {
        given.set(as_stream(stream::create(context::current()?, flags, 0)?))
    }

    /// A new stream with a priority, which is remembered and changes nothing.
    Context fn cuStreamCreateWithPriority(given: *mut CUstream, flags: c_uint, priority: c_int) {
        given.set(as_stream(stream::create(context::current()?, flags, priority)?))
    }

    /// Ends a stream after what it was given; the caller does not wait.
    Context fn cuStreamDestroy_v2(on: CUstream) {
        stream::destroy(on.address())
    }

    /// Waits for all that a stream was given.
    Context fn cuStreamSynchronize(on: CUstream) {
        let stream = stream::find(on.address())?;
        capture::refuse_waiting([&stream])?;
        stream.synchronize()
    }

    /// Whether a stream has done all that it was given; `CUDA_ERROR_NOT_READY` if not.
    Context fn cuStreamQuery(on: CUstream) {
        let stream = stream::find(on.address())?;
        capture::refuse_waiting([&stream])?;
        // A fault that came before the stream was idle is told now.
        if stream.is_idle() { stream.context.check() } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    /// Lets a stream wait for an event.
    Context fn cuStreamWaitEvent(on: CUstream, awaited: CUevent, flags: c_uint) {
        // The one flag there is asks for a node of its own when capturing.
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        event::find(awaited.address())?.hold(&stream::find(on.address())?)
    }

    /// The context of a stream.
    Context fn cuStreamGetCtx(on: CUstream, given: *mut CUcontext) {
        let context = stream::find(on.address())?.context.clone();
        given.set(core::ptr::without_provenance_mut(context.handle() as usize))
    }

    /// The priority of a stream.
    Context fn cuStreamGetPriority(on: CUstream, given: *mut c_int) {
        given.set(stream::find(on.address())?.priority)
    }

    /// The flags of a stream.
    Context fn cuStreamGetFlags(on: CUstream, given: *mut c_uint) {
        given.set(stream::find(on.address())?.flags)
    }

    /// Whether a stream captures: 0 for no, 1 for yes, 2 for a capture that came to nothing.
    Context fn cuStreamIsCapturing(on: CUstream, status: *mut c_uint) {
        let stream = stream::find(on.address())?;
        let position = lock(&stream.capturing).clone();
        status.set(match position {
            None => 0,
            Some(position) if position.capture.check().is_ok() => 1,
            Some(_) => 2,
        })
    }

    /// Writes and waits for words, in their order.
    Context fn cuStreamBatchMemOp_v2(
        on: CUstream,
        count: c_uint,
        operations: *mut CUstreamBatchMemOpParams,
        flags: c_uint,
    ) {
        // The driver takes fewer than 256.
        if flags != 0 || count > 255 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let operations = operations.cast::<BatchOperation>();
        (0..count as usize).try_for_each(|index| submit(on.address(), operations.at(index).get()?))
    }

    /// Writes a word of 4 bytes.
    Context fn cuStreamWriteValue32_v2(on: CUstream, at: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        write(on.address(), at, Word::Four(value), flags)
    }

    /// Writes a word of 8 bytes.
    Context fn cuStreamWriteValue64_v2(on: CUstream, at: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        write(on.address(), at, Word::Eight(value), flags)
    }

    /// Waits for a word of 4 bytes.
    Context fn cuStreamWaitValue32_v2(on: CUstream, at: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        wait(on.address(), at, Word::Four(value), flags)
    }

    /// Waits for a word of 8 bytes.
    Context fn cuStreamWaitValue64_v2(on: CUstream, at: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        wait(on.address(), at, Word::Eight(value), flags)
    }
}
