//! Traces: when each PE did what, as a file for <https://ui.perfetto.dev> and `chrome://tracing`, and a reader of such files.
//!
//! `CONGRUENT_TRACE=trace.json` asks for one. A PE is a process of the trace.
//!
//! - On the CPU machine it has a row for each block of each stream's kernels. A kernel holds its collectives, its puts and gets of ranges,
//!   its waits and its own parts ([`Ctx::span`](crate::device::Ctx::span)); a collective holds its steps, and these their waits.
//! - On GPUs, virtual ones too, it has a row for each stream, on which kernels, copies and graphs are as wholes, timed by the driver's
//!   events. Each costs two events more while a trace is written, and none otherwise.
//!
//!   Kernels that are built by `congruent-build build --features congruent-device/trace` have a row for each of their blocks too, with all
//!   that a kernel holds on the CPU machine, but what graphs have captured. The device's clock says how long each took; that of a virtual
//!   GPU counts a nanosecond for each step of a warp. The last ends with the kernel on its stream. A span costs its thread an exchange
//!   and some stores to the host, after its end: whoever measures a kernel as a whole builds it without.
//!
//! # Files
//! One file for each process of the job, all on the clock of the host:
//!
//! | PEs are | `trace.json` makes | `trace-%p.json` makes |
//! |---|---|---|
//! | threads of one process | `trace.json` | `trace-0.json` |
//! | processes | `trace.json` by PE 0, `trace.json.pe1` by PE 1, ... | `trace-0.json`, `trace-1.json`, ... |
//!
//! A file is written, empty, when the first world of its process is made, so that a name that cannot be written is known
//! at once; and in full each time the last world of the process is dropped, also by a panic. It holds the first million
//! events of the process and says how many it lost. `congruent trace trace.json*` says what took how long in several files, and with
//! `--merge all.json` makes one trace of them.
//!
//! # Reading
//! ```
//! let text = r#"{"traceEvents": [
//!     {"ph": "X", "name": "all-reduce ring simple", "pid": 0, "tid": 1, "ts": 10.0, "dur": 5.5, "args": {"bytes": 4096}},
//!     {"ph": "X", "name": "scatter-reduce 1/3", "pid": 0, "tid": 1, "ts": 10.5, "dur": 1.25, "args": {"peer": 1}}
//! ]}"#;
//! let events = congruent::trace::read(text)?;
//! assert!(events[0].holds(&events[1]));
//! assert_eq!(events[0].number("bytes"), Some(4096));
//! assert_eq!(events[1].duration_ns(), 1250);
//! # Ok::<_, congruent::trace::TraceError>(())
//! ```

mod file;
mod read;
mod recorder;
mod write;

use std::borrow::Cow;
use std::path::PathBuf;

use serde::Serialize;

pub(crate) use file::Session;
pub use read::{TraceEvent, by_pe_and_name, lost, read};
pub(crate) use recorder::{Event, Part, Recorder};

/// A detail of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Arg {
    /// A number, such as bytes.
    Number(u64),
    /// Anything else.
    Text(Cow<'static, str>),
}

/// Why a trace could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be written.
    #[error("cannot write the trace to '{}': {reason}; let CONGRUENT_TRACE name a file that can be written", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The text is no trace in JSON, or was cut off.
    #[error("not a trace, or one that was cut off: {reason}; expected the JSON that CONGRUENT_TRACE writes")]
    NotATrace {
        /// What is wrong with it, and where.
        reason: String,
    },
    /// An event without a sensible time.
    #[error(
        "event {index} of the trace, '{name}', has no {field} that is a time; its file was changed or is another tool's"
    )]
    NoTime {
        /// Which event of the file, from 0.
        index: usize,
        /// Its name.
        name: String,
        /// `ts` or `dur`.
        field: &'static str,
    },
}

/// Nanoseconds on the clock of all traces: monotonic, and the same for all processes of a host.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock starts at 0, so neither part is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&'static str> for Arg {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_as_the_programs_does() {
        let (begun, from) = (std::time::Instant::now(), now_ns());
        std::thread::sleep(std::time::Duration::from_millis(2));
        let (passed, inner) = (now_ns() - from, 2_000_000);
        assert!(inner <= passed && u128::from(passed) <= begun.elapsed().as_nanos(), "{passed} ns");
    }
}
