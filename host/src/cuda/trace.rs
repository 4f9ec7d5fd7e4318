//! What streams of a GPU did, for traces: kernels, copies and graphs as wholes, timed by events of the driver; and the parts of kernels that
//! tell of them, timed by the device's clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use congruent_device::abi::{NO_PE, PrintLine};

use super::{CudaError, CudaEvent, Device, StreamState};
use crate::trace::{self, Event, Part, Recorder};

/// A point of a GPU's time, and when that was on the clock of traces. Events tell the time between them in `f32`, which has all digits
/// only of short times: so each row counts on from what it had last.
type TimedEvent = (Arc<CudaEvent>, u64);

/// How often a GPU is asked for its time, and how long it may take to answer.
const LOOKS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);

/// A PE's part in the trace of its process.
pub(crate) struct Trace {
    recorder: Arc<Recorder>,
    pe: u32,
    known: TimedEvent,
    streams: AtomicU32,
    launches: Arc<Untold>,
}

/// A stream's row of it.
pub(super) struct StreamRow {
    recorder: Arc<Recorder>,
    pe: u32,
    track: String,
    last: Mutex<TimedEvent>,
    launches: Arc<Untold>,
}

/// Something on a stream, which is told of when this goes, and that is when it is complete.
struct Traced {
    row: Arc<StreamRow>,
    name: &'static str,
    launch: u32,
    start: CudaEvent,
    end: Arc<CudaEvent>,
}

/// The launches, by their numbers, that may still tell of their parts.
#[derive(Default)]
struct Untold(Mutex<BTreeMap<u32, UntoldLaunch>>);

struct UntoldLaunch {
    track: String,
    parts: Vec<KernelPart>,
    /// When it ended, once it is complete.
    end: Option<u64>,
}

/// What one block did, on the device's clock.
struct KernelPart {
    block: u32,
    was: [u64; 2],
    what: Part,
}

impl Trace {
    /// Finds out what time it is on the GPU. None where it does not answer.
    pub(super) fn new(recorder: &Arc<Recorder>, pe: u32, device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        let state = StreamState::new(device)?;
        // Somewhere between question and answer: of several the quickest is off by the least.
        let mut best: Option<(Duration, TimedEvent)> = None;
        for _ in 0..LOOKS {
            let (began, before) = (Instant::now(), trace::now_ns());
            let now = state.record_event(true)?;
            // Nothing else is on the stream.
            if !state.wait_for(state.submitted(), || began.elapsed() < PATIENCE)? {
                tracing::warn!(pe, "the trace lacks this PE's kernels: its GPU does not answer within {PATIENCE:?}");
                return Ok(None);
            }
            let took = began.elapsed();
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, (Arc::new(now), before + took.as_nanos() as u64 / 2)));
            }
        }
        let (recorder, streams, launches) = (Arc::clone(recorder), AtomicU32::default(), Arc::default());
        Ok(best.map(|(_, known)| Self { recorder, pe, known, streams, launches }))
    }

    /// The row of a new stream.
    pub(super) fn row(&self) -> Arc<StreamRow> {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let (recorder, launches) = (Arc::clone(&self.recorder), Arc::clone(&self.launches));
        let (track, last) = (format!("pe{} stream {number}", self.pe), Mutex::new(self.known.clone()));
        Arc::new(StreamRow { recorder, pe: self.pe, track, last, launches })
    }

    /// The launches that are known to be complete, and not yet [told](Self::tell) of.
    pub(crate) fn complete(&self) -> Vec<u32> {
        self.launches.all().iter().filter(|(_, launch)| launch.end.is_some()).map(|(&number, _)| number).collect()
    }

    /// Takes note of a part of a kernel. Of one that a graph launched it is not known when that was.
    pub(crate) fn told(&self, line: &PrintLine) {
        if let Some(launch) = self.launches.all().get_mut(&line.launch) {
            let [begin, end, part, peer, bytes, _] = line.values;
            let (part, peer) = ((part as u32, (part >> 32) as u32), Some(peer as u32).filter(|&peer| peer != NO_PE));
            let name = String::from_utf8_lossy(line.said()).into_owned().into();
            let what = Part { name, part, peer, bytes };
            launch.parts.push(KernelPart { block: line.block, was: [begin, end], what });
        }
    }

    /// Tells of all parts of these launches, which are complete, and of how many were lost.
    pub(crate) fn tell(&self, complete: &[u32], lost: u64) {
        self.recorder.lose(lost);
        for number in complete {
            let Some(UntoldLaunch { track, parts, end: Some(end) }) = self.launches.all().remove(number) else {
                continue;
            };
            let last = parts.iter().map(|part| part.was[1]).max().unwrap_or(0);
            for KernelPart { block, was, what } in parts {
                // The driver's event comes right behind the last block.
                let was = was.map(|at| end.saturating_sub(last.saturating_sub(at)));
                self.recorder.add(what.event(self.pe, track.clone().into(), block, was));
            }
        }
    }
}

impl Untold {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, UntoldLaunch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamRow {
    /// Has the stream do something between two events: the launch of this number, or something else if that is 0. What is recorded for a
    /// graph is seen when that is launched, as a whole.
    pub(super) fn around(
        self: &Arc<Self>,
        state: &StreamState,
        name: &'static str,
        launch: u32,
        put: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if state.is_recording()? {
            return put();
        }
        let start = state.record_event(true)?;
        if launch != 0 {
            // Before it runs, as it may tell of its parts at once.
            let known = UntoldLaunch { track: self.track.clone(), parts: Vec::new(), end: None };
            self.launches.all().insert(launch, known);
        }
        let put = put();
        // What has been launched is launched, whether it can be traced or not: an error would give back what it was lent.
        match put.is_ok().then(|| state.record_event(true)) {
            Some(Ok(end)) => {
                state.hold(Arc::new(Traced { row: Arc::clone(self), name, launch, start, end: Arc::new(end) }));
            }
            _ => drop(self.launches.all().remove(&launch)),
        }
        put
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let mut last = self.row.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ok(before), Ok(took)) = (last.0.milliseconds_to(&self.start), self.start.milliseconds_to(&self.end))
        else {
            self.row.launches.all().remove(&self.launch);
            return;
        };
        // Threads that find launches complete may tell of a later one first: then the time before is negative.
        let begin_ns = last.1.saturating_add_signed((f64::from(before) * 1e6) as i64);
        let end_ns = begin_ns.saturating_add_signed((f64::from(took) * 1e6) as i64);
        if end_ns > last.1 {
            *last = (Arc::clone(&self.end), end_ns);
        }
        if let Some(launch) = self.row.launches.all().get_mut(&self.launch) {
            launch.end = Some(end_ns);
        }
        let (name, track) = (self.name.into(), self.row.track.clone().into());
        self.row.recorder.add(Event { pe: self.row.pe, track, block: None, name, begin_ns, end_ns, args: Vec::new() });
    }
}
