//! Declarations of variables and parameters: types, sizes and initial values.

use super::cursor::{Cursor, integer, space};
use super::error::ParseError;
use super::lexer::{Token, TokenKind};
use super::syntax::{InitialAddress, Space, Variable};

/// More than any program has in the initial value of one variable.
const MOST_INITIAL: u64 = 1 << 28;

/// `.align 8 .b8 name[16] = {...}, other;` after its state space.
pub(crate) fn variables(cursor: &mut Cursor<'_>, space: Space, is_extern: bool) -> Result<Vec<Variable>, ParseError> {
    let attributes = Attributes::parse(cursor)?;
    let mut variables = Vec::new();
    loop {
        let name = cursor.expect_kind(TokenKind::Word, "a variable's name")?;
        let lengths = lengths(cursor)?;
        let mut variable = attributes.declare(cursor, name, &lengths, space)?;
        variable.is_extern = is_extern;
        if cursor.eat("=") {
            let strides = strides(attributes.element, &lengths);
            Values { cursor, into: &mut variable, element: attributes.element, at: 0 }.parse(&strides)?;
        }
        variables.push(variable);
        if !cursor.eat(",") {
            cursor.expect(";")?;
            return Ok(variables);
        }
    }
}

/// `(.param .u64 .ptr .align 8 a, .param .b32 b[4])`.
pub(crate) fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<Variable>, ParseError> {
    let mut parameters = Vec::new();
    cursor.expect("(")?;
    while !cursor.eat(")") {
        let declaration = cursor.expect_kind(TokenKind::Dotted, "a parameter")?;
        if space(declaration.text) != Some(Space::Param) {
            return Err(cursor.unexpected(declaration, "a parameter in `.param`"));
        }
        let attributes = Attributes::parse(cursor)?;
        let name = cursor.expect_kind(TokenKind::Word, "a parameter's name")?;
        let lengths = lengths(cursor)?;
        parameters.push(attributes.declare(cursor, name, &lengths, Space::Param)?);
        if cursor.peek().text != ")" {
            cursor.expect(",")?;
        }
    }
    Ok(parameters)
}

/// What stands before a name: `.align 16 .v4 .f32`, `.u64 .ptr .global .align 1`.
struct Attributes<'a> {
    type_name: &'a str,
    /// Bytes of one element of an initial value.
    element: u64,
    /// Elements of the vector that the type is.
    lanes: u64,
    align: Option<u64>,
}

impl<'a> Attributes<'a> {
    fn parse(cursor: &mut Cursor<'a>) -> Result<Self, ParseError> {
        let (mut lanes, mut align) = (1, None);
        let type_name = loop {
            let token = cursor.expect_kind(TokenKind::Dotted, "a type")?;
            match token.text {
                ".align" => align = Some(alignment(cursor)?),
                ".attribute" => {
                    cursor.expect("(")?;
                    while !cursor.eat(")") {
                        let token = cursor.next();
                        if token.kind == TokenKind::End {
                            return Err(cursor.unexpected(token, "`)`"));
                        }
                    }
                }
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ => break token,
            }
        };
        let Some(element) = bytes(&type_name.text[1..]) else {
            return Err(cursor.unexpected(type_name, "a type"));
        };
        // What follows says where a pointer points to and how that is aligned.
        while cursor.peek().kind == TokenKind::Dotted {
            if cursor.next().text == ".align" {
                alignment(cursor)?;
            }
        }
        Ok(Self { type_name: &type_name.text[1..], element, lanes, align })
    }

    fn declare(
        &self,
        cursor: &Cursor<'_>,
        name: Token<'_>,
        lengths: &[Option<u64>],
        space: Space,
    ) -> Result<Variable, ParseError> {
        let size = self.element * self.lanes;
        let mut bytes = Some(size);
        for length in lengths {
            bytes =
                match (bytes, length) {
                    (Some(bytes), Some(length)) => Some(bytes.checked_mul(*length).ok_or_else(|| {
                        cursor.error(name.span, "this variable is larger than any memory".to_owned())
                    })?),
                    _ => None,
                };
        }
        Ok(Variable {
            name: name.text.to_owned(),
            span: name.span,
            space,
            is_extern: false,
            type_name: self.type_name.to_owned(),
            align: self.align.unwrap_or(size),
            bytes,
            initial: Vec::new(),
            addresses: Vec::new(),
        })
    }
}

fn alignment(cursor: &mut Cursor<'_>) -> Result<u64, ParseError> {
    let token = cursor.peek();
    let align: u64 = cursor.number("an alignment")?;
    if align.is_power_of_two() { Ok(align) } else { Err(cursor.unexpected(token, "a power of two")) }
}

/// Bytes of a value of a type; none if `type_name` is not a type of memory.
fn bytes(type_name: &str) -> Option<u64> {
    match type_name {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" | "bf16" => Some(2),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        "b128" => Some(16),
        _ => None,
    }
}

/// `[4][8]`, `[]`.
fn lengths(cursor: &mut Cursor<'_>) -> Result<Vec<Option<u64>>, ParseError> {
    let mut lengths = Vec::new();
    while cursor.eat("[") {
        let length = if cursor.peek().text == "]" { None } else { Some(cursor.number("a length")?) };
        cursor.expect("]")?;
        lengths.push(length);
    }
    Ok(lengths)
}

/// How many bytes apart the parts of each level of an initial value are, outermost first.
fn strides(element: u64, lengths: &[Option<u64>]) -> Vec<u64> {
    let mut strides = Vec::new();
    let mut stride = element;
    for length in lengths.iter().rev() {
        strides.push(stride);
        stride = stride.saturating_mul(length.unwrap_or(1));
    }
    strides.reverse();
    strides
}

/// Reads an initial value into a variable.
struct Values<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    into: &'c mut Variable,
    element: u64,
    at: u64,
}

impl Values<'_, '_> {
    /// One value, or several in braces; `strides` are those of the levels inside.
    fn parse(&mut self, strides: &[u64]) -> Result<(), ParseError> {
        let brace = self.cursor.peek();
        if brace.text != "{" {
            return self.value();
        }
        self.cursor.next();
        let start = self.at;
        let Some((stride, inner)) = strides.split_first() else {
            return Err(self.cursor.unexpected(brace, "a value"));
        };
        let mut part = 0_u64;
        while !self.cursor.eat("}") {
            // Parts in braces may be shorter than what is behind them; plain values follow each other.
            if self.cursor.peek().text == "{" {
                self.at = start.saturating_add(part.saturating_mul(*stride));
            }
            self.parse(inner)?;
            part += 1;
            if self.cursor.peek().text != "}" {
                self.cursor.expect(",")?;
            }
        }
        Ok(())
    }

    /// `1`, `-1`, `0f3F800000`, `table+8`, `generic(table)`, `0xFF00(generic(table))`.
    fn value(&mut self) -> Result<(), ParseError> {
        let token = self.cursor.peek();
        let end = self.at.saturating_add(self.element);
        if end > self.into.bytes.unwrap_or(u64::MAX).min(MOST_INITIAL) {
            return Err(self.cursor.error(token.span, format!("`{}` has no place for this value", self.into.name)));
        }
        if token.kind == TokenKind::Word {
            self.address(None)?;
        } else if self.cursor.peek_at(1).text == "(" {
            let mask: u64 = self.cursor.number("a mask")?;
            self.cursor.expect("(")?;
            self.address(Some((token, mask)))?;
            self.cursor.expect(")")?;
        } else {
            let bits = self.number()?;
            self.into.initial.resize(self.at as usize, 0);
            self.into.initial.extend_from_slice(&bits.to_le_bytes()[..self.element as usize]);
        }
        self.at = end;
        Ok(())
    }

    fn number(&mut self) -> Result<u128, ParseError> {
        let negative = self.cursor.eat("-");
        let token = self.cursor.expect_kind(TokenKind::Number, "a value")?;
        let value = match self.into.type_name.as_str() {
            "f32" | "f64" => float(token.text, self.element),
            _ => integer(token.text).map(u128::from),
        };
        let value = value.ok_or_else(|| self.cursor.unexpected(token, "a value of the variable's type"))?;
        Ok(match self.into.type_name.as_str() {
            _ if !negative => value,
            "f32" => value ^ (1 << 31),
            "f64" => value ^ (1 << 63),
            _ => value.wrapping_neg(),
        })
    }

    /// An address, whole or the byte that a mask takes out of it.
    fn address(&mut self, mask: Option<(Token<'_>, u64)>) -> Result<(), ParseError> {
        let mut symbol = self.cursor.expect_kind(TokenKind::Word, "a name")?;
        let is_generic = symbol.text == "generic" && self.cursor.eat("(");
        if is_generic {
            symbol = self.cursor.expect_kind(TokenKind::Word, "a name")?;
            self.cursor.expect(")")?;
        }
        let sign = self.cursor.peek();
        let offset = match sign.text {
            "+" | "-" => {
                self.cursor.next();
                let negative = (sign.text == "-") != self.cursor.eat("-");
                let offset: i64 = self.cursor.number("an offset")?;
                if negative { -offset } else { offset }
            }
            _ => 0,
        };
        let (bytes, shift) = match mask {
            None => (self.element.min(8), 0),
            Some((token, mask)) => {
                let shift = mask.trailing_zeros();
                if mask.checked_shr(shift) != Some(0xFF) || shift % 8 != 0 || self.element != 1 {
                    return Err(self.cursor.unexpected(token, "a mask of one byte, for a variable of bytes"));
                }
                (1, shift)
            }
        };
        let symbol = symbol.text.to_owned();
        self.into.addresses.push(InitialAddress { at: self.at, bytes, shift, symbol, offset, is_generic });
        Ok(())
    }
}

/// The bits of a float of `bytes` bytes.
fn float(text: &str, bytes: u64) -> Option<u128> {
    let bits = |prefix: [&str; 2]| {
        let digits = prefix.iter().find_map(|prefix| text.strip_prefix(prefix))?;
        u64::from_str_radix(digits, 16).ok()
    };
    if bytes == 4 {
        let single = || Some(text.parse::<f32>().ok()?.to_bits());
        return bits(["0f", "0F"]).and_then(|bits| u32::try_from(bits).ok()).or_else(single).map(u128::from);
    }
    bits(["0d", "0D"]).or_else(|| Some(text.parse::<f64>().ok()?.to_bits())).map(u128::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::parse;

    fn variable(text: &str) -> Result<Variable, ParseError> {
        Ok(parse(text)?.variables.remove(0))
    }

    fn shape(text: &str) -> (String, u64, Option<u64>) {
        let variable = variable(text).expect(text);
        (variable.type_name, variable.align, variable.bytes)
    }

    fn initial(text: &str) -> Vec<u8> {
        variable(text).expect(text).initial
    }

    #[test]
    fn types_alignments_and_sizes() {
        assert_eq!(shape(".global .align 8 .b8 x[24];"), ("b8".to_owned(), 8, Some(24)));
        assert_eq!(shape(".shared .f64 x[2][3];"), ("f64".to_owned(), 8, Some(48)));
        assert_eq!(shape(".const .v4 .f32 x;"), ("f32".to_owned(), 16, Some(16)));
        assert_eq!(shape(".global .attribute(.managed) .align 4 .u32 x;"), ("u32".to_owned(), 4, Some(4)));
        assert_eq!(shape(".extern .shared .align 128 .b8 x[];"), ("b8".to_owned(), 128, None));
        let two = parse(".global .u16 a, b[2] = {1, 2};").expect("PTX").variables;
        assert_eq!((two[0].bytes, two[1].bytes, two[1].initial.as_slice()), (Some(2), Some(4), &[1, 0, 2, 0][..]));
    }

    #[test]
    fn parameters_of_entries_have_their_places() {
        let text = ".entry k(.param .align 4 .b8 a[6], .param .u64 .ptr .global .align 128 b, .param .b16 c) { ret; }";
        let function = parse(text).expect("PTX").functions.remove(0);
        let shapes: Vec<_> = function.parameters.iter().map(|p| (p.type_name.as_str(), p.align, p.bytes)).collect();
        assert_eq!(shapes, [("b8", 4, Some(6)), ("u64", 8, Some(8)), ("b16", 2, Some(2))]);
        assert_eq!(function.parameter_offsets(), [0, 8, 16]);
    }

    #[test]
    fn initial_values_are_bytes() {
        assert_eq!(initial(".global .b8 x[4] = {1, 0xFF, -1};"), [1, 255, 255]);
        assert_eq!(initial(".global .u32 x = 7;"), [7, 0, 0, 0]);
        assert_eq!(initial(".global .s64 x = -2;"), (-2_i64).to_le_bytes());
        let floats = [1.0_f32, -1.0, 2.5].map(f32::to_le_bytes).concat();
        assert_eq!(initial(".global .f32 x[3] = {0f3F800000, -1.0, 2.5};"), floats);
        assert_eq!(initial(".global .f64 x = 0d3FF8000000000000;"), 1.5_f64.to_le_bytes());
        assert_eq!(initial(".global .b8 x[2][3] = {{1}, {4, 5, 6}};"), [1, 0, 0, 4, 5, 6]);
        assert_eq!(initial(".global .b8 x[2][2] = {1, 2, 3, 4};"), [1, 2, 3, 4]);
    }

    #[test]
    fn addresses_in_initial_values_are_kept_apart() {
        let text = ".global .u64 x[4] = {generic(a)+8, 5, f, a+-4};";
        let address = |at, symbol: &str, offset, is_generic| {
            let symbol = symbol.to_owned();
            InitialAddress { at, bytes: 8, shift: 0, symbol, offset, is_generic }
        };
        let found = variable(text).expect(text);
        assert_eq!(
            found.addresses,
            [address(0, "a", 8, true), address(16, "f", 0, false), address(24, "a", -4, false)]
        );
        assert_eq!(found.initial[8..], 5_u64.to_le_bytes());
        let masked = variable(".global .b8 x[2] = {0xFF(generic(a)), 0xFF00(generic(a)+1)};").expect("masks");
        let byte = |address: &InitialAddress| (address.at, address.bytes, address.shift, address.offset);
        assert_eq!(masked.addresses.iter().map(byte).collect::<Vec<_>>(), [(0, 1, 0, 0), (1, 1, 8, 1)]);
    }

    #[test]
    fn values_without_a_place_are_errors() {
        let message = |text| variable(text).expect_err(text).to_string();
        assert_eq!(message(".global .b8 x[2] = {1, 2, 3};"), "1:27: `x` has no place for this value");
        assert_eq!(message(".global .b8 x = {1};"), "1:17: expected a value, found `{`");
        assert_eq!(message(".global .align 3 .b8 x;"), "1:16: expected a power of two, found `3`");
        assert!(message(".global .b32 x = 0xFF(a);").contains("a mask of one byte"));
        assert!(message(".global .f32 x = 0d3FF8000000000000;").contains("of the variable's type"));
        assert!(message(".global .b8 x[9999999999][9999999999];").contains("larger than any memory"));
        assert!(message(".global .b8 x[2][9999999999] = {{1}, {2}};").contains("no place"));
        assert!(message(".func f(.reg .b32 x);").contains("`.param`"));
    }
}
