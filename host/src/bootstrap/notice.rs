//! What a PE learns of the job's end.

use std::fmt;

/// What a PE learns of the job's end while it runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A PE is gone without having left in order.
    PeerFailed {
        /// The PE that is gone.
        pe: u32,
        /// What was seen of it, for people.
        evidence: String,
    },
    /// A PE gave the job up.
    Aborted {
        /// The PE that gave up.
        by: u32,
        /// Its reason, in a form known to the layer above.
        reason: Vec<u8>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerFailed { pe, evidence } => write!(f, "PE {pe} failed: {evidence}"),
            Self::Aborted { by, reason } => write!(f, "PE {by} aborted: {}", String::from_utf8_lossy(reason)),
        }
    }
}
