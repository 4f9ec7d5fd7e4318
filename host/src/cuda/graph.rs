//! Graphs: what a stream was given between two points, to be launched as one thing any number of times.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::objects::RawStream;
use super::residents::Need;
use super::stream_state::StreamState;
use super::{CudaError, CudaRunner, Device};
use crate::LaunchError;

/// A graph that can be launched.
pub(crate) struct CudaGraph {
    /// Calls about one graph are made one at a time: the driver does not lock it (CUDA Driver API, "Graph object thread safety").
    executable: Mutex<usize>,
    /// The most that one of its kernels that wait needs: they run one after the other.
    need: Option<Need>,
    device: Arc<Device>,
}

/// A capture under way. Dropping it ends it.
struct Capture<'l> {
    state: &'l StreamState,
    recorder: Arc<RawStream>,
    /// Whether the driver still captures.
    open: bool,
    /// Whether the stream gives to this one.
    records: bool,
}

impl CudaRunner {
    /// What `record` gives the stream, as a graph. If it fails, the capture is over and the stream as it was.
    pub(crate) fn capture(&self, record: impl FnOnce() -> Result<(), LaunchError>) -> Result<CudaGraph, LaunchError> {
        let capture = Capture::begin(self.state())?;
        record()?;
        let (graph, need) = capture.end()?;
        let device = &self.state().device;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is the capture's, and goes right after: what was made of it does not need it.
        unsafe {
            let made = device.driver().graph_instantiate(&raw mut executable, graph, 0);
            destroy(device, graph);
            made?;
        }
        Ok(CudaGraph { executable: Mutex::new(executable.expose_provenance()), need, device: Arc::clone(device) })
    }

    /// Puts all that a graph has at the end of the stream.
    pub(crate) fn launch_graph(&self, graph: &CudaGraph) -> Result<(), LaunchError> {
        let _until_launched = graph.need.map(|need| self.admit(need)).transpose()?;
        let executable = graph.executable.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph was instantiated, and lives as long as `graph`; the lock keeps other threads away. What its kernels
        // and copies touch was checked when they were captured; the world's memory and modules live as long as the graph.
        Ok(self.put("graph", |stream| unsafe { graph.device.driver().graph_launch(handle(*executable), stream) })?)
    }
}

impl<'l> Capture<'l> {
    /// Everything that the stream is given goes to a stream that captures, until the capture ends.
    ///
    /// Nobody else knows that stream, so nothing can wait for it behind its back, and the mode may be the one that forbids this
    /// thread nothing: the first launch of a kernel loads its module, which the other modes refuse.
    fn begin(state: &'l StreamState) -> Result<Self, CudaError> {
        let recorder = state.device.new_stream()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was just made.
        unsafe { state.device.driver().stream_begin_capture(recorder.raw(), mode) }?;
        let records = state.record_to(&recorder);
        let capture = Self { state, recorder, open: true, records };
        if capture.records { Ok(capture) } else { Err(CudaError::Captured) }
    }

    /// What was captured, and what it needs.
    fn end(mut self) -> Result<(CUgraph, Option<Need>), CudaError> {
        self.records = false;
        let need = self.state.record_no_more();
        Ok((self.stop()?, need))
    }

    fn stop(&mut self) -> Result<CUgraph, CudaError> {
        self.open = false;
        self.state.device.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is this capture's own, and captures; the place for the graph is there.
        unsafe { self.state.device.driver().stream_end_capture(self.recorder.raw(), &raw mut graph) }?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.records {
            self.state.record_no_more();
        }
        // What went wrong before is told, and this goes with the stream.
        if self.open
            && let Ok(graph) = self.stop()
        {
            // SAFETY: the graph is this capture's, and nothing was made of it.
            unsafe { destroy(&self.state.device, graph) };
        }
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let executable = *self.executable.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.device.bind().is_ok() {
            // SAFETY: instantiated by `capture`, destroyed here only. Launches that are under way go on (CUDA Driver API,
            // cuGraphExecDestroy).
            let _destroyed_or_gone_with_the_context =
                unsafe { self.device.driver().graph_exec_destroy(handle(executable)) };
        }
    }
}

fn handle(executable: usize) -> CUgraphExec {
    std::ptr::with_exposed_provenance_mut(executable)
}

/// # Safety
/// The graph is not used any more.
unsafe fn destroy(device: &Device, graph: CUgraph) {
    if !graph.is_null() {
        // SAFETY: the caller's promise. What cannot be destroyed is gone with its context.
        let _destroyed = unsafe { device.driver().graph_destroy(graph) };
    }
}
