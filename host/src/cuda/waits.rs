//! Words that a stream waits for. The driver's wait has no deadline and hears of no failure, so the host looks after it: once the
//! stream has come to it, it may take as long as a wait in a kernel may.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use congruent_device::abi::{FaultKind, FaultRecord, NO_PE};
use cudarc::driver::sys::{CUevent_flags, CUstreamWaitValue_flags};
use cudarc::driver::{CudaEvent, result};

use super::CudaError;
use super::lane::Lane;

/// A signal word of this PE's heap, and the value that it is to reach.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    pub(crate) address: u64,
    /// The same, from the start of the heap.
    pub(crate) offset: u64,
    /// Who waits.
    pub(crate) pe: u32,
    /// Who is expected to set it, if that is known.
    pub(crate) peer: Option<u32>,
    pub(crate) value: u64,
}

/// The waits of a stream that are not known to be over, in their order.
#[derive(Default)]
pub(super) struct Waits(Mutex<VecDeque<Waiting>>);

struct Waiting {
    word: Word,
    /// Complete when the stream has come to the wait.
    come: CudaEvent,
    /// When that was seen.
    since: Option<Instant>,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Makes the stream wait until a word is at least a value, by the distance between them: counts may wrap around.
    pub(super) fn wait_at_least(&self, word: Word) -> Result<(), CudaError> {
        self.device.bind()?;
        let event = self.device.context().new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING));
        let come = event.map_err(CudaError::of("cuEventCreate"))?;
        // SAFETY: the event was just made, and the stream is the lane's; both are of one context.
        let recorded = unsafe { result::event::record(come.cu_event(), self.raw()) };
        recorded.map_err(CudaError::of("cuEventRecord"))?;
        // Known before it is asked for, so that no wait goes on that nobody looks after.
        self.waits.lock().push_back(Waiting { word, come, since: None });
        let asked = self.put(|stream| {
            let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
            // SAFETY: the word is on this PE's heap, as the caller checked, and aligned; the heap stays mapped until the stream is
            // idle.
            unsafe { self.device.driver().stream_wait_value_64(stream, word.address, word.value, flags) }
        });
        if asked.is_err() {
            self.waits.lock().pop_back();
        }
        asked
    }

    /// The record of a wait that has taken longer than `limit_ns`, if there is one.
    pub(crate) fn overdue(&self, limit_ns: u64) -> Result<Option<FaultRecord>, CudaError> {
        let mut waits = self.waits.lock();
        while let Some(first) = waits.front_mut() {
            self.device.bind()?;
            let since = match first.since {
                Some(since) => since,
                None if first.come.try_is_complete().map_err(CudaError::of("cuEventQuery"))? => {
                    *first.since.insert(Instant::now())
                }
                None => return Ok(None),
            };
            let Word { address, offset, pe, peer, value } = first.word;
            let seen = self.read(address)?;
            // As the driver compares.
            if seen.wrapping_sub(value) as i64 >= 0 {
                waits.pop_front();
                continue;
            }
            let waited = since.elapsed();
            let record = FaultRecord {
                kind: FaultKind::Timeout as u32,
                pe,
                block: 0,
                thread: 0,
                peer: peer.unwrap_or(NO_PE),
                part: 0,
                offset,
                expected: value,
                seen,
                waited_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
            };
            return Ok((waited >= Duration::from_nanos(limit_ns)).then_some(record));
        }
        Ok(None)
    }

    /// Ends every wait of a world that has failed, by giving the words what is waited for. What they say is nobody's any more.
    pub(crate) fn release(&self) -> Result<(), CudaError> {
        let mut waits = self.waits.lock();
        while let Some(Waiting { word, .. }) = waits.front() {
            self.device.bind()?;
            // SAFETY: the word is on this PE's heap, which stays mapped until the stream is idle.
            let written = unsafe { result::memcpy_htod_sync(word.address, &[word.value]) };
            written.map_err(CudaError::of("cuMemcpyHtoD"))?;
            waits.pop_front();
        }
        Ok(())
    }

    fn read(&self, address: u64) -> Result<u64, CudaError> {
        let mut value = [0_u64];
        // SAFETY: the word is on this PE's heap, which stays mapped until the stream is idle.
        let read = unsafe { result::memcpy_dtoh_sync(&mut value, address) };
        read.map_err(CudaError::of("cuMemcpyDtoH"))?;
        Ok(value[0])
    }
}
