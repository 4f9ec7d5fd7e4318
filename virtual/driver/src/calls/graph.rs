//! Capture and graphs.

use core::ffi::{c_uint, c_ulonglong};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream};

use crate::capture::{self, Mode};
use crate::entry::entry_points;
use crate::operation::Operation;
use crate::{graph, stream};

entry_points! {
    /// Begins a capture on a stream.
    Context fn cuStreamBeginCapture_v2(on: CUstream, mode: c_uint) {
        capture::begin(&*stream::find(on.address())?, Mode::from_number(mode)?)
    }

    /// Says whose captures keep this thread from unsafe calls, and tells what held before.
    Driver fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let before = capture::exchange(Mode::from_number(mode.get()?)?);
        mode.set(before.number())
    }

    /// Ends a capture, which gives a graph, or null for a capture that came to nothing.
    Context fn cuStreamEndCapture(on: CUstream, given: *mut CUgraph) {
        given.set(core::ptr::null_mut())?;
        let nodes = capture::end(&*stream::find(on.address())?)?;
        given.set(core::ptr::without_provenance_mut(graph::create(nodes) as usize))
    }

    /// Makes a graph ready to be launched. Flags tell a device how; none of them changes what is done.
    Context fn cuGraphInstantiateWithFlags(given: *mut CUgraphExec, of: CUgraph, flags: c_ulonglong) {
        if flags & !0xf != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        given.set(core::ptr::without_provenance_mut(graph::instantiate(of.address())? as usize))
    }

    /// Puts a graph on a stream.
    Context fn cuGraphLaunch(executable: CUgraphExec, on: CUstream) {
        let nodes = graph::nodes(executable.address())?;
        stream::find(on.address())?.submit(Operation::Graph(nodes))
    }

    /// Brings a graph to its device: it is there.
    Context fn cuGraphUpload(executable: CUgraphExec, on: CUstream) {
        graph::nodes(executable.address())?;
        stream::find(on.address()).map(drop)
    }

    /// Ends an executable graph.
    Context fn cuGraphExecDestroy(executable: CUgraphExec) {
        graph::destroy_executable(executable.address())
    }

    /// Ends a graph.
    Context fn cuGraphDestroy(of: CUgraph) {
        graph::destroy(of.address())
    }
}
