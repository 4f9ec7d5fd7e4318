//! `CONGRUENT_DEBUG` and `CONGRUENT_DEBUG_SUBSYS`: which of the library's events a program wants to see.

use std::fmt;

use tracing::{Level, Metadata};

use super::{TextKey, Tunables};

/// Which of this library's `tracing` events to show.
///
/// They go to standard error. A program that installs a subscriber before it makes a world gets them instead, and asks
/// [`allows`](Self::allows) in its filter; with tracing-subscriber, `filter_fn(move |metadata| verbosity.allows(metadata))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbosity {
    detail: Option<Detail>,
    /// A bit for each of [`Subsystem::ALL`].
    subsystems: u32,
}

/// How much, as `NCCL_DEBUG` has it. Each shows what those before it show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The version, once.
    Version,
    /// What went wrong.
    Warn,
    /// What was set up and chosen.
    Info,
    /// Every call.
    Trace,
}

/// A part of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Subsystem {
    /// Making worlds, and whatever is of no other part.
    Init,
    /// How PEs find each other.
    Bootstrap,
    /// The symmetric heap.
    Heap,
    /// Launching kernels.
    Launch,
    /// Collectives.
    Coll,
    /// The proxy and its transports.
    Proxy,
    /// The environment.
    Env,
    /// Choosing algorithms.
    Tuning,
}

impl Detail {
    const ALL: [(&'static str, Self); 4] =
        [("version", Self::Version), ("warn", Self::Warn), ("info", Self::Info), ("trace", Self::Trace)];
}

impl Subsystem {
    /// All of them, with their names and the modules of this crate that are theirs.
    const ALL: [(&'static str, Self, &'static [&'static str]); 8] = [
        ("init", Self::Init, &[]),
        ("bootstrap", Self::Bootstrap, &["bootstrap"]),
        ("heap", Self::Heap, &["shared_memory", "sym_vec"]),
        ("launch", Self::Launch, &["launch", "cpu", "cuda"]),
        ("coll", Self::Coll, &["comm", "plan", "team"]),
        ("proxy", Self::Proxy, &["proxy"]),
        ("env", Self::Env, &["tunables"]),
        ("tuning", Self::Tuning, &["select"]),
    ];

    /// The part that an event's target names: `congruent::proxy` and what is below it.
    pub fn of(target: &str) -> Self {
        if target.starts_with("congruent_transports") {
            return Self::Proxy;
        }
        let module = target.split("::").nth(1).unwrap_or_default();
        let found = Self::ALL.iter().find(|(.., modules)| modules.contains(&module));
        found.map_or(Self::Init, |(_, subsystem, _)| *subsystem)
    }
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].0)
    }
}

impl Verbosity {
    /// What the tunables say. They were checked when they were set, so that this has nothing left to refuse.
    pub fn of(tunables: &Tunables) -> Self {
        let silent = Self { detail: None, subsystems: 0 };
        Self::parse(tunables.text(TextKey::Debug), tunables.text(TextKey::DebugSubsys)).unwrap_or(silent)
    }

    /// Reads the values of the two variables.
    pub(super) fn parse(detail: Option<&str>, subsystems: Option<&str>) -> Result<Self, String> {
        let detail = match detail.map(|text| text.trim().to_ascii_lowercase()) {
            None => None,
            Some(text) => {
                let found = Detail::ALL.iter().find(|(name, _)| *name == text);
                Some(found.ok_or_else(|| "expected version, warn, info or trace".to_owned())?.1)
            }
        };
        let all = (1 << Subsystem::ALL.len()) - 1;
        let subsystems = match subsystems {
            None => all,
            Some(text) => {
                let text = text.trim();
                let (list, excludes) = text.strip_prefix('^').map_or((text, false), |list| (list, true));
                let named = list.split(',').try_fold(0, |set, name| Ok::<_, String>(set | named(name.trim())?))?;
                if excludes { all & !named } else { named }
            }
        };
        Ok(Self { detail, subsystems })
    }

    /// How much is to be shown. `None` where `CONGRUENT_DEBUG` is unset: then nothing is.
    pub fn detail(&self) -> Option<Detail> {
        self.detail
    }

    /// Whether events of this part are to be shown.
    pub fn shows(&self, subsystem: Subsystem) -> bool {
        self.subsystems & (1 << subsystem as u32) != 0
    }

    /// Whether to show an event. Events of other crates are left to the program: this says no to them.
    pub fn allows(&self, metadata: &Metadata<'_>) -> bool {
        self.allows_event(metadata.target(), *metadata.level())
    }

    fn allows_event(&self, target: &str, level: Level) -> bool {
        let krate = target.split("::").next().unwrap_or_default();
        if krate != "congruent" && !krate.starts_with("congruent_") {
            return false;
        }
        let needs = match level {
            _ if target == "congruent::version" => Detail::Version,
            Level::ERROR | Level::WARN => Detail::Warn,
            Level::INFO => Detail::Info,
            _ => Detail::Trace,
        };
        let shown = needs == Detail::Version || self.shows(Subsystem::of(target));
        shown && self.detail.is_some_and(|detail| detail >= needs)
    }
}

/// The bits of a name in a list.
fn named(name: &str) -> Result<u32, String> {
    if name.eq_ignore_ascii_case("all") {
        return Ok((1 << Subsystem::ALL.len()) - 1);
    }
    let found = Subsystem::ALL.iter().find(|(known, ..)| name.eq_ignore_ascii_case(known));
    let known = || Subsystem::ALL.map(|(known, ..)| known).join(", ");
    found
        .map(|(_, subsystem, _)| 1 << *subsystem as u32)
        .ok_or_else(|| format!("expected a list of {}, all, with ^ before it to exclude them", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbosity(detail: &str, subsystems: &str) -> Verbosity {
        Verbosity::parse(Some(detail), Some(subsystems)).unwrap()
    }

    #[test]
    fn detail_shows_what_those_before_show() {
        let shown = |detail| {
            let verbosity = verbosity(detail, "all");
            let events = [
                ("congruent::version", Level::INFO),
                ("congruent::proxy", Level::ERROR),
                ("congruent::proxy", Level::WARN),
                ("congruent::proxy", Level::INFO),
                ("congruent::proxy", Level::TRACE),
            ];
            events.map(|(target, level)| verbosity.allows_event(target, level))
        };
        assert_eq!(shown("VERSION"), [true, false, false, false, false]);
        assert_eq!(shown("warn"), [true, true, true, false, false]);
        assert_eq!(shown("Info"), [true, true, true, true, false]);
        assert_eq!(shown("trace"), [true; 5]);
    }

    #[test]
    fn unset_is_silent() {
        let silent = Verbosity::of(&Tunables::default());
        assert_eq!(silent.detail(), None);
        assert!(!silent.allows_event("congruent::shared", Level::ERROR));
    }

    #[test]
    fn parts_are_chosen_by_list_or_by_exception() {
        let some = verbosity("info", "Bootstrap, coll");
        assert!(some.shows(Subsystem::Bootstrap) && some.shows(Subsystem::Coll) && !some.shows(Subsystem::Proxy));
        let most = verbosity("info", "^proxy");
        assert!(!most.shows(Subsystem::Proxy) && most.shows(Subsystem::Init));
        assert!(most.allows_event("congruent::bootstrap::relay", Level::INFO));
        assert!(!most.allows_event("congruent::proxy", Level::WARN));
        assert!(!most.allows_event("tokio::runtime", Level::WARN));
    }

    #[test]
    fn modules_belong_to_parts() {
        for (target, subsystem) in [
            ("congruent::bootstrap::relay", Subsystem::Bootstrap),
            ("congruent::shared_memory", Subsystem::Heap),
            ("congruent::select::table", Subsystem::Tuning),
            ("congruent::shared", Subsystem::Init),
            ("congruent", Subsystem::Init),
            ("congruent_transports::local", Subsystem::Proxy),
        ] {
            assert_eq!(Subsystem::of(target), subsystem, "{target}");
        }
        for (place, (_, subsystem, _)) in Subsystem::ALL.iter().enumerate() {
            assert_eq!(*subsystem as usize, place);
        }
        for module in Subsystem::ALL.iter().flat_map(|(.., modules)| *modules) {
            let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module);
            assert!(source.is_dir() || source.with_extension("rs").is_file(), "there is no module {module}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_can() {
        let refused = Verbosity::parse(Some("verbose"), None).unwrap_err();
        assert_eq!(refused, "expected version, warn, info or trace");
        for text in ["", "init,,coll", "init,^coll", "net"] {
            let refused = Verbosity::parse(None, Some(text)).unwrap_err();
            assert!(refused.contains("init, bootstrap, heap, launch, coll, proxy, env, tuning, all"), "{refused}");
        }
    }
}
