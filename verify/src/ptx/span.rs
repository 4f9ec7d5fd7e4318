//! Places in a text.

/// A range of bytes in the text that was parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The line and column of the start, both counted from 1, columns in characters.
    pub fn line_column(self, text: &str) -> (usize, usize) {
        let before = text.get(..self.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// From the start of this to the end of `last`.
    pub(crate) fn to(self, last: Self) -> Self {
        Self { start: self.start, end: last.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one() {
        let at = |start| Span { start, end: start }.line_column("ab\ncd");
        assert_eq!([at(0), at(1), at(3), at(4)], [(1, 1), (1, 2), (2, 1), (2, 2)]);
        assert_eq!(at(99), (2, 3));
    }
}
