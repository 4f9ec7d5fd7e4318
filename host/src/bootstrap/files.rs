//! Open files: PE 0 has a connection to every other PE, and strangers at its door.

use super::assemble::STRANGERS;
use super::error::BootstrapError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// What the monitor, shared memory and the program are left beside the connections.
const RESERVE: u64 = 16;

/// Sees that PE 0 can have a connection to all of `npes` PEs: raises this process's soft limit as far as they and some strangers
/// need it and the hard one lets it.
pub(super) fn provide(npes: u32) -> Result<(), BootstrapError> {
    // Without /proc it is not known how many are open; few programs have more before they join their job.
    let open = fs::read_dir("/proc/self/fd").map_or(RESERVE, |files| files.count() as u64);
    let needed = u64::from(npes) + open + RESERVE;
    let limits = getrlimit(Resource::Nofile);
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let comfortable = (needed + STRANGERS as u64).min(hard);
    let mut limit = limits.current.unwrap_or(u64::MAX);
    if limit < comfortable && setrlimit(Resource::Nofile, Rlimit { current: Some(comfortable), ..limits }).is_ok() {
        limit = comfortable;
    }
    if limit < needed { Err(BootstrapError::Files { npes, needed, limit }) } else { Ok(()) }
}
