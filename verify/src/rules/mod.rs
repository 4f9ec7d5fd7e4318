//! What the linter looks for.

mod aligned;
mod arms;
mod extreme;
mod linkage;
mod multimem;
mod order;
mod width;

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::allow::NEEDLESS_ALLOW;
use crate::flow::{Definitions, Divergence, Graph, Summaries, spaces};
use crate::ptx::{Body, Function, Instruction, Module, Space, Span};

/// One thing the linter looks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, for reports and for people.
    pub id: &'static str,
    /// What goes wrong where it is broken.
    pub why: &'static str,
    /// What to write instead.
    pub help: &'static str,
}

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// Where in the text.
    pub span: Span,
    /// What is there.
    pub message: String,
    /// Other places that have to do with it, and how.
    pub related: Vec<(Span, String)>,
}

/// Every rule.
pub const RULES: &[&Rule] = &[
    &order::UNQUALIFIED_ATOMIC,
    &order::NARROW_SCOPE,
    &order::NON_COHERENT_LOAD,
    &order::VOLATILE_ACCESS,
    &order::DEFAULT_SCOPE_FENCE,
    &aligned::DIVERGENT_BARRIER,
    &aligned::DIVERGENT_MATRIX,
    &arms::STORE_IN_TWO_ARMS,
    &width::MIXED_WIDTH_SIGNAL,
    &extreme::NARROW_MINIMUM,
    &multimem::MULTIMEM_WITHOUT_FENCE,
    &linkage::UNRESOLVED_FUNCTION,
    &linkage::STACK_FRAME,
    &NEEDLESS_ALLOW,
];

/// Checks a module against every rule; the findings are in the order of the text, those too that comments in it allow ([`Report`]).
///
/// [`Report`]: crate::Report
pub fn lint(module: &Module) -> Vec<Finding> {
    let mut findings = Vec::new();
    let never_return: HashSet<&str> = module
        .functions
        .iter()
        .filter(|function| function.never_returns)
        .map(|function| function.name.as_str())
        .collect();
    let globals = spaces(&module.variables);
    let mut codes: Vec<Code<'_>> =
        module.functions.iter().filter_map(|function| Code::new(&globals, function, &never_return)).collect();
    follow_calls(module, &mut codes);
    let aligned = aligned::functions(&codes);
    for code in &codes {
        for instruction in &code.body.instructions {
            order::check(code, instruction, &mut findings);
        }
        aligned::check(code, &aligned, &mut findings);
        arms::check(code, &mut findings);
        width::check(code, &mut findings);
        extreme::check(code, &mut findings);
        multimem::check(code, &mut findings);
    }
    linkage::check_unresolved(module, &mut findings);
    linkage::check_stack(&codes, &mut findings);
    findings.sort_by_key(|finding| (finding.span, finding.rule.id));
    findings
}

/// A function with code, and what is known about its flow.
struct Code<'a> {
    function: &'a Function,
    body: &'a Body,
    graph: Graph,
    definitions: Definitions<'a>,
    divergence: Divergence,
}

/// Finds what differs in every function: first what each returns where it is called with the same by all, again where what it calls returns
/// more; then what its calls give it.
fn follow_calls<'a>(module: &'a Module, codes: &mut [Code<'a>]) {
    let mut summaries = Summaries::new(&module.functions);
    let mut own: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut callers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, code) in codes.iter().enumerate() {
        own.entry(&code.function.name).or_default().push(index);
        for called in code.body.instructions.iter().filter_map(callee) {
            callers.entry(called).or_default().push(index);
        }
    }
    let all = || (0..codes.len()).collect::<BTreeSet<_>>();
    let (mut due, mut next) = (all(), all());
    while let Some(index) = due.pop_first() {
        let code = &mut codes[index];
        code.find(&summaries);
        if summaries.add_returned(code.function, code.body, &code.graph, &code.divergence) {
            due.extend(callers.get(code.function.name.as_str()).into_iter().flatten());
        }
    }
    summaries.add_unknown_callers(&module.functions);
    while let Some(index) = next.pop_first() {
        let code = &mut codes[index];
        if !code.function.is_entry && summaries.any_parameter_differs(&code.function.name) {
            code.find(&summaries);
        }
        for changed in summaries.add_given(code.body, &code.graph, &code.divergence) {
            next.extend(own.get(changed).into_iter().flatten());
        }
    }
}

impl<'a> Code<'a> {
    fn new(globals: &'a HashMap<&'a str, Space>, function: &'a Function, never_return: &HashSet<&str>) -> Option<Self> {
        let body = function.body.as_ref()?;
        let graph = Graph::new(body, never_return);
        let definitions = Definitions::new(globals, body);
        let divergence = Divergence::none(body, &graph);
        Some(Self { function, body, graph, definitions, divergence })
    }

    /// Finds what differs, with what is known of functions.
    fn find(&mut self, known: &Summaries<'_>) {
        self.divergence = Divergence::new(self.function, self.body, &self.graph, &self.definitions, known);
    }
}

/// The function that an instruction calls by name.
fn callee(instruction: &Instruction) -> Option<&str> {
    use crate::ptx::Operand;
    let is_call = instruction.opcode == "call";
    instruction.operands.iter().filter(|_| is_call).find_map(|operand| match operand {
        Operand::Symbol(name, _) => Some(name.as_str()),
        _ => None,
    })
}

impl Rule {
    pub(crate) fn at(&'static self, span: Span, message: String) -> Finding {
        Finding { rule: self, span, message, related: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_distinct_names_in_kebab_case() {
        let names: HashSet<_> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(names.len(), RULES.len());
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }
}
