//! All executions of a program, one by one.

use core::ops::ControlFlow;

use super::model::{Model, Orders, Sources};
use super::program::{Comparison, Program, Term};
use super::relation::Relation;
use super::values::{Values, values};

/// One execution that the axioms allow.
pub(super) struct Execution<'e> {
    pub(super) sources: &'e Sources,
    pub(super) values: &'e Values,
    pub(super) orders: &'e Orders,
    pub(super) coherence: &'e Relation,
    /// Which events have written.
    pub(super) writes: &'e [bool],
}

/// Looks for executions.
pub(super) struct Search<'a> {
    pub(super) model: &'a Model<'a>,
    /// Whether only those count that satisfy the test's condition.
    pub(super) to_condition: bool,
    /// Whether load buffering is forbidden.
    pub(super) no_buffering: bool,
    /// How many combinations of reads, fence order and coherence order were looked at.
    pub(super) candidates: u64,
}

impl Search<'_> {
    /// Calls `visit` with every execution until it breaks.
    pub(super) fn run(&mut self, visit: &mut dyn FnMut(&Execution<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let program = self.model.program;
        let mut slots = Vec::new();
        let mut sources: Sources = vec![Vec::new(); program.events.len()];
        for (read, event) in program.events.iter().enumerate() {
            let Some(access) = event.access().filter(|access| access.reads) else { continue };
            sources[read] = vec![None; access.cells.len()];
            for (index, cell) in access.cells.iter().enumerate() {
                let writes = |&write: &usize| {
                    let covers = program.events[write]
                        .access()
                        .is_some_and(|access| access.writes.is_some() && access.cells.contains(cell));
                    covers && write != read
                };
                let choices = core::iter::once(None).chain((0..program.events.len()).filter(writes).map(Some));
                slots.push((read, index, choices.collect::<Vec<_>>()));
            }
        }
        self.choose_sources(&slots, &mut sources, visit)
    }

    fn choose_sources(
        &mut self,
        slots: &[(usize, usize, Vec<Option<usize>>)],
        sources: &mut Sources,
        visit: &mut dyn FnMut(&Execution<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(((read, index, choices), later)) = slots.split_first() else { return self.values(sources, visit) };
        for &choice in choices {
            sources[*read][*index] = choice;
            self.choose_sources(later, sources, visit)?;
        }
        ControlFlow::Continue(())
    }

    /// Goes on if the values are what the test asks for.
    fn values(
        &mut self,
        sources: &Sources,
        visit: &mut dyn FnMut(&Execution<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let program = self.model.program;
        let Ok(values) = values(program, sources) else { return ControlFlow::Continue(()) };
        let holds = |comparison: &Comparison| match &comparison.left {
            Term::Register(register) => comparison.is.holds(values.register(register), comparison.right),
            Term::Final(_) => true,
        };
        let may_satisfy = || program.condition.iter().any(|all| all.iter().all(holds));
        let is_buffered = || self.no_buffering && self.model.is_buffered(sources);
        if !program.assumed.iter().all(holds) || (self.to_condition && !may_satisfy()) || is_buffered() {
            return ControlFlow::Continue(());
        }
        let fences = Relation::new(program.events.len());
        self.choose_fences(&self.model.fence_pairs(), fences, sources, &values, visit)
    }

    fn choose_fences(
        &mut self,
        pairs: &[(usize, usize)],
        fences: Relation,
        sources: &Sources,
        values: &Values,
        visit: &mut dyn FnMut(&Execution<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some((&(a, b), later)) = pairs.split_first() else {
            let orders = self.model.orders(sources, fences);
            return self.coherence(sources, values, &orders, visit);
        };
        for (first, second) in [(a, b), (b, a)] {
            let mut fences = fences.clone();
            fences.add(first, second);
            if fences.clone().closure().is_irreflexive() {
                self.choose_fences(later, fences, sources, values, visit)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn coherence(
        &mut self,
        sources: &Sources,
        values: &Values,
        orders: &Orders,
        visit: &mut dyn FnMut(&Execution<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if !self.model.keeps_fence_order(orders) || !self.model.reads_the_past(sources, orders) {
            self.candidates += 1;
            return ControlFlow::Continue(());
        }
        let writes: Vec<bool> = values.written.iter().map(Option::is_some).collect();
        let forced = self.model.forced_coherence(orders, &writes).closure();
        let pairs = self.model.coherent_pairs(&writes);
        self.choose_coherence(
            &pairs,
            forced,
            &mut |coherence| {
                let execution = Execution { sources, values, orders, coherence, writes: &writes };
                visit(&execution)
            },
            sources,
            orders,
            &writes,
        )
    }

    fn choose_coherence(
        &mut self,
        pairs: &[(usize, usize)],
        coherence: Relation,
        found: &mut dyn FnMut(&Relation) -> ControlFlow<()>,
        sources: &Sources,
        orders: &Orders,
        writes: &[bool],
    ) -> ControlFlow<()> {
        if !coherence.is_irreflexive() {
            self.candidates += 1;
            return ControlFlow::Continue(());
        }
        let Some((&(a, b), later)) = pairs.split_first() else {
            self.candidates += 1;
            return if self.model.allows(sources, orders, &coherence, writes) {
                found(&coherence)
            } else {
                ControlFlow::Continue(())
            };
        };
        if coherence.has(a, b) || coherence.has(b, a) {
            return self.choose_coherence(later, coherence, found, sources, orders, writes);
        }
        for (first, second) in [(a, b), (b, a)] {
            let mut coherence = coherence.clone();
            coherence.add(first, second);
            self.choose_coherence(later, coherence.closure(), found, sources, orders, writes)?;
        }
        ControlFlow::Continue(())
    }
}

impl Execution<'_> {
    /// Whether the test's condition holds in the end.
    pub(super) fn satisfies(&self, program: &Program) -> bool {
        let holds = |comparison: &Comparison| match &comparison.left {
            Term::Register(register) => comparison.is.holds(self.values.register(register), comparison.right),
            Term::Final(cells) => {
                self.last_values(program, cells).iter().any(|&value| comparison.is.holds(value, comparison.right))
            }
        };
        program.condition.iter().any(|all| all.iter().all(holds))
    }

    /// What some cells may hold in the end: what writes have left that no other write follows in coherence order.
    fn last_values(&self, program: &Program, cells: &[usize]) -> Vec<u64> {
        let Some(first) = cells.first().map(|&cell| program.cells[cell].bytes.start) else { return vec![0] };
        let mut wholes = vec![0];
        for &cell in cells {
            let covers = |&write: &usize| {
                self.writes[write] && program.events[write].access().is_some_and(|access| access.cells.contains(&cell))
            };
            let writes: Vec<usize> = (0..program.events.len()).filter(covers).collect();
            let is_last = |&&write: &&usize| !writes.iter().any(|&other| self.coherence.has(write, other));
            let bytes = &program.cells[cell].bytes;
            let part = |write: usize| {
                let access = program.events[write].access()?;
                let from = program.cells[*access.cells.first()?].bytes.start;
                let mask = super::program::mask(bytes.end - bytes.start);
                Some((self.values.written[write]? >> (8 * (bytes.start - from)) & mask) << (8 * (bytes.start - first)))
            };
            let parts: Vec<u64> = writes.iter().filter(is_last).filter_map(|&write| part(write)).collect();
            if !parts.is_empty() {
                wholes = wholes.iter().flat_map(|whole| parts.iter().map(move |part| whole | part)).collect();
            }
        }
        wholes
    }
}
