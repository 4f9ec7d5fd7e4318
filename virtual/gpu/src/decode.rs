//! From the parser's instructions to the executor's.

mod access;
mod names;
mod together;

use std::collections::HashMap;

use congruent_verify::ptx::{self, Body, Operand, RegisterId, Space, Variable};

use crate::alu::{self, Function};
use crate::instruction::{
    Address, Boolean, Comparison, Instruction, Operation, Predicate, Slot, Source, Target, Together, Truth, Where,
};
use crate::outline::Global;
use crate::program::{Code, LoadError, Names, Report, SharedVariable};
use crate::registers;

use access::{fence, space};
use names::{bits, boolean, float, special};

pub(crate) use access::{base_of, space_of};

/// Where the addresses of functions begin: nothing is mapped there.
pub(crate) const FUNCTIONS: u64 = 0x4 << 56;

/// The address of a function, for calls through registers.
pub(crate) fn function_address(function: usize) -> u64 {
    FUNCTIONS | (function as u64 + 1) << 4
}

/// What a function refers to.
#[derive(Default)]
pub(crate) struct Uses {
    pub(crate) shared: Vec<usize>,
    pub(crate) functions: Vec<usize>,
}

/// The registers of 64 bits, or of one, that a register is.
#[derive(Clone, Copy)]
enum Place {
    One(Target),
    Two(usize),
    Predicate(usize),
}

/// What a name in a function means.
#[derive(Clone, Copy)]
enum Meaning {
    Global(usize),
    Shared(usize),
    Local(u64),
    /// A parameter of a kernel, from its launch.
    Param(u64),
    /// One of a call, in the frame.
    Frame(Slot),
    Function(usize),
}

/// The code of one function, in the making.
struct Decoder<'m> {
    body: &'m Body,
    names: &'m Names<'m>,
    places: Vec<Place>,
    own: HashMap<&'m str, Meaning>,
    uses: Uses,
}

/// A message about an instruction.
type Decoded<T> = Result<T, String>;

/// Turns a function with a body into code.
pub(crate) fn function<'m>(
    function: &'m ptx::Function,
    names: &'m Names<'m>,
    globals: &mut Vec<Global>,
    shared: &mut Vec<SharedVariable>,
    error: Report<'_>,
) -> Result<(Code, Uses), LoadError> {
    let Some(body) = &function.body else {
        return Err(error(function.span, format!("`{}` has no body", function.name)));
    };
    let mut decoder = Decoder { body, names, places: Vec::new(), own: HashMap::new(), uses: Uses::default() };
    let (registers, predicates) = decoder.allot_registers();
    let mut frame = Frame::default();
    let mut parameters = Vec::new();
    let mut returns = Vec::new();
    if function.is_entry {
        for (parameter, offset) in function.parameters.iter().zip(function.parameter_offsets()) {
            parameters.push(Slot { offset, bytes: parameter.bytes.unwrap_or(0) });
            decoder.own.insert(&parameter.name, Meaning::Param(offset));
        }
    } else {
        for (variables, slots) in [(&function.parameters, &mut parameters), (&function.returns, &mut returns)] {
            for variable in variables {
                if variable.space != Space::Param {
                    return Err(error(variable.span, "parameters in registers are not executed".to_owned()));
                }
                let slot = frame.param(variable);
                slots.push(slot);
                decoder.own.insert(&variable.name, Meaning::Frame(slot));
            }
        }
    }
    for variable in &body.variables {
        let meaning = match variable.space {
            Space::Local => Meaning::Local(frame.local(variable)),
            Space::Param => Meaning::Frame(frame.param(variable)),
            Space::Shared => {
                shared.push(SharedVariable::new(variable));
                Meaning::Shared(shared.len() - 1)
            }
            Space::Global | Space::Const => {
                globals.push(Global::new(variable, error)?);
                Meaning::Global(globals.len() - 1)
            }
        };
        decoder.own.insert(&variable.name, meaning);
    }
    let mut instructions = Vec::with_capacity(body.instructions.len() + 1);
    for instruction in &body.instructions {
        let refuse = |message: String| error(instruction.span, format!("`{}`: {message}", instruction.full_name()));
        let operation = decoder.operation(instruction).map_err(refuse)?;
        let guard = match instruction.guard {
            None => None,
            Some(guard) => Some((decoder.predicate_register(guard.register).map_err(refuse)?, !guard.negated)),
        };
        instructions.push(Instruction { guard, operation, span: instruction.span, source: instruction.source });
    }
    // Behind the last instruction a function returns.
    let end = ptx::Span { start: function.span.start, end: function.span.end };
    instructions.push(Instruction { guard: None, operation: Operation::Return, span: end, source: None });
    let code = Code {
        name: function.name.clone(),
        first: 0,
        instructions,
        registers,
        predicates,
        local_bytes: frame.local_bytes.next_multiple_of(16),
        param_bytes: frame.param_bytes.next_multiple_of(8),
        parameters,
        returns,
        shared: Vec::new(),
    };
    Ok((code, decoder.uses))
}

/// The variables of one call.
#[derive(Default)]
struct Frame {
    local_bytes: u64,
    param_bytes: u64,
}

impl Frame {
    fn local(&mut self, variable: &Variable) -> u64 {
        Self::place(&mut self.local_bytes, variable)
    }

    fn param(&mut self, variable: &Variable) -> Slot {
        Slot { offset: Self::place(&mut self.param_bytes, variable), bytes: variable.bytes.unwrap_or(0) }
    }

    fn place(end: &mut u64, variable: &Variable) -> u64 {
        let offset = end.next_multiple_of(variable.align);
        *end = offset + variable.bytes.unwrap_or(0);
        offset
    }
}

fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn is_signed(type_name: &str) -> bool {
    type_name.starts_with('s')
}

impl<'m> Decoder<'m> {
    /// Gives each register its number. Predicates have numbers of their own.
    fn allot_registers(&mut self) -> (usize, usize) {
        let widths: Vec<u32> =
            self.body.registers.iter().map(|register| bits(&register.type_name).unwrap_or(64)).collect();
        let (shared, mut words) = registers::places(self.body, |register| !matches!(widths[register], 1 | 128));
        let mut predicates = 0;
        for (width, shared) in widths.into_iter().zip(shared) {
            let place = match width {
                1 => {
                    predicates += 1;
                    Place::Predicate(predicates - 1)
                }
                128 => {
                    words += 2;
                    Place::Two(words - 2)
                }
                bits => Place::One(Target { register: shared, mask: mask(bits) }),
            };
            self.places.push(place);
        }
        (words, predicates)
    }

    fn place(&self, register: RegisterId) -> Place {
        self.places[register.index()]
    }

    fn predicate_register(&self, register: RegisterId) -> Decoded<usize> {
        match self.place(register) {
            Place::Predicate(predicate) => Ok(predicate),
            _ => Err(format!("`{}` is no predicate", self.body.register(register).name)),
        }
    }

    fn meaning(&mut self, name: &str) -> Decoded<Meaning> {
        let names = self.names;
        let meaning = self
            .own
            .get(name)
            .copied()
            .or_else(|| names.globals.get(name).map(|&index| Meaning::Global(index)))
            .or_else(|| names.shared.get(name).map(|&index| Meaning::Shared(index)))
            .or_else(|| names.functions.get(name).map(|&index| Meaning::Function(index)))
            .ok_or_else(|| format!("`{name}` is not defined here"))?;
        match meaning {
            Meaning::Shared(index) => self.uses.shared.push(index),
            Meaning::Function(index) => self.uses.functions.push(index),
            _ => {}
        }
        Ok(meaning)
    }

    /// Where a number comes from; floats have the bits of `type_name`.
    fn source(&mut self, operand: &Operand, type_name: &str) -> Decoded<Source> {
        Ok(match operand {
            Operand::Register(register) => match self.place(*register) {
                Place::One(target) => Source::Register(target.register),
                Place::Two(_) => return Err("a register of 128 bits has no place here".to_owned()),
                Place::Predicate(_) => return Err("a predicate has no place here".to_owned()),
            },
            Operand::Integer(value) => Source::Immediate(value & mask(bits(type_name).unwrap_or(64))),
            Operand::Float(text) => Source::Immediate(float(text, type_name)?),
            Operand::Special(name) => Source::Special(special(name)?),
            Operand::Symbol(name, offset) => match self.meaning(name)? {
                Meaning::Global(index) => Source::Global(index, *offset),
                Meaning::Shared(index) => Source::Shared(index, *offset),
                Meaning::Local(at) => Source::Local(at.wrapping_add_signed(*offset)),
                Meaning::Param(at) => Source::Param(at.wrapping_add_signed(*offset)),
                Meaning::Function(index) => Source::Function(index),
                Meaning::Frame(_) => return Err(format!("the address of `{name}` is not executed")),
            },
            other => return Err(format!("the operand {other:?} has no place here")),
        })
    }

    fn target(&self, operand: &Operand) -> Decoded<Option<Target>> {
        match operand {
            Operand::Ignored => Ok(None),
            Operand::Register(register) => match self.place(*register) {
                Place::One(target) => Ok(Some(target)),
                _ => Err("the result is no register of a number".to_owned()),
            },
            _ => Err("the result is no register".to_owned()),
        }
    }

    fn one_target(&self, operand: &Operand) -> Decoded<Target> {
        self.target(operand)?.ok_or_else(|| "the result is ignored".to_owned())
    }

    fn predicate(&self, operand: &Operand) -> Decoded<Option<usize>> {
        match operand {
            Operand::Ignored => Ok(None),
            Operand::Register(register) => self.predicate_register(*register).map(Some),
            _ => Err("the result is no predicate".to_owned()),
        }
    }

    fn one_predicate(&self, operand: &Operand) -> Decoded<usize> {
        self.predicate(operand)?.ok_or_else(|| "the result is ignored".to_owned())
    }

    fn truth(&self, operand: &Operand) -> Decoded<Truth> {
        Ok(match operand {
            Operand::Register(register) => {
                Truth::Predicate(Predicate { register: self.predicate_register(*register)?, negated: false })
            }
            Operand::Not(register) => {
                Truth::Predicate(Predicate { register: self.predicate_register(*register)?, negated: true })
            }
            Operand::Integer(value) => Truth::Constant(*value & 1 != 0),
            _ => return Err("a predicate is needed here".to_owned()),
        })
    }

    /// `p|q`, or `p`.
    fn pair(operand: &Operand) -> Decoded<(&Operand, Option<&Operand>)> {
        match operand {
            Operand::Group(parts) => match &parts[..] {
                [first, second] => Ok((first, Some(second))),
                _ => Err("two results are needed here".to_owned()),
            },
            one => Ok((one, None)),
        }
    }

    fn sources(&mut self, operands: &[Operand], type_name: &str) -> Decoded<Vec<Source>> {
        operands.iter().map(|operand| self.source(operand, type_name)).collect()
    }

    /// The registers of a vector or of a single operand, those of 128 bits in two halves.
    fn targets(&self, operand: &Operand) -> Decoded<Vec<Option<Target>>> {
        match operand {
            Operand::Group(parts) => {
                let all: Decoded<Vec<_>> = parts.iter().map(|part| self.targets(part)).collect();
                Ok(all?.concat())
            }
            Operand::Register(register) => Ok(match self.place(*register) {
                Place::Two(low) => [low, low + 1].map(|register| Some(Target { register, mask: u64::MAX })).to_vec(),
                _ => vec![self.target(operand)?],
            }),
            other => Ok(vec![self.target(other)?]),
        }
    }

    fn values(&mut self, operand: &Operand, type_name: &str) -> Decoded<Vec<Source>> {
        match operand {
            Operand::Group(parts) => {
                let all: Decoded<Vec<_>> = parts.iter().map(|part| self.values(part, type_name)).collect();
                Ok(all?.concat())
            }
            Operand::Register(register) if matches!(self.place(*register), Place::Two(_)) => {
                let Place::Two(low) = self.place(*register) else { return Ok(Vec::new()) };
                Ok(vec![Source::Register(low), Source::Register(low + 1)])
            }
            other => Ok(vec![self.source(other, type_name)?]),
        }
    }

    fn address(&mut self, operand: &Operand, space: Where) -> Decoded<Address> {
        let Operand::Address(base, offset) = operand else { return Err("an address is needed here".to_owned()) };
        let base = self.source(base, "b64")?;
        let space = match (space, base) {
            (Where::Generic, Source::Shared(..)) => Where::Shared,
            (Where::Generic, Source::Local(_)) => Where::Local,
            (Where::Generic, Source::Param(_)) => Where::Param,
            (space, _) => space,
        };
        Ok(Address { space, base, offset: *offset })
    }

    fn operation(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let (modifiers, operands) = (&instruction.modifiers[..], &instruction.operands[..]);
        let type_name = modifiers.last().map_or("", String::as_str);
        let operand = |index: usize| operands.get(index).ok_or_else(|| "an operand is missing".to_owned());
        Ok(match instruction.opcode.as_str() {
            "mov" | "cvta" => return self.moved(instruction),
            "ld" | "ldu" => return self.load(instruction),
            "st" => return self.store(instruction),
            "atom" | "red" => return self.atomic(instruction),
            "multimem" => return self.multimem(instruction),
            "and" | "or" | "xor" | "not" if type_name == "pred" => {
                let to = self.one_predicate(operand(0)?)?;
                let first = self.truth(operand(1)?)?;
                let second = match instruction.opcode.as_str() {
                    "not" => Some((Boolean::Xor, Truth::Constant(true))),
                    name => Some((boolean(name)?, self.truth(operand(2)?)?)),
                };
                Operation::Predicate { to, first, second }
            }
            "setp" => {
                let (to, opposite) = Self::pair(operand(0)?)?;
                let (to, opposite) = (self.predicate(to)?, opposite.map(|q| self.predicate(q)).transpose()?.flatten());
                let (function, from, with) = self.comparison(instruction)?;
                Operation::Compare { function, to, opposite, from, with }
            }
            // Of two elements it is a function like others.
            "set" if matches!(alu::function("set", modifiers), Some(Function::Two(_))) => {
                return self.compute(instruction);
            }
            "set" => {
                let to = self.one_target(operand(0)?)?;
                let (function, from, with) = self.comparison(instruction)?;
                let result = modifiers.iter().rev().nth(1).map_or("", String::as_str);
                let truth = match result {
                    "f32" => u64::from(1.0_f32.to_bits()),
                    "f16" => 0x3c00,
                    "bf16" => 0x3f80,
                    _ => to.mask,
                };
                Operation::Set { function, to, from, with, truth }
            }
            "testp" => {
                let Some(Function::Test(function)) = alu::function("testp", modifiers) else { return unknown() };
                let (to, from) = (self.one_predicate(operand(0)?)?, self.source(operand(1)?, type_name)?);
                Operation::Test { function, to, from }
            }
            "selp" => {
                let from = [self.source(operand(1)?, type_name)?, self.source(operand(2)?, type_name)?];
                Operation::Select { to: self.one_target(operand(0)?)?, from, by: self.truth(operand(3)?)? }
            }
            "isspacep" => {
                let space = modifiers.iter().find_map(|modifier| space(modifier)).ok_or("a space is missing")?;
                let (to, from) = (self.one_predicate(operand(0)?)?, self.source(operand(1)?, "b64")?);
                Operation::IsSpace { to, from, space }
            }
            "fence" | "membar" => return fence(instruction),
            "bar" | "barrier" if instruction.has("warp") => {
                let mask = self.source(operand(0)?, "b32")?;
                Operation::Together { what: Together::Sync, mask, name: instruction.full_name() }
            }
            "bar" | "barrier" => return self.barrier(instruction),
            "shfl" | "vote" | "match" | "redux" | "elect" => return self.together(instruction),
            "mma" | "ldmatrix" | "stmatrix" | "movmatrix" => {
                Operation::Matrix { what: self.matrix(instruction)?, name: instruction.full_name() }
            }
            "activemask" => Operation::ActiveLanes { to: self.one_target(operand(0)?)? },
            "bra" => match operand(0)? {
                Operand::Label(target) => Operation::Branch(*target),
                _ => return Err("a label is needed here".to_owned()),
            },
            "brx" => match operand(1)? {
                Operand::Targets(targets) => {
                    Operation::BranchTable { index: self.source(operand(0)?, "u32")?, targets: targets.clone() }
                }
                _ => return Err("a list of labels is needed here".to_owned()),
            },
            "call" => return self.call(instruction),
            "ret" => Operation::Return,
            "exit" => Operation::Exit,
            "trap" => Operation::Trap,
            "nanosleep" => Operation::Rest,
            // What only changes how fast things are.
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "pmevent" | "brkpt" => Operation::Nothing,
            "griddepcontrol" => Operation::Nothing,
            "createpolicy" => Operation::Move { to: self.one_target(operand(0)?)?, from: Source::Immediate(0) },
            "cp" => return self.copy(instruction),
            _ => return self.compute(instruction),
        })
    }

    fn compute(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let (modifiers, operands) = (&instruction.modifiers[..], &instruction.operands[..]);
        let type_name = modifiers.last().map_or("", String::as_str);
        let Some((result, from)) = operands.split_first() else { return Err("an operand is missing".to_owned()) };
        if let Some(function) = alu::carry(&instruction.opcode, modifiers) {
            let mut from = self.sources(from, type_name)?;
            from.resize(3, Source::Immediate(0));
            let keeps = modifiers.iter().any(|modifier| modifier == "cc");
            return Ok(Operation::Carry { function, to: self.one_target(result)?, from, keeps });
        }
        let Some(function) = alu::function(&instruction.opcode, modifiers) else { return unknown() };
        let count = match function {
            Function::One(_) => 1,
            Function::Two(_) => 2,
            Function::Three(_) => 3,
            Function::Four(_) => 4,
            Function::Test(_) | Function::Compare(_) => return unknown(),
        };
        if from.len() != count {
            return Err(format!("{count} operands are needed, {} are there", from.len()));
        }
        Ok(Operation::Compute { function, to: self.target(result)?, from: self.sources(from, type_name)? })
    }

    fn comparison(&mut self, instruction: &ptx::Instruction) -> Decoded<Compared> {
        let modifiers = &instruction.modifiers;
        let type_name = modifiers.last().map_or("", String::as_str);
        let Some(Function::Compare(function)) = alu::function(&instruction.opcode, modifiers) else { return unknown() };
        let [_, left, right, rest @ ..] = &instruction.operands[..] else {
            return Err("an operand is missing".to_owned());
        };
        let from = [self.source(left, type_name)?, self.source(right, type_name)?];
        let combined = modifiers.get(1).and_then(|modifier| boolean(modifier).ok());
        let with = match (combined, rest) {
            (Some(boolean), [predicate]) => Some((boolean, self.truth(predicate)?)),
            (None, []) => None,
            _ => return Err("the predicate that it is combined with is missing".to_owned()),
        };
        Ok((function, from, with))
    }

    fn moved(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let [result, value] = &instruction.operands[..] else { return Err("two operands are needed".to_owned()) };
        if type_name == "pred" {
            return Ok(Operation::Predicate {
                to: self.one_predicate(result)?,
                first: self.truth(value)?,
                second: None,
            });
        }
        let whole = bits(type_name).ok_or("this type is not executed")?;
        let is_wide = |decoder: &Self, operand: &Operand| matches!(operand, Operand::Register(register) if matches!(decoder.place(*register), Place::Two(_)));
        if whole == 128 || is_wide(self, result) || is_wide(self, value) {
            let (to, from) = (self.targets(result)?, self.values(value, "b64")?);
            let (Ok(to), Ok(from)) = (<[_; 2]>::try_from(to), <[_; 2]>::try_from(from)) else { return unknown() };
            return Ok(Operation::MoveWide { to, from });
        }
        Ok(match (result, value) {
            (_, Operand::Group(parts)) => {
                let bits = whole / parts.len().max(1) as u32;
                let from = self.sources(parts, &format!("b{bits}"))?;
                Operation::Pack { to: self.one_target(result)?, from, bits }
            }
            (Operand::Group(parts), _) => {
                let to: Vec<_> = parts.iter().map(|part| self.target(part)).collect::<Decoded<_>>()?;
                let bits = whole / to.len().max(1) as u32;
                Operation::Unpack { to, from: self.source(value, type_name)?, bits }
            }
            _ => {
                let (to, from) = (self.one_target(result)?, self.source(value, type_name)?);
                match instruction.opcode.as_str() {
                    "cvta" => self.converted_address(instruction, to, from)?,
                    _ => Operation::Move { to, from },
                }
            }
        })
    }

    fn call(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let operands = &instruction.operands[..];
        let frame_places = |decoder: &mut Self, operand: &Operand| -> Decoded<Vec<Slot>> {
            let Operand::Group(parts) = operand else { return Err("a list of parameters is needed here".to_owned()) };
            let place = |part: &Operand| match part {
                Operand::Symbol(name, _) => match decoder.meaning(name)? {
                    Meaning::Frame(slot) => Ok(slot),
                    _ => Err(format!("`{name}` is no parameter of a call")),
                },
                _ => Err("arguments in registers are not executed".to_owned()),
            };
            parts.iter().map(place).collect()
        };
        let (results, operands) = match operands {
            [group @ Operand::Group(_), rest @ ..] => (frame_places(self, group)?, rest),
            _ => (Vec::new(), operands),
        };
        let function = operands.first().ok_or("it calls nothing")?;
        if let Operand::Symbol(name, _) = function
            && name == "vprintf"
        {
            return Err("printf is not executed".to_owned());
        }
        let function = self.source(function, "b64")?;
        let arguments = match operands.get(1) {
            Some(group @ Operand::Group(_)) => frame_places(self, group)?,
            _ => Vec::new(),
        };
        Ok(Operation::Call { function, arguments, results })
    }
}

type Compared = (Comparison, [Source; 2], Option<(Boolean, Truth)>);

fn unknown<T>() -> Decoded<T> {
    Err("the virtual GPU does not execute this instruction".to_owned())
}
