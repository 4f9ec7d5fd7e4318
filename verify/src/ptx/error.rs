//! Text that is not the PTX this crate knows.

use super::span::Span;

/// Why a text was not understood, and where.
///
/// An instruction that the parser does not know is an error too: what is not understood is not checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Where in the text.
    pub span: Span,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl ParseError {
    pub(crate) fn new(text: &str, span: Span, message: String) -> Self {
        let (line, column) = span.line_column(text);
        Self { span, line, column, message }
    }
}
