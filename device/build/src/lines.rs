//! The lines of the source that shipped PTX comes from, found out with a second compilation that has line tables.
//!
//! ptxas refuses PTX with full line tables, and what has them differs here and there in the order of its code. So they are
//! compiled apart, and the instructions of both texts are laid side by side, function by function. The chain of calls that were
//! inlined is not in the line directives: it is in the debugger's section `.debug_info`, as text, with labels for addresses.

use std::collections::HashMap;

use congruent_verify::lines::Lines;
use gimli::{AttributeValue, DebugAbbrev, DebugInfo, EndianSlice, LittleEndian};
use similar::{Algorithm, DiffTag, capture_diff_slices};

use crate::symbols;

/// The table of `shipped`: `debug` is the same source, compiled with line tables.
///
/// # Errors
/// What is wrong with the debugger's sections
pub(crate) fn lines(shipped: &str, debug: &str) -> Result<Lines, gimli::Error> {
    // As in what is shipped, so that names of functions are the same.
    let debug = symbols::without_notes(&symbols::renumber_crates(debug));
    let scopes = Scopes::read(&debug)?;
    let files = files(&debug);
    let (shipped, debug) = (functions(shipped), functions(&debug));
    let known: HashMap<&str, &Function> = debug.iter().map(|function| (function.name, function)).collect();
    let mut lines = Lines::default();
    for function in &shipped {
        let Some(known) = known.get(function.name) else { continue };
        let texts = [function, known].map(|function| function.code.iter().map(|code| &*code.text).collect::<Vec<_>>());
        for diff in capture_diff_slices(Algorithm::Myers, &texts[0], &texts[1]) {
            let (tag, ours, theirs) = diff.as_tag_tuple();
            // Code that the other text lacks belongs to no line.
            if tag != DiffTag::Equal {
                if let Some(code) = function.code[ours].first() {
                    lines.begin(code.line, None);
                }
                continue;
            }
            for (code, other) in function.code[ours].iter().zip(&known.code[theirs]) {
                let place = other.source.and_then(|source| scopes.place(source, other.line, &files, &mut lines));
                lines.begin(code.line, place);
            }
        }
        lines.begin(function.end, None);
    }
    Ok(lines)
}

/// A file and a line, by the numbers of `.loc`.
type Source = (u32, u32);

/// A function's code.
struct Function<'t> {
    name: &'t str,
    code: Vec<Code>,
    /// The line behind its last.
    end: u32,
}

/// A line with an instruction or a label.
struct Code {
    /// Counted from 1.
    line: u32,
    /// Without what differs between two texts of one source: numbers of registers and labels, hashes in names.
    text: String,
    source: Option<Source>,
}

/// The functions of a text, as the compiler lays it out: a body is between braces at the beginning of their lines.
fn functions(ptx: &str) -> Vec<Function<'_>> {
    let mut functions: Vec<Function> = Vec::new();
    let (mut name, mut inside, mut source) = ("", false, None);
    for (line, text) in (1..).zip(ptx.lines()) {
        let word = text.trim_start();
        if text == "{" {
            (inside, source) = (true, None);
            functions.push(Function { name, code: Vec::new(), end: 0 });
        } else if text == "}" {
            inside = false;
            if let Some(function) = functions.last_mut() {
                function.end = line;
            }
        } else if !inside {
            if [".func", ".visible", ".entry", ".weak"].iter().any(|start| text.starts_with(start)) {
                name = name_of(text);
            }
        } else if let Some(place) = word.strip_prefix(".loc") {
            let mut numbers = place.split_whitespace().map(|number| number.parse().ok());
            source = numbers.next().flatten().zip(numbers.next().flatten());
        } else if !word.is_empty() && !word.starts_with("//") && !is_mark(word) {
            functions.last_mut().into_iter().for_each(|it| it.code.push(Code { line, text: plain(word), source }));
        }
    }
    functions
}

/// The name in `.visible .func  (.param .b32 func_retval0) NAME(`.
fn name_of(head: &str) -> &str {
    let end = head.trim_end_matches(['(', ')']);
    end.rsplit(|c: char| c.is_whitespace()).next().unwrap_or(end)
}

/// Whether it is a label for the debugger alone.
fn is_mark(word: &str) -> bool {
    ["$L__tmp", "$L__func_"].iter().any(|start| word.starts_with(start))
}

/// An instruction without the numbers of its registers and labels, and without hashes in names.
fn plain(instruction: &str) -> String {
    let code = instruction.split("//").next().unwrap_or(instruction).trim_end();
    let mut text = String::with_capacity(code.len());
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_part(c) != is_part(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        text.push_str(match word {
            _ if word.starts_with('%') => word.trim_end_matches(|c: char| c.is_ascii_digit()),
            _ if word.starts_with("$L__BB") => "$L",
            _ if word.starts_with("anon_$_") => "anon",
            _ if first.is_whitespace() => " ",
            _ => word,
        });
        rest = after;
    }
    text
}

/// The files of a text, by their numbers. Their paths begin with the name of a package.
fn files(ptx: &str) -> HashMap<u32, &str> {
    let heads = ptx.lines().filter_map(|line| line.trim_start().strip_prefix(".file"));
    let files = heads.filter_map(|rest| rest.trim_start().split_once(char::is_whitespace));
    files.filter_map(|(number, name)| Some((number.parse().ok()?, name.trim().trim_matches(['"', '/'])))).collect()
}

/// A function, or a call that was inlined, with the lines of the text that its code is between. Where its code is not in one
/// piece, there is other code between them too.
struct Scope {
    parent: Option<usize>,
    low: u64,
    high: u64,
    /// Where it was called.
    call: Option<Source>,
    /// What it is a copy of.
    origin: Option<usize>,
}

/// All of a text, each function before what was inlined into it.
struct Scopes {
    scopes: Vec<Scope>,
    /// Which of them are functions.
    functions: Vec<usize>,
    /// In which file each inlined function is, as its own calls say.
    files: HashMap<usize, u32>,
}

impl Scopes {
    fn read(ptx: &str) -> Result<Self, gimli::Error> {
        let marks: HashMap<&str, u64> =
            (1..).zip(ptx.lines()).filter_map(|(line, text)| Some((text.strip_suffix(':')?, line))).collect();
        let (info, abbreviations) = (section(ptx, ".debug_info", &marks), section(ptx, ".debug_abbrev", &marks));
        let abbreviations = DebugAbbrev::new(&abbreviations, LittleEndian);
        let mut read = Self { scopes: Vec::new(), functions: Vec::new(), files: HashMap::new() };
        let mut units = DebugInfo::new(&info, LittleEndian).units();
        while let Some(unit) = units.next()? {
            let abbreviations = unit.abbreviations(&abbreviations)?;
            let mut entries = unit.entries(&abbreviations);
            let offset = unit.offset().as_debug_info_offset().map_or(0, |offset| offset.0);
            // The scope at each depth.
            let (mut depth, mut open) = (0, Vec::new());
            while let Some((step, entry)) = entries.next_dfs()? {
                depth += step;
                open.truncate(depth as usize);
                open.resize(depth as usize, None);
                let parent = open.last().copied().flatten();
                open.push(read.scope(entry, parent, offset)?);
            }
        }
        read.functions = (0..read.scopes.len()).filter(|&index| read.scopes[index].parent.is_none()).collect();
        for scope in &read.scopes {
            if let (Some((file, _)), Some(caller)) =
                (scope.call, scope.parent.and_then(|parent| read.scopes[parent].origin))
            {
                read.files.insert(caller, file);
            }
        }
        Ok(read)
    }

    /// Takes in an entry that has code.
    fn scope(&mut self, entry: &Entry<'_>, parent: Option<usize>, unit: usize) -> Result<Option<usize>, gimli::Error> {
        let address = |name| match entry.attr_value(name) {
            Ok(Some(AttributeValue::Addr(at))) => Some(at),
            _ => None,
        };
        let number = |name| -> Option<u32> { entry.attr(name).ok()??.udata_value()?.try_into().ok() };
        let (Some(low), Some(high)) = (address(gimli::DW_AT_low_pc), address(gimli::DW_AT_high_pc)) else {
            return Ok(None);
        };
        if ![gimli::DW_TAG_subprogram, gimli::DW_TAG_inlined_subroutine].contains(&entry.tag()) {
            return Ok(None);
        }
        let file = match entry.attr_value(gimli::DW_AT_call_file)? {
            Some(AttributeValue::FileIndex(file)) => u32::try_from(file).ok(),
            _ => None,
        };
        let origin = match entry.attr_value(gimli::DW_AT_abstract_origin)? {
            Some(AttributeValue::UnitRef(at)) => Some(unit + at.0),
            Some(AttributeValue::DebugInfoRef(at)) => Some(at.0),
            _ => None,
        };
        self.scopes.push(Scope { parent, low, high, call: file.zip(number(gimli::DW_AT_call_line)), origin });
        Ok(Some(self.scopes.len() - 1))
    }

    /// The place of an instruction at a line of the text: of all scopes around it, the smallest that is in the file that the
    /// directive names.
    fn place(&self, (file, line): Source, at: u32, files: &HashMap<u32, &str>, lines: &mut Lines) -> Option<u32> {
        let at = u64::from(at);
        let is_around = |index: &usize| (self.scopes[*index].low..self.scopes[*index].high).contains(&at);
        let function = self.functions.iter().position(&is_around)?;
        let end = self.functions.get(function + 1).copied().unwrap_or(self.scopes.len());
        let around = (self.functions[function]..end).filter(is_around);
        let fits = |scope: &Scope| match scope.origin.and_then(|origin| self.files.get(&origin)) {
            Some(own) => *own == file,
            None => true,
        };
        // Of scopes that are the same size, the inner one comes later.
        let size = |&index: &usize| (self.scopes[index].high - self.scopes[index].low, usize::MAX - index);
        let mut next = around.filter(|&index| fits(&self.scopes[index])).min_by_key(size);
        let mut calls = Vec::new();
        while let Some(scope) = next.map(|index| &self.scopes[index]) {
            calls.extend(scope.call);
            next = scope.parent;
        }
        // Line 0 is code of the compiler's own.
        let own = Some((file, line)).filter(|_| line > 0);
        let mut name = |source: Source, caller| Some(lines.place(files.get(&source.0)?, source.1, caller));
        let caller = calls.into_iter().rev().fold(None, |caller, call| name(call, caller).or(caller));
        own.and_then(|own| name(own, caller)).or(caller)
    }
}

type Entry<'e> = gimli::DebuggingInformationEntry<'e, 'e, EndianSlice<'e, LittleEndian>>;

/// The bytes of a section. Labels have the number of their line for an address.
fn section(ptx: &str, name: &str, marks: &HashMap<&str, u64>) -> Vec<u8> {
    let is_head = |line: &&str| line.trim_start().strip_prefix(".section").is_some_and(|rest| rest.trim() == name);
    let rows = ptx.lines().skip_while(|line| !is_head(line)).skip(1).take_while(|line| line.trim() != "}");
    let mut bytes = Vec::new();
    for row in rows {
        let Some((size, values)) = row.trim_start().strip_prefix(".b").and_then(|row| row.split_once(' ')) else {
            continue;
        };
        for value in values.split(',').map(str::trim) {
            let value = match value.split_once('+') {
                // An offset into the section itself.
                Some((_, offset)) => offset.parse().ok(),
                None => value.parse().ok().or_else(|| marks.get(value).copied()),
            };
            // What is not known begins a section.
            let value = value.unwrap_or(0_u64).to_le_bytes();
            bytes.extend_from_slice(&value[..size.parse().map_or(0, |bits: usize| bits / 8)]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = "\
.version 8.4
.visible .entry k(
\t.param .u64 k_param_0
)
{
\t.reg .b64 \t%rd<9>;

\tld.param.b64 \t%rd7, [k_param_0];
\tst.global.b32 \t[%rd7], 1;
$L__BB0_4:
\tst.global.b32 \t[%rd7], 2;
\tfence.acq_rel.sys;
\tret;

}
";

    /// `store` of `/d/put.rs` is called in line 21 of `/k/lib.rs`, and inlined.
    const DEBUG: &str = "\
.version 8.4
.visible .entry k(
\t.param .u64 k_param_0
)
{
\t.reg .b64 \t%rd<3>;
\t.loc\t1 20 0
$L__func_begin0:
\t.loc\t1 20 0

\tld.param.b64 \t%rd1, [k_param_0];
$L__tmp0:
\t.loc\t2 5 9
\tst.global.b32 \t[%rd1], 1; // a comment
$L__BB0_1:
\t.loc\t2 0 9
\tst.global.b32 \t[%rd1], 2;
$L__tmp1:
\t.loc\t1 22 1
\tret;
$L__tmp2:
$L__func_end0:

}
\t.file\t1 \"/k-0.1.0/src/lib.rs\"
\t.file\t2 \"/d-0.1.0/src/put.rs\"
\t.section\t.debug_abbrev
\t{
.b8 1,17,1,0,0
.b8 2,46,1,17,1,18,1,0,0
.b8 3,29,0,17,1,18,1,88,11,89,11,0,0
.b8 0
\t}
\t.section\t.debug_info
\t{
.b32 46
.b8 2,0
.b32 .debug_abbrev
.b8 8
.b8 1
.b8 2
.b64 $L__func_begin0
.b64 $L__func_end0
.b8 3
.b64 $L__tmp0
.b64 $L__tmp1
.b8 1
.b8 21
.b8 0
.b8 0
\t}
";

    #[test]
    fn instructions_get_the_lines_of_those_like_them() {
        let lines = lines(SHIPPED, DEBUG).unwrap();
        let at = |line| lines.describe(line);
        assert_eq!(at(8).as_deref(), Some("k-0.1.0/src/lib.rs:20"));
        assert_eq!(at(9).as_deref(), Some("d-0.1.0/src/put.rs:5, called at k-0.1.0/src/lib.rs:21"));
        assert_eq!(at(11).as_deref(), Some("k-0.1.0/src/lib.rs:21"), "no line of its own");
        assert_eq!(at(12), None, "the other text has no fence");
        assert_eq!(at(13).as_deref(), Some("k-0.1.0/src/lib.rs:22"));
        assert_eq!((at(6), at(15)), (None, None));
    }

    #[test]
    fn sections_that_are_cut_off_are_errors() {
        let cut = DEBUG.replace(".b32 46", ".b32 4700");
        assert!(lines(SHIPPED, &cut).is_err());
        assert_eq!(lines(SHIPPED, ""), Ok(Lines::default()));
    }

    #[test]
    fn what_differs_between_two_texts_is_left_out() {
        assert_eq!(plain("@%p12 bra \t$L__BB3_48; // there"), "@%p bra $L;");
        assert_eq!(plain("mov.b64 %rd1, anon_$_9722f8377c88b6f1_$_112;"), "mov.b64 %rd, anon;");
    }
}
