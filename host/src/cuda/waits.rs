//! Words that a stream waits for. The driver's wait has no deadline and hears of no failure, so the host looks after it: once the
//! stream has come to it, it may take as long as a wait in a kernel may.
//!
//! The monitor, which looks, never waits itself: it asks events, and what it reads and writes goes over the host's own stream,
//! which no wait is on. A borrowed stream may be the legacy stream, behind which a copy without a stream would queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use congruent_device::abi::{Cause, NO_PE};
use cudarc::driver::sys::{CUstreamWaitValue_flags, CUstreamWriteValue_flags};

use super::objects::Event;
use super::stream_state::StreamState;
use super::{CudaError, CudaPe};

/// A signal word of this PE's heap, and the value that it is to reach.
#[derive(Clone, Copy)]
pub(crate) struct AwaitedWord {
    pub(crate) address: u64,
    /// The same, from the start of the heap.
    pub(crate) offset: u64,
    /// Who is expected to set it, if that is known.
    pub(crate) peer: Option<u32>,
    pub(crate) value: u64,
}

/// The waits of a stream that are not known to be over, in their order.
#[derive(Default)]
pub(super) struct Waits(Mutex<VecDeque<Waiting>>);

struct Waiting {
    word: AwaitedWord,
    /// Complete when the stream has come to the wait.
    come: Event,
    /// Complete when the wait is over. Not there before it is recorded, as an event without a record counts as complete.
    gone: Arc<OnceLock<Event>>,
    /// When that was seen.
    since: Option<Instant>,
}

/// How long the word of a wait that is overdue may take to be read: a microsecond, unless the device does nothing any more.
const READ: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);

impl Waits {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamState {
    /// Makes the stream wait until a word is at least a value, by the distance between them: counts may wrap around.
    pub(super) fn wait_at_least(&self, word: AwaitedWord) -> Result<(), CudaError> {
        self.device.bind()?;
        let (come, over, gone) = (self.event()?, self.event()?, Arc::new(OnceLock::new()));
        come.record(self.raw())?;
        // Known before it is asked for, so that no wait goes on that nobody looks after. Not under the lock: a full stream takes
        // nothing more until it has gone on, for which the monitor may have to end a wait.
        self.waits.lock().push_back(Waiting { word, come, gone: Arc::clone(&gone), since: None });
        let asked = self.put(|stream| {
            let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
            // SAFETY: the word is on this PE's heap, as the caller checked, and aligned; the heap stays mapped until the stream is
            // idle.
            unsafe { self.device.driver().stream_wait_value_64(stream, word.address, word.value, flags) }?;
            // Without its mark it would be taken to go on for ever.
            over.record(stream).inspect_err(|_| _ = self.let_go(word))
        });
        match asked {
            Ok(()) => _ = gone.set(over),
            Err(_) => self.waits.lock().retain(|waiting| !Arc::ptr_eq(&waiting.gone, &gone)),
        }
        asked
    }

    /// Ends every wait of a world that has failed, by giving the words what is waited for. What they say is nobody's any more.
    pub(crate) fn release(&self) -> Result<(), CudaError> {
        let mut waits = self.waits.lock();
        while let Some(Waiting { word, .. }) = waits.front() {
            self.let_go(*word)?;
            waits.pop_front();
        }
        Ok(())
    }

    /// The first wait that has taken longer than `limit`, and how long.
    fn overdue(&self, limit: Duration) -> Result<Option<(AwaitedWord, Duration)>, CudaError> {
        let mut waits = self.waits.lock();
        while let Some(first) = waits.front_mut() {
            self.device.bind()?;
            if first.gone.get().map_or(Ok(false), Event::is_complete)? {
                waits.pop_front();
                continue;
            }
            let since = match first.since {
                Some(since) => since,
                None if first.come.is_complete()? => *first.since.insert(Instant::now()),
                None => return Ok(None),
            };
            let waited = since.elapsed();
            return Ok((waited >= limit).then_some((first.word, waited)));
        }
        Ok(None)
    }

    /// Lets a stream go on that waits for this word.
    fn let_go(&self, word: AwaitedWord) -> Result<(), CudaError> {
        let context = self.device.keeper();
        let (driver, flags) = (context.enter()?, CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32);
        // SAFETY: the word is on this PE's heap, which stays mapped until the stream is idle.
        unsafe { driver.stream_write_value_64(context.aside(), word.address, word.value, flags) }
    }

    fn event(&self) -> Result<Event, CudaError> {
        Event::new(self.device.context())
    }
}

impl CudaPe {
    /// What there is to say of a wait of one of this PE's streams that has taken longer than `limit_ns`, if there is one.
    pub(crate) fn overdue(&self, state: &StreamState, limit_ns: u64) -> Result<Option<Cause>, CudaError> {
        let Some((word, waited)) = state.overdue(Duration::from_nanos(limit_ns))? else { return Ok(None) };
        let AwaitedWord { address, offset, peer, value } = word;
        let seen = self.look_at(state, address)?.unwrap_or_else(|| {
            tracing::warn!(
                pe = self.pe,
                "the device does not copy any more: what the word at {offset:#x} is, is not known"
            );
            0
        });
        Ok(Some(Cause::Timeout {
            peer: peer.unwrap_or(NO_PE),
            offset,
            expected: value,
            seen,
            waited_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
        }))
    }

    /// What a word of this PE's heap is, if the device tells in time. The monitor asks, and nobody else.
    fn look_at(&self, state: &StreamState, address: u64) -> Result<Option<u64>, CudaError> {
        let (aside, read, word) = (self.device.keeper().aside(), state.event()?, self.control.word());
        // SAFETY: the word is on this PE's heap, which is mapped. The pinned word lives as long as the machine, whatever happens to
        // the copy, and nobody reads it before the copy is done.
        unsafe { self.device.driver().memcpy_to_host(word.cast(), address, size_of::<u64>(), aside) }?;
        read.record(aside)?;
        let began = Instant::now();
        while !read.is_complete()? {
            if began.elapsed() > READ {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        }
        // SAFETY: the copy is done, and this thread alone asks for copies to there.
        Ok(Some(unsafe { word.read() }))
    }
}
