//! What streams of a GPU did, for traces: kernels, copies and graphs as wholes, timed by events of the driver.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{CudaError, CudaEvent, Device, Lane};
use crate::trace::{self, Event, Recorder};

/// A point of a GPU's time, and when that was on the clock of traces. Events tell the time between them in `f32`, which has all digits
/// only of short times: so each row counts on from what it had last.
type TimedEvent = (Arc<CudaEvent>, u64);

/// How often a GPU is asked for its time, and how long it may take to answer.
const LOOKS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);

/// A PE's part in the trace of its process.
pub(super) struct Trace {
    recorder: Arc<Recorder>,
    pe: u32,
    known: TimedEvent,
    streams: AtomicU32,
}

/// A stream's row of it.
pub(super) struct StreamRow {
    recorder: Arc<Recorder>,
    pe: u32,
    track: String,
    last: Mutex<TimedEvent>,
}

/// Something on a stream, which is told of when this goes, and that is when it is complete.
struct Traced {
    row: Arc<StreamRow>,
    name: &'static str,
    start: CudaEvent,
    end: Arc<CudaEvent>,
}

impl Trace {
    /// Finds out what time it is on the GPU. None where it does not answer.
    pub(super) fn new(recorder: &Arc<Recorder>, pe: u32, device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        let lane = Lane::new(device)?;
        // Somewhere between question and answer: of several the quickest is off by the least.
        let mut best: Option<(Duration, TimedEvent)> = None;
        for _ in 0..LOOKS {
            let (began, before) = (Instant::now(), trace::now_ns());
            let now = lane.record_event(true)?;
            // Nothing else is on the stream.
            if !lane.wait_for(lane.submitted(), || began.elapsed() < PATIENCE)? {
                tracing::warn!(pe, "the trace lacks this PE's kernels: its GPU does not answer within {PATIENCE:?}");
                return Ok(None);
            }
            let took = began.elapsed();
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, (Arc::new(now), before + took.as_nanos() as u64 / 2)));
            }
        }
        Ok(best.map(|(_, known)| Self { recorder: Arc::clone(recorder), pe, known, streams: AtomicU32::default() }))
    }

    /// The row of a new stream.
    pub(super) fn row(&self) -> Arc<StreamRow> {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let (recorder, last) = (Arc::clone(&self.recorder), Mutex::new(self.known.clone()));
        Arc::new(StreamRow { recorder, pe: self.pe, track: format!("pe{} stream {number}", self.pe), last })
    }
}

impl StreamRow {
    /// Has the stream do something between two events. What is recorded for a graph is seen when that is launched, as a whole.
    pub(super) fn around(
        self: &Arc<Self>,
        lane: &Lane,
        name: &'static str,
        put: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let start = if lane.is_recording()? { None } else { Some(lane.record_event(true)?) };
        put()?;
        // What has been launched is launched, whether it can be traced or not: an error would give back what it was lent.
        if let Some(start) = start
            && let Ok(end) = lane.record_event(true)
        {
            lane.hold(Arc::new(Traced { row: Arc::clone(self), name, start, end: Arc::new(end) }));
        }
        Ok(())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let mut last = self.row.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ok(before), Ok(took)) = (last.0.milliseconds_to(&self.start), self.start.milliseconds_to(&self.end))
        else {
            return;
        };
        // Threads that find launches complete may tell of a later one first: then the time before is negative.
        let begin_ns = last.1.saturating_add_signed((f64::from(before) * 1e6) as i64);
        let end_ns = begin_ns.saturating_add_signed((f64::from(took) * 1e6) as i64);
        if end_ns > last.1 {
            *last = (Arc::clone(&self.end), end_ns);
        }
        let (name, track) = (self.name.into(), self.row.track.clone().into());
        self.row.recorder.add(Event { pe: self.row.pe, track, block: None, name, begin_ns, end_ns, args: Vec::new() });
    }
}
