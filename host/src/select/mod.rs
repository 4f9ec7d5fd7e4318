//! Which algorithm and protocol a collective runs with.
//!
//! A [`Selector`] takes what is possible for a call ([`Descriptor`], `refusal`), leaves out what the user excluded
//! (`CONGRUENT_ALGO` and `CONGRUENT_PROTO`, `filter`), and chooses the fastest: by the tuning table that
//! `CONGRUENT_TUNING` names (`table`), else by a model of the machine (`cost`, `parameters`).
//!
//! Everything here is arithmetic on what the caller says, so that PEs with the same inputs choose alike without asking
//! each other. [`Selector::digest`] is for comparing those inputs once.

mod circumstances;
mod cost;
mod filter;
mod parameters;
mod refusal;
mod table;

use std::fmt;

use congruent_collectives::{Algorithm, Collective, Descriptor, Protocol};
use sha2::{Digest, Sha256};

use crate::tunables::{Key, TextKey, Tunables};
use crate::{FixedKernel, Grid};

pub use circumstances::{Circumstances, Ll128State};
pub use cost::{blocks, nanoseconds, threads};
pub use filter::{Filter, FilterError, Filtered, GENERAL};
pub use parameters::{Cache, Origin, Parameters, ProtocolCost};
pub use refusal::{Refusal, check};
pub use table::{Measured, TableError, TableProblem, TuningTable};

/// Chooses algorithms.
#[derive(Clone, Debug)]
pub struct Selector {
    machine: Parameters,
    algorithms: Filter<Algorithm>,
    protocols: Filter<Protocol>,
    table: Option<TuningTable>,
    ll128_enabled: bool,
    /// Those that the program brings.
    own: &'static [FixedKernel],
}

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals travel.
    pub protocol: Protocol,
    /// Blocks that share the call.
    pub blocks: u32,
    /// Threads of each of them.
    pub threads: u32,
    /// What decided.
    pub source: Source,
    /// How long the call should take, in nanoseconds, without the launch.
    pub predicted_ns: f64,
}

impl Choice {
    /// What its launch has.
    pub(crate) const fn grid(&self) -> Grid {
        Grid::new(self.blocks, self.threads)
    }
}

/// What decided a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The model.
    Model,
    /// The tuning table.
    Table,
    /// `CONGRUENT_ALGO` and `CONGRUENT_PROTO` left this one only.
    Forced,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Model => "model",
            Self::Table => "table",
            Self::Forced => "forced",
        })
    }
}

/// Why there is no selector, or no choice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// `CONGRUENT_ALGO` or `CONGRUENT_PROTO`.
    #[error("{assignment}: {error}")]
    Filter {
        /// The variable with its value.
        assignment: String,
        /// What is wrong with it.
        error: FilterError,
    },
    /// `CONGRUENT_TUNING`.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Two algorithms of one name.
    #[error("there are two algorithms {algorithm} of {collective}; give the program's own a name of its own")]
    Twice {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Nothing that the filters leave is possible. Nothing was sent.
    #[error("{filters} leaves no way for {collective} of {bytes} bytes over {members} members: {}", reasons(refused))]
    Impossible {
        /// The filters that concern the call, as the environment has them.
        filters: String,
        /// What was asked for.
        collective: Collective,
        /// Bytes of the call.
        bytes: u64,
        /// Members of the team.
        members: usize,
        /// Every way that the filters leave, and why it is impossible.
        refused: Vec<(Algorithm, Protocol, Refusal)>,
    },
}

impl Selector {
    /// A selector without filters and without a table.
    pub fn new(machine: Parameters) -> Self {
        let (algorithms, protocols) = (Filter::default(), Filter::default());
        Self { machine, algorithms, protocols, table: None, ll128_enabled: false, own: &[] }
    }

    /// A selector with what `CONGRUENT_ALGO`, `CONGRUENT_PROTO`, `CONGRUENT_TUNING` and `CONGRUENT_LL128_ENABLE` say, which chooses
    /// among the library's algorithms and `own`.
    ///
    /// # Errors
    /// A filter that cannot be read, a tuning table that cannot be read or is not of this machine, and two algorithms of one name.
    pub fn from_tunables(
        tunables: &Tunables,
        machine: Parameters,
        own: &'static [FixedKernel],
    ) -> Result<Self, SelectError> {
        let table = match tunables.text(TextKey::Tuning) {
            Some(path) => Some(TuningTable::read(path.as_ref(), &machine.name)?),
            None => None,
        };
        let selector = Self { table, ll128_enabled: tunables.get(Key::Ll128Enable) != 0, own, ..Self::new(machine) };
        for (i, one) in selector.descriptors().enumerate().skip(Descriptor::ALL.len()) {
            let Descriptor { collective, algorithm, .. } = *one;
            if selector.descriptors().take(i).any(|other| is_of(other, collective, algorithm)) {
                return Err(SelectError::Twice { collective, algorithm });
            }
        }
        Ok(Self {
            algorithms: read_filter(tunables.text(TextKey::Algo), &known(own))?,
            protocols: read_filter(tunables.text(TextKey::Proto), Protocol::ALL)?,
            ..selector
        })
    }

    /// This selector with a table that stands over the model.
    #[must_use]
    pub fn with_table(self, table: TuningTable) -> Self {
        Self { table: Some(table), ..self }
    }

    /// The machine that it knows.
    pub fn machine(&self) -> &Parameters {
        &self.machine
    }

    /// Whether LL128 may be used, given the result of its self-test.
    pub fn ll128(&self, passed: bool) -> Ll128State {
        match (self.ll128_enabled, passed) {
            (false, _) => Ll128State::Disabled,
            (true, false) => Ll128State::Failed,
            (true, true) => Ll128State::Works,
        }
    }

    /// Chooses for a call. The same on every PE that has the same selector and the same circumstances.
    ///
    /// # Errors
    /// [`SelectError::Impossible`] where the filters leave nothing that is possible: they are obeyed or refused, never
    /// passed over.
    pub fn choose(&self, collective: Collective, call: &Circumstances) -> Result<Choice, SelectError> {
        let left = self.possible(collective, call);
        let filtered = self.algorithms.concerns(collective) || self.protocols.concerns(collective);
        let fastest = |source, times: &mut dyn Iterator<Item = (Algorithm, Protocol, f64)>| {
            // Of equals, `min_by` gives the first: the order of the descriptors and of the file.
            let (algorithm, protocol, predicted_ns) = times.min_by(|a, b| a.2.total_cmp(&b.2))?;
            let source = if filtered && left.len() == 1 { Source::Forced } else { source };
            let [blocks, threads] = self.grid(collective, algorithm, protocol, call);
            Some(Choice { algorithm, protocol, blocks, threads, source, predicted_ns })
        };
        let is_left = |algorithm, protocol| left.iter().any(|way| (way.0.algorithm, way.1) == (algorithm, protocol));
        let mut measured = self.measured(collective, call).filter(|way| is_left(way.0, way.1));
        let mut modelled =
            left.iter().map(|&(of, protocol)| (of.algorithm, protocol, nanoseconds(&self.machine, of, protocol, call)));
        fastest(Source::Table, &mut measured)
            .or_else(|| fastest(Source::Model, &mut modelled))
            .ok_or_else(|| self.impossible(collective, call))
    }

    /// Every way that is possible for a call and that the filters leave.
    pub fn candidates(&self, collective: Collective, call: &Circumstances) -> Vec<(Algorithm, Protocol)> {
        self.possible(collective, call).into_iter().map(|(of, protocol)| (of.algorithm, protocol)).collect()
    }

    fn possible(&self, collective: Collective, call: &Circumstances) -> Vec<(&'static Descriptor, Protocol)> {
        let of = self.descriptors().filter(|of| of.collective == collective);
        of.flat_map(|of| of.protocols.iter().map(move |&protocol| (of, protocol)))
            .filter(|&(of, protocol)| {
                self.algorithms.allows(collective, of.algorithm)
                    && self.protocols.allows(collective, protocol)
                    && check(of, protocol, call).is_ok()
            })
            .collect()
    }

    /// Whether an algorithm with a protocol is possible for a call.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        call: &Circumstances,
    ) -> Result<(), Refusal> {
        let has = || self.descriptors().filter(|of| of.collective == collective).map(|of| of.algorithm).collect();
        let of =
            self.descriptor(collective, algorithm).ok_or_else(|| Refusal::NoAlgorithm { collective, has: has() })?;
        check(of, protocol, call)
    }

    /// The algorithm of a collective, where it exists.
    pub fn descriptor(&self, collective: Collective, algorithm: Algorithm) -> Option<&'static Descriptor> {
        self.descriptors().find(|one| is_of(one, collective, algorithm))
    }

    /// All, those that are preferred first.
    fn descriptors(&self) -> impl Iterator<Item = &'static Descriptor> {
        Descriptor::ALL.iter().copied().chain(self.own.iter().map(FixedKernel::descriptor))
    }

    /// How long a way should take, in nanoseconds: as the table has it, else by the model.
    pub fn predict(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        call: &Circumstances,
    ) -> f64 {
        let mut measured = self.measured(collective, call);
        match measured.find(|row| (row.0, row.1) == (algorithm, protocol)) {
            Some((.., ns)) => ns,
            None => self.modelled(collective, algorithm, protocol, call),
        }
    }

    /// How many blocks share a call that goes this way, and how many threads each of them has.
    pub fn grid(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        call: &Circumstances,
    ) -> [u32; 2] {
        let of = self.descriptor(collective, algorithm);
        of.map_or([call.blocks, call.threads], |of| [blocks(of, protocol, call), threads(of, protocol, call)])
    }

    /// By the model; for ever where there is no such algorithm.
    fn modelled(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol, call: &Circumstances) -> f64 {
        let of = self.descriptor(collective, algorithm);
        of.map_or(f64::INFINITY, |of| nanoseconds(&self.machine, of, protocol, call))
    }

    /// A digest of everything that decides, for PEs to make sure that they decide alike.
    pub fn digest(&self) -> [u8; 32] {
        let Self { machine, algorithms, protocols, table, ll128_enabled, own } = self;
        let table = table.as_ref().map(TuningTable::to_text);
        let own: Vec<_> = own.iter().map(|one| (one.descriptor().collective, one.descriptor().algorithm)).collect();
        let inputs =
            (env!("CARGO_PKG_VERSION"), machine, algorithms.text(), protocols.text(), table, ll128_enabled, own);
        Sha256::digest(format!("{inputs:?}")).into()
    }

    /// What the table has for a call. A measured time is scaled to the call's size as the model scales.
    fn measured(
        &self,
        collective: Collective,
        call: &Circumstances,
    ) -> impl Iterator<Item = (Algorithm, Protocol, f64)> {
        let blocks = move |row: &Measured| self.grid(collective, row.algorithm, row.protocol, call)[0];
        let rows = self.table.iter().flat_map(move |table| table.nearest(&self.machine.name, collective, call, blocks));
        rows.map(move |row| {
            let model = |bytes| {
                let call = Circumstances { bytes, blocks: row.blocks, block_bytes: 0, ..*call };
                self.modelled(collective, row.algorithm, row.protocol, &call)
            };
            (row.algorithm, row.protocol, row.ns * model(call.bytes) / model(row.up_to_bytes))
        })
    }

    fn impossible(&self, collective: Collective, call: &Circumstances) -> SelectError {
        let mut refused = Vec::new();
        for algorithm in known(self.own).into_iter().filter(|one| self.algorithms.allows(collective, *one)) {
            for &protocol in Protocol::ALL.iter().filter(|one| self.protocols.allows(collective, **one)) {
                if let Err(refusal) = self.check(collective, algorithm, protocol, call) {
                    refused.push((algorithm, protocol, refusal));
                }
            }
        }
        let said = [
            self.algorithms.concerns(collective).then(|| self.algorithms.assignment()),
            self.protocols.concerns(collective).then(|| self.protocols.assignment()),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        let filters = if said.is_empty() { "this machine".to_owned() } else { said.join(" with ") };
        SelectError::Impossible { filters, collective, bytes: call.bytes, members: call.members, refused }
    }
}

/// The names of the library's algorithms and of these.
pub(crate) fn known(own: &[FixedKernel]) -> Vec<Algorithm> {
    let mut known = Algorithm::ALL.to_vec();
    for one in own {
        let algorithm = one.descriptor().algorithm;
        if !known.contains(&algorithm) {
            known.push(algorithm);
        }
    }
    known
}

fn is_of(one: &Descriptor, collective: Collective, algorithm: Algorithm) -> bool {
    (one.collective, one.algorithm) == (collective, algorithm)
}

fn read_filter<T: Filtered>(text: Option<&str>, all: &[T]) -> Result<Filter<T>, SelectError> {
    let Some(text) = text else { return Ok(Filter::default()) };
    Filter::parse(text)
        .and_then(|filter| filter.over(all))
        .map_err(|error| SelectError::Filter { assignment: format!("{}={text}", T::VARIABLE), error })
}

/// For people: one reason for each algorithm, where its protocols share it.
fn reasons(refused: &[(Algorithm, Protocol, Refusal)]) -> String {
    let mut told: Vec<(&Algorithm, &Refusal, String)> = Vec::new();
    for (algorithm, protocol, refusal) in refused {
        match told.iter_mut().find(|one| (one.0, one.1) == (algorithm, refusal)) {
            Some((.., protocols)) => *protocols += &format!("/{protocol}"),
            None => told.push((algorithm, refusal, protocol.to_string())),
        }
    }
    let told = told.iter().map(|(algorithm, refusal, protocols)| format!("{algorithm} with {protocols}: {refusal}"));
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
