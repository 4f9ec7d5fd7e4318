//! Points in what streams are given, which other streams and the host wait for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cpu::{Mark, Task};
use crate::cuda::{CudaError, CudaEvent};
use crate::runner::Runner;
use crate::shared::Shared;
use crate::{LaunchError, Stream, WorldFailure};

/// A point behind all that a stream was given before it. Made by [`Stream::record_event`], or of cudarc's by [`World::import_event`].
///
/// ```
/// # congruent::local(1, |world| {
/// let (copies, computes) = (world.stream()?, world.stream()?);
/// let copied = copies.record_event()?;
/// computes.wait(&copied)?;                    // what `computes` is given from here on begins when the copies are complete
/// let computed = computes.record_event()?;
/// computed.synchronize()?;
/// println!("{:?}", copied.elapsed(&computed)?);
/// # Ok::<_, congruent::Error>(())
/// # })?;
/// # Ok::<_, congruent::Error>(())
/// ```
///
/// [`World::import_event`]: crate::World::import_event
#[derive(Clone)]
pub struct Event {
    shared: Arc<Shared>,
    point: Point,
}

#[derive(Clone)]
enum Point {
    Cpu(Arc<Mark>),
    Cuda(Arc<CudaEvent>),
}

/// Why nothing of events can be in a capture.
const NO_STREAMS: &str = "a graph has the work of one stream; record and wait before the capture or behind it";

impl Stream {
    /// A point behind all that the stream was given so far.
    ///
    /// # Errors
    /// In a capture, and where the driver refuses.
    pub fn record_event(&self) -> Result<Event, LaunchError> {
        self.not_captured("record_event", NO_STREAMS)?;
        Ok(self.event(true)?)
    }

    /// Makes what the stream is given later begin when the event is complete. The host does not wait.
    ///
    /// # Errors
    /// The event is of another world; in a capture; and where the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), LaunchError> {
        if !self.is_of(&event.shared) {
            return Err(LaunchError::ForeignEvent);
        }
        self.not_captured("wait", NO_STREAMS)?;
        Ok(self.wait_for_event(event)?)
    }

    /// Makes what the stream is given later begin when all that `other` was given so far is complete.
    ///
    /// # Errors
    /// As [`wait`](Stream::wait).
    pub fn join(&self, other: &Self) -> Result<(), LaunchError> {
        other.not_captured("join", NO_STREAMS)?;
        self.wait(&other.event(false)?)
    }

    /// A point behind all that it was given so far; on a GPU without the time, where that is not asked for.
    pub(crate) fn event(&self, timed: bool) -> Result<Event, CudaError> {
        let (shared, point) = match self.runner() {
            Runner::Cpu(queue, shared) => {
                let mark = Arc::<Mark>::default();
                queue.stream.submit(Task::Mark(Arc::clone(&mark)));
                (shared, Point::Cpu(mark))
            }
            Runner::Cuda(runner, shared) => (shared, Point::Cuda(Arc::new(runner.state().record_event(timed)?))),
        };
        Ok(Event { shared: Arc::clone(shared), point })
    }

    /// Waits for an event of its world.
    pub(crate) fn wait_for_event(&self, event: &Event) -> Result<(), CudaError> {
        match (self.runner(), &event.point) {
            (Runner::Cpu(queue, shared), Point::Cpu(mark)) => {
                let shared = Arc::clone(shared);
                queue.stream.submit(Task::Wait(Arc::clone(mark), Arc::new(move || shared.is_patient())));
                Ok(())
            }
            (Runner::Cuda(runner, _), Point::Cuda(event)) => runner.state().wait_event(event),
            // A world has one machine.
            (Runner::Cpu(..), Point::Cuda(_)) | (Runner::Cuda(..), Point::Cpu(_)) => Ok(()),
        }
    }
}

impl Event {
    /// Whether the stream has come to it. Of a stream that has failed it is not.
    pub fn is_complete(&self) -> bool {
        match &self.point {
            Point::Cpu(mark) => mark.when().is_some(),
            Point::Cuda(event) => event.is_complete().unwrap_or(false),
        }
    }

    /// Waits until the stream has come to it.
    ///
    /// # Errors
    /// The first failure of the world.
    pub fn synchronize(&self) -> Result<(), WorldFailure> {
        match &self.point {
            Point::Cpu(mark) => _ = mark.wait(|| self.shared.is_patient()),
            Point::Cuda(event) => self.shared.wait_for_event(event),
        }
        self.shared.check()
    }

    /// The time from this event to a later one. Waits for both.
    ///
    /// # Errors
    /// The events are of different worlds; a stream or the world has failed.
    pub fn elapsed(&self, end: &Self) -> Result<Duration, LaunchError> {
        if self.shared.id() != end.shared.id() {
            return Err(LaunchError::ForeignEvent);
        }
        self.synchronize()?;
        end.synchronize()?;
        Ok(match (&self.point, &end.point) {
            (Point::Cpu(start), Point::Cpu(end)) => {
                start.when().zip(end.when()).map_or(Duration::ZERO, |(start, end)| end.saturating_duration_since(start))
            }
            (Point::Cuda(start), Point::Cuda(end)) => {
                Duration::from_secs_f32(start.milliseconds_to(end)?.max(0.0) / 1000.0)
            }
            // A world has one machine.
            (Point::Cpu(_), Point::Cuda(_)) | (Point::Cuda(_), Point::Cpu(_)) => Duration::ZERO,
        })
    }
}

impl Event {
    /// One that the driver has.
    pub(crate) fn of_cuda(shared: &Arc<Shared>, event: CudaEvent) -> Self {
        Self { shared: Arc::clone(shared), point: Point::Cuda(Arc::new(event)) }
    }

    /// The driver's, where it has one.
    pub(crate) fn cuda(&self) -> Option<&CudaEvent> {
        match &self.point {
            Point::Cpu(_) => None,
            Point::Cuda(event) => Some(event),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}
