//! Stream capture: operations become nodes of a graph, and what cannot become one ends the capture.
//!
//! A capture begins on one stream, its origin. Other streams join by waiting for an event recorded in it, and the origin
//! must have waited for all of them before it ends. So each stream keeps how many nodes of every stream it is behind,
//! a vector clock; it is complete when the origin's counts are those of the capture.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::errors::Outcome;
use crate::monitor::lock;
use crate::operation::Operation;
use crate::stream::{self, Stream};

/// Whom a capture keeps from calls that are unsafe beside it, such as allocating memory; and of a thread, whose captures keep it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All threads.
    Global,
    /// The thread that began it.
    ThreadLocal,
    /// Nobody.
    Relaxed,
}

/// A capture under way.
pub(crate) struct Capture {
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Operation>,
    /// How many nodes each stream gave.
    given: BTreeMap<u64, u64>,
    invalid: bool,
    ended: bool,
}

/// Where a stream is in a capture, or an event.
#[derive(Clone)]
pub(crate) struct Position {
    pub(crate) capture: Arc<Capture>,
    /// How many nodes of each stream come before.
    behind: BTreeMap<u64, u64>,
}

thread_local! {
    /// Whose captures keep this thread: all that say so, its own, or none.
    static HEEDS: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Captures that have not ended.
static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

impl Mode {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`
    pub(crate) fn from_number(number: u32) -> Outcome<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// As [`from_number`](Self::from_number) reads it.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// Begins a capture on a stream.
///
/// # Errors
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `CUDA_ERROR_ILLEGAL_STATE` if it captures already
pub(crate) fn begin(stream: &Stream, mode: Mode) -> Outcome {
    if stream.handle == 0 {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut capturing = lock(&stream.capturing);
    if capturing.is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let capture =
        Arc::new(Capture { origin: stream.handle, mode, thread: thread::current().id(), state: Mutex::default() });
    lock(&ACTIVE).push(capture.clone());
    *capturing = Some(Position { capture, behind: BTreeMap::new() });
    Ok(())
}

/// Ends the capture of its origin stream, and gives its nodes in an order that they can be done in.
///
/// # Errors
/// `CUDA_ERROR_ILLEGAL_STATE` if the stream captures nothing, `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` if it is not the
/// origin, `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`, `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`, and
/// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED` if the origin did not wait for all streams that joined
pub(crate) fn end(stream: &Stream) -> Outcome<Arc<[Operation]>> {
    let position = lock(&stream.capturing).clone().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let Position { capture, behind } = position;
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    if capture.origin != stream.handle {
        capture.invalidate();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    for joined in stream::in_capture(&capture) {
        *lock(&joined.capturing) = None;
    }
    lock(&ACTIVE).retain(|active| !Arc::ptr_eq(active, &capture));
    let mut state = lock(&capture.state);
    state.ended = true;
    if state.invalid {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    if behind != state.given {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    Ok(core::mem::take(&mut state.nodes).into())
}

/// Lets a stream go on behind an event of a capture.
///
/// # Errors
/// `CUDA_ERROR_CAPTURED_EVENT` if that capture has ended, `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for the legacy stream,
/// `CUDA_ERROR_STREAM_CAPTURE_MERGE` if the stream is in another capture
pub(crate) fn join(stream: &Stream, event: &Position) -> Outcome {
    if lock(&event.capture.state).ended {
        return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
    }
    event.capture.check()?;
    if stream.handle == 0 {
        event.capture.invalidate();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    match &mut *lock(&stream.capturing) {
        Some(own) if !Arc::ptr_eq(&own.capture, &event.capture) => {
            own.capture.invalidate();
            event.capture.invalidate();
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
        }
        Some(own) => {
            for (&from, &count) in &event.behind {
                let known = own.behind.entry(from).or_default();
                *known = count.max(*known);
            }
            Ok(())
        }
        outside => {
            *outside = Some(event.clone());
            Ok(())
        }
    }
}

/// Refuses a call that may wait for a stream behind the back of a capture, such as allocating memory.
///
/// # Errors
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` where a capture forbids it; that capture is invalid then
pub(crate) fn refuse_unsafe() -> Outcome {
    let (here, heeds) = (thread::current().id(), HEEDS.get());
    let forbids = |capture: &Capture| match (heeds, capture.mode) {
        (Mode::Relaxed, _) | (_, Mode::Relaxed) => false,
        (Mode::Global, Mode::Global) => true,
        _ => capture.thread == here,
    };
    refuse(lock(&ACTIVE).iter().filter(|capture| forbids(capture)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Gives this thread another mode, and tells the one that it had.
pub(crate) fn exchange(mode: Mode) -> Mode {
    HEEDS.replace(mode)
}

/// Refuses work on the legacy stream, which would wait for blocking streams, while one of those captures.
///
/// # Errors
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`; the captures are invalid then
pub(crate) fn refuse_implicit(context: &Arc<Context>) -> Outcome {
    refuse(stream::blocking_captures(context).iter(), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
}

/// Refuses to wait for a stream that captures, or for the whole context that has one.
///
/// # Errors
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`; the captures are invalid then
pub(crate) fn refuse_waiting<'s>(streams: impl IntoIterator<Item = &'s Arc<Stream>>) -> Outcome {
    let of = |stream: &Arc<Stream>| Some(lock(&stream.capturing).as_ref()?.capture.clone());
    let captures: Vec<_> = streams.into_iter().filter_map(of).collect();
    refuse(captures.iter(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

fn refuse<'c>(captures: impl Iterator<Item = &'c Arc<Capture>>, code: CUresult) -> Outcome {
    match captures.map(|capture| capture.invalidate()).count() {
        0 => Ok(()),
        _ => Err(code),
    }
}

impl Capture {
    /// Makes it come to nothing; its end will say so.
    pub(crate) fn invalidate(&self) {
        lock(&self.state).invalid = true;
    }

    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub(crate) fn check(&self) -> Outcome {
        if lock(&self.state).invalid { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

impl Position {
    /// Adds a node of a stream, behind which the stream then is.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub(crate) fn record(&mut self, stream: u64, node: Operation) -> Outcome {
        self.capture.check()?;
        let mut state = lock(&self.capture.state);
        state.nodes.push(node);
        let given = state.given.entry(stream).or_default();
        *given += 1;
        self.behind.insert(stream, *given);
        Ok(())
    }
}
