//! From the instructions of a test to events.

use std::collections::{BTreeMap, BTreeSet};

use super::error::Error;
use super::parse::{Draft, Line};
use super::program::{
    Access, Cell, Comparison, Event, Is, Kind, Meeting, Order, Program, Promises, Proxy, Register, Scope, Term, Update,
    Value, Written,
};
use super::relation::MOST_EVENTS;
use crate::ptx::{self, Instruction, Operand};

/// In how many ways the reads of a test may choose their writes.
const MOST_WAYS: u64 = 10_000_000;

/// Builds the program of a draft.
pub(super) struct Builder<'d> {
    draft: &'d Draft<'d>,
    program: Program,
    registers: BTreeMap<String, Register>,
    /// How often each thread has been at each barrier: to tell, and to hear.
    visits: BTreeMap<(usize, String), (usize, usize)>,
    /// Where the instruction is that is being read.
    thread: usize,
    instruction: usize,
    /// The registers of the `assume` lines before it.
    depends: Vec<Register>,
}

/// An access before its cells are known: the order, and where.
struct Shape {
    order: Order,
    scope: Scope,
    size: u32,
}

impl<'d> Builder<'d> {
    pub(super) fn new(draft: &'d Draft<'d>) -> Self {
        let promises = Promises { ..draft.promises };
        Self {
            draft,
            program: Program { promises, ..Program::default() },
            registers: BTreeMap::new(),
            visits: BTreeMap::new(),
            thread: 0,
            instruction: 0,
            depends: Vec::new(),
        }
    }

    /// Reads every thread, and the condition.
    pub(super) fn program(mut self, condition: Line<'_>) -> Result<Program, Error> {
        for (index, (thread, lines)) in self.draft.threads.iter().enumerate() {
            self.program.threads.push(thread.clone());
            self.program.texts.push(lines.iter().map(|line| line.text.to_owned()).collect());
            (self.thread, self.depends) = (index, Vec::new());
            for (instruction, &line) in lines.iter().enumerate() {
                self.instruction = instruction;
                self.line(line)?;
            }
        }
        if self.program.events.len() > MOST_EVENTS {
            return Err(condition.error(format!("this has more than {MOST_EVENTS} events")));
        }
        self.check_barriers(condition)?;
        self.check_names(condition)?;
        self.divide();
        self.check_size(condition)?;
        let any = condition.text.split("||").map(|all| self.comparisons(Line { text: all, ..condition }));
        self.program.condition = any.collect::<Result<_, _>>()?;
        self.program.asked = condition.text.to_owned();
        let owned = |(name, of): &(&str, &str)| ((*name).to_owned(), (*of).to_owned());
        self.program.aliases = self.draft.aliases.iter().map(owned).collect();
        let owned = |(name, members): &(&str, Vec<&str>)| {
            ((*name).to_owned(), members.iter().map(|&member| member.to_owned()).collect())
        };
        self.program.multicasts = self.draft.multicasts.iter().map(owned).collect();
        Ok(self.program)
    }

    /// `r0 == 1 && [x] == 2`.
    fn comparisons(&self, line: Line<'_>) -> Result<Vec<Comparison>, Error> {
        line.text.split("&&").map(|text| self.comparison(Line { text: text.trim(), ..line })).collect()
    }

    fn comparison(&self, line: Line<'_>) -> Result<Comparison, Error> {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        let wrong = || line.error(format!("`{}` is no comparison such as `r0 == 1`", line.text));
        let [left, is, right] = words[..] else { return Err(wrong()) };
        let is = match is {
            "==" => Is::Equal,
            "!=" => Is::Different,
            "<" => Is::Less,
            "<=" => Is::AtMost,
            ">" => Is::Greater,
            ">=" => Is::AtLeast,
            _ => return Err(wrong()),
        };
        let number = match right.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => right.parse(),
        };
        let right = number.map_err(|_| wrong())?;
        let left = match left.strip_prefix('[').and_then(|left| left.strip_suffix(']')) {
            Some(place) => Term::Final(self.place(place, line)?),
            None => Term::Register(self.register(left, line)?),
        };
        Ok(Comparison { left, is, right })
    }

    /// The cells of the first access at `x` or `x+8`.
    fn place(&self, place: &str, line: Line<'_>) -> Result<Vec<usize>, Error> {
        let (name, offset) = place.split_once('+').unwrap_or((place, "0"));
        let accesses = self.program.events.iter().filter_map(Event::access);
        let at = |access: &&Access| access.address.0 == name && access.address.1.to_string() == offset;
        let first = accesses.into_iter().find(at);
        first.map(|access| access.cells.clone()).ok_or_else(|| line.error(format!("nothing accesses `{place}`")))
    }

    fn register(&self, name: &str, line: Line<'_>) -> Result<Register, Error> {
        self.registers.get(name).cloned().ok_or_else(|| line.error(format!("nothing is loaded into `{name}` before")))
    }

    /// An instruction or an assumption.
    fn line(&mut self, line: Line<'_>) -> Result<(), Error> {
        if let Some(text) = line.text.strip_prefix("assume ") {
            let assumed = self.comparisons(Line { text, ..line })?;
            let registers = assumed.iter().filter_map(|comparison| match &comparison.left {
                Term::Register(register) => Some(register.clone()),
                Term::Final(_) => None,
            });
            self.depends.extend(registers);
            self.program.assumed.extend(assumed);
            return Ok(());
        }
        let instruction = instruction(line)?;
        let operands = instruction.operands.as_slice();
        match (instruction.opcode.as_str(), operands) {
            ("ld", [into, Operand::Address(base, offset)]) => {
                let shape = shape(&instruction, line)?;
                self.load(into, (base, *offset), &shape, line)
            }
            ("st", [Operand::Address(base, offset), from]) => {
                let shape = shape(&instruction, line)?;
                self.store((base, *offset), from, &shape, line)
            }
            ("atom", [into, Operand::Address(base, offset), values @ ..]) => {
                let shape = shape(&instruction, line)?;
                let read = self.program.events.len();
                self.update(&instruction, (base, *offset), values, &shape, true, line)?;
                self.fill(into, Register { reads: vec![read], by: Update::Exchange }, line)
            }
            ("red", [Operand::Address(base, offset), values @ ..]) => {
                let shape = shape(&instruction, line)?;
                self.update(&instruction, (base, *offset), values, &shape, false, line)
            }
            ("multimem", _) => self.multimem(&instruction, line),
            ("fence" | "membar", []) => self.fence(&instruction, line),
            ("bar" | "barrier", _) => self.barrier(&instruction, line),
            ("cp", _) => self.bulk(&instruction, line),
            _ => Err(line.error(format!("`{}` is not modelled", line.text))),
        }
    }

    fn push(&mut self, kind: Kind) {
        let (thread, instruction, depends) = (self.thread, self.instruction, self.depends.clone());
        self.program.events.push(Event { thread, instruction, kind, depends });
    }

    /// Says what fills a register.
    fn fill(&mut self, into: &Operand, register: Register, line: Line<'_>) -> Result<(), Error> {
        match into {
            Operand::Ignored => Ok(()),
            Operand::Symbol(name, 0) => match self.registers.insert(name.clone(), register) {
                None => Ok(()),
                Some(_) => Err(line.error(format!("`{name}` is loaded into twice"))),
            },
            _ => Err(line.error("expected a register")),
        }
    }

    fn value(&self, operand: &Operand, line: Line<'_>) -> Result<Value, Error> {
        match operand {
            Operand::Integer(value) => Ok(Value::Constant(*value)),
            Operand::Symbol(name, 0) => Ok(Value::Register(self.register(name, line)?)),
            _ => Err(line.error("expected a number or a register")),
        }
    }

    /// An access at `base` and `offset` by the generic proxy that so far neither reads nor writes.
    fn access(&self, (base, offset): (&Operand, i64), shape: &Shape, line: Line<'_>) -> Result<Access, Error> {
        let (Operand::Symbol(name, 0), Ok(offset)) = (base, u32::try_from(offset)) else {
            return Err(line.error("an address is a name, or a name and an offset that is not negative"));
        };
        if offset % shape.size != 0 || offset > 1 << 16 {
            return Err(
                line.error(format!("an offset of {offset} is not aligned for {} bytes, or too large", shape.size))
            );
        }
        Ok(Access {
            order: shape.order,
            scope: shape.scope,
            proxy: Proxy::Generic,
            address: (name.clone(), offset),
            size: shape.size,
            cells: Vec::new(),
            reads: false,
            returns: false,
            writes: None,
        })
    }

    fn load(&mut self, into: &Operand, at: (&Operand, i64), shape: &Shape, line: Line<'_>) -> Result<(), Error> {
        for (index, into) in parts(into).iter().enumerate() {
            let access = self.access(element(at, index, shape), shape, line)?;
            self.refuse_multicast(&access, line)?;
            let register = Register { reads: vec![self.program.events.len()], by: Update::Exchange };
            self.push(Kind::Access(Access { reads: true, returns: true, ..access }));
            self.fill(into, register, line)?;
        }
        Ok(())
    }

    fn store(&mut self, at: (&Operand, i64), from: &Operand, shape: &Shape, line: Line<'_>) -> Result<(), Error> {
        for (index, from) in parts(from).iter().enumerate() {
            let access = self.access(element(at, index, shape), shape, line)?;
            self.refuse_multicast(&access, line)?;
            let writes = Some(Written::Value(self.value(from, line)?));
            self.push(Kind::Access(Access { writes, ..access }));
        }
        Ok(())
    }

    fn update(
        &mut self,
        instruction: &Instruction,
        at: (&Operand, i64),
        values: &[Operand],
        shape: &Shape,
        returns: bool,
        line: Line<'_>,
    ) -> Result<(), Error> {
        let access = self.access(at, shape, line)?;
        self.refuse_multicast(&access, line)?;
        let written = match values {
            [compare, value] if instruction.has("cas") => {
                Written::Swap(self.value(compare, line)?, self.value(value, line)?)
            }
            [value] => Written::Update(operation(instruction, line)?, self.value(value, line)?),
            _ => return Err(line.error("this has too many or too few operands")),
        };
        self.push(Kind::Access(Access { reads: true, returns, writes: Some(written), ..access }));
        Ok(())
    }

    /// One access for each member, all by the multicast address.
    fn multimem(&mut self, instruction: &Instruction, line: Line<'_>) -> Result<(), Error> {
        let shape = shape(instruction, line)?;
        let (at, other) = match instruction.operands.as_slice() {
            [Operand::Address(base, offset), from] => ((base.as_ref(), *offset), from),
            [into, Operand::Address(base, offset)] => ((base.as_ref(), *offset), into),
            _ => return Err(line.error("expected an address and one operand")),
        };
        for (index, other) in parts(other).iter().enumerate() {
            let access = self.access(element(at, index, &shape), &shape, line)?;
            let members = self.draft.multicasts.iter().find(|(name, _)| *name == access.address.0);
            let members = members.map(|(_, members)| members.clone());
            let members =
                members.ok_or_else(|| line.error(format!("`{}` is no multicast address", access.address.0)))?;
            let first = self.program.events.len();
            let name = |member: &&str| format!("{}->{member}", access.address.0);
            for address in members.iter().map(name) {
                let access = Access { address: (address, access.address.1), ..access.clone() };
                let access = if instruction.has("ld_reduce") {
                    Access { reads: true, returns: true, ..access }
                } else if instruction.has("red") {
                    let written = Written::Update(operation(instruction, line)?, self.value(other, line)?);
                    Access { reads: true, writes: Some(written), ..access }
                } else {
                    Access { writes: Some(Written::Value(self.value(other, line)?)), ..access }
                };
                self.push(Kind::Access(access));
            }
            if instruction.has("ld_reduce") {
                let reads = (first..self.program.events.len()).collect();
                self.fill(other, Register { reads, by: operation(instruction, line)? }, line)?;
            }
        }
        Ok(())
    }

    /// PTX 8.2.3.
    fn refuse_multicast(&self, access: &Access, line: Line<'_>) -> Result<(), Error> {
        match self.draft.multicasts.iter().any(|(name, _)| *name == access.address.0) {
            true => Err(line.error("only `multimem` instructions may use a multicast address")),
            false => Ok(()),
        }
    }

    fn fence(&mut self, instruction: &Instruction, line: Line<'_>) -> Result<(), Error> {
        let scope = |instruction| scope(instruction).ok_or_else(|| line.error("a fence needs a scope"));
        let kind = match instruction.opcode.as_str() {
            _ if instruction.has("proxy") => match instruction.modifiers.as_slice() {
                [_, alias] if alias == "alias" => Kind::AliasFence,
                [_, asynchronous, ..] if asynchronous == "async" => Kind::ProxyFence(Proxy::Async),
                _ => return Err(line.error(format!("`{}` is not modelled", line.text))),
            },
            "membar" => {
                let gl = instruction.has("gl").then_some(Scope::Gpu);
                let scope = gl.map_or_else(|| scope(instruction), Ok)?;
                Kind::Fence { order: Order::Sequential, scope }
            }
            _ => {
                let order = match order(instruction) {
                    Order::Weak => Order::AcquireRelease,
                    order => order,
                };
                Kind::Fence { order, scope: scope(instruction)? }
            }
        };
        self.push(kind);
        Ok(())
    }

    fn barrier(&mut self, instruction: &Instruction, line: Line<'_>) -> Result<(), Error> {
        let thread = &self.draft.threads[self.thread].0;
        let gpu = thread.gpu.ok_or_else(|| line.error("the host has no barriers"))?;
        let number = instruction.operands.iter().find_map(|operand| match operand {
            Operand::Integer(number) => Some(*number),
            _ => None,
        });
        let group = if instruction.has("warp") {
            format!("warp {gpu} {} {} {}", thread.cluster, thread.cta, thread.warp)
        } else if instruction.has("cluster") {
            format!("cluster {gpu} {}", thread.cluster)
        } else {
            let number = number.ok_or_else(|| line.error("a barrier needs a number"))?;
            format!("barrier {number} of {gpu} {} {}", thread.cluster, thread.cta)
        };
        if instruction.has("cluster") && instruction.has("relaxed") {
            return Err(line.error("a relaxed arrival synchronizes nothing and is not modelled"));
        }
        let (tells, hears) = (!instruction.has("wait"), !instruction.has("arrive"));
        let (told, heard) = self.visits.entry((self.thread, group.clone())).or_default();
        // An arrival and the wait for it are one visit of a cluster's barrier; elsewhere each instruction is one.
        let time = if tells { *told } else { *heard };
        let is_cluster = instruction.has("cluster");
        *told += usize::from(tells || !is_cluster);
        *heard += usize::from(hears || !is_cluster);
        self.push(Kind::Barrier { meeting: Meeting { group, time }, tells, hears });
        Ok(())
    }

    /// A barrier that one thread comes to alone is a mistake of the test's.
    fn check_barriers(&self, line: Line<'_>) -> Result<(), Error> {
        let events = &self.program.events;
        for event in events {
            let Kind::Barrier { meeting, .. } = &event.kind else { continue };
            let joins = |other: &&Event| {
                let there = matches!(&other.kind, Kind::Barrier { meeting: theirs, .. } if theirs == meeting);
                other.thread != event.thread && there
            };
            if !events.iter().any(|other| joins(&other)) {
                let name = &self.program.threads[event.thread].name;
                return Err(line.error(format!("{name} waits alone at {}", meeting.group)));
            }
        }
        Ok(())
    }

    /// A name that nothing uses is a mistake, but in a variant, which may have lost what used it. So is a chain of aliases.
    fn check_names(&self, line: Line<'_>) -> Result<(), Error> {
        let Draft { aliases, multicasts, pieces, is_variant, .. } = self.draft;
        if let Some((_, of)) = aliases.iter().find(|(_, of)| aliases.iter().any(|(name, _)| name == of)) {
            return Err(line.error(format!("`{of}` is an alias, and has none of its own")));
        }
        let used = |name: &str| {
            let accesses = || self.program.events.iter().filter_map(Event::access);
            let is_member = |access: &Access| access.address.0.split("->").any(|part| part == name);
            accesses().any(is_member) || aliases.iter().any(|(_, of)| *of == name)
        };
        let named = aliases.iter().map(|(name, _)| *name);
        let named = named.chain(multicasts.iter().map(|(name, _)| *name)).chain(pieces.iter().map(|(name, _)| *name));
        match named.into_iter().find(|name| !is_variant && !used(name)) {
            Some(name) => Err(line.error(format!("nothing accesses `{name}`"))),
            None => Ok(()),
        }
    }

    /// Refuses what could not be decided in reasonable time.
    fn check_size(&self, line: Line<'_>) -> Result<(), Error> {
        let accesses = || self.program.events.iter().filter_map(Event::access);
        let writers = |cell: &usize| {
            accesses().filter(|access| access.writes.is_some() && access.cells.contains(cell)).count() as u64
        };
        let choices = accesses().filter(|access| access.reads).flat_map(|access| &access.cells).map(|cell| {
            // A read-modify-write is counted as if it could read itself.
            writers(cell) + 1
        });
        let ways = choices.fold(1, u64::saturating_mul);
        if ways > MOST_WAYS {
            return Err(line.error(format!("its reads can read in {ways} ways, which takes too long to go through")));
        }
        Ok(())
    }

    /// Asynchronous bulk copies, as words of 8 bytes, and the waits for them.
    fn bulk(&mut self, instruction: &Instruction, line: Line<'_>) -> Result<(), Error> {
        if !instruction.has("bulk") {
            return Err(line.error(format!("`{}` is not modelled", line.text)));
        }
        if instruction.has("commit_group") {
            return Ok(());
        }
        match instruction.operands.as_slice() {
            [Operand::Integer(0)] if instruction.has("wait_group") => {
                self.push(Kind::AsyncWait { sources: instruction.has("read") });
                Ok(())
            }
            [Operand::Address(to, at), Operand::Address(from, start), Operand::Integer(bytes)] if bytes % 8 == 0 => {
                let shape = Shape { order: Order::Weak, scope: Scope::System, size: 8 };
                for index in 0..(*bytes / 8).min(MOST_EVENTS as u64) as usize {
                    let read = self.program.events.len();
                    let source = self.access(element((from, *start), index, &shape), &shape, line)?;
                    let target = self.access(element((to, *at), index, &shape), &shape, line)?;
                    let proxy = Proxy::Async;
                    self.push(Kind::Access(Access { proxy, reads: true, returns: true, ..source }));
                    self.push(Kind::Access(Access { proxy, writes: Some(Written::Copy(read)), ..target }));
                }
                Ok(())
            }
            _ => Err(line.error("expected two addresses and a multiple of 8 bytes, or a wait for group 0")),
        }
    }

    /// Divides locations into cells where accesses begin and end, and where the test says so, and gives each access its own.
    fn divide(&mut self) {
        let aliases: BTreeMap<&str, &str> = self.draft.aliases.iter().copied().collect();
        let location = |address: &str| {
            let name = address.split_once("->").map_or(address, |(_, member)| member);
            aliases.get(name).copied().unwrap_or(name).to_owned()
        };
        let mut cuts: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for access in self.program.events.iter().filter_map(Event::access) {
            let name = location(&access.address.0);
            let pieces = self.draft.pieces.iter().find(|(own, _)| *own == name).map(|&(_, bytes)| bytes);
            let (from, to) = (access.address.1, access.address.1 + access.size);
            let cuts = cuts.entry(name).or_default();
            cuts.extend([from, to]);
            cuts.extend((from..to).step_by(pieces.unwrap_or(access.size) as usize));
        }
        let cells = cuts.iter().flat_map(|(name, cuts)| {
            let ends = cuts.iter().skip(1);
            cuts.iter().zip(ends).map(|(&from, &to)| Cell { location: name.clone(), bytes: from..to })
        });
        self.program.cells = cells.collect();
        for event in &mut self.program.events {
            if let Kind::Access(access) = &mut event.kind {
                let (name, from) = (location(&access.address.0), access.address.1);
                let covers = |cell: &Cell| {
                    cell.location == name && from <= cell.bytes.start && cell.bytes.end <= from + access.size
                };
                let cells = self.program.cells.iter().enumerate().filter(|(_, cell)| covers(cell));
                access.cells = cells.map(|(index, _)| index).collect();
            }
        }
    }
}

/// The one instruction of a line.
fn instruction(line: Line<'_>) -> Result<Instruction, Error> {
    let module = ptx::parse(&format!(".entry k() {{\n{};\n}}", line.text));
    let module = module.map_err(|error| line.error(error.message))?;
    let body = module.functions.into_iter().next().and_then(|function| function.body).unwrap_or_default();
    let mut instructions = body.instructions.into_iter();
    match (instructions.next(), instructions.next()) {
        (Some(instruction), None) if instruction.guard.is_none() => Ok(instruction),
        _ => Err(line.error("expected one instruction without a guard")),
    }
}

/// The elements of a vector, or the scalar.
fn parts(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Group(parts) => parts,
        scalar => core::slice::from_ref(scalar),
    }
}

/// Where the element of a vector is.
fn element<'o>((base, offset): (&'o Operand, i64), index: usize, shape: &Shape) -> (&'o Operand, i64) {
    (base, offset.saturating_add(index as i64 * i64::from(shape.size)))
}

/// Order, scope and size of an access.
fn shape(instruction: &Instruction, line: Line<'_>) -> Result<Shape, Error> {
    let updates = instruction.opcode != "ld" && instruction.opcode != "st";
    let order = match order(instruction) {
        // What has no order is weak, but an update has one always.
        Order::Weak if updates && !instruction.has("weak") => Order::Relaxed,
        order => order,
    };
    let scope = scope(instruction).unwrap_or(if instruction.has("volatile") { Scope::System } else { Scope::Gpu });
    let bits = instruction.modifiers.last().map_or("", |last| last.trim_start_matches(|c: char| !c.is_ascii_digit()));
    let size = match bits {
        "8" => 1,
        "16" => 2,
        "16x2" | "32" => 4,
        "64" => 8,
        _ => return Err(line.error("the model has scalars of 8 to 64 bits")),
    };
    let vector = instruction.modifiers.iter().find_map(|modifier| match modifier.as_str() {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    });
    let values = instruction.operands.iter().find(|operand| !matches!(operand, Operand::Address(..)));
    let is_whole = values.is_none_or(|values| parts(values).len() == vector.unwrap_or(1));
    if is_whole { Ok(Shape { order, scope, size }) } else { Err(line.error("the vector has another length")) }
}

fn order(instruction: &Instruction) -> Order {
    let named = [
        ("relaxed", Order::Relaxed),
        ("volatile", Order::Relaxed),
        ("acquire", Order::Acquire),
        ("release", Order::Release),
        ("acq_rel", Order::AcquireRelease),
        ("sc", Order::Sequential),
    ];
    named.into_iter().find(|(name, _)| instruction.has(name)).map_or(Order::Weak, |(_, order)| order)
}

fn scope(instruction: &Instruction) -> Option<Scope> {
    let named = [("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::System)];
    named.into_iter().find(|(name, _)| instruction.has(name)).map(|(_, scope)| scope)
}

fn operation(instruction: &Instruction, line: Line<'_>) -> Result<Update, Error> {
    let named = [
        ("add", Update::Add),
        ("min", Update::Min),
        ("max", Update::Max),
        ("and", Update::And),
        ("or", Update::Or),
        ("xor", Update::Xor),
        ("exch", Update::Exchange),
        ("inc", Update::Increment),
    ];
    let found = named.into_iter().find(|(name, _)| instruction.has(name));
    found.map(|(_, update)| update).ok_or_else(|| line.error("this update is not modelled"))
}
