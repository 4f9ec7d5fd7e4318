//! Events.

use core::ffi::c_uint;

use cudarc::driver::sys::{CUevent, CUstream};

use crate::entry::entry_points;
use crate::{capture, context, event, stream};

entry_points! {
    /// A new event.
    Context fn cuEventCreate(given: *mut CUevent, flags: c_uint) {
        let event = event::create(context::current()?, flags)?;
        given.set(core::ptr::without_provenance_mut(event as usize))
    }

    /// Records an event at the end of a stream.
    Context fn cuEventRecord(event: CUevent, on: CUstream) {
        event::find(event.address())?.record(&stream::find(on.address())?)
    }

    /// Whether an event is complete; `CUDA_ERROR_NOT_READY` if not.
    Context fn cuEventQuery(event: CUevent) {
        capture::refuse_unsafe()?;
        event::find(event.address())?.query()
    }

    /// Waits for an event.
    Context fn cuEventSynchronize(event: CUevent) {
        capture::refuse_unsafe()?;
        event::find(event.address())?.synchronize()
    }

    /// Milliseconds between two events.
    Context fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        milliseconds.set(event::find(start.address())?.milliseconds_to(&*event::find(end.address())?)?)
    }

    /// Milliseconds between two events, as of CUDA 12.8.
    Context fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        milliseconds.set(event::find(start.address())?.milliseconds_to(&*event::find(end.address())?)?)
    }

    /// Ends an event; what waits for it goes on waiting as before.
    Context fn cuEventDestroy_v2(event: CUevent) {
        event::destroy(event.address())
    }
}
