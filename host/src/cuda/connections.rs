//! Streams of all PEs of this process, counted against the hardware queues of their device.
//!
//! The driver puts each stream of a context into one of `CUDA_DEVICE_MAX_CONNECTIONS` hardware queues, 8 unless it is set, and
//! streams that share one wait for each other (CUDA C++ Programming Guide, environment variables). A kernel that waits for
//! another PE's kernel, which is behind it in the same queue, would wait for ever.
//!
//! Under MPS the queues of all processes on a device are taken from one stock, and a process has 2 unless it is set; where there
//! are not enough left, its context cannot be made (NVIDIA Multi-Process Service, "Client-Server Connection Limits").

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::device::Uuid;
use super::{CudaError, Device, StreamState};

/// The variable that says how many queues there are.
pub const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The most that it may say, and what holds without it, alone on a device and under MPS.
const MOST: usize = 32;
const DEFAULT: usize = 8;
const DEFAULT_SHARED: usize = 2;
/// What MPS has for all processes on a device: 60 of them with 2 each, and the rest is left for others.
const STOCK: usize = 96;
/// The host's own stream, which must not be behind a kernel that waits for this host.
const OWN: usize = 1;

/// The streams that are still there, and where they are.
static STREAMS: Mutex<Vec<(Uuid, Weak<StreamState>)>> = Mutex::new(Vec::new());

/// Counts a stream, if a queue of the device is left for it. One that several have borrowed counts once.
pub(super) fn count(device: &Device, stream: StreamState) -> Result<Arc<StreamState>, CudaError> {
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
    let mps = device.properties.mps;
    let (streams, connections) = (handles.len() + OWN, connections(env::var(VARIABLE).ok().as_deref(), mps));
    if streams > connections {
        return Err(CudaError::TooManyStreams { streams, connections, advised: advised(device.sharing(), mps) });
    }
    let stream = Arc::new(stream);
    all.push((here, Arc::downgrade(&stream)));
    Ok(stream)
}

/// What the variable says; where it says nothing that the driver takes, the driver's own number.
fn connections(variable: Option<&str>, mps: bool) -> usize {
    let said = variable.and_then(|text| text.trim().parse().ok());
    let unsaid = if mps { DEFAULT_SHARED } else { DEFAULT };
    said.filter(|said| (1..=MOST).contains(said)).unwrap_or(unsaid)
}

/// What it is to say where so many PEs may share a device.
pub fn advised(pes: u32, mps: bool) -> usize {
    if mps { (STOCK / pes.max(1) as usize).clamp(DEFAULT_SHARED, MOST) } else { MOST }
}

/// Whether an MPS waits for processes, as they look for it: in the folder of its pipes.
pub fn mps_listens() -> bool {
    listens_in(env::var_os("CUDA_MPS_PIPE_DIRECTORY"))
}

fn listens_in(folder: Option<OsString>) -> bool {
    folder.map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from).join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_as_many_as_the_driver_takes_from_the_variable() {
        for (said, alone, shared) in [
            (None, 8, 2),
            (Some("32"), 32, 32),
            (Some(" 1 "), 1, 1),
            (Some("0"), 8, 2),
            (Some("33"), 8, 2),
            (Some("x"), 8, 2),
        ] {
            assert_eq!((connections(said, false), connections(said, true)), (alone, shared), "{said:?}");
        }
    }

    #[test]
    fn an_mps_is_found_by_its_pipe() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!listens_in(Some(folder.path().into())));
        std::fs::write(folder.path().join("control"), "").unwrap();
        assert!(listens_in(Some(folder.path().into())));
    }

    #[test]
    fn processes_under_mps_share_its_stock() {
        for (pes, each) in [(1, 32), (3, 32), (4, 24), (8, 12), (48, 2), (60, 2)] {
            assert_eq!((advised(pes, true), advised(pes, false)), (each, 32), "{pes}");
            // 60 processes of 2.
            assert!(each * pes as usize <= 120, "{pes}");
        }
    }
}
