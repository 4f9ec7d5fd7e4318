//! Which values differ between the threads of a warp, and which blocks only some of them enter.
//!
//! Approximate on the safe side, with three exceptions that are what programs rely on: kernel parameters are the same for
//! everyone, a plain load from an address that all threads share gives all of them the same value, and blocks have one
//! dimension, so that a warp's threads have the same `%tid.x / 32`. Loads that take part in synchronisation (`.relaxed`,
//! `.acquire`, `.volatile`, atomics) may differ from thread to thread. What calls give and return is in [`Summaries`].

use core::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use super::address::named_space;
use super::definitions::Definitions;
use super::graph::Graph;
use super::regions::{Inside, Regions};
use super::summaries::{Summaries, calls, stores_of_parameters};
use crate::ptx::{Body, Function, Instruction, Operand, RegisterId, Space};

/// What differs between the threads of a warp.
pub(crate) struct Divergence {
    varying: Vec<Option<Reason>>,
    /// For every block that only some threads enter, the branch that decides.
    cause: Vec<Option<usize>>,
}

/// Why a register's value differs.
#[derive(Clone, Copy)]
struct Reason {
    /// What wrote such a value first.
    writer: usize,
    /// How many registers were known to differ then: those that this comes from are among them.
    known: usize,
}

impl Divergence {
    /// Nothing differs.
    pub(crate) fn none(body: &Body, graph: &Graph) -> Self {
        Self { varying: vec![None; body.registers.len()], cause: vec![None; graph.len()] }
    }

    pub(crate) fn new(
        function: &Function,
        body: &Body,
        graph: &Graph,
        definitions: &Definitions<'_>,
        known: &Summaries<'_>,
    ) -> Self {
        let parameters = Parameters::new(function, body, graph, known);
        let mut found = Self::none(body, graph);
        // A value written on some way only, or in a loop that threads leave at different times, differs afterwards.
        let mut unequal_times = vec![false; graph.len()];
        let mut decided = vec![false; graph.len()];
        let mut regions = Regions::new(graph);
        let readers = readers(body, &parameters);
        let mut known_to_vary = 0;
        // Rounds in the order of the text: first the instructions of which something has changed that they depend on, then
        // the branches. The order decides which of several branches is named as the cause.
        let mut due: Vec<usize> = (0..body.instructions.len()).collect();
        while !due.is_empty() {
            let mut branches = BTreeSet::new();
            let mut now: BinaryHeap<Reverse<usize>> = due.drain(..).map(Reverse).collect();
            while let Some(Reverse(index)) = now.pop() {
                let (instruction, block) = (&body.instructions[index], graph.block_of(index));
                let differs = found.guard_varies(instruction)
                    || !is_of_the_warp(definitions, instruction) && found.result_varies(body, &parameters, instruction);
                for register in instruction.written() {
                    let is_merged = found.cause[block].is_some() && definitions.count(register) > 1;
                    if !(differs || is_merged || unequal_times[block]) || found.varies(register) {
                        continue;
                    }
                    found.varying[register.0] = Some(Reason { writer: index, known: known_to_vary });
                    known_to_vary += 1;
                    for &reader in &readers[register.0] {
                        if reader > index {
                            now.push(Reverse(reader))
                        } else {
                            due.push(reader)
                        }
                        let block = graph.block_of(reader);
                        if reader == graph.last(block) && !decided[block] {
                            branches.insert(block);
                        }
                    }
                }
            }
            for block in branches {
                let last = graph.last(block);
                if !found.decides_unevenly(&body.instructions[last]) {
                    continue;
                }
                decided[block] = true;
                for Inside { block, loops } in regions.add(block) {
                    let is_new = found.cause[block].is_none();
                    found.cause[block].get_or_insert(last);
                    if is_new || (loops && !unequal_times[block]) {
                        due.extend(graph.instructions(block));
                    }
                    unequal_times[block] |= loops;
                }
            }
        }
        found
    }

    /// The branch because of which only some threads come by this instruction; its own guard counts.
    pub(crate) fn cause(&self, body: &Body, graph: &Graph, instruction: usize) -> Option<usize> {
        let own = self.guard_varies(&body.instructions[instruction]).then_some(instruction);
        own.or(self.cause[graph.block_of(instruction)])
    }

    /// Whether only some threads come by an instruction.
    pub(super) fn is_divided(&self, graph: &Graph, instruction: usize) -> bool {
        self.cause[graph.block_of(instruction)].is_some()
    }

    /// Whether an instruction reads anything that differs, its guard too.
    pub(super) fn reads_varying(&self, instruction: &Instruction) -> bool {
        depends_on(instruction).any(|register| self.varies(register))
    }

    fn guard_varies(&self, instruction: &Instruction) -> bool {
        instruction.guard.is_some_and(|guard| self.varies(guard.register))
    }

    /// Whether a register's value differs from thread to thread.
    pub(crate) fn varies(&self, register: RegisterId) -> bool {
        self.varying[register.0].is_some()
    }

    /// Where the value comes from because of which only some threads go another way at this branch, or come by this instruction.
    pub(crate) fn source(&self, body: &Body, graph: &Graph, branch: usize) -> Option<usize> {
        let (mut at, mut known) = (branch, usize::MAX);
        loop {
            let instruction = &body.instructions[at];
            let branch = self.cause[graph.block_of(at)];
            let of_branch = branch.and_then(|branch| body.instructions[branch].guard).map(|guard| guard.register);
            let earlier = |register: RegisterId| self.varying[register.0].filter(|reason| reason.known < known);
            let Some(reason) = depends_on(instruction).chain(of_branch).find_map(earlier) else { break };
            (at, known) = (reason.writer, reason.known);
        }
        (at != branch).then_some(at)
    }

    /// Whether the last instruction of a block sends some threads another way than others.
    pub(crate) fn decides_unevenly(&self, last: &Instruction) -> bool {
        let index_varies = last.opcode == "brx" && last.read().into_iter().any(|register| self.varies(register));
        self.guard_varies(last) || index_varies
    }

    fn result_varies(&self, body: &Body, parameters: &Parameters<'_>, instruction: &Instruction) -> bool {
        let reads_varying = instruction.read().into_iter().any(|register| self.varies(register));
        let whole_warp =
            || matches!(instruction.operands.last(), Some(Operand::Integer(mask)) if *mask as u32 == u32::MAX);
        match instruction.opcode.as_str() {
            "atom" | "match" | "activemask" | "elect" | "mbarrier" | "multimem" | "ldmatrix" | "movmatrix" | "mma"
            | "wmma" => true,
            "bar" | "barrier" => false,
            "vote" | "redux" => !whole_warp(),
            "shfl" => {
                let lane = instruction.operands.get(2);
                let one_lane = !matches!(lane, Some(Operand::Register(lane)) if self.varies(*lane));
                !(instruction.has("idx") && one_lane && whole_warp())
            }
            "ld" | "ldu" => reads_varying || self.load_varies(body, parameters, instruction),
            _ => reads_varying || instruction.operands.iter().any(is_varying_special),
        }
    }

    fn load_varies(&self, body: &Body, parameters: &Parameters<'_>, load: &Instruction) -> bool {
        match named_space(&load.modifiers) {
            Some(Space::Param) => parameters.of_load(load).is_none_or(|parameter| {
                parameter.differs || parameter.stores.iter().any(|&store| self.reads_varying(&body.instructions[store]))
            }),
            Some(Space::Local) => true,
            _ => ["relaxed", "acquire", "volatile", "mmio"].iter().any(|order| load.has(order)),
        }
    }
}

fn depends_on(instruction: &Instruction) -> impl Iterator<Item = RegisterId> {
    instruction.guard.map(|guard| guard.register).into_iter().chain(instruction.read())
}

/// For each register the instructions that depend on it.
fn readers(body: &Body, parameters: &Parameters<'_>) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); body.registers.len()];
    for (index, instruction) in body.instructions.iter().enumerate() {
        let stores = parameters.of_load(instruction).map_or(&[][..], |parameter| &parameter.stores);
        for register in
            depends_on(instruction).chain(stores.iter().flat_map(|&store| depends_on(&body.instructions[store])))
        {
            readers[register.0].push(index);
        }
    }
    readers
}

/// The variables in parameter space that are read, by name.
struct Parameters<'f>(HashMap<&'f str, Parameter>);

/// Whether what a variable holds differs in any case, and the stores because of which it may.
struct Parameter {
    differs: bool,
    stores: Vec<usize>,
}

impl<'f> Parameters<'f> {
    /// A kernel's come from the launch, the same for all; a function's from its calls. What calls in it return comes from the functions and
    /// from what these are given.
    fn new(function: &'f Function, body: &'f Body, graph: &Graph, known: &Summaries<'_>) -> Self {
        let mut all: HashMap<_, _> = function
            .parameters
            .iter()
            .enumerate()
            .map(|(index, parameter)| {
                let differs = !function.is_entry && known.parameter_differs(&function.name, index);
                (parameter.name.as_str(), Parameter { differs, stores: Vec::new() })
            })
            .collect();
        let stores = stores_of_parameters(body);
        for call in calls(body) {
            let given: Option<Vec<_>> = call.given.iter().map(|&given| call.stores(given, &stores, graph)).collect();
            let differs = given.is_none() || call.callee.is_none_or(|name| known.result_differs(name));
            // Of several calls that return in one variable, any may be the last.
            for &name in &call.returned {
                let returned = all.entry(name).or_insert(Parameter { differs: false, stores: Vec::new() });
                returned.differs |= differs;
                returned.stores.extend(given.iter().flatten().copied().flatten());
            }
        }
        Self(all)
    }

    /// The variable that an instruction loads, where it is one of these.
    fn of_load(&self, load: &Instruction) -> Option<&Parameter> {
        let (Operand::Symbol(name, _), _) = load.address()? else { return None };
        self.0.get(name.as_str()).filter(|_| load.opcode == "ld" && named_space(&load.modifiers) == Some(Space::Param))
    }
}

/// Whether the result follows from what the indices of a warp's threads have in common.
fn is_of_the_warp<'a>(definitions: &Definitions<'a>, instruction: &'a Instruction) -> bool {
    let [_, index, Operand::Integer(by)] = instruction.operands.as_slice() else { return false };
    let leaves_out_the_lane = match instruction.opcode.as_str() {
        "shr" => *by >= 5,
        "and" => by % 32 == 0,
        "div" => *by > 0 && by % 32 == 0 && instruction.modifiers.iter().any(|kind| kind.starts_with('u')),
        // A bound between two warps.
        "setp" if instruction.has("lt") || instruction.has("ge") => by % 32 == 0,
        "setp" if instruction.has("le") || instruction.has("gt") => by % 32 == 31,
        _ => false,
    };
    leaves_out_the_lane && is_thread_index(definitions, index)
}

/// Whether an operand is `%tid.x`, by a few copies and integer conversions too.
fn is_thread_index<'a>(definitions: &Definitions<'a>, mut operand: &'a Operand) -> bool {
    const MOST: usize = 8;
    for _ in 0..MOST {
        let Operand::Register(register) = operand else { return false };
        let Some(copy) = definitions.only(*register) else { return false };
        // Made for all threads, and of integers: no `f32` or `bf16`.
        let is_whole = copy.guard.is_none() && copy.modifiers.iter().all(|kind| !kind.contains('f'));
        match (copy.opcode.as_str(), copy.operands.as_slice()) {
            ("mov", [_, Operand::Special(name)]) => return is_whole && name == "%tid.x",
            ("mov" | "cvt", [_, from]) if is_whole => operand = from,
            _ => return false,
        }
    }
    false
}

fn is_varying_special(operand: &Operand) -> bool {
    let Operand::Special(name) = operand else { return false };
    ["%tid", "%laneid", "%lanemask", "%clock", "%globaltimer"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::ptx::parse;

    /// Whether the barrier in `text` is reached by some threads only.
    fn diverges(text: &str) -> bool {
        let ptx = format!(
            ".entry k(.param .u64 k_param_0) {{ .reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;\n{text}\n}}"
        );
        let module = parse(&ptx).expect("PTX");
        let function = &module.functions[0];
        let body = function.body.as_ref().expect("a body");
        let graph = Graph::new(body, &HashSet::new());
        let (globals, known) = (HashMap::new(), Summaries::default());
        let divergence = Divergence::new(function, body, &graph, &Definitions::new(&globals, body), &known);
        let barrier = body.instructions.iter().position(|instruction| instruction.opcode == "bar").expect("a barrier");
        divergence.cause(body, &graph, barrier).is_some()
    }

    #[test]
    fn thread_indices_diverge_and_parameters_do_not() {
        let branch = "setp.eq.b32 %p1, %r1, 0; @%p1 bra A; bar.sync 0; A: ret;";
        assert!(diverges(&format!("mov.u32 %r1, %tid.x; {branch}")));
        assert!(!diverges(&format!("mov.u32 %r1, %ctaid.x; {branch}")));
        assert!(!diverges(&format!("ld.param.b32 %r1, [k_param_0]; {branch}")));
        assert!(!diverges(&format!("ld.param.b64 %rd1, [k_param_0]; ld.global.b32 %r1, [%rd1]; {branch}")));
        assert!(diverges(&format!("ld.param.b64 %rd1, [k_param_0]; ld.acquire.sys.global.b32 %r1, [%rd1]; {branch}")));
    }

    #[test]
    fn what_depends_on_the_warp_alone_does_not_diverge() {
        let branch = "setp.eq.b32 %p1, %r2, 0; @%p1 bra A; bar.sync 0; A: ret;";
        let of = |how: &str| diverges(&format!("mov.u32 %r1, %tid.x; {how} {branch}"));
        assert!(!of("shr.u32 %r2, %r1, 5;") && of("shr.u32 %r2, %r1, 4;"));
        assert!(!of("and.b32 %r2, %r1, 992;") && of("and.b32 %r2, %r1, 1008;"));
        assert!(!of("div.u32 %r2, %r1, 96;") && of("div.u32 %r2, %r1, 48;"));
        assert!(!of("cvt.u64.u32 %rd1, %r1; shr.u64 %rd2, %rd1, 6; cvt.u32.u64 %r2, %rd2;"));
        assert!(!of("setp.gt.u32 %p2, %r1, 31; selp.b32 %r2, 1, 0, %p2;"));
        assert!(of("setp.ge.u32 %p2, %r1, 31; selp.b32 %r2, 1, 0, %p2;"));
        assert!(of("add.s32 %r3, %r1, 1; shr.u32 %r2, %r3, 5;"), "of threads 31 and 32 it is the same");
        assert!(of("cvt.rn.bf16.u32 %r3, %r1; shr.u32 %r2, %r3, 5;"), "the mantissa differs");
        assert!(of("setp.eq.b32 %p2, %r1, 7; @%p2 mov.u32 %r3, %r1; shr.u32 %r2, %r3, 5;"), "one thread's alone");
        assert!(of("mov.u32 %r3, %tid.y; shr.u32 %r2, %r3, 5;"));
        assert!(
            !of("mov.b32 %r3, %r4; mov.b32 %r4, %r3; shr.u32 %r2, %r3, 5;"),
            "nobody's index, and no end of copies"
        );
    }

    #[test]
    fn what_the_whole_warp_agrees_on_does_not_diverge() {
        let branch = "@%p2 bra A; bar.sync 0; A: ret;";
        let own = "mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0;";
        assert!(!diverges(&format!("{own} vote.sync.any.pred %p2, %p1, -1; {branch}")));
        assert!(diverges(&format!("{own} vote.sync.any.pred %p2, %p1, 15; {branch}")));
        assert!(!diverges(&format!("{own} shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; setp.eq.b32 %p2, %r2, 0; {branch}")));
        assert!(diverges(&format!("{own} shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; setp.eq.b32 %p2, %r2, 0; {branch}")));
    }

    #[test]
    fn values_merged_behind_a_divergent_branch_diverge() {
        let text = "mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0; mov.b32 %r2, 0; @%p1 bra A; mov.b32 %r2, 1; \
                    A: setp.eq.b32 %p2, %r2, 0; @%p2 bra B; bar.sync 0; B: ret;";
        assert!(diverges(text));
    }

    #[test]
    fn after_a_divergent_loop_all_are_together_but_its_counter_differs() {
        let poll =
            "mov.u32 %r1, %tid.x; mov.b32 %r2, 0; A: add.s32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra A;";
        assert!(!diverges(&format!("{poll} bar.sync 0; ret;")));
        assert!(diverges(&format!("{poll} setp.eq.b32 %p2, %r2, 7; @%p2 bra B; bar.sync 0; B: ret;")));
    }

    #[test]
    fn a_guarded_barrier_is_a_branch() {
        assert!(diverges("mov.u32 %r1, %laneid; setp.eq.b32 %p1, %r1, 0; @%p1 bar.sync 0; ret;"));
    }
}
