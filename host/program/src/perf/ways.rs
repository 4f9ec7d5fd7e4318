//! Which algorithms and protocols `perf` measures.

use congruent_collectives::{Algorithm, Collective, Protocol};

use crate::failure::Failure;
use congruent::select::{Circumstances, Filter, Filtered, Selector};
use congruent::tunables::TextKey;
use congruent::{Comm, Tunables};

/// An algorithm and a protocol for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    /// Whether the selector takes it.
    pub(super) chosen: bool,
}

impl Way {
    /// Of what is done one way only.
    pub(super) const ONLY: Self = Self { algorithm: Algorithm::DIRECT, protocol: Protocol::Simple, chosen: true };
}

/// Which of them to take.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WayArgs {
    /// Algorithms to choose from, as in CONGRUENT_ALGO (`ring`, `^tree,ring`); `all` measures each of them
    #[arg(long, value_name = "LIST", value_parser = algorithms)]
    algo: Option<String>,
    /// Protocols to choose from, as in CONGRUENT_PROTO (`ll`, `^simple`); `all` measures each of them
    #[arg(long, value_name = "LIST", value_parser = protocols)]
    proto: Option<String>,
}

const ALL: &str = "all";

fn algorithms(text: &str) -> Result<String, String> {
    list(text, Algorithm::ALL)
}

fn protocols(text: &str) -> Result<String, String> {
    list(text, Protocol::ALL)
}

fn list<T: Filtered>(text: &str, all: &[T]) -> Result<String, String> {
    if text != ALL {
        Filter::parse(text).and_then(|filter| filter.over(all)).map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

impl WayArgs {
    /// Whether each way is measured by itself.
    pub(super) fn each(&self) -> bool {
        [&self.algo, &self.proto].into_iter().any(|text| text.as_deref() == Some(ALL))
    }
}

/// What chooses, and from what.
pub(super) struct Ways {
    /// As users of a communicator have it.
    usual: Selector,
    /// As the command line narrows it.
    narrowed: Selector,
    /// Whether each way is measured by itself.
    pub(super) each: bool,
    collective: Collective,
}

impl Ways {
    /// For a collective of a communicator.
    pub(super) fn new(
        comm: &Comm,
        tunables: &Tunables,
        collective: Collective,
        args: &WayArgs,
        each: bool,
    ) -> Result<Self, Failure> {
        let usual = comm.selector().clone();
        let mut tunables = tunables.clone();
        for (key, text) in [(TextKey::Algo, &args.algo), (TextKey::Proto, &args.proto)] {
            if let Some(text) = text.as_ref().filter(|text| *text != ALL) {
                tunables.set_text(key, text.clone())?;
            }
        }
        let narrowed = Selector::from_tunables(&tunables, usual.machine().clone(), &[]);
        let narrowed = narrowed.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Self { usual, narrowed, each, collective })
    }

    /// What tuning tables call the machine.
    pub(super) fn machine(&self) -> &str {
        &self.usual.machine().name
    }

    /// The one for a call.
    pub(super) fn choose(&self, call: &Circumstances) -> Result<Way, Failure> {
        let choice = self.narrowed.choose(self.collective, call);
        let choice = choice.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(self.way((choice.algorithm, choice.protocol), call))
    }

    /// All for which one of the calls is possible, in the order of the table of what there is.
    pub(super) fn all(&self, calls: &[Circumstances]) -> Vec<(Algorithm, Protocol)> {
        let mut ways = Vec::new();
        for way in calls.iter().flat_map(|call| self.narrowed.candidates(self.collective, call)) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }

    /// A way for a call, where it is possible.
    pub(super) fn possible(&self, way: (Algorithm, Protocol), call: &Circumstances) -> Option<Way> {
        let possible = self.narrowed.candidates(self.collective, call).contains(&way);
        possible.then(|| self.way(way, call))
    }

    fn way(&self, (algorithm, protocol): (Algorithm, Protocol), call: &Circumstances) -> Way {
        let usual = self.usual.choose(self.collective, call);
        let chosen = usual.is_ok_and(|choice| (choice.algorithm, choice.protocol) == (algorithm, protocol));
        Way { algorithm, protocol, chosen }
    }
}
