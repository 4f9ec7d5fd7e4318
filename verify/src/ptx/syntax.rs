//! A parsed module: functions, their registers and instructions, with places in the text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::span::Span;

/// One PTX file.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `.version`, as `(8, 4)`.
    pub version: (u32, u32),
    /// Where `.version` is.
    pub version_span: Span,
    /// `.target`, as `sm_90`.
    pub target: String,
    /// Where `.target` is.
    pub target_span: Span,
    /// The source files of the `.file` directives, by the numbers that [`SourceLine::file`] has.
    pub files: BTreeMap<u32, String>,
    /// Every function, in order; one that is declared and later defined appears twice.
    pub functions: Vec<Function>,
    /// The variables outside functions.
    pub variables: Vec<Variable>,
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Where the name is.
    pub span: Span,
    /// Whether it is a kernel (`.entry`).
    pub is_entry: bool,
    /// Whether it is declared `.extern`.
    pub is_extern: bool,
    /// Whether it is declared `.noreturn`.
    pub never_returns: bool,
    /// Its parameters.
    pub parameters: Vec<Variable>,
    /// What it returns through.
    pub returns: Vec<Variable>,
    /// What it says about its launches.
    pub launch: LaunchBounds,
    /// Its code; a declaration has none.
    pub body: Option<Body>,
}

/// What a kernel says about its launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchBounds {
    /// `.maxntid`: the product is the most threads a block may have.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the one shape a block may have.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`: how many blocks an SM has to hold at least.
    pub min_blocks: Option<u32>,
    /// `.maxnreg`: the most registers a thread may have.
    pub max_registers: Option<u32>,
}

/// A variable in memory: global, shared, local, a parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name, alone among the variables of a body: `#` and a number follow one that a nested scope declares again.
    pub name: String,
    /// Where its declaration is.
    pub span: Span,
    /// The state space it is in.
    pub space: Space,
    /// Whether it is declared `.extern`.
    pub is_extern: bool,
    /// The type of an element without the dot, as in `b32`.
    pub type_name: String,
    /// What its address is a multiple of: a power of two, in bytes.
    pub align: u64,
    /// Its size in bytes; an array without a length has none.
    pub bytes: Option<u64>,
    /// What it holds at first; what is behind these bytes is zero. Empty where nothing is said.
    pub initial: Vec<u8>,
    /// Where in it addresses are at first.
    pub addresses: Vec<InitialAddress>,
}

/// An address in the initial value of a variable, as `generic(table)+8` or `0xFF00(table)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialAddress {
    /// Where it goes, in bytes from the variable's start.
    pub at: u64,
    /// How many bytes of it, the lowest first.
    pub bytes: u64,
    /// How many bits it is shifted to the right before.
    pub shift: u32,
    /// The variable or function whose address it is.
    pub symbol: String,
    /// What is added, in bytes.
    pub offset: i64,
    /// Whether it is a generic address instead of one in the symbol's state space.
    pub is_generic: bool,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the whole GPU.
    Global,
    /// Memory of the block.
    Shared,
    /// Memory of the thread.
    Local,
    /// Read-only memory.
    Const,
    /// Parameters of kernels and calls.
    Param,
}

/// The code of a function.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// Every register, in order of declaration; [`RegisterId`] is an index into it.
    pub registers: Vec<Register>,
    /// The variables declared inside.
    pub variables: Vec<Variable>,
    /// The instructions, flattened out of nested scopes.
    pub instructions: Vec<Instruction>,
}

/// Which register of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterId(pub(crate) usize);

impl RegisterId {
    /// Its place among the registers of the body.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A virtual register.
#[derive(Clone, Debug)]
pub struct Register {
    /// Its name; not unique, since a nested scope may declare the same again.
    pub name: String,
    /// Its type without the dot, as in `b32`.
    pub type_name: String,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// From the guard to the semicolon.
    pub span: Span,
    /// The line it comes from, by the `.loc` before it.
    pub source: Option<SourceLine>,
    /// The predicate in front of it.
    pub guard: Option<Guard>,
    /// The first word, as in `ld`.
    pub opcode: String,
    /// What follows it, without dots, as in `relaxed`, `sys`, `b32`.
    pub modifiers: Vec<String>,
    /// The operands.
    pub operands: Vec<Operand>,
}

/// A line of the source that PTX was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// Which of [`Module::files`].
    pub file: u32,
    /// The line, counted from 1; 0 is code that belongs to no line.
    pub line: u32,
}

/// `@%p1` or `@!%p1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub register: RegisterId,
    /// Whether the instruction runs where the predicate is false.
    pub negated: bool,
}

/// One operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// `%r1`.
    Register(RegisterId),
    /// `!%p1`: a predicate's opposite.
    Not(RegisterId),
    /// `%tid.x` and the like, whole.
    Special(String),
    /// An integer; its bits.
    Integer(u64),
    /// A float; its text.
    Float(String),
    /// A variable's or function's name, and an offset.
    Symbol(String, i64),
    /// A label: the index of the instruction it stands before.
    Label(usize),
    /// Several labels: the targets of `brx.idx`.
    Targets(Vec<usize>),
    /// `[base+offset]`.
    Address(Box<Operand>, i64),
    /// `{a, b}`, `(a, b)`, `a|b` and `[a, b]`.
    Group(Vec<Operand>),
    /// `_`: no result wanted.
    Ignored,
}

impl Function {
    /// Where each parameter begins among those of a launch, in bytes.
    pub fn parameter_offsets(&self) -> Vec<u64> {
        let mut end = 0_u64;
        let place = |parameter: &Variable| {
            let start = end.checked_next_multiple_of(parameter.align).unwrap_or(u64::MAX);
            end = start.saturating_add(parameter.bytes.unwrap_or(0));
            start
        };
        self.parameters.iter().map(place).collect()
    }
}

impl Instruction {
    /// Whether it has this modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|own| own == modifier)
    }

    /// Opcode and modifiers as written, `ld.relaxed.sys.b32`.
    pub fn full_name(&self) -> String {
        [self.opcode.as_str()]
            .into_iter()
            .chain(self.modifiers.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(".")
    }

    /// The operand that addresses memory.
    pub fn address(&self) -> Option<(&Operand, i64)> {
        self.operands.iter().find_map(|operand| match operand {
            Operand::Address(base, offset) => Some((base.as_ref(), *offset)),
            _ => None,
        })
    }

    /// The registers it writes.
    pub fn written(&self) -> Vec<RegisterId> {
        let mut registers = Vec::new();
        if self.has_result() {
            match self.operands.first() {
                // Registers inside an address are read even in the first place.
                Some(Operand::Address(..)) | None => {}
                Some(result) => result.collect_registers(&mut registers),
            }
        }
        registers
    }

    /// The registers it reads, the guard's aside.
    pub fn read(&self) -> Vec<RegisterId> {
        let results = usize::from(self.has_result() && !matches!(self.operands.first(), Some(Operand::Address(..))));
        let mut registers = Vec::new();
        for operand in self.operands.iter().skip(results) {
            operand.collect_registers(&mut registers);
        }
        registers
    }

    /// Whether the first operand is a result.
    fn has_result(&self) -> bool {
        match self.opcode.as_str() {
            "st" | "red" | "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "pmevent" | "fence" | "membar"
            | "cp" | "prefetch" | "prefetchu" | "nanosleep" | "griddepcontrol" | "discard" | "applypriority"
            | "stackrestore" | "stmatrix" => false,
            "wmma" => !self.has("store"),
            "bar" | "barrier" => self.has("red"),
            "multimem" => self.has("ld_reduce"),
            // `call name, (arguments)` has none; `call (result), name, (arguments)` does, but it is in parameter space.
            "call" => false,
            "mbarrier" => {
                !(self.has("init") || self.has("inval") || self.has("expect_tx") || self.has("complete_tx"))
                    || self.has("arrive")
            }
            _ => true,
        }
    }
}

impl Operand {
    /// Adds every register in it, addresses included.
    pub(crate) fn collect_registers(&self, registers: &mut Vec<RegisterId>) {
        match self {
            Self::Register(register) | Self::Not(register) => registers.push(*register),
            Self::Address(base, _) => base.collect_registers(registers),
            Self::Group(parts) => parts.iter().for_each(|part| part.collect_registers(registers)),
            _ => {}
        }
    }
}

impl Body {
    /// The register behind an id.
    pub fn register(&self, id: RegisterId) -> &Register {
        &self.registers[id.0]
    }
}
