//! Streams: queues of operations, each with a thread that does them one after the other.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;

use cudarc::driver::sys::CUresult;

use crate::capture::{self, Position};
use crate::context::{self, Context};
use crate::errors::Outcome;
use crate::handles::Table;
use crate::monitor::{changed, lock, until};
use crate::operation::Operation;

/// Stream handles with a meaning: the legacy default stream has two names, the one of each thread is not offered.
const LEGACY: [u64; 2] = [0, 1];
const PER_THREAD: u64 = 2;

/// `CU_STREAM_NON_BLOCKING`: the stream takes no notice of the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// The lowest and the highest priority.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// Streams that were made, and have not done all that they were given before they were destroyed.
static STREAMS: Table<Stream> = Table::new();

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A queue of operations.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    legacy: bool,
    queue: Mutex<Queue>,
    /// Where in a capture it is, while it captures.
    pub(crate) capturing: Mutex<Option<Position>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    /// Operations so far: put in, and done.
    submitted: u64,
    done: u64,
    /// Nothing more comes; the thread ends when it has done what is there.
    closed: bool,
    ended: bool,
}

/// The stream of a handle, if its context is well.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, `CUDA_ERROR_NOT_SUPPORTED` for the default stream of each thread, and the fault of its
/// context
pub(crate) fn find(handle: u64) -> Outcome<Arc<Stream>> {
    if handle == PER_THREAD {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if LEGACY.contains(&handle) {
        return context::current()?.legacy();
    }
    let stream = STREAMS.get(handle)?;
    if lock(&stream.queue).closed {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    stream.context.check()?;
    Ok(stream)
}

/// A new stream with a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags, and those of [`Stream::start`]
pub(crate) fn create(context: Arc<Context>, flags: u32, priority: i32) -> Outcome<u64> {
    if flags & !NON_BLOCKING != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let (handle, stream) = STREAMS.add(|handle| Stream::new(handle, context, flags, priority, false));
    let started = stream.clone().run_apart();
    if let Err(code) = started {
        STREAMS.remove(handle)?;
        return Err(code);
    }
    Ok(handle)
}

/// Destroys a stream: at once for the caller, after its last operation for its thread and for the context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, also for default streams
pub(crate) fn destroy(handle: u64) -> Outcome {
    let stream = STREAMS.get(handle)?;
    if !stream.close() {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    if let Some(position) = lock(&stream.capturing).take() {
        position.capture.invalidate();
    }
    Ok(())
}

/// Waits for all that the streams of a context were given until now.
///
/// # Errors
/// The fault of the context
pub(crate) fn drain(context: &Arc<Context>) -> Outcome {
    of(context).iter().try_for_each(|stream| stream.synchronize())
}

/// All streams of a context, the legacy one too if it was used.
pub(crate) fn of(context: &Arc<Context>) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.all(|stream| Arc::ptr_eq(&stream.context, context));
    streams.extend(context.legacy_if_used());
    streams
}

/// Ends all streams of a context that nobody retains.
pub(crate) fn end_all(context: &Arc<Context>) {
    for stream in STREAMS.remove_all(|stream| Arc::ptr_eq(&stream.context, context)) {
        stream.end();
    }
}

/// Whether this thread is in a host function that a stream called.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Does `run` as a host function.
pub(crate) fn as_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}

impl Stream {
    fn new(handle: u64, context: Arc<Context>, flags: u32, priority: i32, legacy: bool) -> Self {
        let (queue, capturing) = (Mutex::default(), Mutex::new(None));
        Self { handle, context, flags, priority, legacy, queue, capturing }
    }

    /// A stream without an entry in the table of handles.
    ///
    /// # Errors
    /// `CUDA_ERROR_OPERATING_SYSTEM` if there can be no more threads
    pub(crate) fn start(context: Arc<Context>, flags: u32, priority: i32, legacy: bool) -> Outcome<Arc<Self>> {
        let stream = Arc::new(Self::new(LEGACY[0], context, flags, priority, legacy));
        stream.clone().run_apart()?;
        Ok(stream)
    }

    fn run_apart(self: Arc<Self>) -> Outcome {
        let thread = thread::Builder::new().name("virtual stream".to_owned());
        // The thread ends by itself when the stream is closed and its queue is empty.
        let started = thread.spawn(move || self.work());
        started.map(drop).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Puts an operation at the end, or into the graph that the stream captures.
    ///
    /// # Errors
    /// Those of the capture: it was invalidated, or the operation would tie the legacy stream to it
    pub(crate) fn submit(self: &Arc<Self>, operation: Operation) -> Outcome {
        if let Some(position) = &mut *lock(&self.capturing) {
            return position.record(self.handle, operation);
        }
        if self.legacy {
            capture::refuse_implicit(&self.context)?;
        }
        for followed in self.followed() {
            self.push(followed);
        }
        self.push(operation);
        changed();
        Ok(())
    }

    /// What the order between the legacy stream and the blocking ones demands: each waits for what the other was given
    /// before. Such waits look backward only, so they make no circle.
    fn followed(&self) -> Vec<Operation> {
        let before = |stream: &Arc<Self>| Operation::Follow(stream.clone(), stream.submitted());
        if self.legacy {
            let blocking = STREAMS.all(|stream| Arc::ptr_eq(&stream.context, &self.context) && stream.is_blocking());
            blocking.iter().filter(|stream| !stream.is_idle()).map(before).collect()
        } else if self.is_blocking() {
            self.context.legacy_if_used().iter().filter(|legacy| !legacy.is_idle()).map(before).collect()
        } else {
            Vec::new()
        }
    }

    fn push(&self, operation: Operation) {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(operation);
        queue.submitted += 1;
    }

    /// How many operations it was given.
    pub(crate) fn submitted(&self) -> u64 {
        lock(&self.queue).submitted
    }

    /// Whether its first `count` operations are done.
    pub(crate) fn has_done(&self, count: u64) -> bool {
        lock(&self.queue).done >= count
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.done == queue.submitted
    }

    /// Waits for all that it was given until now.
    ///
    /// # Errors
    /// The fault of its context, at once: what runs may never end
    pub(crate) fn synchronize(&self) -> Outcome {
        let count = self.submitted();
        until(|| {
            // Looked at before the fault: what has failed counts as done after its context has the fault.
            let is_done = self.has_done(count);
            match self.context.fault() {
                Some(code) => Some(Err(code)),
                None => is_done.then_some(Ok(())),
            }
        })
    }

    /// Whether it was open until now.
    fn close(&self) -> bool {
        let was = std::mem::replace(&mut lock(&self.queue).closed, true);
        changed();
        !was
    }

    /// Closes it and waits for its thread. In a faulted context that may be in a kernel that never ends, so it is left to
    /// itself.
    pub(crate) fn end(&self) {
        self.close();
        until(|| (self.context.fault().is_some() || lock(&self.queue).ended).then_some(()));
    }

    /// The life of its thread.
    fn work(&self) {
        while let Some(operation) = self.next() {
            // In a faulted context nothing runs any more, but who waits for an event elsewhere is let go.
            let skip = self.context.fault().is_some() && !matches!(operation, Operation::Record(..));
            if !skip && let Err(code) = operation.run(&self.context) {
                self.context.fail(code);
            }
            lock(&self.queue).done += 1;
            changed();
        }
        // Not of the context that ends, which has taken it, and of a legacy stream.
        drop(STREAMS.remove(self.handle));
        lock(&self.queue).ended = true;
        changed();
    }

    /// Waits for an operation; none when the stream is closed and empty.
    fn next(&self) -> Option<Operation> {
        until(|| {
            let mut queue = lock(&self.queue);
            match queue.waiting.pop_front() {
                Some(operation) => Some(Some(operation)),
                None => queue.closed.then_some(None),
            }
        })
    }
}

/// The streams that are part of a capture.
pub(crate) fn in_capture(capture: &Arc<capture::Capture>) -> Vec<Arc<Stream>> {
    let captures = |stream: &Stream| {
        let position = lock(&stream.capturing);
        position.as_ref().is_some_and(|position| Arc::ptr_eq(&position.capture, capture))
    };
    STREAMS.all(captures)
}

/// The captures that blocking streams of a context are in.
pub(crate) fn blocking_captures(context: &Arc<Context>) -> Vec<Arc<capture::Capture>> {
    let blocking = STREAMS.all(|stream| Arc::ptr_eq(&stream.context, context) && stream.is_blocking());
    blocking.iter().filter_map(|stream| Some(lock(&stream.capturing).as_ref()?.capture.clone())).collect()
}
