//! `CONGRUENT_ALGO` and `CONGRUENT_PROTO`: what a user leaves to choose from.
//!
//! The grammar is NCCL's. Entries are separated by `;`, names in an entry by `,`, case does not matter:
//!
//! | text | allows |
//! |---|---|
//! | `ring,tree` | these, and nothing else |
//! | `^tree` | all but these; `^` stands first and is for the whole entry |
//! | `allreduce:^tree;broadcast:ring` | each for its collective; all for the others |
//! | `ring,tree;allreduce:^tree` | the first for every collective that has no entry of its own |
//!
//! An entry without a collective's name stands first. It is for the collectives of [`GENERAL`], of which there are several
//! algorithms and protocols; the others obey only an entry that names them.

use std::fmt;
use std::marker::PhantomData;

use congruent_collectives::{Algorithm, Collective, Protocol};
use congruent_device::is_named;

use super::refusal::names;

/// The collectives that an entry without a name is for.
pub const GENERAL: [Collective; 6] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];

/// What can be filtered: algorithms, and protocols.
pub trait Filtered: Copy + PartialEq + fmt::Display + fmt::Debug + 'static {
    /// The environment variable.
    const VARIABLE: &'static str;
    /// The library's own.
    const ALL: &'static [Self];

    /// Its name.
    fn called(self) -> &'static str;

    /// What there is instead of one that only NCCL has.
    fn foreign(name: &str) -> Option<&'static str>;
}

impl Filtered for Algorithm {
    const VARIABLE: &'static str = "CONGRUENT_ALGO";
    const ALL: &'static [Self] = Algorithm::ALL;

    fn called(self) -> &'static str {
        self.name()
    }

    fn foreign(name: &str) -> Option<&'static str> {
        match &*name.to_ascii_lowercase() {
            "nvls" => Some("reductions by NVSwitch are the algorithm multimem here"),
            "nvlstree" => Some("there are no trees over several NVSwitch domains; within one, say multimem"),
            "collnet" | "collnetdirect" | "collnetchain" => {
                Some("no network reduces data for this library, so there is nothing to force or to exclude")
            }
            "pat" => Some("parallel aggregated trees are not implemented; recursive has as few steps"),
            _ => None,
        }
    }
}

impl Filtered for Protocol {
    const VARIABLE: &'static str = "CONGRUENT_PROTO";
    const ALL: &'static [Self] = Protocol::ALL;

    fn called(self) -> &'static str {
        self.name()
    }

    fn foreign(_name: &str) -> Option<&'static str> {
        None
    }
}

/// What a user leaves to choose from, for every collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter<T> {
    text: String,
    general: Option<Entry>,
    /// By collective.
    own: [Option<Entry>; Collective::ALL.len()],
    of: PhantomData<T>,
}

/// What one entry allows, or excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    text: String,
    names: Vec<String>,
    excludes: bool,
}

/// Why a filter was refused. Nothing is allowed or forbidden by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// An entry, or the whole, has no name in it.
    #[error("an entry is empty; give names such as {known}, or unset the variable")]
    Empty {
        /// What exists.
        known: String,
    },
    /// No algorithm or protocol of that name.
    #[error("{name} is not known; there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// What exists.
        known: String,
    },
    /// An algorithm that only NCCL has.
    #[error("{name} is NCCL's: {instead}")]
    Foreign {
        /// The name.
        name: String,
        /// What there is here.
        instead: &'static str,
    },
    /// No collective of that name.
    #[error("{name} is not a collective; there are {known}")]
    Collective {
        /// The name.
        name: String,
        /// What exists.
        known: String,
    },
    /// Two entries for one collective.
    #[error("{collective} has two entries; give it one")]
    Twice {
        /// The collective.
        collective: Collective,
    },
    /// An entry for all collectives that is not the first.
    #[error("`{entry}` names no collective, so it has to stand first")]
    NotFirst {
        /// The entry.
        entry: String,
    },
    /// A `^` inside a list.
    #[error("`{entry}`: ^ stands before the first name and excludes all names of its entry")]
    Caret {
        /// The entry.
        entry: String,
    },
    /// Everything excluded.
    #[error("`{entry}` excludes everything")]
    Nothing {
        /// The entry.
        entry: String,
    },
}

impl<T: Filtered> Default for Filter<T> {
    /// Allows everything.
    fn default() -> Self {
        Self { text: String::new(), general: None, own: [const { None }; Collective::ALL.len()], of: PhantomData }
    }
}

impl<T: Filtered> Filter<T> {
    /// Reads a filter, of names that [`over`](Filter::over) compares with those that there are.
    ///
    /// # Errors
    /// See [`FilterError`]; it does not name the variable, whose value the caller shows.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self { text: text.trim().to_owned(), ..Self::default() };
        for (place, entry) in text.split(';').map(str::trim).enumerate() {
            match entry.split_once(':') {
                None if place == 0 => filter.general = Some(Entry::parse::<T>(entry)?),
                None if entry.is_empty() => return Err(empty::<T>()),
                None => return Err(FilterError::NotFirst { entry: entry.to_owned() }),
                Some((name, list)) => {
                    let name = name.trim();
                    let collective = Collective::named(name).ok_or_else(|| FilterError::Collective {
                        name: name.to_owned(),
                        known: names(Collective::ALL),
                    })?;
                    let own = &mut filter.own[collective as usize];
                    if own.is_some() {
                        return Err(FilterError::Twice { collective });
                    }
                    *own = Some(Entry::parse::<T>(list.trim())?);
                }
            }
        }
        Ok(filter)
    }

    /// The filter, where all names in it are among these and each entry leaves one of them.
    ///
    /// # Errors
    /// [`FilterError::Unknown`] and [`FilterError::Nothing`].
    pub fn over(self, all: &[T]) -> Result<Self, FilterError> {
        for entry in self.general.iter().chain(self.own.iter().flatten()) {
            let unknown = entry.names.iter().find(|name| !all.iter().any(|one| is_named(one.called(), name)));
            if let Some(name) = unknown {
                return Err(FilterError::Unknown { name: name.clone(), known: names(all) });
            }
            if !all.iter().any(|one| entry.has(*one)) {
                return Err(FilterError::Nothing { entry: entry.text.clone() });
            }
        }
        Ok(self)
    }

    /// Whether the filter leaves it for this collective.
    pub fn allows(&self, collective: Collective, one: T) -> bool {
        self.entry(collective).is_none_or(|entry| entry.has(one))
    }

    /// Whether the filter has something to say about this collective.
    pub fn concerns(&self, collective: Collective) -> bool {
        self.entry(collective).is_some()
    }

    /// The text that was read, empty for the filter that allows everything.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As the environment has it: `CONGRUENT_ALGO=ring`.
    pub(super) fn assignment(&self) -> String {
        format!("{}={}", T::VARIABLE, self.text)
    }

    fn entry(&self, collective: Collective) -> Option<&Entry> {
        let general = self.general.as_ref().filter(|_| GENERAL.contains(&collective));
        self.own[collective as usize].as_ref().or(general)
    }
}

impl Entry {
    fn parse<T: Filtered>(entry: &str) -> Result<Self, FilterError> {
        let (list, excludes) = match entry.strip_prefix('^') {
            Some(list) => (list, true),
            None => (entry, false),
        };
        let mut names = Vec::new();
        for name in list.split(',').map(str::trim) {
            if name.is_empty() {
                return Err(empty::<T>());
            }
            if name.starts_with('^') {
                return Err(FilterError::Caret { entry: entry.to_owned() });
            }
            if let Some(instead) = T::foreign(name) {
                return Err(FilterError::Foreign { name: name.to_owned(), instead });
            }
            names.push(name.to_owned());
        }
        Ok(Self { text: entry.to_owned(), names, excludes })
    }

    fn has<T: Filtered>(&self, one: T) -> bool {
        self.names.iter().any(|name| is_named(one.called(), name)) != self.excludes
    }
}

fn empty<T: Filtered>() -> FilterError {
    FilterError::Empty { known: names(T::ALL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{AllReduce, AllToAllV, Barrier, Broadcast};

    fn algorithms(text: &str) -> Result<Filter<Algorithm>, FilterError> {
        Filter::parse(text)?.over(Algorithm::ALL)
    }

    /// What the filter leaves for a collective.
    fn left(text: &str, collective: Collective) -> Vec<Algorithm> {
        let filter = algorithms(text).unwrap();
        Algorithm::ALL.iter().copied().filter(|one| filter.allows(collective, *one)).collect()
    }

    #[test]
    fn lists_allow_and_carets_exclude() {
        assert_eq!(left(" Ring , TREE ", AllReduce), [Algorithm::RING, Algorithm::TREE]);
        assert_eq!(left("one_shot,OneShot,one-shot", AllReduce), [Algorithm::ONE_SHOT]);
        let without = left("^tree,ring", AllReduce);
        assert_eq!(without.len(), Algorithm::ALL.len() - 2);
        assert!(!without.contains(&Algorithm::TREE) && !without.contains(&Algorithm::RING));
    }

    #[test]
    fn entries_of_a_collective_stand_over_the_general_one() {
        let text = "ring,tree;AllReduce:^tree;broadcast:direct";
        assert!(left(text, AllReduce).contains(&Algorithm::MULTIMEM));
        assert!(!left(text, AllReduce).contains(&Algorithm::TREE));
        assert_eq!(left(text, Broadcast), [Algorithm::DIRECT]);
        assert_eq!(left(text, Collective::Reduce), [Algorithm::RING, Algorithm::TREE]);
        assert_eq!(left("allreduce:tree", Broadcast), Algorithm::ALL);
    }

    #[test]
    fn collectives_with_one_way_obey_their_own_entry_only() {
        let filter = algorithms("ring;all-to-all-v:bruck").unwrap();
        assert!(!filter.concerns(Barrier) && filter.allows(Barrier, Algorithm::DIRECT));
        assert!(filter.concerns(AllToAllV) && !filter.allows(AllToAllV, Algorithm::DIRECT));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let refused = algorithms("ring,ringg").unwrap_err().to_string();
        assert_eq!(
            refused,
            "ringg is not known; there are ring, tree, recursive, one-shot, direct, bruck, multimem, two-level"
        );
        let refused = Filter::<Protocol>::parse("ll256").unwrap().over(Protocol::ALL).unwrap_err().to_string();
        assert_eq!(refused, "ll256 is not known; there are simple, ll, ll128");
        let refused = algorithms("allredoce:ring").unwrap_err().to_string();
        assert!(refused.starts_with("allredoce is not a collective; there are barrier, broadcast"), "{refused}");
    }

    #[test]
    fn what_only_nccl_has_is_refused_in_words_of_its_own() {
        for (text, word) in [
            ("NVLS", "multimem"),
            ("^nvlstree", "multimem"),
            ("CollnetDirect", "no network"),
            ("allgather:pat", "trees"),
        ] {
            let refused = algorithms(text).unwrap_err();
            assert!(matches!(refused, FilterError::Foreign { .. }), "{refused:?}");
            assert!(refused.to_string().contains(word), "{refused}");
        }
    }

    #[test]
    fn what_the_grammar_has_not_is_refused() {
        for text in ["", " ", "ring,", "ring;", ",ring", "allreduce:", "^", "ring;;allreduce:tree"] {
            assert!(matches!(algorithms(text), Err(FilterError::Empty { .. })), "{text:?}: {:?}", algorithms(text));
        }
        assert!(matches!(algorithms("ring,^tree"), Err(FilterError::Caret { .. })));
        assert!(matches!(algorithms("ring;tree"), Err(FilterError::NotFirst { .. })));
        assert!(matches!(algorithms("allreduce:tree;ring"), Err(FilterError::NotFirst { .. })));
        let twice = algorithms("allreduce:tree;all-reduce:ring");
        assert_eq!(twice, Err(FilterError::Twice { collective: AllReduce }));
        assert!(matches!(
            Filter::parse("^ll,simple,ll128").unwrap().over(Protocol::ALL),
            Err(FilterError::Nothing { .. })
        ));
    }

    #[test]
    fn no_filter_allows_everything() {
        let filter = Filter::<Protocol>::default();
        for &collective in Collective::ALL {
            assert!(!filter.concerns(collective));
            assert!(Protocol::ALL.iter().all(|one| filter.allows(collective, *one)));
        }
    }
}
