//! Events: marks in streams that hosts and other streams wait for.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use cudarc::driver::sys::CUresult;

use crate::capture::{self, Position};
use crate::context::Context;
use crate::errors::Outcome;
use crate::handles::Table;
use crate::monitor::{changed, lock, until};
use crate::operation::Operation;
use crate::stream::Stream;

/// `CU_EVENT_DISABLE_TIMING`, and all flags together.
const NO_TIMING: u32 = 2;
const FLAGS: u32 = 7;

static EVENTS: Table<Event> = Table::new();

/// A mark that can be recorded again and again; only the last time counts.
pub(crate) struct Event {
    context: Arc<Context>,
    timed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often it was recorded, and up to which time it is complete.
    recorded: u64,
    completed: u64,
    when: Option<Instant>,
    /// Where in a capture it was last recorded, if that was in one.
    captured: Option<Position>,
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags
pub(crate) fn create(context: Arc<Context>, flags: u32) -> Outcome<u64> {
    if flags & !FLAGS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let timed = flags & NO_TIMING == 0;
    Ok(EVENTS.add(|_| Event { context, timed, state: Mutex::default() }).0)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, and the fault of its context
pub(crate) fn find(handle: u64) -> Outcome<Arc<Event>> {
    let event = EVENTS.get(handle)?;
    event.context.check()?;
    Ok(event)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn destroy(handle: u64) -> Outcome {
    EVENTS.remove(handle).map(drop)
}

/// Ends all events of a context.
pub(crate) fn end_all(context: &Arc<Context>) {
    EVENTS.remove_all(|event| Arc::ptr_eq(&event.context, context));
}

impl Event {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Records it at the end of a stream, or at the place in a capture that the stream is at.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` for a stream of another context, and those of [`Stream::submit`]
    pub(crate) fn record(self: &Arc<Self>, stream: &Arc<Stream>) -> Outcome {
        if !Arc::ptr_eq(&self.context, &stream.context) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let position = lock(&stream.capturing).clone();
        if let Some(position) = position {
            position.capture.check()?;
            lock(&self.state).captured = Some(position);
            return Ok(());
        }
        let time = {
            let mut state = lock(&self.state);
            state.captured = None;
            state.recorded += 1;
            state.recorded
        };
        stream.submit(Operation::Record(self.clone(), time))
    }

    /// Lets a stream wait for it, as it was recorded last; never recorded, it is no reason to wait. A stream that waits
    /// for an event of a capture becomes part of that capture.
    ///
    /// # Errors
    /// Those of captures: two would become one, one would depend on what is outside
    pub(crate) fn hold(self: &Arc<Self>, stream: &Arc<Stream>) -> Outcome {
        let (captured, recorded) = {
            let state = lock(&self.state);
            (state.captured.clone(), state.recorded)
        };
        if let Some(position) = captured {
            return capture::join(stream, &position);
        }
        if recorded == 0 {
            return Ok(());
        }
        if let Some(own) = &*lock(&stream.capturing) {
            own.capture.invalidate();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        stream.submit(Operation::Await(self.clone(), recorded))
    }

    /// Marks it as complete for the time given.
    pub(crate) fn complete(&self, time: u64) {
        {
            let mut state = lock(&self.state);
            if state.completed >= time {
                return;
            }
            state.completed = time;
            state.when = Some(Instant::now());
        }
        changed();
    }

    pub(crate) fn has_completed(&self, time: u64) -> bool {
        lock(&self.state).completed >= time
    }

    /// Whether all before its last record is done.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_READY`, `CUDA_ERROR_CAPTURED_EVENT` if it was last recorded in a capture, and the fault of its context
    pub(crate) fn query(&self) -> Outcome {
        let state = lock(&self.state);
        if let Some(position) = &state.captured {
            position.capture.invalidate();
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        // A fault that came before it was complete is told now.
        if state.completed < state.recorded { Err(CUresult::CUDA_ERROR_NOT_READY) } else { self.context.check() }
    }

    /// Waits for its last record.
    ///
    /// # Errors
    /// As [`query`](Self::query), but the fault of its context at once
    pub(crate) fn synchronize(&self) -> Outcome {
        until(|| match (self.query(), self.context.fault()) {
            (Err(CUresult::CUDA_ERROR_NOT_READY), None) => None,
            (_, Some(code)) => Some(Err(code)),
            (outcome, None) => Some(outcome),
        })
    }

    /// Milliseconds from its completion to that of another.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if one keeps no time or was never recorded, `CUDA_ERROR_NOT_READY`
    pub(crate) fn milliseconds_to(&self, end: &Self) -> Outcome<f32> {
        let when = |event: &Self| {
            let recorded = lock(&event.state).recorded > 0;
            if !event.timed || !recorded {
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            }
            event.query()?;
            lock(&event.state).when.ok_or(CUresult::CUDA_ERROR_NOT_READY)
        };
        let (from, to) = (when(self)?, when(end)?);
        let forward = to.saturating_duration_since(from).as_secs_f64();
        let backward = from.saturating_duration_since(to).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_before_an_event_is_complete_is_told_by_the_event() {
        let context = Context::new(0);
        context.retain();
        let event = find(create(context.clone(), 0).unwrap()).unwrap();
        lock(&event.state).recorded = 1;
        assert_eq!(event.query(), Err(CUresult::CUDA_ERROR_NOT_READY));
        // As a kernel and the record behind it, after a caller has seen that there is no fault.
        context.fail(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        event.complete(1);
        assert_eq!(event.query(), Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(event.milliseconds_to(&event), Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    }
}
