//! Summaries of functions: what differs between the threads of a warp in what they are called with, and in what they return.

use std::collections::{HashMap, HashSet};

use super::{Divergence, Graph};
use crate::ptx::{Body, Function, Operand};

/// Of functions that are called in this module only, by name.
#[derive(Default)]
pub(crate) struct Summaries<'a>(HashMap<&'a str, Summary>);

/// Which parameters differ at some call, and whether what is returned may where no parameter does.
struct Summary {
    parameters: Vec<bool>,
    returns: bool,
}

impl<'a> Summaries<'a> {
    /// At first nothing differs. Where anything is called by its address, that may be any function: nothing is known of any.
    pub(crate) fn new(functions: &'a [Function]) -> Self {
        let with_code = |function: &&Function| function.body.is_some() && !function.is_entry;
        let known = functions.iter().filter(with_code).map(|function| {
            let parameters = vec![false; function.parameters.len()];
            (function.name.as_str(), Summary { parameters, returns: false })
        });
        let declared: HashSet<_> = functions.iter().map(|function| function.name.as_str()).collect();
        let all_by_name = all_calls(functions).all(|call| call.callee.is_some_and(|name| declared.contains(name)));
        Self(if all_by_name { known.collect() } else { HashMap::new() })
    }

    /// All parameters may differ of a function that nothing calls.
    pub(crate) fn add_unknown_callers(&mut self, functions: &'a [Function]) {
        let called: HashSet<_> = all_calls(functions).filter_map(|call| call.callee).collect();
        for (_, summary) in self.0.iter_mut().filter(|(name, _)| !called.contains(**name)) {
            summary.parameters.fill(true);
        }
    }

    /// Whether a function may be called with something that differs as this parameter.
    pub(super) fn parameter_differs(&self, function: &str, index: usize) -> bool {
        self.0.get(function).is_none_or(|known| known.parameters.get(index).copied().unwrap_or(true))
    }

    /// Whether a function may be called with anything that differs.
    pub(crate) fn any_parameter_differs(&self, function: &str) -> bool {
        self.0.get(function).is_none_or(|known| known.parameters.contains(&true))
    }

    /// Whether what a function returns may differ though nothing does that it is called with.
    pub(super) fn result_differs(&self, function: &str) -> bool {
        self.0.get(function).is_none_or(|known| known.returns)
    }

    /// Adds what a function returns where no parameter differs. Whether more may differ now.
    pub(crate) fn add_returned(&mut self, function: &Function, body: &Body, graph: &Graph, found: &Divergence) -> bool {
        let Some(known) = self.0.get_mut(function.name.as_str()).filter(|known| !known.returns) else { return false };
        let stores = stores_of_parameters(body);
        let mut returned = function.returns.iter().filter_map(|result| stores.get(result.name.as_str())).flatten();
        // Also a constant, where only some threads come by its store.
        known.returns =
            returned.any(|&index| found.reads_varying(&body.instructions[index]) || found.is_divided(graph, index));
        known.returns
    }

    /// Adds what a function calls others with. Gives the functions of which more may differ now.
    pub(crate) fn add_given(&mut self, body: &'a Body, graph: &Graph, found: &Divergence) -> Vec<&'a str> {
        let stores = stores_of_parameters(body);
        let mut changed = Vec::new();
        for call in calls(body) {
            let Some((name, known)) = call.callee.and_then(|name| Some((name, self.0.get_mut(name)?))) else {
                continue;
            };
            let given = call.given.iter().copied().chain(std::iter::repeat(None));
            for (given, known) in given.zip(&mut known.parameters) {
                let one_for_all = call
                    .stores(given, &stores, graph)
                    .is_some_and(|stores| !stores.iter().any(|&index| found.reads_varying(&body.instructions[index])));
                if !one_for_all && !std::mem::replace(known, true) {
                    changed.push(name);
                }
            }
        }
        changed
    }
}

/// A call: of which function, where it is known, what it is given and what it returns through.
pub(super) struct CallSite<'b> {
    index: usize,
    pub(super) callee: Option<&'b str>,
    pub(super) given: Vec<Option<&'b str>>,
    pub(super) returned: Vec<&'b str>,
}

impl CallSite<'_> {
    /// The stores to a variable that it is given. `None` where it is given something that may differ whatever they store: in no variable, in
    /// one that nothing stores to, or by a store that not all who call need have come by.
    pub(super) fn stores<'s>(
        &self,
        given: Option<&str>,
        stores: &'s HashMap<&str, Vec<usize>>,
        graph: &Graph,
    ) -> Option<&'s [usize]> {
        let stores = stores.get(given?)?;
        let here = graph.block_of(self.index);
        stores.iter().all(|&store| graph.block_of(store) == here).then_some(stores)
    }
}

/// The calls in a body.
pub(super) fn calls(body: &Body) -> impl Iterator<Item = CallSite<'_>> {
    let calls = body.instructions.iter().enumerate().filter(|(_, instruction)| instruction.opcode == "call");
    calls.map(|(index, call)| {
        let operands = &call.operands;
        let place = operands.iter().position(|operand| !matches!(operand, Operand::Group(_)));
        let place = place.unwrap_or(operands.len());
        let returned = place.checked_sub(1).and_then(|before| operands.get(before));
        let returned = group(returned).iter().filter_map(symbol).collect();
        let given = group(operands.get(place + 1)).iter().map(symbol).collect();
        CallSite { index, callee: operands.get(place).and_then(symbol), given, returned }
    })
}

fn all_calls(functions: &[Function]) -> impl Iterator<Item = CallSite<'_>> {
    functions.iter().filter_map(|function| function.body.as_ref()).flat_map(calls)
}

fn group(operand: Option<&Operand>) -> &[Operand] {
    match operand {
        Some(Operand::Group(operands)) => operands,
        _ => &[],
    }
}

fn symbol(operand: &Operand) -> Option<&str> {
    match operand {
        Operand::Symbol(name, _) => Some(name),
        _ => None,
    }
}

/// The stores to each variable in parameter space.
pub(super) fn stores_of_parameters(body: &Body) -> HashMap<&str, Vec<usize>> {
    let mut stores: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, instruction) in body.instructions.iter().enumerate() {
        let is_of_parameter = || instruction.modifiers.iter().any(|modifier| modifier.starts_with("param"));
        if let ("st", true, Some((Operand::Symbol(name, _), _))) =
            (instruction.opcode.as_str(), is_of_parameter(), instruction.address())
        {
            stores.entry(name).or_default().push(index);
        }
    }
    stores
}

#[cfg(test)]
mod tests {
    use crate::ptx::parse;
    use crate::rules::lint;

    /// Where the kernel gives a function what `given` computes in `%r1` and branches by what that returns: which functions have a barrier
    /// that some threads only come by.
    fn diverging(given: &str, more: &str) -> Vec<&'static str> {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n\
             .func (.param .b32 back) own(.param .b32 own_0)\n{{ .reg .pred %p<9>; .reg .b32 %r<9>;\n\
             ld.param.b32 %r1, [own_0]; setp.eq.b32 %p1, %r1, 0; @%p1 bra A; bar.sync 0; A: st.param.b32 [back], %r1; ret; }}\n\
             {more}\n\
             .visible .entry k(.param .b32 k_0)\n{{ .reg .pred %p<9>; .reg .b32 %r<9>;\n\
             {given}\n\
             {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), own, (a); ld.param.b32 %r2, [b]; }}\n\
             setp.eq.b32 %p1, %r2, 0; @%p1 bra A; bar.sync 0; A: ret; }}\n"
        );
        let module = parse(&text).expect("PTX");
        let kernel = text.find(".entry k(").expect("a kernel");
        let findings = lint(&module);
        findings.iter().map(|finding| if finding.span.start > kernel { "k" } else { "own" }).collect()
    }

    #[test]
    fn what_all_calls_give_alike_does_not_differ() {
        assert_eq!(diverging("ld.param.b32 %r1, [k_0];", ""), [""; 0]);
        assert_eq!(diverging("mov.u32 %r1, %ctaid.x;", ""), [""; 0]);
    }

    #[test]
    fn what_one_call_gives_each_thread_differs_in_all() {
        assert_eq!(diverging("mov.u32 %r1, %tid.x;", ""), ["own", "k"]);
    }

    #[test]
    fn what_is_returned_differs_where_the_call_gives_what_does() {
        let other = ".visible .entry other()\n{ .reg .b32 %r<9>; mov.u32 %r1, %laneid; \
                     { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), own, (a); } ret; }";
        assert_eq!(diverging("ld.param.b32 %r1, [k_0];", other), ["own"], "what another call gives is no matter here");
    }

    #[test]
    fn what_differs_in_a_function_itself_differs_behind_every_call() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
                    .func (.param .b32 back) inner()\n{ .reg .b32 %r<9>; mov.u32 %r1, %laneid; st.param.b32 [back], %r1; ret; }\n\
                    .func (.param .b32 back) outer()\n{ .reg .b32 %r<9>; { .param .b32 b; call.uni (b), inner, (); \
                    ld.param.b32 %r1, [b]; } st.param.b32 [back], %r1; ret; }\n\
                    .visible .entry k()\n{ .reg .pred %p<9>; .reg .b32 %r<9>; { .param .b32 b; call.uni (b), outer, (); \
                    ld.param.b32 %r1, [b]; } setp.eq.b32 %p1, %r1, 0; @%p1 bra A; bar.sync 0; A: ret; }\n";
        let findings = lint(&parse(text).expect("PTX"));
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        let related: Vec<_> = finding.related.iter().map(|(span, _)| &text[span.start..span.end]).collect();
        assert_eq!(related, ["@%p1 bra A;", "ld.param.b32 %r1, [b];"]);
    }

    #[test]
    fn what_is_given_in_a_register_is_taken_to_differ() {
        let other = ".visible .entry other()\n{ .reg .b32 %r<9>; mov.u32 %r1, %laneid; \
                     { .param .b32 b; call.uni (b), own, (%r1); } ret; }";
        assert_eq!(diverging("ld.param.b32 %r1, [k_0];", other), ["own"]);
    }

    #[test]
    fn what_is_stored_on_one_way_only_is_taken_to_differ() {
        let given = "mov.u32 %r3, %laneid; setp.eq.b32 %p2, %r3, 0; mov.b32 %r1, 0; .param .b32 a; \
                     st.param.b32 [a], 1; @%p2 bra B; st.param.b32 [a], 0; B: \
                     { .param .b32 b; call.uni (b), own, (a); ld.param.b32 %r4, [b]; } ";
        assert_eq!(diverging(given, ""), ["own"], "the call behind it gives all the same");
    }

    #[test]
    fn a_call_by_address_may_be_of_any_function() {
        let other = ".visible .entry other()\n{ .reg .b64 %rd<9>; mov.u64 %rd1, own; \
                     { .param .b32 a; .param .b32 b; p: .callprototype (.param .b32 _) _ (.param .b32 _); \
                     call (b), %rd1, (a), p; } ret; }";
        assert_eq!(diverging("ld.param.b32 %r1, [k_0];", other), ["own", "k"]);
    }
}
