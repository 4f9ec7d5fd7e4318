//! What the driver gives and takes back: primary contexts, streams, events.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};
use cudarc::driver::{CudaContext, CudaEvent};

use super::{CudaError, Driver};

/// A share in a device's primary context, or in one of cudarc's.
pub(super) struct Primary {
    driver: &'static Driver,
    device: CUdevice,
    raw: usize,
    /// Where cudarc made it, which destroys it as well.
    theirs: Option<Arc<CudaContext>>,
}

/// A stream of our own. It takes no notice of the legacy default stream.
pub(super) struct RawStream {
    primary: Arc<Primary>,
    raw: usize,
}

/// A point in what a stream is given.
pub(crate) struct Event {
    primary: Arc<Primary>,
    raw: usize,
    /// Where cudarc made it, which destroys it as well.
    theirs: Option<CudaEvent>,
}

impl Primary {
    pub(super) fn retain(driver: &'static Driver, ordinal: usize) -> Result<Self, CudaError> {
        let (mut device, mut raw) = (0, std::ptr::null_mut());
        // SAFETY: the place for the device is there.
        unsafe { driver.device_get(&raw mut device, ordinal as c_int) }?;
        // SAFETY: the place for the context is there, and the device is one.
        unsafe { driver.primary_ctx_retain(&raw mut raw, device) }?;
        Ok(Self { driver, device, raw: raw.expose_provenance(), theirs: None })
    }

    /// A context of cudarc's, which has the same driver.
    pub(super) fn of(driver: &'static Driver, theirs: Arc<CudaContext>) -> Self {
        let (device, raw) = (theirs.cu_device(), theirs.cu_ctx().expose_provenance());
        Self { driver, device, raw, theirs: Some(theirs) }
    }

    pub(super) fn raw(&self) -> CUcontext {
        std::ptr::with_exposed_provenance_mut(self.raw)
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// The driver, once the context is the calling thread's.
    pub(super) fn enter(&self) -> Result<&'static Driver, CudaError> {
        // SAFETY: the context is alive, because this keeps it.
        unsafe { self.driver.ctx_set_current(self.raw()) }?;
        Ok(self.driver)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        if self.theirs.is_none() {
            // SAFETY: retained in `retain`, released here only.
            let _released_or_gone_with_the_device = unsafe { self.driver.primary_ctx_release(self.device) };
        }
    }
}

impl RawStream {
    pub(super) fn new(primary: &Arc<Primary>) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place for the stream is there, and this thread has the context.
        unsafe { primary.enter()?.stream_create(&raw mut raw, flags) }?;
        Ok(Self { primary: Arc::clone(primary), raw: raw.expose_provenance() })
    }

    pub(super) fn raw(&self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.raw)
    }

    /// The context that it is of.
    pub(super) fn primary(&self) -> &Primary {
        &self.primary
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        if let Ok(driver) = self.primary.enter() {
            // SAFETY: made in `new`, destroyed here only; the driver lets what is on it come to its end.
            let _destroyed_or_gone_with_the_context = unsafe { driver.stream_destroy(self.raw()) };
        }
    }
}

impl Event {
    /// One that is asked whether the stream has come to it, and not when.
    pub(super) fn new(primary: &Arc<Primary>) -> Result<Self, CudaError> {
        Self::with(primary, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that knows when the stream came to it.
    pub(super) fn timed(primary: &Arc<Primary>) -> Result<Self, CudaError> {
        Self::with(primary, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(primary: &Arc<Primary>, flags: CUevent_flags) -> Result<Self, CudaError> {
        let (mut raw, flags) = (std::ptr::null_mut(), flags as u32);
        // SAFETY: the place for the event is there, and this thread has the context.
        unsafe { primary.enter()?.event_create(&raw mut raw, flags) }?;
        Ok(Self { primary: Arc::clone(primary), raw: raw.expose_provenance(), theirs: None })
    }

    /// One of cudarc's, of the same context.
    pub(super) fn imported(primary: &Arc<Primary>, theirs: CudaEvent) -> Self {
        let raw = theirs.cu_event().expose_provenance();
        Self { primary: Arc::clone(primary), raw, theirs: Some(theirs) }
    }

    pub(crate) fn raw(&self) -> CUevent {
        std::ptr::with_exposed_provenance_mut(self.raw)
    }

    /// Puts it on a stream of its context, which lives.
    pub(super) fn record(&self, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: event and stream live, and are of one context, as the caller knows.
        unsafe { self.primary.driver.event_record(self.raw(), stream) }
    }

    /// Has a stream of its context, which lives, wait for it.
    pub(super) fn hold_back(&self, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: event and stream live, as the caller knows.
        unsafe { self.primary.driver.stream_wait_event(stream, self.raw(), 0) }
    }

    /// Milliseconds from one that is complete to another that is.
    pub(crate) fn milliseconds_to(&self, end: &Self) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both live, and the place for the number is there.
        unsafe { self.primary.enter()?.event_elapsed_time(&raw mut milliseconds, self.raw(), end.raw()) }?;
        Ok(milliseconds)
    }

    /// Whether the stream has come to it; an event that is on none is complete.
    pub(crate) fn is_complete(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { self.primary.enter()?.event_query(self.raw()) } {
            Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.theirs.is_none()
            && let Ok(driver) = self.primary.enter()
        {
            // SAFETY: made in `with`, destroyed here only; the driver keeps it until it is complete.
            let _destroyed_or_gone_with_the_context = unsafe { driver.event_destroy(self.raw()) };
        }
    }
}
