//! The outer grammar: module directives, variables and functions.

use super::body::BodyParser;
use super::cursor::{Cursor, integer, space};
use super::error::ParseError;
use super::lexer::TokenKind;
use super::syntax::{Function, Module, Space, Variable};

/// Parses a PTX text.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let mut cursor = Cursor::new(text)?;
    let mut module = Module::default();
    while cursor.peek().kind != TokenKind::End {
        item(&mut cursor, &mut module)?;
    }
    Ok(module)
}

/// One directive, variable or function.
fn item(cursor: &mut Cursor<'_>, module: &mut Module) -> Result<(), ParseError> {
    let mut is_extern = false;
    loop {
        let token = cursor.next();
        match token.text {
            ".extern" => is_extern = true,
            ".visible" | ".weak" | ".common" => {}
            ".version" => module.version = version(cursor)?,
            ".target" => {
                module.target = cursor.expect_kind(TokenKind::Word, "a target")?.text.to_owned();
                while cursor.eat(",") {
                    cursor.expect_kind(TokenKind::Word, "a target's option")?;
                }
            }
            ".address_size" => {
                cursor.expect_kind(TokenKind::Number, "a size")?;
            }
            ".file" => cursor.skip_line(),
            ".pragma" | ".alias" => cursor.skip_statement()?,
            ".section" => section(cursor)?,
            ".entry" | ".func" => {
                let function = function(cursor, token.text == ".entry", is_extern)?;
                module.functions.push(function);
            }
            directive => {
                let Some(space) = space(directive) else {
                    return Err(cursor.unexpected(token, "a directive"));
                };
                variables(cursor, space, &mut module.variables)?;
            }
        }
        if !matches!(token.text, ".extern" | ".visible" | ".weak" | ".common") {
            return Ok(());
        }
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<(u32, u32), ParseError> {
    let token = cursor.expect_kind(TokenKind::Number, "a version")?;
    let parts = token.text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.ok_or_else(|| cursor.unexpected(token, "a version such as `8.4`"))
}

/// A debugger section: `.section .debug_info { ... }`.
fn section(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    cursor.next();
    cursor.expect("{")?;
    loop {
        let token = cursor.next();
        match token.text {
            "}" => return Ok(()),
            _ if token.kind == TokenKind::End => return Err(cursor.unexpected(token, "`}`")),
            _ => {}
        }
    }
}

/// `.align 8 .b8 name[16] = {...}, other;` after its state space.
pub(crate) fn variables(cursor: &mut Cursor<'_>, space: Space, into: &mut Vec<Variable>) -> Result<(), ParseError> {
    attributes(cursor)?;
    loop {
        let name = cursor.expect_kind(TokenKind::Word, "a variable's name")?;
        into.push(Variable { name: name.text.to_owned(), span: name.span, space });
        let mut depth = 0_usize;
        loop {
            let token = cursor.next();
            match token.text {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1).ok_or_else(|| cursor.unexpected(token, "`;`"))?,
                "," if depth == 0 => break,
                ";" if depth == 0 => return Ok(()),
                _ if token.kind == TokenKind::End => return Err(cursor.unexpected(token, "`;`")),
                _ => {}
            }
        }
    }
}

/// Types, alignments and the like in front of a name.
fn attributes(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    while cursor.peek().kind == TokenKind::Dotted {
        if cursor.next().text == ".align" {
            cursor.expect_kind(TokenKind::Number, "an alignment")?;
        }
    }
    Ok(())
}

fn function(cursor: &mut Cursor<'_>, is_entry: bool, is_extern: bool) -> Result<Function, ParseError> {
    let returns = if cursor.peek().text == "(" { parameters(cursor)? } else { Vec::new() };
    let name = cursor.expect_kind(TokenKind::Word, "a function's name")?;
    let parameters = if cursor.peek().text == "(" { parameters(cursor)? } else { Vec::new() };
    let mut function = Function {
        name: name.text.to_owned(),
        span: name.span,
        is_entry,
        is_extern,
        never_returns: false,
        parameters,
        returns,
        body: None,
    };
    loop {
        let token = cursor.next();
        match token.text {
            ".noreturn" => function.never_returns = true,
            ".pragma" => cursor.skip_statement()?,
            ".maxntid" | ".reqntid" | ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".explicitcluster"
            | ".reqnctapercluster" | ".maxclusterrank" => {
                while cursor.peek().kind == TokenKind::Number || cursor.peek().text == "," {
                    cursor.next();
                }
            }
            ";" => return Ok(function),
            "{" => {
                function.body = Some(BodyParser::new(cursor).parse()?);
                return Ok(function);
            }
            _ => return Err(cursor.unexpected(token, "a function's body")),
        }
    }
}

/// `(.param .u64 .ptr .align 8 a, .param .b32 b[4])`.
fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<Variable>, ParseError> {
    let mut parameters = Vec::new();
    cursor.expect("(")?;
    while !cursor.eat(")") {
        let declaration = cursor.expect_kind(TokenKind::Dotted, "a parameter")?;
        attributes(cursor)?;
        let name = cursor.expect_kind(TokenKind::Word, "a parameter's name")?;
        let space = space(declaration.text).unwrap_or(Space::Param);
        parameters.push(Variable { name: name.text.to_owned(), span: name.span, space });
        if cursor.eat("[") {
            let size = cursor.next();
            if size.text != "]" {
                integer(size.text).ok_or_else(|| cursor.unexpected(size, "a size"))?;
                cursor.expect("]")?;
            }
        }
        if cursor.peek().text != ")" {
            cursor.expect(",")?;
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.4\n.target sm_90, debug\n.address_size 64\n";

    #[test]
    fn declarations_and_definitions() {
        let text = format!(
            "{HEAD}.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
             .visible .global .align 4 .b8 table[8] = {{1, 2, 3}};\n\
             .extern .shared .align 128 .b8 pool[];\n\
             .func stop() .noreturn;\n\
             .visible .entry k(.param .u64 .ptr .align 1 k_param_0, .param .align 16 .b8 k_param_1[24])\n\
             .maxntid 256, 1, 1\n{{ ret; }}\n"
        );
        let module = parse(&text).expect("PTX");
        assert_eq!((module.version, module.target.as_str()), ((8, 4), "sm_90"));
        let names: Vec<_> = module.functions.iter().map(|f| (f.name.as_str(), f.is_extern, f.body.is_some())).collect();
        assert_eq!(names, [("vprintf", true, false), ("stop", false, false), ("k", false, true)]);
        assert!(module.functions[1].never_returns);
        assert_eq!(module.functions[2].parameters.len(), 2);
        let spaces: Vec<_> = module.variables.iter().map(|v| v.space).collect();
        assert_eq!(spaces, [Space::Global, Space::Shared]);
    }

    #[test]
    fn what_is_no_directive_is_an_error_with_its_place() {
        let error = parse(&format!("{HEAD}  .tex .u64 t;")).expect_err("textures are not known");
        assert_eq!((error.line, error.column), (4, 3));
        assert!(parse(".version eight").is_err());
        assert!(parse(".visible .entry k(").is_err());
        assert!(parse(".section .debug_info {").is_err());
    }
}
