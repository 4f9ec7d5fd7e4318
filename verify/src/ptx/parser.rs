//! The outer grammar: module directives, variables and functions.

use super::body::BodyParser;
use super::cursor::{Cursor, space};
use super::error::ParseError;
use super::lexer::{Extent, TokenKind};
use super::syntax::{Function, LaunchBounds, Module};
use super::variable::{parameters, variables};

/// Parses a PTX text.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    module(text, Extent::Whole)
}

/// Parses a PTX text without what is in the bodies of its functions, which are taken to be empty: what they say is not checked.
pub fn parse_heads(text: &str) -> Result<Module, ParseError> {
    module(text, Extent::Heads)
}

fn module(text: &str, extent: Extent) -> Result<Module, ParseError> {
    let mut cursor = Cursor::new(text, extent)?;
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
            ".version" => {
                module.version = version(cursor)?;
                module.version_span = token.span;
            }
            ".target" => {
                module.target_span = token.span;
                module.target = cursor.expect_kind(TokenKind::Word, "a target")?.text.to_owned();
                while cursor.eat(",") {
                    cursor.expect_kind(TokenKind::Word, "a target's option")?;
                }
            }
            ".address_size" => {
                cursor.expect_kind(TokenKind::Number, "a size")?;
            }
            ".file" => {
                let number = cursor.number("a file's number")?;
                let name = cursor.expect_kind(TokenKind::String, "a file's name")?.text;
                module.files.insert(number, name.trim_matches('"').to_owned());
                cursor.skip_line();
            }
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
                module.variables.extend(variables(cursor, space, is_extern)?);
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
        launch: LaunchBounds::default(),
        body: None,
    };
    loop {
        let token = cursor.next();
        match token.text {
            ".noreturn" => function.never_returns = true,
            ".pragma" => cursor.skip_statement()?,
            ".maxntid" => function.launch.max_threads = Some(shape(cursor)?),
            ".reqntid" => function.launch.required_threads = Some(shape(cursor)?),
            ".minnctapersm" => function.launch.min_blocks = Some(cursor.number("a count")?),
            ".maxnreg" => function.launch.max_registers = Some(cursor.number("a count")?),
            ".maxnctapersm" | ".explicitcluster" | ".reqnctapercluster" | ".maxclusterrank" => {
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

/// `128, 2, 1` or the first of these; what is not said is 1.
fn shape(cursor: &mut Cursor<'_>) -> Result<[u32; 3], ParseError> {
    let mut shape = [1; 3];
    for (axis, length) in shape.iter_mut().enumerate() {
        if axis > 0 && !cursor.eat(",") {
            break;
        }
        *length = cursor.number("a count")?;
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::Space;

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
        assert_eq!(module.functions[2].launch.max_threads, Some([256, 1, 1]));
    }

    #[test]
    fn launch_bounds_and_source_lines() {
        let text = format!(
            "{HEAD}.file 1 \"src/lib.rs\", 12, 34\n.entry k() .reqntid 8, 4 .minnctapersm 2 .maxnreg 40 {{\n\
             membar.gl;\n.loc 1 7 5, function_name $L__s, inlined_at 1 3 4\nmembar.gl;\nret;\n}}"
        );
        let module = parse(&text).expect("PTX");
        assert_eq!(module.files.get(&1).map(String::as_str), Some("src/lib.rs"));
        assert_eq!(module.target_span.line_column(&text).0, 2);
        let kernel = &module.functions[0];
        let bounds = LaunchBounds {
            max_threads: None,
            required_threads: Some([8, 4, 1]),
            min_blocks: Some(2),
            max_registers: Some(40),
        };
        assert_eq!(kernel.launch, bounds);
        let lines = kernel.body.iter().flat_map(|body| &body.instructions).map(|i| i.source.map(|s| (s.file, s.line)));
        assert_eq!(lines.collect::<Vec<_>>(), [None, Some((1, 7)), Some((1, 7))]);
    }

    #[test]
    fn heads_alone_say_the_same() {
        let text = format!(
            "{HEAD}.entry k(.param .u64 p) .maxntid 64 {{\n{{ frob; }}\n}}\n.global .b32 g = 7;\n.func f() {{ ret; }}"
        );
        assert!(parse(&text).is_err());
        let [heads, whole] =
            [parse_heads(&text), parse(&text.replace("frob", "ret"))].map(|module| module.expect("PTX"));
        let said = |module: &Module| {
            let functions =
                module.functions.iter().map(|f| (f.name.clone(), f.parameters.len(), f.launch, f.body.is_some()));
            (functions.collect::<Vec<_>>(), module.variables[0].initial.clone(), module.version)
        };
        assert_eq!(said(&heads), said(&whole));
        assert!(heads.functions.iter().flat_map(|f| &f.body).all(|body| body.instructions.is_empty()));
        assert_eq!(parse_heads(&format!("{HEAD}.entry k() {{")).expect_err("it is open").line, 4);
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
