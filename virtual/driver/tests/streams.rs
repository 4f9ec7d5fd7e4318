//! Streams, events, copies in order.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]
#![allow(clippy::disallowed_types, reason = "the test looks at a word that a stream writes")]

mod common;

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{alone, begin, call, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{CUresult, CUstream};

static CALLED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Notes that it was called, and with what.
unsafe extern "C" fn note(data: *mut c_void) {
    CALLED.lock().unwrap().push(data.addr());
}

unsafe extern "C" fn call_the_driver(_data: *mut c_void) {
    let code = call!(cuCtxSynchronize());
    CALLED.lock().unwrap().push(code as usize);
}

fn noted() -> Vec<usize> {
    CALLED.lock().unwrap().clone()
}

fn host(on: CUstream, number: usize) {
    ok!(cuLaunchHostFunc(on, Some(note), core::ptr::without_provenance_mut(number)));
}

fn words(count: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 8 * count));
    at
}

fn event(flags: u32) -> cudarc::driver::sys::CUevent {
    let mut event = core::ptr::null_mut();
    ok!(cuEventCreate(&mut event, flags));
    event
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

unsafe extern "C" fn sleep(_data: *mut c_void) {
    std::thread::sleep(Duration::from_millis(100));
}

/// Lets a stream go on that waits for the word.
fn open(gate: u64) {
    // SAFETY: device memory of the virtual driver is memory of the process, and the word is aligned.
    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(gate as usize)) }.store(1, Ordering::SeqCst);
}

#[test]
fn streams_wait_for_each_others_events() {
    alone("streams_wait_for_each_others_events", "", || {
        begin(0);
        let (first, second, gate, mark, end) = (stream(), stream(), words(1), event(0), event(0));
        // Never recorded, it is no reason to wait.
        ok!(cuStreamWaitEvent(second, mark, 0));
        ok!(cuStreamWaitValue64_v2(first, gate, 1, 0));
        host(first, 1);
        host(first, 2);
        ok!(cuEventRecord(mark, first));
        ok!(cuStreamWaitEvent(second, mark, 0));
        host(second, 3);
        ok!(cuEventRecord(end, second));
        assert_eq!(call!(cuEventQuery(mark)), CUresult::CUDA_ERROR_NOT_READY);
        assert!(noted().is_empty());
        open(gate);
        ok!(cuEventSynchronize(end));
        assert_eq!(noted(), [1, 2, 3]);
        let mut milliseconds = -1.0;
        ok!(cuEventElapsedTime(&mut milliseconds, mark, end));
        assert!((0.0..10_000.0).contains(&milliseconds), "{milliseconds}");
        let untimed = event(2);
        ok!(cuEventRecord(untimed, first));
        ok!(cuEventSynchronize(untimed));
        let code = call!(cuEventElapsedTime(&mut milliseconds, mark, untimed));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn the_legacy_stream_waits_for_blocking_ones() {
    alone("the_legacy_stream_waits_for_blocking_ones", "", || {
        begin(0);
        let (mut blocking, legacy, gate) = (core::ptr::null_mut(), core::ptr::null_mut(), words(1));
        ok!(cuStreamCreate(&mut blocking, 0));
        ok!(cuStreamWaitValue64_v2(blocking, gate, 1, 0));
        host(blocking, 1);
        host(legacy, 2);
        host(blocking, 3);
        // Nothing holds a stream that does not block.
        let apart = stream();
        host(apart, 0);
        ok!(cuStreamSynchronize(apart));
        assert_eq!(noted(), [0]);
        open(gate);
        ok!(cuCtxSynchronize());
        assert_eq!(noted(), [0, 1, 2, 3]);
    });
}

#[test]
fn pageable_memory_is_read_before_a_copy_returns() {
    alone("pageable_memory_is_read_before_a_copy_returns", "", || {
        begin(0);
        let (stream, gate, at) = (stream(), words(1), words(2));
        let mut pinned = core::ptr::null_mut();
        ok!(cuMemHostAlloc(&mut pinned, 8, 0));
        let (mut source, mut found) = (5_u64, [0_u64; 2]);
        // SAFETY: eight bytes of our own.
        unsafe { pinned.cast::<u64>().write(6) };
        ok!(cuStreamWaitValue64_v2(stream, gate, 1, 0));
        ok!(cuMemcpyHtoDAsync_v2(at, (&raw const source).cast(), 8, stream));
        ok!(cuMemcpyHtoDAsync_v2(at + 8, pinned, 8, stream));
        // Pinned memory is read when the stream gets there.
        source = 50;
        // SAFETY: as above; the stream waits.
        unsafe { pinned.cast::<u64>().write(60) };
        open(gate);
        ok!(cuMemcpyDtoHAsync_v2((&raw mut found).cast(), at, 16, stream));
        assert_eq!((source, found), (50, [5, 60]));
        ok!(cuMemFreeHost(pinned));
        assert_eq!(call!(cuMemFreeHost(pinned)), CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn copies_stay_in_what_is_allocated() {
    alone("copies_stay_in_what_is_allocated", "", || {
        begin(0);
        let (at, mut bytes) = (words(64), [7_u8; 1024]);
        ok!(cuMemsetD8_v2(at, 1, 512));
        ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, 512));
        assert!(bytes[..512].iter().all(|&byte| byte == 1) && bytes[512..].iter().all(|&byte| byte == 7));
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(call!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at + 505, 8)), invalid);
        assert_eq!(call!(cuMemsetD32_v2(at + 2, 1, 1)), invalid);
        ok!(cuMemFree_v2(at));
        assert_eq!(call!(cuMemFree_v2(at)), invalid);
    });
}

#[test]
fn host_functions_must_not_call_the_driver() {
    alone("host_functions_must_not_call_the_driver", "", || {
        begin(0);
        let stream = stream();
        ok!(cuLaunchHostFunc(stream, Some(call_the_driver), core::ptr::null_mut()));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(noted(), [CUresult::CUDA_ERROR_NOT_PERMITTED as usize]);
    });
}

#[test]
fn what_a_context_had_ends_with_it() {
    // The engine of virtual GPUs has a thread, too, which stays.
    alone("what_a_context_had_ends_with_it", "engine=native,memory=1M", || {
        let before = threads();
        begin(0);
        let (stream, at) = (stream(), words(1 << 16));
        host(stream, 1);
        ok!(cuMemsetD8_v2(at, 1, 8));
        assert_eq!(threads(), before + 2, "the stream's and the legacy stream's");
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(noted(), [1], "a stream comes to its end first");
        let code = call!(cuMemFree_v2(at));
        assert_eq!(code, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        begin(0);
        assert_eq!(call!(cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (1 << 20, 1 << 20));
        // A thread that has ended may be counted a moment longer.
        let deadline = Instant::now() + Duration::from_secs(10);
        while threads() > before && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(threads(), before);
    });
}

#[test]
fn who_takes_part_in_a_context_that_ends_gets_a_new_one() {
    alone("who_takes_part_in_a_context_that_ends_gets_a_new_one", "", || {
        begin(0);
        ok!(cuLaunchHostFunc(stream(), Some(sleep), core::ptr::null_mut()));
        let last = std::thread::spawn(|| ok!(cuDevicePrimaryCtxRelease_v2(0)));
        let (mut flags, mut active) = (0, 1);
        while active != 0 && !last.is_finished() {
            ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        }
        // The last part waits for the stream still.
        begin(0);
        let at = words(1);
        last.join().unwrap();
        ok!(cuMemFree_v2(at));
    });
}

#[test]
fn what_a_destroyed_stream_has_yet_to_do_is_waited_for() {
    alone("what_a_destroyed_stream_has_yet_to_do_is_waited_for", "", || {
        begin(0);
        let at = words(1);
        let leave = |number| {
            let stream = stream();
            ok!(cuLaunchHostFunc(stream, Some(sleep), core::ptr::null_mut()));
            host(stream, number);
            ok!(cuStreamDestroy_v2(stream));
            assert_eq!(call!(cuStreamQuery(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(call!(cuStreamDestroy_v2(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        leave(1);
        ok!(cuMemFree_v2(at));
        assert_eq!(noted(), [1]);
        leave(2);
        ok!(cuCtxSynchronize());
        assert_eq!(noted(), [1, 2]);
        leave(3);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(noted(), [1, 2, 3]);
    });
}

#[test]
fn memory_that_goes_while_a_stream_uses_it_is_a_fault() {
    alone("memory_that_goes_while_a_stream_uses_it_is_a_fault", "", || {
        begin(0);
        let (stream, other, gate, at) = (stream(), stream(), words(1), words(1));
        ok!(cuStreamWaitValue64_v2(stream, gate, 1, 0));
        ok!(cuMemsetD8Async(at, 1, 8, stream));
        ok!(cuMemFreeAsync(at, other));
        ok!(cuStreamSynchronize(other));
        open(gate);
        assert_eq!(call!(cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn a_batch_writes_and_waits_in_order() {
    alone("a_batch_writes_and_waits_in_order", "", || {
        use cudarc::driver::sys::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType as MemOp};
        begin(0);
        let (stream, at, mut found) = (stream(), words(2), [0_u64; 2]);
        // SAFETY: a union of integers, of which zeros are values.
        let mut batch: [CUstreamBatchMemOpParams; 2] = unsafe { core::mem::zeroed() };
        // Each is laid out alike: what to do, where, which value.
        for (operation, (kind, at, value)) in batch.iter_mut().zip([
            (MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_64, at, 1 << 40),
            (MemOp::CU_STREAM_MEM_OP_WAIT_VALUE_64, at + 8, 3),
        ]) {
            operation.writeValue.operation = kind;
            operation.writeValue.address = at;
            operation.writeValue.__bindgen_anon_1.value64 = value;
        }
        ok!(cuStreamBatchMemOp_v2(stream, 2, batch.as_mut_ptr(), 0));
        ok!(cuMemcpyDtoH_v2((&raw mut found).cast(), at, 8));
        assert_eq!(call!(cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
        found[1] = 3;
        ok!(cuMemcpyHtoD_v2(at + 8, (&raw const found[1]).cast(), 8));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemcpyDtoH_v2((&raw mut found).cast(), at, 16));
        assert_eq!(found, [1 << 40, 3]);
    });
}

/// A context that a program makes is its thread's current one, beside the primary one, and takes with it what is in it.
#[test]
fn contexts_are_made_and_destroyed() {
    alone("contexts_are_made_and_destroyed", "", || {
        let (primary, mut own, mut now) = (begin(0), core::ptr::null_mut(), core::ptr::null_mut());
        ok!(cuCtxCreate_v4(&mut own, core::ptr::null_mut(), 0, 0));
        ok!(cuCtxGetCurrent(&mut now));
        assert!(now == own && own != primary);
        let (mine, event) = (stream(), event(0));
        ok!(cuEventRecord(event, mine));
        ok!(cuCtxSetCurrent(primary));
        let other = stream();
        assert_eq!(call!(cuEventRecord(event, other)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        ok!(cuCtxDestroy_v2(own));
        assert_eq!(call!(cuStreamQuery(mine)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        for gone in [own, primary] {
            assert_eq!(call!(cuCtxDestroy_v2(gone)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        assert_eq!(call!(cuCtxCreate_v4(&mut own, core::ptr::null_mut(), 1, 0)), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        ok!(cuStreamQuery(other));
    });
}
