//! A stream of the driver, and how far it is.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUresult, CUstream, CUstreamCaptureStatus};

use super::objects::{Event, RawStream};
use super::residents::Need;
use super::waits::Waits;
use super::{CudaError, Device};

/// The driver's stream, and how far it is.
///
/// While it records, what it is given goes to a stream that captures and that nobody else knows; the stream itself never
/// captures, so it can be asked and waited for at any time.
pub(crate) struct StreamState {
    queue: Queue,
    pub(super) device: Arc<Device>,
    counts: Mutex<Counts>,
    /// What launches were lent, each with how many had been submitted with it.
    held: Mutex<VecDeque<(u64, Held)>>,
    pub(super) waits: Waits,
}

/// What stays until a launch is complete.
type Held = Arc<dyn Any + Send + Sync>;

enum Queue {
    Own(Arc<RawStream>),
    /// Somebody else's, kept alive.
    Shared(Arc<CudaStream>),
    /// The handle of a stream that somebody else made, and who borrowed it keeps alive.
    Borrowed(usize),
}

#[derive(Default)]
struct Counts {
    submitted: u64,
    completed: u64,
    /// The number of the first launch that is not known to be complete.
    first: Option<u32>,
    /// Takes what is submitted, while the stream records.
    recorder: Option<Arc<RawStream>>,
    /// The most that a kernel needs of those that are recorded.
    recorded: Option<Need>,
}

/// After how many launches that were lent something a stream is asked how far it is.
const LOOK_AT: usize = 32;

/// How long a stream is polled without a pause, and how long the pauses are then.
const EAGER: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(50);

impl StreamState {
    /// A stream of our own.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self::on(device, Queue::Own(device.new_stream()?)))
    }

    /// A stream of somebody else's, which the caller knows to be of the device's context.
    pub(super) fn shared(device: &Arc<Device>, stream: &Arc<CudaStream>) -> Self {
        Self::on(device, Queue::Shared(Arc::clone(stream)))
    }

    /// A stream of somebody else's, which the caller knows to be of the device's context, and to live as long as this.
    pub(super) fn borrowed(device: &Arc<Device>, stream: CUstream) -> Self {
        Self::on(device, Queue::Borrowed(stream.expose_provenance()))
    }

    fn on(device: &Arc<Device>, queue: Queue) -> Self {
        let (counts, held) = (Mutex::default(), Mutex::default());
        Self { queue, device: Arc::clone(device), counts, held, waits: Waits::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raw(&self) -> CUstream {
        match &self.queue {
            Queue::Own(stream) => stream.raw(),
            Queue::Shared(stream) => stream.cu_stream(),
            Queue::Borrowed(stream) => std::ptr::with_exposed_provenance_mut(*stream),
        }
    }

    /// Gives the stream, or who records for it, one more thing to do.
    pub(super) fn put(&self, put: impl FnOnce(CUstream) -> Result<(), CudaError>) -> Result<(), CudaError> {
        self.device.bind()?;
        let recorder = self.counts().recorder.clone();
        // What is recorded is not done now, and counts when its graph is launched.
        let recorded = recorder.is_some() || self.captures_for_others()?;
        if recorded && recorder.is_none() && matches!(self.queue, Queue::Shared(_)) {
            // Its owner's graph may outlive the world, and nobody has promised otherwise.
            return Err(CudaError::Captured);
        }
        put(recorder.as_ref().map_or_else(|| self.raw(), |recorder| recorder.raw()))?;
        self.counts().submitted += u64::from(!recorded);
        Ok(())
    }

    /// A point behind all that it was given; with the time, where that is asked for.
    pub(crate) fn record_event(&self, timed: bool) -> Result<Event, CudaError> {
        let context = self.device.context();
        let event = if timed { Event::timed(context)? } else { Event::new(context)? };
        self.put(|stream| event.record(stream))?;
        Ok(event)
    }

    /// What it is given later begins when an event of the same context is complete.
    pub(crate) fn wait_event(&self, event: &Event) -> Result<(), CudaError> {
        self.put(|stream| event.hold_back(stream))
    }

    /// Keeps something until all that was submitted so far is complete.
    pub(crate) fn hold(&self, what: Held) {
        let submitted = self.submitted();
        let held = {
            let mut held = self.held();
            held.push_back((submitted, what));
            held.len()
        };
        if held.is_multiple_of(LOOK_AT) {
            // What cannot be asked is kept.
            let _idle = self.poll();
        }
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(u64, Held)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what the first `completed` launches were lent.
    fn give_back(&self, completed: u64) {
        let mut held = self.held();
        let gone = held.iter().take_while(|(until, _)| *until <= completed).count();
        let gone: Vec<_> = held.drain(..gone).collect();
        // The lock first: what goes asks the driver for something.
        drop(held);
        drop(gone);
    }

    /// Whether what it is given now is recorded by a capture of the stream's owner.
    pub(crate) fn is_recording_for_others(&self) -> Result<bool, CudaError> {
        Ok(self.counts().recorder.is_none() && self.captures_for_others()?)
    }

    /// Whether what it is given now is recorded, by a capture of ours or of the stream's owner.
    pub(crate) fn is_recording(&self) -> Result<bool, CudaError> {
        Ok(self.counts().recorder.is_some() || self.captures_for_others()?)
    }

    /// What is submitted from here on goes to this stream. False where another one records already.
    pub(super) fn record_to(&self, recorder: &Arc<RawStream>) -> bool {
        let mut counts = self.counts();
        let first = counts.recorder.is_none();
        counts.recorder.get_or_insert_with(|| Arc::clone(recorder));
        first
    }

    /// Keeps what a kernel needs while it is recorded; false where it is not.
    pub(super) fn note(&self, need: Need) -> bool {
        let mut counts = self.counts();
        let records = counts.recorder.is_some();
        if records {
            counts.recorded = Some(counts.recorded.map_or(need, |most| most.and(need)));
        }
        records
    }

    /// Ends what [`record_to`](Self::record_to) began, and tells what it needs.
    pub(super) fn record_no_more(&self) -> Option<Need> {
        let mut counts = self.counts();
        counts.recorder = None;
        counts.recorded.take()
    }

    /// Whether its owner captures it. Then it must be left alone: a question about a stream that captures ends the capture (CUDA
    /// Driver API, cuStreamBeginCapture).
    fn captures_for_others(&self) -> Result<bool, CudaError> {
        if let Queue::Own(_) = self.queue {
            return Ok(false);
        }
        self.device.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives, as who borrowed it promised, and its context is this thread's; the place for the status is
        // there, and the driver knows no other than those three.
        match unsafe { self.device.driver().stream_is_capturing(self.raw(), &raw mut status) } {
            Ok(()) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
            // The legacy stream beside one that captures, which is to be left alone as well.
            Err(error) if error.is(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes note of the number of a launch that it was given.
    pub(crate) fn launched(&self, number: u32) {
        let mut counts = self.counts();
        // What is recorded is nothing that it has to complete.
        if counts.recorder.is_none() && counts.completed < counts.submitted {
            counts.first.get_or_insert(number);
        }
    }

    /// The number of the first launch since it was last known to be idle.
    pub(crate) fn first(&self) -> Option<u32> {
        self.counts().first
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.counts().submitted
    }

    /// Whether everything launched so far is complete. A stream that has failed is; one that its owner captures is not asked, and
    /// is if it was known to be before.
    pub(crate) fn is_idle(&self) -> bool {
        match self.poll() {
            Ok(idle) => idle,
            Err(CudaError::Captured) => false,
            Err(_) => true,
        }
    }

    /// How many launches are known to be complete. What its owner captures, and what has failed, tells no more than before.
    pub(crate) fn completed(&self) -> u64 {
        let _idle = self.poll();
        self.counts().completed
    }

    /// Whether everything launched so far is complete.
    fn poll(&self) -> Result<bool, CudaError> {
        let before = {
            let counts = self.counts();
            if counts.completed >= counts.submitted {
                return Ok(true);
            }
            counts.submitted
        };
        self.device.bind()?;
        if self.captures_for_others()? {
            return Err(CudaError::Captured);
        }
        // SAFETY: the stream is owned by this, or lives as who borrowed it promised, and it does not capture.
        match unsafe { self.device.driver().stream_query(self.raw()) } {
            Ok(()) => {
                let completed = {
                    let mut counts = self.counts();
                    counts.completed = counts.completed.max(before);
                    if counts.completed == counts.submitted {
                        counts.first = None;
                    }
                    counts.completed
                };
                self.give_back(completed);
                Ok(true)
            }
            Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until its first `count` launches are complete, for as long as `patient` says. False when it lost patience.
    pub(crate) fn wait_for(&self, count: u64, patient: impl Fn() -> bool) -> Result<bool, CudaError> {
        let began = Instant::now();
        while self.counts().completed < count {
            if self.poll()? {
                break;
            }
            if !patient() {
                return Ok(false);
            }
            if began.elapsed() > EAGER {
                std::thread::sleep(PAUSE);
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(true)
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        let counts = self.counts.get_mut().unwrap_or_else(PoisonError::into_inner);
        if counts.completed < counts.submitted {
            // Nobody knows of their end, so what they were lent stays.
            std::mem::forget(std::mem::take(self.held.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}
