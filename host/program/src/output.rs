//! Writing to standard output, which may be gone.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;

/// Writes text; colours are kept only where a terminal reads them.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes one JSON document.
pub(super) fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string_pretty(document)? + "\n"))
}

/// What is being done, on a terminal only and only while it is done.
pub(super) struct Progress(());

impl Progress {
    pub(super) fn show(what: core::fmt::Arguments<'_>) -> Option<Self> {
        std::io::stderr().is_terminal().then(|| {
            eprint!("{what} ...");
            Self(())
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        eprint!("\r\x1b[K");
    }
}
