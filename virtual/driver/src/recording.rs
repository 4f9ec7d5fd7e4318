//! What virtual GPUs of this process were given to run, for who wants to run it again in other ways.

use std::sync::{Arc, Mutex};

use congruent_virtual_gpu::{Launch, Space};

use crate::engine;
use crate::monitor::lock;

static LAUNCHES: Mutex<Option<Vec<Launch>>> = Mutex::new(None);

/// Keeps what is launched from now on. Gives the devices that it may be launched on; none where the job has one engine.
pub fn record() -> Vec<Arc<Space>> {
    *lock(&LAUNCHES) = Some(Vec::new());
    engine::spaces()
}

/// What was launched since [`record`], in order, and no more is kept.
pub fn recorded() -> Vec<Launch> {
    lock(&LAUNCHES).take().unwrap_or_default()
}

/// A launch that is about to begin.
pub(crate) fn keep(launch: &Launch) {
    lock(&LAUNCHES).iter_mut().for_each(|launches| launches.push(launch.clone()));
}
