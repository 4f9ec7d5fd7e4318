//! The inner grammar: declarations, labels and instructions of a function.
//!
//! Hand-written assembly brings scopes of its own (`{ .reg .pred p; ... }`), in which names repeat. They are resolved here, so
//! that everything after sees one flat list of instructions over distinct registers. Labels may be used before they are
//! declared, therefore names are resolved only after the whole body is read.

use std::collections::{HashMap, HashSet};

use super::cursor::{Cursor, integer, space};
use super::error::ParseError;
use super::forms;
use super::lexer::{Token, TokenKind};
use super::span::Span;
use super::syntax::{Body, Guard, Instruction, Operand, Register, RegisterId, SourceLine, Space};
use super::variable::variables;

/// Reads one body.
pub(crate) struct BodyParser<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    body: Body,
    scopes: Vec<Scope<'a>>,
    pending: Vec<Pending<'a>>,
    /// The names of the body's variables.
    variables: HashSet<String>,
    /// The last `.loc`.
    source: Option<SourceLine>,
}

/// Names declared between two braces.
#[derive(Default)]
struct Scope<'a> {
    parent: Option<usize>,
    registers: HashMap<&'a str, RegisterId>,
    /// `%r<7>`: the name before the number, the first register and how many.
    families: HashMap<&'a str, (usize, u64)>,
    labels: HashMap<&'a str, usize>,
    targets: HashMap<&'a str, Vec<Token<'a>>>,
    /// What the variables declared here are called in the body.
    variables: HashMap<String, String>,
}

/// An instruction whose names are not resolved yet.
struct Pending<'a> {
    scope: usize,
    span: Span,
    source: Option<SourceLine>,
    guard: Option<(Token<'a>, bool)>,
    opcode: &'a str,
    modifiers: Vec<String>,
    operands: Vec<Raw<'a>>,
}

/// An operand whose names are not resolved yet.
enum Raw<'a> {
    Name(Token<'a>, Option<Token<'a>>, i64),
    Known(Operand),
    Not(Token<'a>),
    Address(Box<Self>, i64),
    Group(Vec<Self>),
}

/// More than any compiler emits; a text that declares more is not worth the memory.
const MOST_REGISTERS: u64 = 1 << 20;

/// `((a, b))` is as deep as real operands go.
const DEEPEST_OPERAND: usize = 4;

impl<'c, 'a> BodyParser<'c, 'a> {
    /// Starts after the opening brace.
    pub(crate) fn new(cursor: &'c mut Cursor<'a>) -> Self {
        Self {
            cursor,
            body: Body::default(),
            scopes: vec![Scope::default()],
            pending: Vec::new(),
            variables: HashSet::new(),
            source: None,
        }
    }

    /// Reads to the closing brace.
    pub(crate) fn parse(mut self) -> Result<Body, ParseError> {
        let mut scope = 0;
        loop {
            let token = self.cursor.peek();
            match (token.kind, token.text) {
                (_, "{") => {
                    self.cursor.next();
                    self.scopes.push(Scope { parent: Some(scope), ..Scope::default() });
                    scope = self.scopes.len() - 1;
                }
                (_, "}") => {
                    self.cursor.next();
                    match self.scopes[scope].parent {
                        Some(parent) => scope = parent,
                        None => return self.resolve(),
                    }
                }
                (TokenKind::Dotted, _) => self.declaration(scope)?,
                (TokenKind::Word, _) if self.cursor.peek_at(1).text == ":" => self.label(scope)?,
                (TokenKind::Word, _) | (_, "@") => self.instruction(scope)?,
                _ => return Err(self.cursor.unexpected(token, "an instruction")),
            }
        }
    }

    fn declaration(&mut self, scope: usize) -> Result<(), ParseError> {
        let directive = self.cursor.next();
        match directive.text {
            ".reg" => self.registers(scope),
            ".loc" => self.line(),
            ".pragma" => self.cursor.skip_statement(),
            text => match space(text) {
                Some(space) => self.variables(scope, space),
                None => Err(self.cursor.unexpected(directive, "a declaration")),
            },
        }
    }

    /// `.loc 1 12 5`, and on the same line perhaps the place it was inlined at, or views.
    fn line(&mut self) -> Result<(), ParseError> {
        let file = self.cursor.number("a file's number")?;
        let line = self.cursor.number("a line")?;
        self.source = Some(SourceLine { file, line });
        self.cursor.skip_line();
        Ok(())
    }

    /// Variables of a scope. Two scopes may use one name, so every other one gets a name of its own.
    fn variables(&mut self, scope: usize, space: Space) -> Result<(), ParseError> {
        for mut variable in variables(self.cursor, space, false)? {
            let mut unique = variable.name.clone();
            if !self.variables.insert(unique.clone()) {
                unique = format!("{unique}#{}", self.body.variables.len());
            }
            let name = core::mem::replace(&mut variable.name, unique.clone());
            if self.scopes[scope].variables.insert(name, unique).is_some() {
                return Err(self.cursor.error(variable.span, "this name is declared twice".to_owned()));
            }
            self.body.variables.push(variable);
        }
        Ok(())
    }

    /// `.reg .b32 %r<7>, a;`
    fn registers(&mut self, scope: usize) -> Result<(), ParseError> {
        let type_name = self.cursor.expect_kind(TokenKind::Dotted, "a type")?.text[1..].to_owned();
        loop {
            let name = self.cursor.expect_kind(TokenKind::Word, "a register's name")?;
            let first = self.body.registers.len();
            if self.cursor.eat("<") {
                let number = self.cursor.expect_kind(TokenKind::Number, "a count")?;
                let count = integer(number.text).ok_or_else(|| self.cursor.unexpected(number, "a count"))?;
                if count > MOST_REGISTERS - (first as u64).min(MOST_REGISTERS) {
                    return Err(self
                        .cursor
                        .error(number.span, "this declares more registers than any program has".to_owned()));
                }
                self.cursor.expect(">")?;
                self.scopes[scope].families.insert(name.text, (first, count));
                let numbered = |n| Register { name: format!("{}{n}", name.text), type_name: type_name.clone() };
                self.body.registers.extend((0..count).map(numbered));
            } else {
                self.scopes[scope].registers.insert(name.text, RegisterId(first));
                self.body.registers.push(Register { name: name.text.to_owned(), type_name: type_name.clone() });
            }
            if !self.cursor.eat(",") {
                self.cursor.expect(";")?;
                return Ok(());
            }
        }
    }

    /// `$L__BB0_1:`, `table: .branchtargets a, b;` or `prototype: .callprototype ...;`
    fn label(&mut self, scope: usize) -> Result<(), ParseError> {
        let name = self.cursor.next();
        self.cursor.expect(":")?;
        match self.cursor.peek().text {
            ".branchtargets" => {
                self.cursor.next();
                let mut targets = Vec::new();
                loop {
                    targets.push(self.cursor.expect_kind(TokenKind::Word, "a label")?);
                    if !self.cursor.eat(",") {
                        break;
                    }
                }
                self.cursor.expect(";")?;
                self.scopes[scope].targets.insert(name.text, targets);
            }
            ".callprototype" => self.cursor.skip_statement()?,
            _ => {
                if self.scopes[scope].labels.insert(name.text, self.pending.len()).is_some() {
                    return Err(self.cursor.error(name.span, format!("the label `{}` is declared twice", name.text)));
                }
            }
        }
        Ok(())
    }

    fn instruction(&mut self, scope: usize) -> Result<(), ParseError> {
        let start = self.cursor.peek().span;
        let mut guard = None;
        if self.cursor.eat("@") {
            let negated = self.cursor.eat("!");
            guard = Some((self.cursor.expect_kind(TokenKind::Word, "a predicate")?, negated));
        }
        let opcode = self.cursor.expect_kind(TokenKind::Word, "an instruction")?;
        let mut name_span = opcode.span;
        let mut modifiers = Vec::new();
        let mut spans = Vec::new();
        while self.cursor.peek().kind == TokenKind::Dotted {
            let modifier = self.cursor.next();
            name_span = name_span.to(modifier.span);
            spans.push(modifier.span);
            modifiers.push(modifier.text[1..].to_owned());
        }
        forms::check(opcode.text, &modifiers).map_err(|unknown| {
            let name = format!("{}{}", opcode.text, modifiers.iter().map(|m| format!(".{m}")).collect::<String>());
            let message = match unknown {
                forms::Unknown::Opcode => format!("unknown instruction `{name}`"),
                forms::Unknown::Modifier(at) => match modifiers.get(at) {
                    Some(modifier) => format!("unknown modifier `.{modifier}` in `{name}`"),
                    None => format!("`{name}` lacks a modifier"),
                },
            };
            let span = match unknown {
                forms::Unknown::Modifier(at) => spans.get(at).copied().unwrap_or(name_span),
                forms::Unknown::Opcode => name_span,
            };
            self.cursor.error(span, message)
        })?;
        let mut operands = Vec::new();
        if self.cursor.peek().text != ";" {
            operands.push(self.operand(0)?);
            while self.cursor.eat(",") {
                operands.push(self.operand(0)?);
            }
        }
        let end = self.cursor.expect(";")?.span;
        let span = start.to(end);
        self.pending.push(Pending {
            scope,
            span,
            source: self.source,
            guard,
            opcode: opcode.text,
            modifiers,
            operands,
        });
        Ok(())
    }

    /// One operand, and those joined to it by `|`.
    fn operand(&mut self, depth: usize) -> Result<Raw<'a>, ParseError> {
        let first = self.simple_operand(depth)?;
        if self.cursor.peek().text != "|" {
            return Ok(first);
        }
        let mut group = vec![first];
        while self.cursor.eat("|") {
            group.push(self.simple_operand(depth)?);
        }
        Ok(Raw::Group(group))
    }

    fn simple_operand(&mut self, depth: usize) -> Result<Raw<'a>, ParseError> {
        let token = self.cursor.next();
        if depth > DEEPEST_OPERAND {
            return Err(self.cursor.unexpected(token, "an operand that is not nested so deeply"));
        }
        match (token.kind, token.text) {
            (_, "[") => {
                let base = self.operand(depth + 1)?;
                let (base, offset) = match base {
                    Raw::Name(name, part, offset) => (Raw::Name(name, part, 0), offset),
                    other => (other, 0),
                };
                self.cursor.expect("]")?;
                Ok(Raw::Address(Box::new(base), offset))
            }
            (_, "{") => self.group("}", depth),
            (_, "(") => self.group(")", depth),
            (_, "!") => Ok(Raw::Not(self.cursor.expect_kind(TokenKind::Word, "a predicate")?)),
            (_, "-") => {
                let number = self.cursor.expect_kind(TokenKind::Number, "a number")?;
                self.number(number, true)
            }
            (TokenKind::Number, _) => self.number(token, false),
            (TokenKind::Word, "_") => Ok(Raw::Known(Operand::Ignored)),
            (TokenKind::Word, _) => {
                let part = (self.cursor.peek().kind == TokenKind::Dotted).then(|| self.cursor.next());
                let offset = if self.cursor.eat("+") {
                    let negative = self.cursor.eat("-");
                    self.offset(negative)?
                } else if self.cursor.peek().text == "-" {
                    self.cursor.next();
                    self.offset(true)?
                } else {
                    0
                };
                Ok(Raw::Name(token, part, offset))
            }
            _ => Err(self.cursor.unexpected(token, "an operand")),
        }
    }

    fn group(&mut self, close: &str, depth: usize) -> Result<Raw<'a>, ParseError> {
        let mut parts = Vec::new();
        while !self.cursor.eat(close) {
            parts.push(self.operand(depth + 1)?);
            if self.cursor.peek().text != close {
                self.cursor.expect(",")?;
            }
        }
        Ok(Raw::Group(parts))
    }

    fn number(&self, token: Token<'a>, negative: bool) -> Result<Raw<'a>, ParseError> {
        let is_float = ["0f", "0F", "0d", "0D"].iter().any(|prefix| token.text.starts_with(prefix))
            || (token.text.contains('.') && token.text.starts_with(|c: char| c.is_ascii_digit()));
        if is_float {
            return Ok(Raw::Known(Operand::Float(token.text.to_owned())));
        }
        let value = integer(token.text).ok_or_else(|| self.cursor.unexpected(token, "a number"))?;
        Ok(Raw::Known(Operand::Integer(if negative { value.wrapping_neg() } else { value })))
    }

    fn offset(&mut self, negative: bool) -> Result<i64, ParseError> {
        let token = self.cursor.expect_kind(TokenKind::Number, "an offset")?;
        let value = integer(token.text).and_then(|value| i64::try_from(value).ok());
        let value = value.ok_or_else(|| self.cursor.unexpected(token, "an offset"))?;
        Ok(if negative { -value } else { value })
    }

    fn resolve(mut self) -> Result<Body, ParseError> {
        for pending in std::mem::take(&mut self.pending) {
            let guard = match pending.guard {
                None => None,
                Some((name, negated)) => match self.lookup_register(pending.scope, name.text) {
                    Some(register) => Some(Guard { register, negated }),
                    None => return Err(self.undeclared(name)),
                },
            };
            let operands = pending.operands.into_iter().map(|raw| self.resolve_operand(pending.scope, raw));
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            let (opcode, modifiers) = (pending.opcode.to_owned(), pending.modifiers);
            let instruction =
                Instruction { span: pending.span, source: pending.source, guard, opcode, modifiers, operands };
            let is_branch = matches!(instruction.opcode.as_str(), "bra" | "brx");
            let has_target = |operand: &Operand| matches!(operand, Operand::Label(_) | Operand::Targets(_));
            if is_branch && !instruction.operands.iter().any(has_target) {
                return Err(self.cursor.error(pending.span, "this branches to no label".to_owned()));
            }
            self.body.instructions.push(instruction);
        }
        Ok(self.body)
    }

    fn resolve_operand(&self, scope: usize, raw: Raw<'a>) -> Result<Operand, ParseError> {
        Ok(match raw {
            Raw::Known(operand) => operand,
            Raw::Not(name) => match self.lookup_register(scope, name.text) {
                Some(register) => Operand::Not(register),
                None => return Err(self.undeclared(name)),
            },
            Raw::Address(base, offset) => Operand::Address(Box::new(self.resolve_operand(scope, *base)?), offset),
            Raw::Group(parts) => Operand::Group(
                parts.into_iter().map(|part| self.resolve_operand(scope, part)).collect::<Result<_, _>>()?,
            ),
            Raw::Name(name, part, offset) => self.resolve_name(scope, name, part, offset)?,
        })
    }

    fn resolve_name(
        &self,
        scope: usize,
        name: Token<'a>,
        part: Option<Token<'a>>,
        offset: i64,
    ) -> Result<Operand, ParseError> {
        if let Some(part) = part {
            return match forms::is_special_register(name.text, Some(part.text)) {
                true => Ok(Operand::Special(format!("{}{}", name.text, part.text))),
                false => Err(self.cursor.unexpected(part, "an operand without parts")),
            };
        }
        if let Some(register) = self.lookup_register(scope, name.text) {
            return Ok(Operand::Register(register));
        }
        if let Some(&label) = self.lookup(scope, |scope| scope.labels.get(name.text)) {
            return Ok(Operand::Label(label));
        }
        if let Some(targets) = self.lookup(scope, |scope| scope.targets.get(name.text)) {
            let label = |target: &Token<'a>| {
                let found = self.lookup(scope, |scope| scope.labels.get(target.text));
                found.copied().ok_or_else(|| self.undeclared(*target))
            };
            return Ok(Operand::Targets(targets.iter().map(label).collect::<Result<_, _>>()?));
        }
        if let Some(variable) = self.lookup(scope, |scope| scope.variables.get(name.text)) {
            return Ok(Operand::Symbol(variable.clone(), offset));
        }
        if forms::is_special_register(name.text, None) {
            return Ok(Operand::Special(name.text.to_owned()));
        }
        if name.text.starts_with('%') {
            return Err(self.undeclared(name));
        }
        Ok(Operand::Symbol(name.text.to_owned(), offset))
    }

    fn lookup_register(&self, scope: usize, name: &str) -> Option<RegisterId> {
        let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u64> = name[family.len()..].parse().ok();
        self.lookup(scope, |scope| {
            let numbered = || {
                let &(first, count) = scope.families.get(family)?;
                number.filter(|&number| number < count).map(|number| RegisterId(first + number as usize))
            };
            scope.registers.get(name).copied().or_else(numbered)
        })
    }

    /// Asks `scope` and those around it.
    fn lookup<'s, T>(&'s self, scope: usize, find: impl Fn(&'s Scope<'a>) -> Option<T>) -> Option<T> {
        let mut scope = Some(scope);
        while let Some(at) = scope {
            if let Some(found) = find(&self.scopes[at]) {
                return Some(found);
            }
            scope = self.scopes[at].parent;
        }
        None
    }

    fn undeclared(&self, name: Token<'_>) -> ParseError {
        self.cursor.error(name.span, format!("`{}` is not declared", name.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::parse;

    fn body(text: &str) -> Result<Body, ParseError> {
        let module = parse(&format!(".entry k() {{\n{text}\n}}"))?;
        Ok(module.functions.into_iter().next().and_then(|function| function.body).unwrap_or_default())
    }

    #[test]
    fn scopes_keep_equal_names_apart() {
        let body = body(
            ".reg .b32 %r<3>; .reg .pred p;\n\
             setp.eq.b32 p, %r1, 0;\n\
             { .reg .pred p; setp.ne.b32 p, %r2, 0; @!p bra done; done: }\n\
             @p bra done;\n done: ret;",
        );
        let body = body.expect("PTX");
        let written: Vec<_> = body.instructions.iter().map(Instruction::written).collect();
        assert_eq!(written[0], [RegisterId(3)]);
        assert_eq!(written[1], [RegisterId(4)]);
        assert_eq!(body.instructions[2].operands, [Operand::Label(3)]);
        assert_eq!(body.instructions[3].guard, Some(Guard { register: RegisterId(3), negated: false }));
        assert_eq!(body.instructions[3].operands, [Operand::Label(4)]);
    }

    #[test]
    fn variables_of_several_scopes_have_names_of_their_own() {
        let body = body(
            ".reg .b32 %r<2>;\n\
             { .param .b32 p; st.param.b32 [p], %r0; { .local .b8 p[3]; mov.b32 %r1, p; } }\n\
             { .param .b64 p; ld.param.b32 %r1, [p+4]; }",
        )
        .expect("PTX");
        let names: Vec<_> = body.variables.iter().map(|v| (v.name.as_str(), v.bytes)).collect();
        assert_eq!(names, [("p", Some(4)), ("p#1", Some(3)), ("p#2", Some(8))]);
        assert_eq!(body.instructions[0].address(), Some((&Operand::Symbol("p".to_owned(), 0), 0)));
        assert_eq!(body.instructions[1].operands[1], Operand::Symbol("p#1".to_owned(), 0));
        assert_eq!(body.instructions[2].address(), Some((&Operand::Symbol("p#2".to_owned(), 0), 4)));
    }

    #[test]
    fn operands_of_every_kind() {
        let body = body(
            ".reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<2>;\n\
             ld.global.v2.b32 {%r1, %r2}, [%rd1+-8];\n\
             mov.u32 %r3, %tid.x;\n\
             shfl.sync.idx.b32 %r4|%p1, %r3, 0, 31, -1;\n\
             call.uni (retval0), f, (param0);\n\
             st.b32 [table+4], 0f3F800000;\n\
             vote.sync.any.pred %p0, !%p1, -1;",
        );
        let body = body.expect("PTX");
        let register = |n| Operand::Register(RegisterId(n));
        assert_eq!(body.instructions[0].operands[0], Operand::Group(vec![register(1), register(2)]));
        assert_eq!(body.instructions[0].address(), Some((&register(10), -8)));
        assert_eq!(body.instructions[1].operands[1], Operand::Special("%tid.x".to_owned()));
        assert_eq!(body.instructions[2].written(), [RegisterId(4), RegisterId(13)]);
        assert_eq!(body.instructions[4].address(), Some((&Operand::Symbol("table".to_owned(), 0), 4)));
        assert_eq!(body.instructions[4].written(), []);
        assert_eq!(body.instructions[5].operands[1], Operand::Not(RegisterId(13)));
        assert_eq!(body.instructions[5].read(), [RegisterId(13)]);
    }

    #[test]
    fn unknown_instructions_and_names_are_errors_with_their_place() {
        let message = |text| body(text).expect_err("not known").to_string();
        assert_eq!(message("frobnicate.b32 x;"), "2:1: unknown instruction `frobnicate.b32`");
        assert_eq!(message("ld.sideways.b32 x, [y];"), "2:3: unknown modifier `.sideways` in `ld.sideways.b32`");
        assert_eq!(message("ld.global x, [y];"), "2:1: `ld.global` lacks a modifier");
        assert_eq!(message("mov.u32 %r1, 0;"), "2:9: `%r1` is not declared");
        assert_eq!(message("bra nowhere;"), "2:1: this branches to no label");
        assert!(message(".reg .b32 %r<99999999>;").contains("more registers"));
    }
}
