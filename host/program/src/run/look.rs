//! What is said of virtual GPUs: how many there are, and what they look for.

use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

/// What virtual GPUs look for, and how.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Look {
    /// End with a report where nothing orders two accesses of one place
    #[arg(long, requires = "on")]
    pub races: bool,
    /// Let loads see any write that the memory model lets them see
    #[arg(long, requires = "on")]
    pub weak: bool,
    /// Take turns as this seed has it: by chance if it is even, with one warp far behind at times if it is odd
    #[arg(long, value_name = "SEED", requires = "on")]
    pub seed: Option<u64>,
    /// Run the program with so many seeds, from 0 or --seed on, until one of them shows a mistake
    #[arg(long, value_name = "N", requires = "on", conflicts_with = "label")]
    pub seeds: Option<NonZeroU64>,
    /// Write down when launches come; with --seeds the run that shows a mistake is kept, in congruent.record if not here
    #[arg(long, value_name = "FILE", requires = "on", value_parser = record())]
    pub record: Option<PathBuf>,
    /// Follow a record of the same seed: launches begin when it says
    #[arg(long, value_name = "FILE", requires = "on", value_parser = record(), conflicts_with_all = ["seeds", "record"])]
    pub replay: Option<PathBuf>,
    /// Write down how often which line of the kernels' sources was executed, by warps and by lanes
    #[arg(long, value_name = "FILE", requires = "on", value_parser = record(), conflicts_with = "seeds")]
    pub profile: Option<PathBuf>,
}

/// A file that can be named in a list of settings.
fn record() -> impl TypedValueParser<Value = PathBuf> {
    NonEmptyStringValueParser::new().try_map(|text| match text.contains(',') {
        true => Err("the name of a record or a profile has no comma"),
        false => Ok(PathBuf::from(text)),
    })
}

impl Look {
    /// For the variable of the virtual driver, behind what the user has there.
    pub(super) fn settings(&self) -> String {
        let schedule = |seed: u64| format!("schedule={},seed={seed}", ["random", "priorities"][(seed % 2) as usize]);
        let mut settings: Vec<_> = self.seed.map(schedule).into_iter().collect();
        settings.extend(
            [("races=1", self.races), ("weak=1", self.weak)]
                .map(|(word, asked)| asked.then(|| word.to_owned()))
                .into_iter()
                .flatten(),
        );
        settings.join(",")
    }

    /// The same for the engine of a job, which alone knows of records and profiles.
    pub(super) fn engine_settings(&self) -> String {
        let files = [("record", &self.record), ("replay", &self.replay), ("profile", &self.profile)];
        let files = files.into_iter().filter_map(|(key, file)| Some(format!("{key}={}", file.as_ref()?.display())));
        [self.settings()].into_iter().chain(files).collect::<Vec<_>>().join(",")
    }
}

/// Virtual GPUs, and how many PEs there are on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many GPUs.
    pub gpus: u32,
    /// How many PEs on each.
    pub pes: u32,
}

/// The most virtual GPUs of a job.
const MAX_GPUS: u32 = 64;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.gpus, self.pes)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (gpus, pes) = text.split_once('x').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let shape = number(gpus).zip(number(pes)).filter(|(gpus, _)| *gpus <= MAX_GPUS);
        let (gpus, pes) =
            shape.ok_or_else(|| format!("give up to {MAX_GPUS} GPUs, or GPUs and PEs on each, such as 2x4"))?;
        Ok(Self { gpus, pes })
    }
}
