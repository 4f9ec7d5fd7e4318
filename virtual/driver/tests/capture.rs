//! Capture and graphs.

mod common;

use common::{alone, begin, call, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream};

/// A call that a capture forbids.
type Act<'a> = Box<dyn FnMut() -> CUresult + 'a>;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn word() -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 8));
    at
}

fn value(at: u64) -> u32 {
    let mut value = 0_u32;
    ok!(cuMemcpyDtoH_v2((&raw mut value).cast(), at, 4));
    value
}

fn event() -> cudarc::driver::sys::CUevent {
    let mut event = core::ptr::null_mut();
    ok!(cuEventCreate(&mut event, 2));
    event
}

fn end(stream: CUstream) -> (CUresult, CUgraph) {
    let mut graph = core::ptr::null_mut();
    (call!(cuStreamEndCapture(stream, &mut graph)), graph)
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut executable = core::ptr::null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ok!(cuGraphDestroy(graph));
    executable
}

fn status(stream: CUstream) -> u32 {
    let mut status = 9;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

#[test]
fn a_graph_is_done_again_and_again() {
    alone("a_graph_is_done_again_and_again", "", || {
        begin(0);
        let (origin, branch, first, second) = (stream(), stream(), word(), word());
        let (fork, join) = (event(), event());
        ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
        assert_eq!((status(origin), status(branch)), (1, 0));
        ok!(cuMemsetD32Async(first, 7, 1, origin));
        ok!(cuEventRecord(fork, origin));
        ok!(cuStreamWaitEvent(branch, fork, 0));
        assert_eq!(status(branch), 1);
        ok!(cuMemcpyDtoDAsync_v2(second, first, 4, branch));
        ok!(cuEventRecord(join, branch));
        ok!(cuStreamWaitEvent(origin, join, 0));
        let (code, graph) = end(origin);
        assert_eq!((code, status(origin), status(branch)), (CUresult::CUDA_SUCCESS, 0, 0));
        assert_eq!(value(second), 0, "captured, not done");
        let executable = instantiate(graph);
        ok!(cuGraphUpload(executable, origin));
        for _ in 0..3 {
            ok!(cuMemsetD32_v2(second, 0, 1));
            ok!(cuGraphLaunch(executable, origin));
            ok!(cuStreamSynchronize(origin));
            assert_eq!(value(second), 7);
        }
        ok!(cuGraphExecDestroy(executable));
        assert_eq!(call!(cuGraphLaunch(executable, origin)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(call!(cuEventQuery(fork)), CUresult::CUDA_ERROR_CAPTURED_EVENT);
    });
}

#[test]
fn a_branch_that_is_not_joined_is_an_error() {
    alone("a_branch_that_is_not_joined_is_an_error", "", || {
        begin(0);
        let (origin, branch, at, fork) = (stream(), stream(), word(), event());
        ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
        ok!(cuEventRecord(fork, origin));
        ok!(cuStreamWaitEvent(branch, fork, 0));
        ok!(cuMemsetD32Async(at, 7, 1, branch));
        assert_eq!(end(origin), (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, core::ptr::null_mut()));
        assert_eq!(status(branch), 0);
    });
}

#[test]
fn what_a_capture_forbids_ends_it() {
    alone("what_a_capture_forbids_ends_it", "", || {
        begin(0);
        let (origin, outside, at) = (stream(), event(), word());
        ok!(cuEventRecord(outside, core::ptr::null_mut()));
        let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        let mut out = 0;
        let mut forbidden: [(&str, CUresult, Act<'_>); 5] = [
            ("waiting for the stream", unsupported, Box::new(|| call!(cuStreamSynchronize(origin)))),
            ("waiting for all", unsupported, Box::new(|| call!(cuCtxSynchronize()))),
            ("allocating", unsupported, Box::new(|| call!(cuMemAlloc_v2(&mut out, 8)))),
            ("copying at once", unsupported, Box::new(|| call!(cuMemsetD32_v2(at, 1, 1)))),
            (
                "what is outside",
                CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                Box::new(|| call!(cuStreamWaitEvent(origin, outside, 0))),
            ),
        ];
        for (what, expected, act) in &mut forbidden {
            ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
            assert_eq!(act(), *expected, "{what}");
            assert_eq!(status(origin), 2, "{what}");
            let code = call!(cuMemsetD32Async(at, 1, 1, origin));
            assert_eq!(code, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
            assert_eq!(end(origin).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
        }
        // A relaxed capture lets others allocate.
        ok!(cuStreamBeginCapture_v2(origin, RELAXED));
        ok!(cuMemAlloc_v2(&mut at.clone(), 8));
        assert_eq!(end(origin).0, CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn a_capture_keeps_other_threads_from_unsafe_calls_unless_they_are_relaxed() {
    alone("a_capture_keeps_other_threads_from_unsafe_calls_unless_they_are_relaxed", "", || {
        begin(0);
        let (origin, mark) = (stream(), event());
        let (mark, unsupported) = (mark.addr(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let elsewhere = |mode: u32| {
            let asks = || {
                begin(0);
                let mut exchanged = mode;
                ok!(cuThreadExchangeStreamCaptureMode(&mut exchanged));
                assert_eq!(exchanged, GLOBAL, "what a thread begins with");
                call!(cuEventQuery(core::ptr::without_provenance_mut(mark)))
            };
            std::thread::scope(|scope| scope.spawn(asks).join().unwrap())
        };
        for (capture, thread, expected) in [
            (GLOBAL, GLOBAL, unsupported),
            (GLOBAL, THREAD_LOCAL, CUresult::CUDA_SUCCESS),
            (GLOBAL, RELAXED, CUresult::CUDA_SUCCESS),
            (THREAD_LOCAL, GLOBAL, CUresult::CUDA_SUCCESS),
        ] {
            ok!(cuStreamBeginCapture_v2(origin, capture));
            assert_eq!(elsewhere(thread), expected, "{capture} {thread}");
            let ended =
                if expected == unsupported { CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED } else { expected };
            assert_eq!(end(origin).0, ended, "{capture} {thread}");
        }
        let mut nonsense = 3;
        assert_eq!(call!(cuThreadExchangeStreamCaptureMode(&mut nonsense)), CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn captures_begin_and_end_where_they_may() {
    alone("captures_begin_and_end_where_they_may", "", || {
        begin(0);
        let (origin, legacy, mut blocking) = (stream(), core::ptr::null_mut(), core::ptr::null_mut());
        let refused = call!(cuStreamBeginCapture_v2(legacy, GLOBAL));
        assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(end(origin).0, CUresult::CUDA_ERROR_ILLEGAL_STATE);
        ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
        assert_eq!(call!(cuStreamBeginCapture_v2(origin, GLOBAL)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!(end(origin).0, CUresult::CUDA_SUCCESS);
        // Work of the legacy stream would wait for a blocking one that captures.
        ok!(cuStreamCreate(&mut blocking, 0));
        let at = word();
        ok!(cuStreamBeginCapture_v2(blocking, RELAXED));
        let code = call!(cuMemsetD32Async(at, 1, 1, legacy));
        assert_eq!(code, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert_eq!(end(blocking).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    });
}
