//! PTX as the executor runs it: names are resolved to numbers, instructions to functions.
#![allow(clippy::disallowed_types, reason = "counts what is executed")]

use core::sync::atomic::AtomicBool;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use congruent_verify::lines::Lines;
use congruent_verify::ptx::{self, Module, Space, Variable};
use thiserror::Error;

use crate::alu::matrix::{Mma, Tiles};
use crate::alu::{Carry, Compute, Decide, Function};
use crate::decode;
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

/// A parameter's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// An instruction with the predicate in front of it, and where it is in the text.
#[derive(Clone)]
pub(crate) struct Instruction {
    /// A predicate, and what it has to be.
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) operation: Operation,
    pub(crate) span: ptx::Span,
    pub(crate) source: Option<ptx::SourceLine>,
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    Register(usize),
    Immediate(u64),
    Special(Special),
    Global(usize, i64),
    Shared(usize, i64),
    /// The address of a `.local` variable of this call.
    Local(u64),
    /// The address of a parameter of the kernel.
    Param(u64),
    Function(usize),
}

/// A register of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    Sm,
    Sms,
    Grid,
    Clock,
    ClockHigh,
    Time,
    TimeHigh,
    LanesEqual,
    LanesUpTo,
    LanesBelow,
    LanesFrom,
    LanesAbove,
    DynamicShared,
    TotalShared,
    /// What is the same everywhere, as the size of a cluster is.
    Constant(u32),
}

/// A register that is written, with the bits that it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) register: usize,
    pub(crate) mask: u64,
}

/// A predicate as an operand: a register, or its opposite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Predicate {
    pub(crate) register: usize,
    pub(crate) negated: bool,
}

/// Where a predicate operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Truth {
    Predicate(Predicate),
    Constant(bool),
}

/// How far an access is ordered and seen, as the memory model has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    AcquireRelease(Scope),
}

impl Strength {
    pub(crate) fn is_strong(self) -> bool {
        self != Self::Weak
    }

    pub(crate) fn scope(self) -> Option<Scope> {
        match self {
            Self::Weak => None,
            Self::Relaxed(scope) | Self::Acquire(scope) | Self::Release(scope) | Self::AcquireRelease(scope) => {
                Some(scope)
            }
        }
    }

    /// The same in a scope.
    pub(crate) fn within(self, scope: Scope) -> Self {
        match self {
            Self::Weak => Self::Weak,
            Self::Relaxed(_) => Self::Relaxed(scope),
            Self::Acquire(_) => Self::Acquire(scope),
            Self::Release(_) => Self::Release(scope),
            Self::AcquireRelease(_) => Self::AcquireRelease(scope),
        }
    }

    /// The same without an order.
    pub(crate) fn relaxed(self) -> Self {
        self.scope().map_or(Self::Weak, Self::Relaxed)
    }
}

/// Which threads an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

/// Which addresses an access takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Generic,
    Global,
    Shared,
    Local,
    /// Parameters of the kernel.
    Param,
}

/// The address of an access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Address {
    pub(crate) space: Where,
    pub(crate) base: Source,
    pub(crate) offset: i64,
}

/// What is accessed: so many units of so many bytes, side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Access {
    pub(crate) address: Address,
    pub(crate) unit: u64,
    pub(crate) count: u64,
    pub(crate) strength: Strength,
    /// A load that may be stale: `.nc`.
    pub(crate) is_noncoherent: bool,
}

/// Which operand of a shuffle tells the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What lanes of a warp do together.
#[derive(Clone, Debug)]
pub(crate) enum Together {
    Sync,
    Shuffle { kind: Shuffle, to: Option<Target>, valid: Option<usize>, value: Source, lane: Source, clamp: Source },
    VoteAll { to: usize, value: Truth },
    VoteAny { to: usize, value: Truth },
    VoteUniform { to: usize, value: Truth },
    Ballot { to: Target, value: Truth },
    MatchAny { to: Target, value: Source },
    MatchAll { to: Option<Target>, valid: Option<usize>, value: Source },
    Reduce { to: Target, value: Source, combine: Combination },
    Elect { to: Option<Target>, chosen: Option<usize> },
}

/// What a whole warp does with matrices, whose parts all lanes hold.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    Multiply { mma: Mma, to: Vec<Option<Target>>, from: [Vec<Source>; 3] },
    Load { tiles: Tiles, to: Vec<Option<Target>>, rows: Access },
    Store { tiles: Tiles, from: Vec<Source>, rows: Access },
    Transpose { to: Vec<Option<Target>>, from: Source },
}

/// What a barrier does when all are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BarrierResult {
    None,
    Count(Target),
    And(usize),
    Or(usize),
}

/// How predicates are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boolean {
    And,
    Or,
    Xor,
}

/// What makes one of two values.
pub(crate) type Combination = &'static dyn Compute<2>;

/// What compares two values.
pub(crate) type Comparison = &'static dyn Decide<2>;

/// What is done with a word of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// By one operand.
    Combine(Combination),
    /// Written if it is what the first operand says.
    CompareAndSwap,
}

/// How the words of several devices become one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Combine {
    /// One after the other.
    Two(Combination),
    /// With more precision than they have, rounded once.
    All(fn(&[u64]) -> u64),
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Compute {
        function: Function,
        to: Option<Target>,
        from: Vec<Source>,
    },
    /// `add.cc`, `addc` and the like, with the function's carry and where it goes.
    Carry {
        function: Carry,
        to: Target,
        from: Vec<Source>,
        keeps: bool,
    },
    Compare {
        function: Comparison,
        to: Option<usize>,
        opposite: Option<usize>,
        from: [Source; 2],
        with: Option<(Boolean, Truth)>,
    },
    /// As `Compare`, with a number as result: what is true and what is false.
    Set {
        function: Comparison,
        to: Target,
        from: [Source; 2],
        with: Option<(Boolean, Truth)>,
        truth: u64,
    },
    Test {
        function: &'static dyn Decide<1>,
        to: usize,
        from: Source,
    },
    Predicate {
        to: usize,
        first: Truth,
        second: Option<(Boolean, Truth)>,
    },
    Select {
        to: Target,
        from: [Source; 2],
        by: Truth,
    },
    Move {
        to: Target,
        from: Source,
    },
    /// Several registers put side by side into one, each with its bits.
    Pack {
        to: Target,
        from: Vec<Source>,
        bits: u32,
    },
    Unpack {
        to: Vec<Option<Target>>,
        from: Source,
        bits: u32,
    },
    /// Registers of 128 bits are two.
    MoveWide {
        to: [Option<Target>; 2],
        from: [Source; 2],
    },
    IsSpace {
        to: usize,
        from: Source,
        space: Where,
    },
    Load {
        access: Access,
        to: Vec<Option<Target>>,
        is_signed: bool,
    },
    Store {
        access: Access,
        from: Vec<Source>,
    },
    Atomic {
        access: Access,
        to: Vec<Option<Target>>,
        change: Change,
        from: Vec<Source>,
        second: Option<Source>,
    },
    /// From parameters of a call, by their place in the frame.
    LoadParam {
        offset: u64,
        unit: u64,
        to: Vec<Option<Target>>,
        is_signed: bool,
    },
    StoreParam {
        offset: u64,
        unit: u64,
        from: Vec<Source>,
    },
    MultimemReduce {
        access: Access,
        to: Vec<Target>,
        combine: Combine,
    },
    MultimemStore {
        access: Access,
        from: Vec<Source>,
    },
    MultimemAdd {
        access: Access,
        combine: Combination,
        from: Vec<Source>,
    },
    /// `cp.async`: done when it is waited for, as late as it may be.
    CopyLater {
        to: Address,
        from: Address,
        bytes: u64,
        filled: Option<Source>,
    },
    CopyCommit,
    /// Until at most so many groups are left.
    CopyWait(Option<u64>),
    Fence {
        strength: Strength,
        is_consistent: bool,
    },
    FenceAlias,
    Barrier {
        id: Source,
        count: Option<Source>,
        is_aligned: bool,
        result: BarrierResult,
        value: Truth,
    },
    Arrive {
        id: Source,
    },
    Matrix {
        what: Matrix,
        name: String,
    },
    Together {
        what: Together,
        mask: Source,
        name: String,
    },
    ActiveLanes {
        to: Target,
    },
    Branch(usize),
    BranchTable {
        index: Source,
        targets: Vec<usize>,
    },
    Call {
        function: Source,
        arguments: Vec<Slot>,
        results: Vec<Slot>,
    },
    Return,
    Exit,
    Trap,
    /// Lets others run: `nanosleep`.
    Rest,
    Nothing,
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
