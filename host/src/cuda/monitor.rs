//! Looks at what kernels leave for the host while nobody waits for them, and after words that streams wait for, so that other PEs
//! hear of a fault within about a millisecond.

use std::io;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use cudarc::driver::sys::CUstreamCaptureMode;

use super::Driver;
use crate::machine::Machine;
use crate::shared::Shared;

/// From one look to the next.
const PERIOD: Duration = Duration::from_millis(1);

/// Lets this thread ask for anything while another one captures a stream. Otherwise a question about an event, or a module that is loaded,
/// would end a capture that is for all threads, which is the default of other libraries' (CUDA Driver API,
/// cuThreadExchangeStreamCaptureMode). Gives how it was before.
pub(super) fn relax(driver: &Driver) -> CUstreamCaptureMode {
    exchange(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
}

/// Lets this thread ask for what the mode lets it, and gives the mode before.
pub(super) fn exchange(driver: &Driver, mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: the place for the mode is there.
    if let Err(error) = unsafe { driver.thread_exchange_stream_capture_mode(&raw mut mode) } {
        tracing::warn!("captures of other libraries may fail while a world is there: {error}");
    }
    mode
}

/// Starts to look after a world on GPUs, until it is gone.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let Machine::Cuda(pe) = shared.machine() else { return Ok(()) };
    let (driver, weak) = (pe.device.driver(), Arc::downgrade(shared));
    let name = format!("pe{} monitor", shared.pe());
    let looks = move || {
        relax(driver);
        while let Some(shared) = weak.upgrade() {
            shared.look_for_fault();
            shared.look_after_waits();
            drop(shared);
            thread::sleep(PERIOD);
        }
    };
    Builder::new().name(name).spawn(looks).map(|_ends_with_the_world| ())
}
