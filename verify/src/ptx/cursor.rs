//! Walking over tokens.

use super::error::ParseError;
use super::lexer::{Extent, Token, TokenKind, tokens};
use super::span::Span;
use super::syntax::Space;

/// A position among the tokens of a text.
pub(crate) struct Cursor<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str, extent: Extent) -> Result<Self, ParseError> {
        Ok(Self { text, tokens: tokens(text, extent)?, at: 0 })
    }

    /// The token here; at the end of the text it is always the end token.
    pub(crate) fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    /// The token `ahead` places further on.
    pub(crate) fn peek_at(&self, ahead: usize) -> Token<'a> {
        // The end token is always there, so there is a last one.
        self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    /// The token here, and moves on.
    pub(crate) fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Moves on if the token here is `text`.
    pub(crate) fn eat(&mut self, text: &str) -> bool {
        let found = self.peek().text == text;
        self.at += usize::from(found);
        found
    }

    /// Moves over `text`, which has to be here.
    pub(crate) fn expect(&mut self, text: &str) -> Result<Token<'a>, ParseError> {
        let token = self.next();
        if token.text == text { Ok(token) } else { Err(self.unexpected(token, &format!("`{text}`"))) }
    }

    /// Moves over a token of `kind`, which has to be here.
    pub(crate) fn expect_kind(&mut self, kind: TokenKind, what: &str) -> Result<Token<'a>, ParseError> {
        let token = self.next();
        if token.kind == kind { Ok(token) } else { Err(self.unexpected(token, what)) }
    }

    /// Moves over an integer in the range of `T`, which has to be here.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, ParseError> {
        let token = self.expect_kind(TokenKind::Number, what)?;
        integer(token.text).and_then(|value| T::try_from(value).ok()).ok_or_else(|| self.unexpected(token, what))
    }

    /// Skips to after the next semicolon that is outside braces.
    pub(crate) fn skip_statement(&mut self) -> Result<(), ParseError> {
        let mut depth = 0_usize;
        loop {
            let token = self.next();
            match token.text {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1).ok_or_else(|| self.unexpected(token, "`;`"))?,
                ";" if depth == 0 => return Ok(()),
                _ if token.kind == TokenKind::End => return Err(self.unexpected(token, "`;`")),
                _ => {}
            }
        }
    }

    /// Skips the rest of the line that the token before is on: debugger directives end there.
    pub(crate) fn skip_line(&mut self) {
        let start = self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)].span.end;
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length);
        while self.peek().kind != TokenKind::End && self.peek().span.start < line_end {
            self.at += 1;
        }
    }

    /// An error about `token`, where `wanted` should be.
    pub(crate) fn unexpected(&self, token: Token<'_>, wanted: &str) -> ParseError {
        let found = match token.kind {
            TokenKind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", token.text),
        };
        self.error(token.span, format!("expected {wanted}, found {found}"))
    }

    /// An error at `span`.
    pub(crate) fn error(&self, span: Span, message: String) -> ParseError {
        ParseError::new(self.text, span, message)
    }
}

/// The state space that a directive names.
pub(crate) fn space(directive: &str) -> Option<Space> {
    match directive {
        ".global" => Some(Space::Global),
        ".shared" => Some(Space::Shared),
        ".local" => Some(Space::Local),
        ".const" => Some(Space::Const),
        ".param" => Some(Space::Param),
        _ => None,
    }
}

/// The value of an integer token.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('U').unwrap_or(text);
    let based = |prefix: &str, radix| digits.strip_prefix(prefix).map(|digits| u64::from_str_radix(digits, radix).ok());
    let octal = if digits.len() > 1 { based("0", 8) } else { None };
    based("0x", 16)
        .or_else(|| based("0X", 16))
        .or_else(|| based("0b", 2))
        .or(octal)
        .unwrap_or_else(|| digits.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_base() {
        assert_eq!(["0", "17", "12U", "0x1F", "0b101", "017"].map(integer), [0, 17, 12, 31, 5, 15].map(Some));
        assert_eq!(["x", "0xG", "99999999999999999999", "0f3F800000"].map(integer), [None; 4]);
    }
}
