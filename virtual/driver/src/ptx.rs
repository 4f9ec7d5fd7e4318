//! What a driver must know of PTX before it runs any: its version and target, its entries with their parameters, its
//! variables. Bodies of functions are passed over.

use core::iter::Peekable;
use core::str::CharIndices;

/// A module as PTX.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    /// `.version`, major and minor.
    pub(crate) version: (u32, u32),
    /// `.target sm_90`, as 90.
    pub(crate) target: u32,
    /// Whether the target has a letter behind it: it is for this one capability, not for later ones.
    pub(crate) exact: bool,
    /// Lines of `.version` and `.target`, for messages.
    pub(crate) lines: (usize, usize),
    pub(crate) entries: Vec<Entry>,
    pub(crate) variables: Vec<Variable>,
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    /// Threads of a block at most, if the kernel says so: the product of `.maxntid` or `.reqntid`.
    pub(crate) max_threads: Option<u32>,
    /// Registers of a thread at most, if the kernel says so: `.maxnreg`.
    pub(crate) max_registers: Option<u32>,
}

/// A parameter of a kernel, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    /// Where it begins behind the first one.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) align: usize,
}

/// A variable of a module, in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    /// What it holds at first; none if that is more than integers.
    pub(crate) initial: Option<Vec<u8>>,
}

/// What is wrong, and in which line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) line: usize,
    pub(crate) why: String,
}

type Parsed<T> = Result<T, Error>;

/// Reads a module.
pub(crate) fn parse(text: &str) -> Parsed<Ptx> {
    Parser { lexer: Lexer::new(text).peekable(), line: 1 }.module()
}

/// Tokens of PTX with their lines: words, texts in quotes, and single signs.
struct Lexer<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: usize,
}

impl<'t> Lexer<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, chars: text.char_indices().peekable(), line: 1 }
    }

    /// Passes over what `goes_on` says, from `start`, and gives it.
    fn run(&mut self, start: usize, goes_on: impl Fn(char) -> bool) -> &'t str {
        while self.chars.next_if(|&(_, c)| goes_on(c)).is_some() {}
        let end = self.chars.peek().map_or(self.text.len(), |&(at, _)| at);
        &self.text[start..end]
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '%' | '-' | '+')
}

impl<'t> Iterator for Lexer<'t> {
    type Item = (usize, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (start, c) = self.chars.next()?;
            match c {
                '\n' => self.line += 1,
                '/' if self.text[start..].starts_with("//") => {
                    self.run(start, |c| c != '\n');
                }
                '/' if self.text[start..].starts_with("/*") => {
                    let end = self.text[start + 2..].find("*/").map_or(self.text.len(), |at| start + at + 4);
                    while let Some((_, c)) = self.chars.next_if(|&(at, _)| at < end) {
                        self.line += usize::from(c == '\n');
                    }
                }
                '"' => {
                    let text = self.run(start, |c| c != '"' && c != '\n');
                    self.chars.next_if(|&(_, c)| c == '"');
                    return Some((self.line, text));
                }
                c if is_word(c) => return Some((self.line, self.run(start, is_word))),
                c if c.is_whitespace() => {}
                c => return Some((self.line, &self.text[start..start + c.len_utf8()])),
            }
        }
    }
}

struct Parser<'t> {
    lexer: Peekable<Lexer<'t>>,
    line: usize,
}

impl<'t> Parser<'t> {
    fn module(mut self) -> Parsed<Ptx> {
        let (mut version, mut target) = (None, None);
        let (mut entries, mut variables) = (Vec::new(), Vec::new());
        while let Some(token) = self.next() {
            match token {
                ".version" => version = Some((self.version()?, self.line)),
                ".target" => target = Some((self.target()?, self.line)),
                _ if version.is_none() => return self.wrong("Missing .version directive at start of file"),
                ".entry" => entries.push(self.entry()?),
                ".func" => self.pass_function()?,
                ".global" | ".const" => variables.push(self.variable()?),
                "{" => self.pass_block()?,
                "}" => return self.wrong("Parsing error near '}': syntax error"),
                // Linkage, files, address size, sections: nothing that a launch depends on.
                _ => {}
            }
        }
        let Some((version, version_line)) = version else {
            return self.wrong("Missing .version directive at start of file");
        };
        let Some(((target, exact), target_line)) = target else { return self.wrong("Missing .target directive") };
        Ok(Ptx { version, target, exact, lines: (version_line, target_line), entries, variables })
    }

    fn next(&mut self) -> Option<&'t str> {
        let (line, token) = self.lexer.next()?;
        self.line = line;
        Some(token)
    }

    fn peek(&mut self) -> Option<&'t str> {
        self.lexer.peek().map(|&(_, token)| token)
    }

    fn some(&mut self) -> Parsed<&'t str> {
        match self.next() {
            Some(token) => Ok(token),
            None => self.wrong("Parsing error: unexpected end of file"),
        }
    }

    fn wrong<T>(&self, why: impl Into<String>) -> Parsed<T> {
        Err(Error { line: self.line, why: why.into() })
    }

    fn number<N: core::str::FromStr>(&mut self) -> Parsed<N> {
        let token = self.some()?;
        token.parse().or_else(|_| self.wrong(format!("Parsing error near '{token}': a number was expected")))
    }

    fn version(&mut self) -> Parsed<(u32, u32)> {
        let token = self.some()?;
        let parts = token.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.map_or_else(|| self.wrong(format!("Parsing error near '{token}': not a version")), Ok)
    }

    fn target(&mut self) -> Parsed<(u32, bool)> {
        let token = self.some()?;
        let digits = token.strip_prefix("sm_").unwrap_or_default();
        let exact = digits.ends_with(|c: char| c.is_ascii_alphabetic());
        let number = digits.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse();
        number.map_or_else(|_| self.wrong(format!("Unknown .target '{token}'")), |number| Ok((number, exact)))
    }

    fn entry(&mut self) -> Parsed<Entry> {
        let mut entry = Entry { name: self.some()?.to_owned(), ..Entry::default() };
        loop {
            match self.some()? {
                "(" => entry.params = self.params()?,
                ".maxntid" | ".reqntid" => entry.max_threads = Some(self.product()?),
                ".maxnreg" => entry.max_registers = Some(self.number()?),
                "{" => {
                    self.pass_block()?;
                    return Ok(entry);
                }
                // Declared, and defined elsewhere or later.
                ";" => return Ok(entry),
                _ => {}
            }
        }
    }

    fn params(&mut self) -> Parsed<Vec<Param>> {
        let mut params: Vec<Param> = Vec::new();
        loop {
            match self.some()? {
                ")" => return Ok(params),
                ".param" => {
                    let declared = self.declared()?;
                    let end = params.last().map_or(0, |last| last.offset + last.bytes);
                    let (bytes, align) = (declared.bytes, declared.align);
                    params.push(Param { offset: end.next_multiple_of(align), bytes, align });
                }
                "," => {}
                token => return self.wrong(format!("Parsing error near '{token}': syntax error")),
            }
        }
    }

    /// Numbers with commas between, multiplied.
    fn product(&mut self) -> Parsed<u32> {
        let mut product: u32 = self.number()?;
        while self.peek() == Some(",") {
            self.next();
            let factor: u32 = self.number()?;
            product = product.saturating_mul(factor);
        }
        Ok(product)
    }

    /// `.align 8 .b8 name[80]`, up to the name and its counts. `.ptr` with its words may stand before the name.
    fn declared(&mut self) -> Parsed<Declared<'t>> {
        let (mut align, mut element) = (None, None);
        let name = loop {
            match self.some()? {
                ".align" => {
                    let number: usize = self.number()?;
                    // Behind `.ptr` it is the alignment of what is pointed to.
                    if element.is_none() {
                        align = Some(number);
                    }
                }
                token if token.starts_with('.') => element = element.or_else(|| width(token)),
                name => break name,
            }
        };
        let Some(element) = element else { return self.wrong(format!("Parsing error near '{name}': no type")) };
        let mut count = 1_usize;
        while self.peek() == Some("[") {
            self.next();
            // An extern array may have no size.
            let size: usize = if self.peek() == Some("]") { 0 } else { self.number()? };
            count = count.saturating_mul(size);
            self.some()?;
        }
        let align = align.unwrap_or(element);
        if !align.is_power_of_two() {
            return self.wrong(format!("Parsing error near '{name}': .align {align} is not a power of two"));
        }
        Ok(Declared { name, element, bytes: element.saturating_mul(count), align })
    }

    fn variable(&mut self) -> Parsed<Variable> {
        let Declared { name, element, bytes, .. } = self.declared()?;
        let mut initial = Some(Vec::new());
        loop {
            match self.some()? {
                ";" => break,
                "=" | "{" | "}" | "," => {}
                value => {
                    let value = integer(value);
                    if let (Some(bytes), Some(value)) = (&mut initial, value) {
                        bytes.extend_from_slice(&value.to_le_bytes()[..element.min(8)]);
                    } else {
                        initial = None;
                    }
                }
            }
        }
        if let Some(initial) = &mut initial {
            initial.resize(bytes, 0);
        }
        Ok(Variable { name: name.to_owned(), bytes, initial })
    }

    fn pass_function(&mut self) -> Parsed<()> {
        loop {
            match self.some()? {
                "{" => return self.pass_block(),
                ";" => return Ok(()),
                _ => {}
            }
        }
    }

    /// Passes over what is up to the brace that closes one that was read.
    fn pass_block(&mut self) -> Parsed<()> {
        let mut open = 1;
        while open > 0 {
            match self.some()? {
                "{" => open += 1,
                "}" => open -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

struct Declared<'t> {
    name: &'t str,
    element: usize,
    bytes: usize,
    align: usize,
}

/// Bytes of a fundamental type.
fn width(token: &str) -> Option<usize> {
    let bits: usize = token.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64 | 128).then_some(bits / 8)
}

fn integer(token: &str) -> Option<u64> {
    let token = token.strip_suffix('U').unwrap_or(token);
    match token.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => token.parse::<u64>().ok().or_else(|| Some(token.parse::<i64>().ok()? as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// a comment with .entry nothing(\n\
        .version 8.4\n.target sm_90\n.address_size 64\n\
        .func (.param .b64 r) helper\n(\n.param .b64 p\n)\n;\n\
        .visible .global .align 8 .u64 counter = 7;\n\
        .global .align 1 .b8 text[4] = {104, 0x69, 0};\n\
        .global .align 8 .u64 table[2] = {generic(helper), 0};\n\
        /* two\nlines */\n\
        .visible .entry both(\n.param .align 8 .b8 both_param_0[80],\n.param .u32 both_param_1,\n\
        .param .u64 .ptr .global .align 16 both_param_2\n)\n.maxntid 128, 2, 1\n{\n{ .reg .b32 %r<3>; }\nret;\n}\n\
        .visible .entry nothing()\n.maxnreg 64\n{\nret;\n}\n";

    #[test]
    fn entries_and_variables_are_found() {
        let ptx = parse(TEXT).unwrap();
        assert_eq!((ptx.version, ptx.target, ptx.exact, ptx.lines), ((8, 4), 90, false, (2, 3)));
        let [both, nothing] = &ptx.entries[..] else { panic!("{:?}", ptx.entries) };
        let param = |offset, bytes, align| Param { offset, bytes, align };
        assert_eq!(both.params, [param(0, 80, 8), param(80, 4, 4), param(88, 8, 8)]);
        assert_eq!((both.name.as_str(), both.max_threads, both.max_registers), ("both", Some(256), None));
        assert_eq!((nothing.name.as_str(), nothing.params.len()), ("nothing", 0));
        assert_eq!((nothing.max_threads, nothing.max_registers), (None, Some(64)));
        let initial = |name: &str| ptx.variables.iter().find(|variable| variable.name == name).unwrap().initial.clone();
        assert_eq!(initial("counter"), Some(7_u64.to_le_bytes().to_vec()));
        assert_eq!(initial("text"), Some(b"hi\0\0".to_vec()));
        assert_eq!(initial("table"), None);
    }

    #[test]
    fn mistakes_have_lines() {
        let line = |text| parse(text).map_err(|error| (error.line, error.why)).expect_err(text);
        assert_eq!(line("").1, "Missing .version directive at start of file");
        assert_eq!(line("\n.target sm_90\n").0, 2);
        assert_eq!(line(".version 8.4\n.visible .entry f()\n{").1, "Parsing error: unexpected end of file");
        assert_eq!(line(".version 8.4\n.target fast").1, "Unknown .target 'fast'");
    }
}
