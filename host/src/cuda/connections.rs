//! Streams of all PEs of this process, counted against the hardware queues of their device.
//!
//! The driver puts each stream of a context into one of `CUDA_DEVICE_MAX_CONNECTIONS` hardware queues, 8 unless it is set, and
//! streams that share one wait for each other (CUDA C++ Programming Guide, environment variables). A kernel that waits for
//! another PE's kernel, which is behind it in the same queue, would wait for ever.

use std::env;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::device::Uuid;
use super::{CudaError, Device, Lane};

/// The variable that says how many queues there are.
pub(crate) const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The most that it may say, and what holds without it.
pub(crate) const MOST: usize = 32;
const DEFAULT: usize = 8;

/// The streams that are still there, and where they are.
static STREAMS: Mutex<Vec<(Uuid, Weak<Lane>)>> = Mutex::new(Vec::new());

/// Counts a stream, if a queue of the device is left for it. One that several have borrowed counts once.
pub(super) fn count(device: &Device, stream: Lane) -> Result<Arc<Lane>, CudaError> {
    let mut all = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, stream)| stream.strong_count() > 0);
    let here = device.properties.uuid;
    let mut handles: Vec<usize> = all
        .iter()
        .filter(|(uuid, _)| *uuid == here)
        .filter_map(|(_, stream)| Some(stream.upgrade()?.raw().addr()))
        .collect();
    handles.push(stream.raw().addr());
    handles.sort_unstable();
    handles.dedup();
    let (streams, connections) = (handles.len(), connections(env::var(VARIABLE).ok().as_deref()));
    if streams > connections {
        return Err(CudaError::TooManyStreams { streams, connections });
    }
    let stream = Arc::new(stream);
    all.push((here, Arc::downgrade(&stream)));
    Ok(stream)
}

/// What the variable says; where it says nothing that the driver takes, the driver's own number.
fn connections(variable: Option<&str>) -> usize {
    let said = variable.and_then(|text| text.trim().parse().ok());
    said.filter(|said| (1..=MOST).contains(said)).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_as_many_as_the_driver_takes_from_the_variable() {
        for (said, are) in
            [(None, 8), (Some("32"), 32), (Some(" 1 "), 1), (Some("0"), 8), (Some("33"), 8), (Some("x"), 8)]
        {
            assert_eq!(connections(said), are, "{said:?}");
        }
    }
}
