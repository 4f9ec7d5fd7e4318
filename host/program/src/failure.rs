//! Why a command failed, as its user reads it: one line, and an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::run::RunError;
use congruent::bootstrap::BootstrapError;
use congruent::tunables::TunableError;
use congruent::{AccessError, AllocError, BuildError, CollectiveError, Error, LaunchError, WorldFailure};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// It was asked for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// It ran and failed, or could not run.
    #[error("{0}")]
    Failed(String),
    /// Its output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Tells the user. A reader who has left (`congruent perf all-reduce | head`) has seen what they wanted.
    pub(super) fn report(self) -> ExitCode {
        if matches!(&self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        let red = clap::builder::Styles::styled().get_error().to_owned();
        // Where standard error is gone as well, the exit code still tells.
        let _told = writeln!(anstream::stderr(), "{red}error:{red:#} {self}");
        ExitCode::from(if matches!(self, Self::Usage(_)) { 2 } else { 1 })
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Size { .. } | RunError::NoProgram | RunError::Hosts(_) => Self::Usage(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

macro_rules! failed {
    ($($error:ty)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Failed(error.to_string())
            }
        }
    )*};
}
failed!(AccessError AllocError BootstrapError BuildError CollectiveError Error LaunchError TunableError WorldFailure serde_json::Error);
