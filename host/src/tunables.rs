//! Every `CONGRUENT_*` variable: its name, meaning, default and range, and where its value came from.

use std::fmt;

/// What can be tuned, each by an environment variable. Made by [`Tunables::from_env`]; a builder's setters override it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    values: [Setting; TABLE.len()],
}

/// One tunable as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: u64,
    /// Where it came from.
    pub source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// The environment variable.
    Environment,
    /// The program.
    Program,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::Program => "program",
        })
    }
}

/// Which tunable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Key {
    /// `CONGRUENT_HEAP`.
    Heap,
    /// `CONGRUENT_DEADLINE_MS`.
    DeadlineMs,
    /// `CONGRUENT_CPU_WIDTH`.
    CpuWidth,
    /// `CONGRUENT_MAX_BLOCKS`.
    MaxBlocks,
    /// `CONGRUENT_P2P_DISABLE`.
    P2pDisable,
}

/// A tunable's row in the table that `congruent info` prints.
#[derive(Debug)]
pub struct Tunable {
    /// Which.
    pub key: Key,
    /// The environment variable.
    pub name: &'static str,
    /// What it does, in a line.
    pub meaning: &'static str,
    /// The built-in value.
    pub default: u64,
    /// Smallest and largest value.
    pub range: (u64, u64),
    /// Whether `K`, `M` and `G` may follow the number.
    pub is_size: bool,
}

/// All tunables.
pub const TABLE: [Tunable; 5] = [
    Tunable {
        key: Key::Heap,
        name: "CONGRUENT_HEAP",
        meaning: "bytes of the symmetric heap of each PE (K, M, G may follow)",
        default: 64 << 20,
        range: (2 << 20, 1 << 44),
        is_size: true,
    },
    Tunable {
        key: Key::DeadlineMs,
        name: "CONGRUENT_DEADLINE_MS",
        meaning: "longest that one wait may take, in milliseconds; 0 for no bound",
        default: 60_000,
        range: (0, 1 << 40),
        is_size: false,
    },
    Tunable {
        key: Key::CpuWidth,
        name: "CONGRUENT_CPU_WIDTH",
        meaning: "lanes of a warp on the CPU machine: 1 is fastest, 32 is most like a GPU",
        default: 1,
        range: (1, 32),
        is_size: false,
    },
    Tunable {
        key: Key::MaxBlocks,
        name: "CONGRUENT_MAX_BLOCKS",
        meaning: "most blocks of one launch; each gets a slot in every team's barrier",
        default: 64,
        range: (1, 1024),
        is_size: false,
    },
    Tunable {
        key: Key::P2pDisable,
        name: "CONGRUENT_P2P_DISABLE",
        meaning: "1: reach every peer through the proxy instead of by load and store",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
];

/// Variables that the launcher sets for the bootstrap, which are not tunables.
const OTHERS: [&str; 5] =
    ["CONGRUENT_PE", "CONGRUENT_NPES", "CONGRUENT_RENDEZVOUS", "CONGRUENT_JOB_TOKEN", "CONGRUENT_BOOTSTRAP_DEADLINE"];

/// Prefixes of variables that other tools of this project read.
const TOOLS: [&str; 3] = ["CONGRUENT_DEVICE_RUSTC", "CONGRUENT_PTXAS", "CONGRUENT_TEST_"];

/// Why a `CONGRUENT_*` variable was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TunableError {
    /// No variable has that name.
    #[error("{name} is not a variable of congruent{}; `congruent info --env` lists them", hint.map(|hint| format!(", did you mean {hint}?")).unwrap_or_default())]
    Unknown {
        /// The name.
        name: String,
        /// The nearest one that exists.
        hint: Option<&'static str>,
    },
    /// Not a number of the kind wanted.
    #[error("{name}={value}: expected a whole number{}", if *is_size { ", with K, M or G after it if you like" } else { "" })]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Whether `K`, `M` and `G` may follow.
        is_size: bool,
    },
    /// Too small or too large.
    #[error("{name}={value}: expected a value from {min} to {max}")]
    OutOfRange {
        /// The variable.
        name: &'static str,
        /// The value.
        value: u64,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
}

impl Default for Tunables {
    fn default() -> Self {
        Self { values: TABLE.each_ref().map(|row| Setting { value: row.default, source: Source::Default }) }
    }
}

impl Tunables {
    /// The defaults, overridden by the process's environment.
    ///
    /// # Errors
    /// A `CONGRUENT_*` variable that is misspelt, not a number, or out of range.
    pub fn from_env() -> Result<Self, TunableError> {
        let ours = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("CONGRUENT_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        Self::from_vars(ours)
    }

    /// The defaults, overridden by these variables; those that do not start with `CONGRUENT_` are passed over.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, TunableError> {
        let mut tunables = Self::default();
        for (name, value) in vars {
            if !name.starts_with("CONGRUENT_")
                || OTHERS.contains(&&*name)
                || TOOLS.iter().any(|tool| name.starts_with(tool))
            {
                continue;
            }
            let row = TABLE.iter().find(|row| row.name == name).ok_or_else(|| unknown(&name))?;
            let number = parse(&value, row.is_size).ok_or(TunableError::NotANumber {
                name: row.name,
                value,
                is_size: row.is_size,
            })?;
            tunables.put(row.key, number, Source::Environment)?;
        }
        Ok(tunables)
    }

    /// The value of a tunable.
    pub fn get(&self, key: Key) -> u64 {
        self.values[key as usize].value
    }

    /// The value of a tunable, and where it came from.
    pub fn setting(&self, key: Key) -> Setting {
        self.values[key as usize]
    }

    /// Sets a tunable from the program.
    ///
    /// # Errors
    /// Where the value is out of range.
    pub fn set(&mut self, key: Key, value: u64) -> Result<(), TunableError> {
        self.put(key, value, Source::Program)
    }

    fn put(&mut self, key: Key, value: u64, source: Source) -> Result<(), TunableError> {
        let row = &TABLE[key as usize];
        let (min, max) = row.range;
        if !(min..=max).contains(&value) {
            return Err(TunableError::OutOfRange { name: row.name, value, min, max });
        }
        self.values[key as usize] = Setting { value, source };
        Ok(())
    }
}

fn parse(text: &str, is_size: bool) -> Option<u64> {
    let text = text.trim();
    let shift = match text.chars().last()? {
        'K' | 'k' if is_size => 10,
        'M' | 'm' if is_size => 20,
        'G' | 'g' if is_size => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn unknown(name: &str) -> TunableError {
    let names = TABLE.iter().map(|row| row.name).chain(OTHERS);
    let hint = names
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .min()
        .filter(|(distance, _)| *distance <= 4);
    TunableError::Unknown { name: name.to_owned(), hint: hint.map(|(_, known)| known) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Tunables, TunableError> {
        Tunables::from_vars(vars.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn rows_stand_at_their_keys() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, i);
            assert!(row.default >= row.range.0 && row.default <= row.range.1, "{}", row.name);
        }
    }

    #[test]
    fn sizes_take_a_suffix_and_numbers_do_not() {
        assert_eq!(from(&[("CONGRUENT_HEAP", "3G")]).unwrap().get(Key::Heap), 3 << 30);
        assert_eq!(from(&[("CONGRUENT_HEAP", " 16 M ")]).unwrap().get(Key::Heap), 16 << 20);
        let refused = from(&[("CONGRUENT_DEADLINE_MS", "5k")]);
        assert!(matches!(refused, Err(TunableError::NotANumber { name: "CONGRUENT_DEADLINE_MS", .. })), "{refused:?}");
        assert!(matches!(from(&[("CONGRUENT_HEAP", "99999999999999G")]), Err(TunableError::NotANumber { .. })));
        assert!(matches!(from(&[("CONGRUENT_HEAP", "")]), Err(TunableError::NotANumber { .. })));
    }

    #[test]
    fn a_misspelt_name_is_refused_with_the_right_one() {
        let refused = from(&[("CONGRUENT_HAEP", "1G")]).unwrap_err();
        assert_eq!(refused, TunableError::Unknown { name: "CONGRUENT_HAEP".into(), hint: Some("CONGRUENT_HEAP") });
        assert!(refused.to_string().contains("did you mean CONGRUENT_HEAP?"));
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let refused = from(&[("CONGRUENT_CPU_WIDTH", "64")]).unwrap_err();
        assert_eq!(refused, TunableError::OutOfRange { name: "CONGRUENT_CPU_WIDTH", value: 64, min: 1, max: 32 });
    }

    #[test]
    fn what_the_launcher_sets_is_passed_over() {
        assert_eq!(from(&[("CONGRUENT_PE", "0"), ("PATH", "x")]).unwrap(), Tunables::default());
    }
}
