//! PTX as the executor runs it: names are resolved to numbers, instructions to functions.
#![allow(clippy::disallowed_types, reason = "counts what is executed")]

use core::sync::atomic::AtomicBool;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use congruent_verify::lines::Lines;
use congruent_verify::ptx::{self, Module, Space, Variable};
use thiserror::Error;

use crate::decode;
use crate::instruction::{Instruction, Slot};
use crate::outline::{Global, Outline};

/// Why a text cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct LoadError {
    /// The line in the PTX, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

/// A module that can be run.
#[derive(Clone)]
pub struct Program {
    pub(crate) text: Arc<str>,
    pub(crate) codes: Vec<Arc<Code>>,
    entries: HashMap<String, usize>,
    /// What each function refers to.
    reach: Vec<Vec<usize>>,
    globals: Vec<Global>,
    pub(crate) shared: Vec<SharedVariable>,
    files: std::collections::BTreeMap<u32, String>,
    /// The lines of the source, once a report needs them, if there are any.
    lines: OnceLock<Option<Lines>>,
    /// Where its lines end.
    ends: OnceLock<Vec<usize>>,
    /// To which instructions warps have come, where that is kept.
    pub(crate) reached: Option<Arc<[AtomicBool]>>,
}

/// A variable in the memory of a block.
#[derive(Clone)]
pub(crate) struct SharedVariable {
    pub(crate) align: u64,
    /// Of an array without a length, 0: it lies behind the others and has what the launch asks for.
    pub(crate) bytes: u64,
    pub(crate) is_dynamic: bool,
}

/// What is called.
#[derive(Clone)]
pub(crate) struct Code {
    pub(crate) name: String,
    /// The number of its first instruction among all of the program.
    pub(crate) first: u32,
    pub(crate) instructions: Vec<Instruction>,
    /// Registers of 64 bits.
    pub(crate) registers: usize,
    pub(crate) predicates: usize,
    /// Bytes of `.local` variables of a call, which are at the lane's stack.
    pub(crate) local_bytes: u64,
    /// Bytes of `.param` variables of a call, its own parameters first; of an entry, those in its body.
    pub(crate) param_bytes: u64,
    /// Where its parameters and its results are among these; an entry's are where its launch has them.
    pub(crate) parameters: Vec<Slot>,
    pub(crate) returns: Vec<Slot>,
    /// Shared variables that it or what it calls may use.
    pub(crate) shared: Vec<usize>,
}

impl Program {
    /// Takes in a PTX text.
    ///
    /// # Errors
    /// What is not PTX, an instruction that is not executed, or a name that is not defined
    pub fn new(text: &str) -> Result<Arc<Self>, LoadError> {
        let module = ptx::parse(text).map_err(|error| LoadError { line: error.line, message: error.message })?;
        Self::of(&module, text)
    }

    /// As [`new`](Self::new), of a module that was parsed from `text`.
    ///
    /// # Errors
    /// An instruction that is not executed, or a name that is not defined
    pub fn of(module: &Module, text: &str) -> Result<Arc<Self>, LoadError> {
        Self::decoded(module, text).map(Arc::new)
    }

    fn decoded(module: &Module, text: &str) -> Result<Self, LoadError> {
        let error = |span: ptx::Span, message: String| LoadError { line: span.line_column(text).0, message };
        let mut program = Self {
            text: text.into(),
            codes: Vec::new(),
            entries: HashMap::new(),
            reach: Vec::new(),
            globals: Vec::new(),
            shared: Vec::new(),
            files: module.files.clone(),
            lines: OnceLock::new(),
            ends: OnceLock::new(),
            reached: None,
        };
        let names = Names::new(module, &mut program, &error)?;
        let mut reach = Vec::new();
        for function in module.functions.iter().filter(|function| function.body.is_some()) {
            let (mut code, uses) =
                decode::function(function, &names, &mut program.globals, &mut program.shared, &error)?;
            if function.is_entry {
                program.entries.insert(function.name.clone(), program.codes.len());
            }
            code.first = program.codes.last().map_or(0, |last| last.first + last.instructions.len() as u32);
            program.codes.push(Arc::new(code));
            reach.push(uses);
        }
        for index in 0..program.codes.len() {
            Arc::make_mut(&mut program.codes[index]).shared = shared_of(index, &reach);
        }
        program.reach = reach.into_iter().map(|uses| uses.functions).collect();
        Ok(program)
    }

    /// The kernels' names.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// What a host has to know of it.
    pub fn outline(&self) -> Outline {
        let shared = self.entries.iter().map(|(name, &entry)| (name.clone(), self.layout(entry).1));
        let functions = self.codes.iter().map(|code| code.name.clone());
        Outline { globals: self.globals.clone(), functions: functions.collect(), static_shared: shared.collect() }
    }

    /// A kernel, by name.
    pub(crate) fn entry(&self, name: &str) -> Option<usize> {
        self.entries.get(name).copied()
    }

    /// Where the parameters of a kernel begin among those of its launch, and how long they are.
    pub fn parameters(&self, kernel: &str) -> Option<Vec<(u64, u64)>> {
        let code = &self.codes[self.entry(kernel)?];
        Some(code.parameters.iter().map(|slot| (slot.offset, slot.bytes)).collect())
    }

    /// Where the shared variables of a kernel are, and where the memory begins that its launch asks for.
    pub(crate) fn layout(&self, entry: usize) -> (Vec<u64>, u64) {
        let mut places = vec![0; self.shared.len()];
        let used = &self.codes[entry].shared;
        let mut end = 0_u64;
        for &index in used.iter().filter(|&&index| !self.shared[index].is_dynamic) {
            let variable = &self.shared[index];
            places[index] = end.next_multiple_of(variable.align);
            end = places[index] + variable.bytes;
        }
        let dynamic = || used.iter().map(|&index| &self.shared[index]).filter(|variable| variable.is_dynamic);
        let end = end.next_multiple_of(dynamic().map(|variable| variable.align).max().unwrap_or(1));
        for &index in used.iter().filter(|&&index| self.shared[index].is_dynamic) {
            places[index] = end;
        }
        (places, end)
    }

    /// The kernels that may call a function.
    pub(crate) fn kernels_with(&self, code: usize) -> Vec<String> {
        let reaches = |from: usize| {
            let (mut seen, mut open) = (vec![false; self.codes.len()], vec![from]);
            while let Some(next) = open.pop() {
                if !core::mem::replace(&mut seen[next], true) {
                    open.extend_from_slice(&self.reach[next]);
                }
            }
            seen[code]
        };
        let mut kernels: Vec<_> =
            self.entries.iter().filter(|(_, entry)| reaches(**entry)).map(|(name, _)| name.clone()).collect();
        kernels.sort_unstable();
        kernels
    }

    /// The function and the instruction that have a number.
    pub(crate) fn numbered(&self, number: u32) -> (&str, &Instruction) {
        let code = &self.codes[self.codes.partition_point(|code| code.first <= number) - 1];
        (&code.name, &code.instructions[(number - code.first) as usize])
    }

    /// How many instructions it has.
    pub(crate) fn instructions(&self) -> usize {
        self.codes.iter().map(|code| code.instructions.len()).sum()
    }

    /// The line of an instruction in the PTX, the text of the instruction, and the line of the source: of a line directive, or of
    /// the table that lies in the cache.
    pub(crate) fn place(&self, instruction: &Instruction) -> (usize, String, Option<String>) {
        let line = self.line(instruction);
        let source = match instruction.source {
            Some(at) => self.directed(at),
            None => self.lines().and_then(|lines| lines.describe(line)),
        };
        (line, self.text_of(instruction), source)
    }

    /// The lines of the source that an instruction comes from, first the innermost; or its line in the PTX.
    pub(crate) fn chain(&self, instruction: &Instruction) -> Vec<String> {
        let line = self.line(instruction);
        let chain = match instruction.source {
            Some(at) => self.directed(at).into_iter().collect(),
            None => self.lines().map(|lines| lines.chain(line)).unwrap_or_default(),
        };
        if chain.is_empty() { vec![format!("line {line} of the PTX")] } else { chain }
    }

    fn line(&self, instruction: &Instruction) -> usize {
        let ends = self.ends.get_or_init(|| self.text.match_indices('\n').map(|(at, _)| at).collect());
        ends.partition_point(|end| *end < instruction.span.start) + 1
    }

    fn directed(&self, at: ptx::SourceLine) -> Option<String> {
        self.files.get(&at.file).map(|file| format!("{file}:{}", at.line))
    }

    fn lines(&self) -> Option<&Lines> {
        self.lines.get_or_init(|| Lines::find(&self.text)).as_ref()
    }

    /// An instruction as it is written.
    pub(crate) fn text_of(&self, instruction: &Instruction) -> String {
        let text = self.text.get(instruction.span.start..instruction.span.end).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The shared variables that a function or one that it may call uses. A function whose address is taken may be called by all.
fn shared_of(code: usize, reach: &[decode::Uses]) -> Vec<usize> {
    let mut seen = vec![false; reach.len()];
    let mut open = vec![code];
    let mut used = Vec::new();
    while let Some(next) = open.pop() {
        if core::mem::replace(&mut seen[next], true) {
            continue;
        }
        used.extend_from_slice(&reach[next].shared);
        open.extend_from_slice(&reach[next].functions);
    }
    used.sort_unstable();
    used.dedup();
    used
}

/// Makes an error of a place and a message.
pub(crate) type Report<'e> = &'e dyn Fn(ptx::Span, String) -> LoadError;

/// What names outside functions mean.
pub(crate) struct Names<'m> {
    pub(crate) functions: HashMap<&'m str, usize>,
    pub(crate) globals: HashMap<&'m str, usize>,
    pub(crate) shared: HashMap<&'m str, usize>,
}

impl<'m> Names<'m> {
    fn new(module: &'m Module, program: &mut Program, error: Report<'_>) -> Result<Self, LoadError> {
        let mut names = Self { functions: HashMap::new(), globals: HashMap::new(), shared: HashMap::new() };
        let defined = module.functions.iter().filter(|function| function.body.is_some());
        names.functions.extend(defined.enumerate().map(|(index, function)| (function.name.as_str(), index)));
        for variable in &module.variables {
            match variable.space {
                Space::Global | Space::Const => {
                    names.globals.insert(&variable.name, program.globals.len());
                    program.globals.push(Global::new(variable, error)?);
                }
                Space::Shared => {
                    names.shared.insert(&variable.name, program.shared.len());
                    program.shared.push(SharedVariable::new(variable));
                }
                Space::Local | Space::Param => {}
            }
        }
        for global in &program.globals {
            for place in &global.addresses {
                let name = place.symbol.as_str();
                if !names.globals.contains_key(name) && !names.functions.contains_key(name) {
                    let at = module.variables.iter().find(|variable| variable.name == global.name);
                    let span = at.map_or(module.version_span, |variable| variable.span);
                    return Err(error(span, format!("`{name}` is not defined here")));
                }
            }
        }
        Ok(names)
    }
}

impl SharedVariable {
    pub(crate) fn new(variable: &Variable) -> Self {
        let bytes = variable.bytes.unwrap_or(0);
        Self { align: variable.align, bytes, is_dynamic: bytes == 0 }
    }
}
