//! From the parser's instructions to the executor's.

use core::mem::size_of;
use std::collections::HashMap;

use congruent_verify::ptx::{self, Body, Operand, RegisterId, Space, Variable};

use crate::alu::{self, Function, matrix};
use crate::outline::Global;
use crate::program::{
    Access, Address, BarrierResult, Boolean, Change, Code, Combination, Combine, Comparison, Instruction, LoadError,
    Matrix, Names, Operation, Predicate, Report, Scope, SharedVariable, Shuffle, Slot, Source, Special, Strength,
    Target, Together, Truth, Where,
};
use crate::registers;

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

/// Bits of a type, from its name.
pub(crate) fn bits(type_name: &str) -> Option<u32> {
    Some(match type_name {
        "pred" => 1,
        "f16x2" | "bf16x2" | "u16x2" | "s16x2" | "tf32" => 32,
        "e4m3x2" | "e5m2x2" | "bf16" => 16,
        "f32x2" => 64,
        name => name.trim_start_matches(|letter: char| letter.is_ascii_lowercase()).parse().ok()?,
    })
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

    /// What is accessed, as the modifiers say; the type is the last of them.
    fn access(&mut self, instruction: &ptx::Instruction, address: &Operand) -> Decoded<Access> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let bits = bits(type_name).ok_or_else(|| format!("the type {type_name} is not executed"))?;
        let vector = ["v2", "v4", "v8"].into_iter().find(|vector| instruction.has(vector));
        let count = vector.map_or(1, |vector| u64::from(vector.as_bytes()[1] - b'0'));
        // 128 bits are two units of 64.
        let (unit, count) = if bits == 128 { (8, 2 * count) } else { (u64::from(bits) / 8, count) };
        let space = match instruction.modifiers.iter().find_map(|modifier| space(modifier)) {
            Some(space) => space,
            None if instruction.opcode == "multimem" => Where::Global,
            None => Where::Generic,
        };
        let address = self.address(address, space)?;
        Ok(Access { address, unit, count, strength: strength(instruction), is_noncoherent: instruction.has("nc") })
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

    /// Generic addresses of shared and local memory and of parameters lie behind their space's own base.
    fn converted_address(&self, instruction: &ptx::Instruction, to: Target, from: Source) -> Decoded<Operation> {
        let space = instruction.modifiers.iter().find_map(|modifier| space(modifier)).ok_or("a space is missing")?;
        let base = Source::Immediate(base_of(space));
        let function = if instruction.has("to") { alu::two(u64::wrapping_sub) } else { alu::two(u64::wrapping_add) };
        Ok(match space {
            Where::Global | Where::Generic => Operation::Move { to, from },
            _ => Operation::Compute { function, to: Some(to), from: vec![from, base] },
        })
    }

    /// The place of `units` words of a parameter in the frame, if an address is one.
    fn in_frame(&mut self, address: &Operand, unit: u64, units: usize) -> Decoded<Option<u64>> {
        let Operand::Address(base, offset) = address else { return Ok(None) };
        let Operand::Symbol(name, more) = base.as_ref() else { return Ok(None) };
        match self.meaning(name)? {
            Meaning::Frame(slot) => {
                let inside = u64::try_from(offset.saturating_add(*more)).ok();
                let fits = |at: &u64| at.saturating_add(unit * units as u64) <= slot.bytes;
                let place = inside.filter(fits).map(|inside| slot.offset + inside);
                let place = place.filter(|place| place.is_multiple_of(unit));
                place.map(Some).ok_or_else(|| format!("it is outside the {} bytes of `{name}`", slot.bytes))
            }
            _ => Ok(None),
        }
    }

    fn load(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let [result, address, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let (to, is_signed) = (self.targets(result)?, is_signed(type_name));
        let unit = unit(type_name)?;
        if let Some(offset) = self.in_frame(address, unit, to.len())? {
            return Ok(Operation::LoadParam { offset, unit, to, is_signed });
        }
        let access = self.access(instruction, address)?;
        expect_count(&access, to.len())?;
        Ok(Operation::Load { access, to, is_signed })
    }

    fn store(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let [address, value, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let from = self.values(value, type_name)?;
        let unit = unit(type_name)?;
        if let Some(offset) = self.in_frame(address, unit, from.len())? {
            return Ok(Operation::StoreParam { offset, unit, from });
        }
        let access = self.access(instruction, address)?;
        expect_count(&access, from.len())?;
        Ok(Operation::Store { access, from })
    }

    fn atomic(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let gives = instruction.opcode == "atom";
        let (result, rest) =
            if gives { instruction.operands.split_at(1) } else { (&[][..], &instruction.operands[..]) };
        let [address, value, more @ ..] = rest else { return Err("an operand is missing".to_owned()) };
        let access = atomic(instruction, self.access(instruction, address)?);
        if type_name == "b128" {
            return Err("atomics of 128 bits are not executed".to_owned());
        }
        let from = self.values(value, type_name)?;
        expect_count(&access, from.len())?;
        let is_swap = instruction.has("cas");
        let second = match (is_swap, more) {
            (true, [new, ..]) => Some(self.source(new, type_name)?),
            (true, []) => return Err("the new value is missing".to_owned()),
            (false, _) => None,
        };
        let change = if is_swap { Change::CompareAndSwap } else { Change::Combine(combination(instruction)?) };
        let to = result.iter().map(|result| self.targets(result)).collect::<Decoded<Vec<_>>>()?.concat();
        Ok(Operation::Atomic { access, to, change, from, second })
    }

    fn multimem(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let [first, second, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        if instruction.has("ld_reduce") {
            let access = self.access(instruction, second)?;
            let to: Option<Vec<_>> = self.targets(first)?.into_iter().collect();
            let to = to.ok_or("a result is ignored")?;
            expect_count(&access, to.len())?;
            let wide = alu::sum_in_f32(type_name).filter(|_| instruction.has("add") && instruction.has("acc::f32"));
            let combine = wide.map(Combine::All).map_or_else(|| combination(instruction).map(Combine::Two), Ok)?;
            return Ok(Operation::MultimemReduce { access, to, combine });
        }
        let access = self.access(instruction, first)?;
        let from = self.values(second, type_name)?;
        expect_count(&access, from.len())?;
        if instruction.has("st") {
            return Ok(Operation::MultimemStore { access, from });
        }
        let access = atomic(instruction, access);
        Ok(Operation::MultimemAdd { access, combine: combination(instruction)?, from })
    }

    fn copy(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        if instruction.has("bulk") || instruction.has("mbarrier") {
            return Err("asynchronous bulk copies (TMA) and their barriers are not executed".to_owned());
        }
        let operands = &instruction.operands[..];
        if instruction.has("commit_group") {
            return Ok(Operation::CopyCommit);
        }
        if instruction.has("wait_all") {
            return Ok(Operation::CopyWait(None));
        }
        if instruction.has("wait_group") {
            return match operands {
                [Operand::Integer(left)] => Ok(Operation::CopyWait(Some(*left))),
                _ => Err("the number of groups is missing".to_owned()),
            };
        }
        let [to, from, Operand::Integer(bytes), rest @ ..] = operands else {
            return Err("an operand is missing".to_owned());
        };
        let filled = rest.first().map(|filled| self.source(filled, "u32")).transpose()?;
        let (to, from) = (self.address(to, Where::Shared)?, self.address(from, Where::Global)?);
        Ok(Operation::CopyLater { to, from, bytes: *bytes, filled })
    }

    fn barrier(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        if instruction.has("cluster") {
            return Err("clusters are not executed".to_owned());
        }
        let is_aligned = instruction.opcode == "bar" || instruction.has("aligned");
        let reduces = instruction.has("red");
        let (results, rest) = instruction.operands.split_at(usize::from(reduces).min(instruction.operands.len()));
        let mut rest = rest.iter();
        let id = rest.next().map_or(Ok(Source::Immediate(0)), |id| self.source(id, "u32"))?;
        if instruction.has("arrive") {
            return Ok(Operation::Arrive { id });
        }
        let (count, value) = match (reduces, rest.as_slice()) {
            (false, []) => (None, None),
            (false, [count]) => (Some(count), None),
            (true, [value]) => (None, Some(value)),
            (true, [count, value]) => (Some(count), Some(value)),
            _ => return Err("it has too many operands".to_owned()),
        };
        let count = count.map(|count| self.source(count, "u32")).transpose()?;
        let value = value.map_or(Ok(Truth::Constant(false)), |value| self.truth(value))?;
        let result = match results {
            [] => BarrierResult::None,
            [result, ..] if instruction.has("popc") => BarrierResult::Count(self.one_target(result)?),
            [result, ..] if instruction.has("and") => BarrierResult::And(self.one_predicate(result)?),
            [result, ..] => BarrierResult::Or(self.one_predicate(result)?),
        };
        Ok(Operation::Barrier { id, count, is_aligned, result, value })
    }

    fn together(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let operands = &instruction.operands[..];
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let (Some(result), Some(last)) = (operands.first(), operands.last()) else {
            return Err("an operand is missing".to_owned());
        };
        let value = operands.get(1).ok_or_else(|| "an operand is missing".to_owned());
        let what = match instruction.opcode.as_str() {
            "shfl" => {
                let [_, value, lane, clamp, _] = operands else { return Err("five operands are needed".to_owned()) };
                let (to, valid) = Self::pair(result)?;
                let kind = match instruction.modifiers.get(1).map_or("", String::as_str) {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Butterfly,
                    _ => Shuffle::Index,
                };
                Together::Shuffle {
                    kind,
                    to: self.target(to)?,
                    valid: valid.map(|valid| self.predicate(valid)).transpose()?.flatten(),
                    value: self.source(value, "b32")?,
                    lane: self.source(lane, "b32")?,
                    clamp: self.source(clamp, "b32")?,
                }
            }
            "vote" => {
                let value = self.truth(value?)?;
                match instruction.modifiers.get(1).map_or("", String::as_str) {
                    "all" => Together::VoteAll { to: self.one_predicate(result)?, value },
                    "any" => Together::VoteAny { to: self.one_predicate(result)?, value },
                    "uni" => Together::VoteUniform { to: self.one_predicate(result)?, value },
                    _ => Together::Ballot { to: self.one_target(result)?, value },
                }
            }
            "match" => {
                let (to, valid) = Self::pair(result)?;
                let value = self.source(value?, type_name)?;
                match instruction.has("any") {
                    true => Together::MatchAny { to: self.one_target(to)?, value },
                    false => {
                        let valid = valid.map(|valid| self.predicate(valid)).transpose()?.flatten();
                        Together::MatchAll { to: self.target(to)?, valid, value }
                    }
                }
            }
            "redux" => {
                let combine = combination(instruction)?;
                Together::Reduce { to: self.one_target(result)?, value: self.source(value?, type_name)?, combine }
            }
            _ => {
                let (to, chosen) = Self::pair(result)?;
                let chosen = chosen.map(|chosen| self.predicate(chosen)).transpose()?.flatten();
                Together::Elect { to: self.target(to)?, chosen }
            }
        };
        Ok(Operation::Together { what, mask: self.source(last, "b32")?, name: instruction.full_name() })
    }

    fn matrix(&mut self, instruction: &ptx::Instruction) -> Decoded<Matrix> {
        let rows = |decoder: &mut Self, address: &Operand| {
            let space = instruction.modifiers.iter().find_map(|modifier| space(modifier)).unwrap_or(Where::Generic);
            let address = decoder.address(address, space)?;
            Ok::<_, String>(Access { address, unit: 2, count: 8, strength: Strength::Weak, is_noncoherent: false })
        };
        let expect = |wanted: &[usize], found: &[usize]| match wanted == found {
            true => Ok(()),
            false => Err(format!("{wanted:?} registers are needed here, and there are {found:?}")),
        };
        match (instruction.opcode.as_str(), &instruction.operands[..]) {
            ("mma", [to, a, b, c]) => {
                let Some(mma) = matrix::mma(&instruction.modifiers) else { return unknown() };
                let to = self.targets(to)?;
                let from = [self.values(a, "b32")?, self.values(b, "b32")?, self.values(c, "b32")?];
                expect(&mma.registers(), &[to.len(), from[0].len(), from[1].len(), from[2].len()])?;
                Ok(Matrix::Multiply { mma, to, from })
            }
            ("ldmatrix", [to, address]) => {
                let Some(tiles) = matrix::tiles(&instruction.modifiers) else { return unknown() };
                let to = self.targets(to)?;
                expect(&[tiles.count()], &[to.len()])?;
                Ok(Matrix::Load { tiles, to, rows: rows(self, address)? })
            }
            ("stmatrix", [address, from]) => {
                let Some(tiles) = matrix::tiles(&instruction.modifiers) else { return unknown() };
                let from = self.values(from, "b32")?;
                expect(&[tiles.count()], &[from.len()])?;
                Ok(Matrix::Store { tiles, from, rows: rows(self, address)? })
            }
            ("movmatrix", [to, from]) => {
                Ok(Matrix::Transpose { to: self.targets(to)?, from: self.source(from, "b32")? })
            }
            _ => Err("an operand is missing".to_owned()),
        }
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

fn expect_count(access: &Access, registers: usize) -> Decoded<()> {
    if access.count != registers as u64 {
        return Err(format!("{} registers are needed, {registers} are there", access.count));
    }
    Ok(())
}

fn unit(type_name: &str) -> Decoded<u64> {
    let bits = bits(type_name).ok_or("this type is not executed")?;
    Ok(u64::from(bits.min(64)) / 8)
}

fn boolean(name: &str) -> Decoded<Boolean> {
    match name {
        "and" => Ok(Boolean::And),
        "or" => Ok(Boolean::Or),
        "xor" => Ok(Boolean::Xor),
        _ => Err(format!("{name} does not combine predicates")),
    }
}

/// What an atomic, a reduction of lanes or of devices does with two values.
fn combination(instruction: &ptx::Instruction) -> Decoded<Combination> {
    let type_name = instruction.modifiers.last().map_or("", String::as_str);
    const NAMES: [&str; 9] = ["add", "min", "max", "and", "or", "xor", "inc", "dec", "exch"];
    let name = NAMES.into_iter().find(|name| instruction.has(name)).ok_or("it does nothing that is known")?;
    // Bits are bits, whatever they are called.
    let bits = format!("b{}", bits(type_name).ok_or("this type is not executed")?);
    let form: Vec<String> = match (name, type_name) {
        ("and" | "or" | "xor", _) => vec![bits],
        ("add", "f32" | "f64" | "f16" | "f16x2" | "bf16" | "bf16x2") => vec!["rn".to_owned(), type_name.to_owned()],
        _ => vec![type_name.to_owned()],
    };
    let function = match name {
        "exch" => Some(alu::two(|_, new| new)),
        "inc" => Some(alu::two(|old, bound| if old >= bound { 0 } else { old + 1 })),
        "dec" => Some(alu::two(|old, bound| if old == 0 || old > bound { bound } else { old - 1 })),
        _ => alu::function(name, &form),
    };
    match function {
        Some(Function::Two(function)) => Ok(function),
        _ => unknown(),
    }
}

fn scope(instruction: &ptx::Instruction) -> Option<Scope> {
    instruction.modifiers.iter().find_map(|modifier| match modifier.as_str() {
        "cta" => Some(Scope::Block),
        "cluster" | "gpu" | "gl" => Some(Scope::Device),
        "sys" => Some(Scope::System),
        _ => None,
    })
}

/// Atomics are relaxed where nothing is said, and seen by the device where no scope is.
fn atomic(instruction: &ptx::Instruction, access: Access) -> Access {
    match access.strength {
        Strength::Weak => Access { strength: Strength::Relaxed(scope(instruction).unwrap_or(Scope::Device)), ..access },
        _ => access,
    }
}

fn strength(instruction: &ptx::Instruction) -> Strength {
    let scope = scope(instruction).unwrap_or(Scope::Device);
    if instruction.has("acq_rel") {
        Strength::AcquireRelease(scope)
    } else if instruction.has("acquire") {
        Strength::Acquire(scope)
    } else if instruction.has("release") {
        Strength::Release(scope)
    } else if instruction.has("volatile") || instruction.has("mmio") {
        Strength::Relaxed(Scope::System)
    } else if instruction.has("relaxed") {
        Strength::Relaxed(scope)
    } else {
        Strength::Weak
    }
}

fn fence(instruction: &ptx::Instruction) -> Decoded<Operation> {
    if instruction.has("proxy") {
        return match instruction.has("alias") {
            true => Ok(Operation::FenceAlias),
            false => Ok(Operation::Nothing),
        };
    }
    let scope = scope(instruction).ok_or("the scope is missing")?;
    let (strength, is_consistent) = match strength(instruction) {
        Strength::Acquire(_) => (Strength::Acquire(scope), false),
        Strength::Release(_) => (Strength::Release(scope), false),
        // `membar` is `fence.sc`.
        _ => (Strength::AcquireRelease(scope), !instruction.has("acq_rel")),
    };
    Ok(Operation::Fence { strength, is_consistent })
}

fn space(modifier: &str) -> Option<Where> {
    Some(match modifier {
        "global" | "const" => Where::Global,
        "shared" | "shared::cta" => Where::Shared,
        "local" => Where::Local,
        "param" | "param::entry" => Where::Param,
        _ => return None,
    })
}

/// Where the generic addresses of a space begin; of global memory they are its own.
pub(crate) fn base_of(space: Where) -> u64 {
    match space {
        Where::Generic | Where::Global => 0,
        Where::Shared => 0x1 << 56,
        Where::Local => 0x2 << 56,
        Where::Param => 0x3 << 56,
    }
}

/// Which space a generic address is in.
pub(crate) fn space_of(address: u64) -> Where {
    match address >> 56 {
        0x1 => Where::Shared,
        0x2 => Where::Local,
        0x3 => Where::Param,
        _ => Where::Global,
    }
}

/// `0f3F800000`, `0d3FF0000000000000` or `1.5`, as bits of a type.
fn float(text: &str, type_name: &str) -> Decoded<u64> {
    let wrong = || format!("`{text}` is no float of type {type_name}");
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| wrong());
    let is_double = bits(type_name) == Some(8 * size_of::<f64>() as u32);
    if let Some(digits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        let bits = hexadecimal(digits)?;
        let single = f32::from_bits(u32::try_from(bits).map_err(|_| wrong())?);
        return Ok(if is_double { f64::from(single).to_bits() } else { bits });
    }
    let double = match text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        Some(digits) => f64::from_bits(hexadecimal(digits)?),
        None => text.parse().map_err(|_| wrong())?,
    };
    Ok(if is_double { double.to_bits() } else { u64::from((double as f32).to_bits()) })
}

fn special(name: &str) -> Decoded<Special> {
    let (name, part) = name.split_once('.').unwrap_or((name, ""));
    let part = ["x", "y", "z", "w"].iter().position(|known| *known == part).unwrap_or(0);
    Ok(match name {
        // The fourth part is 0 of an index and 1 of a size, and nobody reads it.
        "%tid" if part < 3 => Special::Thread(part),
        "%ntid" if part < 3 => Special::Threads(part),
        "%ctaid" if part < 3 => Special::Block(part),
        "%nctaid" if part < 3 => Special::Blocks(part),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" => Special::Sm,
        "%nsmid" => Special::Sms,
        "%gridid" => Special::Grid,
        "%clock" | "%clock64" => Special::Clock,
        "%clock_hi" => Special::ClockHigh,
        "%globaltimer" | "%globaltimer_lo" => Special::Time,
        "%globaltimer_hi" => Special::TimeHigh,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_lt" => Special::LanesBelow,
        "%lanemask_ge" => Special::LanesFrom,
        "%lanemask_gt" => Special::LanesAbove,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        "WARP_SZ" => Special::Constant(32),
        // Every block is a cluster of its own.
        "%clusterid" if part < 3 => Special::Block(part),
        "%nclusterid" if part < 3 => Special::Blocks(part),
        "%cluster_ctaid" | "%cluster_ctarank" | "%is_explicit_cluster" => Special::Constant(0),
        "%cluster_nctaid" | "%cluster_nctarank" => Special::Constant(1),
        _ => return Err(format!("the register {name} is not executed")),
    })
}
