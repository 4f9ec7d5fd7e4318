//! Every `CONGRUENT_*` variable: its name, meaning, default and range, and where its value came from.

pub(crate) mod printer;
mod rows;
mod verbosity;

use std::ffi::OsString;
use std::fmt;

use congruent_collectives::Algorithm;

use crate::select::Filter;

pub use rows::{Key, TABLE, TEXTS, TextKey, TextTunable, Tunable};
pub use verbosity::{Detail, Subsystem, Verbosity};

/// What can be tuned, each by an environment variable. Made by [`Tunables::from_env`]; a builder's setters override it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    values: [Setting; TABLE.len()],
    texts: [Option<TextSetting>; TEXTS.len()],
}

/// A number as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: u64,
    /// Where it came from.
    pub source: Source,
}

/// A text that someone has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSetting {
    /// The value.
    pub value: String,
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

/// Variables of the launcher and the bootstrap, which are not tunables.
const OTHERS: [&str; 9] = [
    "CONGRUENT_PE",
    "CONGRUENT_NPES",
    "CONGRUENT_LOCAL_RANK",
    "CONGRUENT_RENDEZVOUS",
    "CONGRUENT_LISTENER",
    "CONGRUENT_JOB_TOKEN",
    "CONGRUENT_BOOTSTRAP_DEADLINE",
    "CONGRUENT_HOST_ID",
    "CONGRUENT_SSH",
];

/// Prefixes of variables that other tools of this project read.
const TOOLS: [&str; 5] =
    ["CONGRUENT_CACHE", "CONGRUENT_DEVICE_RUSTC", "CONGRUENT_PTXAS", "CONGRUENT_TEST_", "CONGRUENT_VIRTUAL"];

/// Why a `CONGRUENT_*` variable was refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TunableError {
    /// No variable has that name.
    #[error("{} is not a variable of congruent{}; `congruent info --env` lists them", start(name, 100), hint.map(|hint| format!(", did you mean {hint}?")).unwrap_or_default())]
    Unknown {
        /// The name.
        name: String,
        /// The nearest one that exists.
        hint: Option<&'static str>,
    },
    /// Not a number of the kind wanted.
    #[error("{name}={}: expected a whole number{}", start(value, 100), if *is_size { ", with K, M or G after it if you like" } else { "" })]
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
    /// Not a text of the kind wanted.
    #[error("{name}={}: {}", start(value, 100), start(problem, 1000))]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What a message shows of a text from the environment, which may be of any length.
fn start(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            values: TABLE.each_ref().map(|row| Setting { value: row.default, source: Source::Default }),
            texts: TEXTS.each_ref().map(|_| None),
        }
    }
}

impl Tunables {
    /// The defaults, overridden by the process's environment.
    ///
    /// # Errors
    /// A `CONGRUENT_*` variable that is misspelt, refused, out of range, or not a number or a text of the kind wanted.
    pub fn from_env() -> Result<Self, TunableError> {
        Self::read(std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))))
    }

    /// The defaults, overridden by these variables; those that do not start with `CONGRUENT_` are passed over.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, TunableError> {
        Self::read(vars.into_iter().map(|(name, value)| (name, value.into())))
    }

    fn read(vars: impl Iterator<Item = (String, OsString)>) -> Result<Self, TunableError> {
        let mut tunables = Self::default();
        for (name, value) in vars {
            if !name.starts_with("CONGRUENT_")
                || OTHERS.contains(&&*name)
                || TOOLS.iter().any(|tool| name.starts_with(tool))
            {
                continue;
            }
            if let Some(row) = TABLE.iter().find(|row| row.name == name) {
                let value = value.to_string_lossy().into_owned();
                let number = parse(&value, row.is_size).ok_or(TunableError::NotANumber {
                    name: row.name,
                    value,
                    is_size: row.is_size,
                })?;
                tunables.put(row.key, number, Source::Environment)?;
            } else if let Some(row) = TEXTS.iter().find(|row| row.name == name) {
                let text = value.into_string().map_err(|value| TunableError::Malformed {
                    name: row.name,
                    value: value.to_string_lossy().into_owned(),
                    problem: "expected text in UTF-8".to_owned(),
                })?;
                tunables.put_text(row.key, text, Source::Environment)?;
            } else {
                return Err(unknown(&name));
            }
        }
        Ok(tunables)
    }

    /// The value of a number.
    pub fn get(&self, key: Key) -> u64 {
        self.values[key as usize].value
    }

    /// The value of a number, and where it came from.
    pub fn setting(&self, key: Key) -> Setting {
        self.values[key as usize]
    }

    /// The value of a text that someone has set.
    pub fn text(&self, key: TextKey) -> Option<&str> {
        self.text_setting(key).map(|setting| &*setting.value)
    }

    /// The value of a text that someone has set, and where it came from.
    pub fn text_setting(&self, key: TextKey) -> Option<&TextSetting> {
        self.texts[key as usize].as_ref()
    }

    /// Sets a number from the program.
    ///
    /// # Errors
    /// Where the value is out of range.
    pub fn set(&mut self, key: Key, value: u64) -> Result<(), TunableError> {
        self.put(key, value, Source::Program)
    }

    /// Sets a text from the program.
    ///
    /// # Errors
    /// Where the value cannot be read.
    pub fn set_text(&mut self, key: TextKey, value: impl Into<String>) -> Result<(), TunableError> {
        self.put_text(key, value.into(), Source::Program)
    }

    /// Refuses names in `CONGRUENT_ALGO` that are none of these: what a program brings is known when it builds its world.
    pub(crate) fn check_algorithms(&self, known: &[Algorithm]) -> Result<(), TunableError> {
        let Some(value) = self.text(TextKey::Algo) else { return Ok(()) };
        let read = Filter::parse(value).and_then(|filter| filter.over(known));
        let name = TEXTS[TextKey::Algo as usize].name;
        read.map(drop).map_err(|error| TunableError::Malformed {
            name,
            value: value.to_owned(),
            problem: error.to_string(),
        })
    }

    /// Tells what this process is, and what of it is not as it is built in.
    fn tell(&self) {
        tracing::info!(target: "congruent::version", "version {}", env!("CARGO_PKG_VERSION"));
        let numbers = TABLE.iter().map(|row| (row.name, self.setting(row.key)));
        for (name, Setting { value, source }) in numbers.filter(|(_, setting)| setting.source != Source::Default) {
            tracing::info!("{name}={value}, by the {source}");
        }
        for (row, setting) in TEXTS.iter().zip(&self.texts) {
            if let Some(TextSetting { value, source }) = setting {
                tracing::info!("{}={value}, by the {source}", row.name);
            }
        }
    }

    fn put_text(&mut self, key: TextKey, value: String, source: Source) -> Result<(), TunableError> {
        let row = &TEXTS[key as usize];
        if let Err(problem) = (row.check)(&value) {
            return Err(TunableError::Malformed { name: row.name, value, problem });
        }
        self.texts[key as usize] = Some(TextSetting { value, source });
        Ok(())
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
    let names = TABLE.iter().map(|row| row.name).chain(TEXTS.iter().map(|row| row.name)).chain(OTHERS);
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

    #[test]
    fn texts_are_unset_or_readable() {
        assert_eq!(Tunables::default().text(TextKey::Algo), None);
        let read = from(&[("CONGRUENT_ALGO", "ring;allreduce:^tree"), ("CONGRUENT_TRACE", "/tmp/steps.json")]).unwrap();
        assert_eq!(read.text(TextKey::Algo), Some("ring;allreduce:^tree"));
        let setting = read.text_setting(TextKey::Trace).unwrap();
        assert_eq!((&*setting.value, setting.source), ("/tmp/steps.json", Source::Environment));
        let mut set = read.clone();
        set.set_text(TextKey::Proto, "ll").unwrap();
        assert_eq!(set.text_setting(TextKey::Proto).unwrap().source, Source::Program);
        assert!(set.set_text(TextKey::Proto, "ll256").is_err());
        assert_eq!(set.text(TextKey::Proto), Some("ll"));
    }

    #[test]
    fn texts_that_cannot_be_read_are_refused_with_what_can() {
        for (name, value, words) in [
            ("CONGRUENT_ALGO", "ringg", "CONGRUENT_ALGO=ringg: ringg is not known; there are ring, tree"),
            ("CONGRUENT_ALGO", "NVLS", "multimem"),
            ("CONGRUENT_PROTO", "", "CONGRUENT_PROTO=: an entry is empty"),
            ("CONGRUENT_TUNING", "", "CONGRUENT_TUNING=: expected the path of a file"),
            ("CONGRUENT_TRANSPORT", "ucx", "CONGRUENT_TRANSPORT=ucx: expected local, fabric or verbs"),
            ("CONGRUENT_IB_HCA", "mlx5_0:", "CONGRUENT_IB_HCA=mlx5_0:: expected whole names of devices"),
            ("CONGRUENT_IB_HCA", "^mlx5_0", "CONGRUENT_IB_HCA=^mlx5_0: expected whole names of devices"),
            ("CONGRUENT_IB_GID_INDEX", "256", "CONGRUENT_IB_GID_INDEX=256: expected an index from 0 to 255"),
            ("CONGRUENT_SOCKET_IFNAME", "^lo", "CONGRUENT_SOCKET_IFNAME=^lo: expected the whole name of one interface"),
            ("CONGRUENT_DEBUG", "loud", "CONGRUENT_DEBUG=loud: expected version, warn, info or trace"),
            ("CONGRUENT_DEBUG_SUBSYS", "net", "CONGRUENT_DEBUG_SUBSYS=net: expected a list of init"),
        ] {
            let read = from(&[(name, value)]);
            let refused = read.and_then(|read| read.check_algorithms(Algorithm::ALL)).unwrap_err();
            assert!(matches!(refused, TunableError::Malformed { .. }), "{refused:?}");
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }

    #[test]
    fn a_value_of_any_length_is_shown_in_part() {
        let long = "ä".repeat(100_000);
        for name in ["CONGRUENT_HEAP", "CONGRUENT_ALGO", "CONGRUENT_MACHINE", &format!("CONGRUENT_{long}")] {
            let read = from(&[(name, &long)]).and_then(|read| read.check_algorithms(Algorithm::ALL));
            let message = read.unwrap_err().to_string();
            assert!(message.len() < 3_000 && message.contains("ä... (2000"), "{name}: {}", message.len());
        }
        let message = from(&[("CONGRUENT_HEAP", &long)]).unwrap_err().to_string();
        assert!(message.ends_with("if you like"), "what to do is still told: {message}");
    }

    #[test]
    fn a_path_that_is_no_text_is_refused_and_a_tools_is_passed_over() {
        use std::os::unix::ffi::OsStringExt;
        let value = || OsString::from_vec(b"/tmp/\xff".to_vec());
        let refused = Tunables::read([("CONGRUENT_TRACE".to_owned(), value())].into_iter()).unwrap_err();
        assert!(refused.to_string().contains("UTF-8"), "{refused}");
        let tool = Tunables::read([("CONGRUENT_PTXAS".to_owned(), value())].into_iter());
        assert_eq!(tool.unwrap(), Tunables::default());
    }

    #[test]
    fn the_nearest_name_is_told() {
        let misspelt = from(&[("CONGRUENT_ALGOO", "ring")]).unwrap_err();
        assert!(misspelt.to_string().contains("did you mean CONGRUENT_ALGO?"), "{misspelt}");
    }
}
