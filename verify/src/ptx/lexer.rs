//! PTX text as tokens.

use super::error::ParseError;
use super::span::Span;

/// One token and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    pub(crate) span: Span,
}

/// What kind of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// `ld`, `%r1`, `$L__BB0_1`, `_ZN4core`, `_`.
    Word,
    /// `.global`, `.L1::no_allocate`: a dot and what belongs to it.
    Dotted,
    /// `12`, `0x1F`, `0f3F800000`, `1.5`.
    Number,
    /// `"..."`.
    String,
    /// One of `( ) [ ] { } < > , ; : + - | @ ! = ?`.
    Punctuation,
    /// After the last token.
    End,
}

/// How much of a text is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Without what is in the bodies of functions.
    Heads,
}

/// Splits `text` into tokens, dropping comments; the last one is [`TokenKind::End`].
pub(crate) fn tokens(text: &str, extent: Extent) -> Result<Vec<Token<'_>>, ParseError> {
    let mut tokens = Vec::new();
    let (mut at, mut is_head) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let skipped = if c.is_whitespace() { Some(c.len_utf8()) } else { comment(text, at)? };
        if let Some(length) = skipped {
            at += length;
            continue;
        }
        let (kind, length) =
            token(rest).ok_or_else(|| error(text, at, c.len_utf8(), "no PTX token starts like this"))?;
        tokens.push(Token { kind, text: &rest[..length], span: Span { start: at, end: at + length } });
        at += length;
        match &rest[..length] {
            ".entry" | ".func" => is_head = extent == Extent::Heads,
            ";" => is_head = false,
            "{" if is_head => (at, is_head) = (body_end(text, at)?, false),
            _ => {}
        }
    }
    tokens.push(Token { kind: TokenKind::End, text: "", span: Span { start: at, end: at } });
    Ok(tokens)
}

/// The length of the comment that is at a place, if one is.
fn comment(text: &str, at: usize) -> Result<Option<usize>, ParseError> {
    let rest = &text[at..];
    if rest.starts_with("//") {
        return Ok(Some(rest.find('\n').unwrap_or(rest.len())));
    }
    if !rest.starts_with("/*") {
        return Ok(None);
    }
    let end = rest.find("*/").ok_or_else(|| error(text, at, rest.len(), "this comment is never closed"))?;
    Ok(Some(end + 2))
}

/// Where the brace is that closes a body, or the end of a text that lacks it. In a body lies most of a text, so that its tokens are
/// not looked at one by one.
fn body_end(text: &str, mut at: usize) -> Result<usize, ParseError> {
    let mut depth = 0_usize;
    let is_special = |byte: &u8| matches!(byte, b'{' | b'}' | b'/' | b'"');
    while let Some(skipped) = text.as_bytes()[at..].iter().position(is_special) {
        at += skipped;
        match text.as_bytes()[at] {
            b'}' if depth == 0 => return Ok(at),
            b'}' => depth -= 1,
            b'{' => depth += 1,
            b'"' => at += text[at + 1..].find('"').map_or(0, |length| length + 1),
            _ => at += comment(text, at)?.map_or(0, |length| length - 1),
        }
        at += 1;
    }
    Ok(text.len())
}

fn error(text: &str, start: usize, length: usize, message: &str) -> ParseError {
    ParseError::new(text, Span { start, end: start + length }, message.to_owned())
}

/// The kind and length of the token that `text` starts with.
fn token(text: &str) -> Option<(TokenKind, usize)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    let first = text.chars().next()?;
    let run = |from: usize, part: &dyn Fn(char) -> bool| {
        text[from..].find(|c| !part(c)).map_or(text.len(), |length| from + length)
    };
    match first {
        '.' if text[1..].starts_with(is_word) => Some((TokenKind::Dotted, dotted_length(text, is_word))),
        '0'..='9' => Some((TokenKind::Number, number_length(text, is_word))),
        '%' if text[1..].starts_with(is_word) => Some((TokenKind::Word, run(1, &is_word))),
        '"' => Some((TokenKind::String, text[1..].find('"')? + 2)),
        c if is_word(c) => Some((TokenKind::Word, run(0, &is_word))),
        '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | ':' | '+' | '-' | '|' | '@' | '!' | '=' | '?' => {
            Some((TokenKind::Punctuation, 1))
        }
        _ => None,
    }
}

/// `.a::b::c` is one token, as the specification writes it: a name in parts.
fn dotted_length(text: &str, is_word: impl Fn(char) -> bool) -> usize {
    let mut end = 1;
    loop {
        end = text[end..].find(|c| !is_word(c)).map_or(text.len(), |length| end + length);
        match text[end..].strip_prefix("::") {
            Some(rest) if rest.starts_with(&is_word) => end += 2,
            _ => return end,
        }
    }
}

/// Integers in every base, bit patterns of floats, and decimal floats with exponents.
fn number_length(text: &str, is_word: impl Fn(char) -> bool) -> usize {
    let mut end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let is_digit = |c: char| c.is_ascii_digit();
    if text[end..].strip_prefix('.').is_some_and(|rest| rest.starts_with(is_digit)) {
        end += 1;
        end = text[end..].find(|c| !is_word(c)).map_or(text.len(), |length| end + length);
    }
    let exponent = text[..end].ends_with(['e', 'E']) && !text.starts_with("0x");
    let signed = text[end..].strip_prefix(['+', '-']).is_some_and(|rest| rest.starts_with(is_digit));
    if exponent && signed {
        end += 1;
        end = text[end..].find(|c| !is_word(c)).map_or(text.len(), |length| end + length);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ptx: &str) -> Vec<&str> {
        tokens(ptx, Extent::Whole)
            .expect("tokens")
            .iter()
            .map(|token| token.text)
            .filter(|text| !text.is_empty())
            .collect()
    }

    #[test]
    fn an_instruction_splits_into_its_parts() {
        let ptx = "@!%p1 ld.relaxed.sys.global.L1::no_allocate.v4.b32 {%r1, %r2}, [%rd1+-16]; // x";
        let expected = [
            "@",
            "!",
            "%p1",
            "ld",
            ".relaxed",
            ".sys",
            ".global",
            ".L1::no_allocate",
            ".v4",
            ".b32",
            "{",
            "%r1",
            ",",
            "%r2",
            "}",
            ",",
            "[",
            "%rd1",
            "+",
            "-",
            "16",
            "]",
            ";",
        ];
        assert_eq!(texts(ptx), expected);
    }

    #[test]
    fn numbers_of_every_kind_are_one_token() {
        for number in ["0", "12U", "0x1F", "0f3F800000", "0d3FF0000000000000", "1.5", "1.5e-3"] {
            assert_eq!(texts(number), [number]);
        }
    }

    #[test]
    fn open_comments_and_foreign_characters_are_errors() {
        for text in ["/* never", "ld \u{e9}", "\"open", ".entry k() { /* never }"] {
            assert!(tokens(text, Extent::Whole).is_err() && (tokens(text, Extent::Heads).is_err()), "{text}");
        }
    }

    #[test]
    fn heads_are_without_what_is_in_bodies() {
        let ptx = ".func f(.param .b32 p) ;.global .b8 t = {1};.entry k()\n{ { mov; } // }\n/* } */ bra \"}\"; }.const .b8 c;";
        let heads: Vec<_> = tokens(ptx, Extent::Heads).expect("tokens").iter().map(|token| token.text).collect();
        let whole: Vec<_> = texts(ptx);
        let body = whole.iter().position(|text| *text == "mov").expect("it is in the whole") - 1;
        assert_eq!(heads[..body], whole[..body]);
        assert_eq!(heads[body..], ["}", ".const", ".b8", "c", ";", ""]);
    }
}
