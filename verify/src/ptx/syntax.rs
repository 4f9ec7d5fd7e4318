//! A parsed module: functions, their registers and instructions, with places in the text.

use super::span::Span;

/// One PTX file.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `.version`, as `(8, 4)`.
    pub version: (u32, u32),
    /// `.target`, as `sm_90`.
    pub target: String,
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
    /// Its code; a declaration has none.
    pub body: Option<Body>,
}

/// A variable in memory: global, shared, local, a parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where its declaration is.
    pub span: Span,
    /// The state space it is in.
    pub space: Space,
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
    /// The predicate in front of it.
    pub guard: Option<Guard>,
    /// The first word, as in `ld`.
    pub opcode: String,
    /// What follows it, without dots, as in `relaxed`, `sys`, `b32`.
    pub modifiers: Vec<String>,
    /// The operands.
    pub operands: Vec<Operand>,
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
    /// `%r1`, or `!%p1`.
    Register(RegisterId),
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
            | "stackrestore" => false,
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
            Self::Register(register) => registers.push(*register),
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
