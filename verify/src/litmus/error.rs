//! Text that is no litmus test.

/// Why a text was not understood, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Error {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}
