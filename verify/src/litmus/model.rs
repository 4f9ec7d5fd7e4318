//! The orders and axioms of the PTX ISA's chapter "Memory Consistency Model", versions 8 and 9.
//!
//! What the text leaves open is decided as NVIDIA's formal models do: Lustig, Sahasrabuddhe and Giroux, "A Formal Analysis of
//! the NVIDIA PTX Memory Consistency Model" (ASPLOS 2019), and Lustig, Cooksey and Giroux, "Mixed-Proxy Extensions for the
//! NVIDIA PTX Memory Consistency Model" (ISCA 2022). That is: writes to one location by two addresses are in one coherence
//! order, though they do not overlap by the letter of 8.2.1; and of proxies other than the generic one, a fence of theirs on
//! the way, executed in the CTA of the access, makes the order.

use super::program::{Access, Kind, Meeting, Program, Proxy};
use super::relation::Relation;
use super::rule::Rule;

/// A program with what is the same in all its executions.
pub(super) struct Model<'a> {
    pub(super) program: &'a Program,
    /// The rule that is left out.
    absent: Option<Rule>,
    order: Relation,
    pub(super) strong: Relation,
    barriers: Relation,
    /// First operation and write.
    releases: Vec<(usize, usize)>,
    /// Read and last operation.
    acquires: Vec<(usize, usize)>,
}

/// Which write each read has its value from: for each event, for each of its cells; none for what was there at first.
pub(super) type Sources = Vec<Vec<Option<usize>>>;

/// What follows from the reads and the order of the fences.
pub(super) struct Orders {
    pub(super) fences: Relation,
    pub(super) causality: Relation,
    /// Proxy-preserved base causality order.
    preserved: Relation,
    base: Relation,
}

impl<'a> Model<'a> {
    /// `program` without one of the forbidding rules, or with all.
    pub(super) fn new(program: &'a Program, absent: Option<Rule>) -> Self {
        let events = &program.events;
        let order = Relation::of(events.len(), |a, b| program.comes_before(a, b));
        let strong = Relation::of(events.len(), |a, b| program.are_morally_strong(a, b));
        let same_place = |a: usize, b: usize| match (events[a].access(), events[b].access()) {
            (Some(a), Some(b)) => a.is_at(b),
            _ => false,
        };
        let is_fence = |event: usize| matches!(events[event].kind, Kind::Fence { .. });
        let all = || 0..events.len();
        let releasing = all().flat_map(|first| all().map(move |write| (first, write))).filter(|&(first, write)| {
            let follows = order.has(first, write) && (is_fence(first) || same_place(first, write));
            events[first].releases() && events[write].is_strong_write() && (first == write || follows)
        });
        let acquiring = all().flat_map(|read| all().map(move |last| (read, last))).filter(|&(read, last)| {
            let follows = order.has(read, last) && (is_fence(last) || same_place(read, last));
            events[last].acquires() && events[read].is_strong_read() && (read == last || follows)
        });
        let meets = |a: usize, b: usize| match (meeting(program, a), meeting(program, b)) {
            (Some((here, true, _)), Some((there, _, true))) => a != b && here == there,
            _ => false,
        };
        let (releases, acquires) = (releasing.collect(), acquiring.collect());
        let barriers = Relation::of(events.len(), meets);
        Self { program, absent, order, strong, barriers, releases, acquires }
    }

    fn has(&self, rule: Rule) -> bool {
        self.absent != Some(rule)
    }

    fn access(&self, event: usize) -> Option<&'a Access> {
        self.program.events[event].access()
    }

    fn relation(&self, holds: impl Fn(usize, usize) -> bool) -> Relation {
        Relation::of(self.program.events.len(), holds)
    }

    /// The pairs of `fence.sc` that are in the Fence-SC order, one way or the other (PTX 8.9.3).
    pub(super) fn fence_pairs(&self) -> Vec<(usize, usize)> {
        let is_sc = |event: usize| self.program.events[event].is_fence_sc();
        self.strong.pairs().filter(|&(a, b)| a < b && is_sc(a) && is_sc(b)).collect()
    }

    /// Observation order (PTX 8.9.2). A chain goes on through atomic operations only, since others do not both read and write.
    fn observation(&self, reads_from: &Relation) -> Relation {
        let direct = reads_from.and(&self.strong);
        if self.has(Rule::ObservationChains) { direct.closure() } else { direct }
    }

    /// Synchronization (PTX 8.9.4).
    fn synchronizes(&self, observation: &Relation, fences: &Relation) -> Relation {
        let mut synchronizes = self.relation(|_, _| false);
        if self.has(Rule::FencesSynchronize) {
            synchronizes = synchronizes.or(fences);
        }
        if self.has(Rule::BarriersSynchronize) {
            synchronizes = synchronizes.or(&self.barriers);
        }
        if self.has(Rule::Patterns) {
            for &(first, write) in &self.releases {
                for &(read, last) in &self.acquires {
                    if observation.has(write, read) && self.strong.has(first, last) {
                        synchronizes.add(first, last);
                    }
                }
            }
        }
        synchronizes
    }

    /// Causality order (PTX 8.9.5), with what it is made of.
    pub(super) fn orders(&self, sources: &Sources, fences: Relation) -> Orders {
        let reads_from = self.reads_from(sources);
        let observation = self.observation(&reads_from);
        let synchronizes = self.synchronizes(&observation, &fences);
        let base = if self.has(Rule::Cumulativity) {
            self.order.or(&synchronizes).closure()
        } else {
            let before = synchronizes.or(&self.order.then(&synchronizes));
            self.order.or(&before).or(&before.then(&self.order))
        };
        let preserved = self.relation(|from, to| self.is_preserved(&base, from, to));
        let mut causality = preserved.or(&observation.then(&preserved));
        if self.program.promises.ordered_lines {
            causality = causality.or(&self.arrivals(&observation, &base));
        }
        Orders { fences, causality, preserved, base }
    }

    /// Whether base causality from one access to another holds over their addresses and proxies.
    fn is_preserved(&self, base: &Relation, from: usize, to: usize) -> bool {
        let (Some(source), Some(target)) = (self.access(from), self.access(to)) else { return false };
        if !base.has(from, to) || !source.meets(target) {
            return false;
        }
        let one_address = source.overlaps(target);
        let in_cta = |a: usize, b: usize| {
            let thread = |event: usize| &self.program.threads[self.program.events[event].thread];
            self.program.events[a].thread == self.program.events[b].thread || thread(a).is_in_cta_of(thread(b))
        };
        let generic = source.proxy == Proxy::Generic && target.proxy == Proxy::Generic;
        if one_address && (generic || (source.proxy == target.proxy && in_cta(from, to))) {
            return true;
        }
        if !self.has(Rule::ProxyFences) {
            return false;
        }
        // The access itself, or the fences of its proxy that make it one of the generic proxy.
        let events = &self.program.events;
        let fences = |access: usize, proxy: Proxy, ordered: &dyn Fn(usize) -> bool| -> Vec<usize> {
            let is_its = |&event: &usize| matches!(events[event].kind, Kind::ProxyFence(own) if own == proxy);
            match proxy {
                Proxy::Generic => vec![access],
                _ => {
                    (0..events.len()).filter(is_its).filter(|&fence| in_cta(fence, access) && ordered(fence)).collect()
                }
            }
        };
        let leave = fences(from, source.proxy, &|fence| base.has(from, fence));
        let arrive = fences(to, target.proxy, &|fence| base.has(fence, to));
        let is_alias_fence = |event: usize| matches!(events[event].kind, Kind::AliasFence);
        leave.iter().any(|&leave| {
            arrive.iter().any(|&arrive| {
                let by_alias_fence =
                    || base.after(leave).any(|middle| is_alias_fence(middle) && base.has(middle, arrive));
                if one_address { base.has(leave, arrive) } else { by_alias_fence() }
            })
        })
    }

    /// What the promise of ordered lines adds: who acquires a word of a line has what lies before it in that line.
    fn arrivals(&self, observation: &Relation, base: &Relation) -> Relation {
        let mut arrivals = self.relation(|_, _| false);
        let same_line = |low: usize, high: usize| match (self.access(low), self.access(high)) {
            (Some(low_access), Some(high_access)) => {
                let (a, b) = (&self.program.events[low], &self.program.events[high]);
                let (a_thread, b_thread) = (&self.program.threads[a.thread], &self.program.threads[b.thread]);
                let line = |access: &Access| (access.address.0.clone(), access.address.1 / 128);
                let both_write = low_access.writes.is_some() && high_access.writes.is_some();
                let one_warp = a_thread.is_in_cta_of(b_thread) && a_thread.warp == b_thread.warp;
                both_write
                    && one_warp
                    && a.instruction == b.instruction
                    && line(low_access) == line(high_access)
                    && low_access.address.1 < high_access.address.1
            }
            _ => false,
        };
        let lines = self.relation(same_line);
        for (low, high) in lines.pairs() {
            for &(read, last) in &self.acquires {
                if observation.has(high, read) {
                    let later = base.after(last).filter(|&event| {
                        matches!((self.access(low), self.access(event)), (Some(low), Some(read)) if low.overlaps(read))
                    });
                    later.for_each(|event| arrivals.add(low, event));
                }
            }
        }
        arrivals
    }

    fn reads_from(&self, sources: &Sources) -> Relation {
        let mut relation = self.relation(|_, _| false);
        for (read, sources) in sources.iter().enumerate() {
            sources.iter().flatten().for_each(|&write| relation.add(write, read));
        }
        relation
    }

    /// Whether a cycle of program order, barriers and reads would be speculation, if load buffering were not allowed.
    pub(super) fn is_buffered(&self, sources: &Sources) -> bool {
        let past_barriers = self.barriers.then(&self.order);
        !self.order.or(&past_barriers).or(&self.reads_from(sources)).closure().is_irreflexive()
    }

    /// Axiom Fence-SC (PTX 8.10.2).
    pub(super) fn keeps_fence_order(&self, orders: &Orders) -> bool {
        !self.has(Rule::FenceSc) || orders.fences.pairs().all(|(first, second)| !orders.base.has(second, first))
    }

    /// The part of Causality (PTX 8.10.6) that needs no coherence order: no read is before the write that it reads. A
    /// read-modify-write counts as its read here, as in the formal models: what its write is observed by does not matter.
    pub(super) fn reads_the_past(&self, sources: &Sources, orders: &Orders) -> bool {
        !self.has(Rule::Causality)
            || self.reads_from(sources).pairs().all(|(write, read)| !orders.preserved.has(read, write))
    }

    /// What Coherence (PTX 8.10.1) demands of the writes in coherence order.
    pub(super) fn forced_coherence(&self, orders: &Orders, writes: &[bool]) -> Relation {
        self.relation(|a, b| {
            let both = writes[a] && writes[b] && self.access(a).zip(self.access(b)).is_some_and(|(a, b)| a.meets(b));
            self.has(Rule::Coherence) && both && orders.causality.has(a, b)
        })
    }

    /// The pairs of writes that have to be in coherence order, one way or the other (PTX 8.9.6).
    pub(super) fn coherent_pairs(&self, writes: &[bool]) -> Vec<(usize, usize)> {
        self.strong.pairs().filter(|&(a, b)| a < b && writes[a] && writes[b]).collect()
    }

    /// Whether the axioms hold that speak of coherence order.
    pub(super) fn allows(&self, sources: &Sources, orders: &Orders, coherence: &Relation, writes: &[bool]) -> bool {
        coherence.is_irreflexive()
            && (!self.has(Rule::Causality) || self.reads_the_latest(sources, orders, coherence, writes))
            && (!self.has(Rule::Atomicity) || self.is_atomic(sources, coherence, writes))
            && (!self.has(Rule::ScPerLocation) || self.is_sc_per_location(sources, coherence, writes))
    }

    /// Whether the source of one cell of a read is before `write` in coherence order.
    fn is_older(source: Option<usize>, write: usize, coherence: &Relation) -> bool {
        source.is_none_or(|source| coherence.has(source, write))
    }

    /// Each cell that `reader` reads and `writer` writes, with where the read has it from.
    fn shared(&self, sources: &Sources, reader: usize, writer: usize) -> impl Iterator<Item = Option<usize>> {
        let cells = |event: usize| self.access(event).map_or(&[][..], |access| &access.cells);
        let covered = cells(writer);
        let both = cells(reader).iter().zip(&sources[reader]);
        both.filter(|(cell, _)| covered.contains(cell)).map(|(_, source)| *source).collect::<Vec<_>>().into_iter()
    }

    /// From-read: the reads, and the writes that come after what they have read (PTX 8.9.7).
    fn overtakings(&self, sources: &Sources, coherence: &Relation, writes: &[bool]) -> Relation {
        self.relation(|read, write| {
            let older = |source| Self::is_older(source, write, coherence);
            read != write && writes[write] && self.shared(sources, read, write).any(older)
        })
    }

    /// The rest of Causality: a read does not have what a write before it, in causality order, has overwritten.
    fn reads_the_latest(&self, sources: &Sources, orders: &Orders, coherence: &Relation, writes: &[bool]) -> bool {
        orders.causality.pairs().filter(|&(write, read)| write != read && writes[write]).all(|(write, read)| {
            self.shared(sources, read, write).all(|source| !Self::is_older(source, write, coherence))
        })
    }

    /// Atomicity (PTX 8.10.3), of single copies and of read-modify-writes.
    fn is_atomic(&self, sources: &Sources, coherence: &Relation, writes: &[bool]) -> bool {
        let torn = |read: usize, write: usize| {
            let has = |reader: usize, writer: usize, part: &dyn Fn(Option<usize>) -> bool| {
                self.shared(sources, reader, writer).any(part)
            };
            let reads_it = has(read, write, &|source| source == Some(write));
            reads_it
                && self.siblings(read).any(|reader| {
                    self.siblings(write).any(|writer| {
                        self.strong.has(reader, writer)
                            && has(reader, writer, &|source| Self::is_older(source, writer, coherence))
                    })
                })
        };
        let interleaved = |update: usize, write: usize| {
            let read_older = self.shared(sources, update, write).any(|source| Self::is_older(source, write, coherence));
            writes[update] && coherence.has(write, update) && read_older
        };
        let mut pairs = self.strong.pairs().filter(|&(_, write)| writes[write]);
        pairs.all(|(other, write)| !torn(other, write) && !interleaved(other, write))
    }

    /// The accesses that are one copy with `event`: itself alone, but for the promise of atomic vectors.
    fn siblings(&self, event: usize) -> impl Iterator<Item = usize> {
        let own = &self.program.events[event];
        let is_sibling = move |&other: &usize| {
            let there = &self.program.events[other];
            there.thread == own.thread && there.instruction == own.instruction
        };
        let vector: Vec<usize> = (0..self.program.events.len()).filter(is_sibling).collect();
        let bytes: u32 = vector.iter().filter_map(|&part| self.access(part)).map(|access| access.size).sum();
        let one_copy = self.program.promises.atomic_vectors && bytes == 16;
        if one_copy { vector.into_iter() } else { vec![event].into_iter() }
    }

    /// Sequential consistency per location (PTX 8.10.5).
    fn is_sc_per_location(&self, sources: &Sources, coherence: &Relation, writes: &[bool]) -> bool {
        let overlap = self.relation(|a, b| match (self.access(a), self.access(b)) {
            (Some(a), Some(b)) => a.overlaps(b),
            _ => false,
        });
        let communication = self.reads_from(sources).or(coherence).or(&self.overtakings(sources, coherence, writes));
        let steps = self.order.and(&overlap).or(&communication.and(&overlap)).and(&self.strong);
        steps.clone().closure().is_irreflexive()
            || !(0..self.program.events.len()).any(|start| self.has_strong_cycle(&steps, &mut vec![start]))
    }

    /// Whether `path` goes on to a cycle of events that are pairwise morally strong, of which the first has the lowest number.
    fn has_strong_cycle(&self, steps: &Relation, path: &mut Vec<usize>) -> bool {
        let (Some(&start), Some(&last)) = (path.first(), path.last()) else { return false };
        steps.after(last).any(|next| {
            if next == start {
                return true;
            }
            if next < start || !path.iter().all(|&event| self.strong.has(event, next)) {
                return false;
            }
            path.push(next);
            let found = self.has_strong_cycle(steps, path);
            path.pop();
            found
        })
    }

    /// Two accesses that overlap in part and race (PTX 8.7.2).
    pub(super) fn mixed_race(&self, orders: &Orders, writes: &[bool]) -> Option<(usize, usize)> {
        self.partial_overlaps().find(|&(a, b)| {
            let ordered = orders.causality.has(a, b) || orders.causality.has(b, a);
            (writes[a] || writes[b]) && !ordered && !self.strong.has(a, b)
        })
    }

    /// The pairs of accesses that overlap in part.
    pub(super) fn partial_overlaps(&self) -> impl Iterator<Item = (usize, usize)> {
        let partial = |a: usize, b: usize| match (self.access(a), self.access(b)) {
            (Some(a), Some(b)) => a.meets(b) && a.cells != b.cells,
            _ => false,
        };
        let events = self.program.events.len();
        (0..events).flat_map(move |a| (a + 1..events).map(move |b| (a, b))).filter(move |&(a, b)| partial(a, b))
    }
}

fn meeting(program: &Program, event: usize) -> Option<(&Meeting, bool, bool)> {
    match &program.events[event].kind {
        Kind::Barrier { meeting, tells, hears } => Some((meeting, *tells, *hears)),
        _ => None,
    }
}
