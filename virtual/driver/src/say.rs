//! What the user is told.

use core::fmt;
use std::io::{self, Write};

/// Says it on standard error, at once: other processes of the job write there too, between any two writes.
pub(crate) fn say(what: impl fmt::Display) {
    let line = format!("congruent virtual GPU: {what}\n");
    let _said_or_nobody_reads = io::stderr().write_all(line.as_bytes());
}
