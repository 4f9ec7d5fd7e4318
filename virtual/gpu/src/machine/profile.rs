//! What launches execute, by kernels and by lines of their sources.

use core::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustc_hash::FxHashMap;

use crate::instruction::{Operation, Scope, Strength};
use crate::program::Program;

/// How often something was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// By a warp, or a part of one that was there by itself.
    pub(crate) warps: u64,
    /// By a lane.
    pub(crate) lanes: u64,
    /// By a warp's first lane.
    pub(crate) leaders: u64,
}

impl Count {
    pub(crate) fn add(&mut self, other: Self) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.leaders += other.leaders;
    }
}

/// What one launch has executed: for each instruction of its program.
pub(crate) struct Counts {
    pub(crate) instructions: Vec<Count>,
    /// The most that one warp has.
    pub(crate) longest: u64,
}

impl Counts {
    pub(super) fn new(program: &Program) -> Self {
        Self { instructions: vec![Count::default(); program.instructions()], longest: 0 }
    }
}

/// The counts of all launches so far, which it writes into a file.
pub(super) struct Profile {
    path: PathBuf,
    programs: Vec<Profiled>,
    /// Functions and lines of sources, by number.
    places: Vec<String>,
    numbers: FxHashMap<String, usize>,
    kernels: BTreeMap<String, Kernel>,
}

/// A program, and for each of its instructions that was executed the places that it counts for; the first is its own.
struct Profiled {
    program: Arc<Program>,
    chains: Vec<Option<Vec<usize>>>,
}

#[derive(Default)]
struct Kernel {
    launches: u64,
    longest: u64,
    all: Count,
    kinds: BTreeMap<&'static str, Count>,
    /// Of each place: its own instructions, and those of what was inlined there as well.
    places: FxHashMap<usize, [Count; 2]>,
}

impl Profile {
    /// An empty one.
    ///
    /// # Errors
    /// Those of the file
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let (programs, places, numbers, kernels) = Default::default();
        let profile = Self { path: path.to_owned(), programs, places, numbers, kernels };
        let written = fs::write(path, profile.to_string());
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(profile)
    }

    /// Adds what a launch has executed.
    pub(super) fn add(&mut self, name: &str, program: &Arc<Program>, counts: &Counts) {
        let Self { programs, places, numbers, kernels, .. } = self;
        let known = programs.iter().position(|known| Arc::ptr_eq(&known.program, program)).unwrap_or_else(|| {
            programs.push(Profiled { program: program.clone(), chains: vec![None; program.instructions()] });
            programs.len() - 1
        });
        let chains = &mut programs[known].chains;
        let mut number = |place: String| {
            *numbers.entry(place).or_insert_with_key(|place| {
                places.push(place.clone());
                places.len() - 1
            })
        };
        let kernel = kernels.entry(name.to_owned()).or_default();
        kernel.launches += 1;
        kernel.longest = kernel.longest.max(counts.longest);
        for code in &program.codes {
            let first = code.first as usize;
            for (instruction, at) in code.instructions.iter().zip(first..) {
                let count = counts.instructions[at];
                if count.warps == 0 {
                    continue;
                }
                kernel.all.add(count);
                if let Some(kind) = kind(&instruction.operation) {
                    kernel.kinds.entry(kind).or_default().add(count);
                }
                let chain = chains[at].get_or_insert_with(|| {
                    let function = format!("fn {:#}", rustc_demangle::demangle(&code.name));
                    let mut chain = Vec::new();
                    for place in program.chain(instruction).into_iter().chain([function]).map(&mut number) {
                        // A line that stands twice, as of a recursion, has been there once.
                        if !chain.contains(&place) {
                            chain.push(place);
                        }
                    }
                    chain
                });
                kernel.places.entry(chain[0]).or_default()[0].add(count);
                for &mut place in chain {
                    kernel.places.entry(place).or_default()[1].add(count);
                }
            }
        }
    }

    /// Writes what there is. A run is not worse for a profile that cannot be written.
    pub(super) fn write(&self) {
        let _written = fs::write(&self.path, self.to_string());
    }
}

/// What is worth a line of its own, wherever it is.
fn kind(operation: &Operation) -> Option<&'static str> {
    Some(match operation {
        Operation::Load { access, .. } | Operation::Store { access, .. } if !access.strength.is_strong() => {
            return None;
        }
        Operation::Load { access, .. } => match access.strength {
            Strength::Acquire(Scope::System) => "acquiring loads, system",
            Strength::Acquire(_) => "acquiring loads, narrower",
            strength if strength.scope() == Some(Scope::System) => "relaxed loads, system",
            _ => "relaxed loads, narrower",
        },
        Operation::Store { access, .. } => match access.strength {
            Strength::Release(Scope::System) => "releasing stores, system",
            Strength::Release(_) => "releasing stores, narrower",
            strength if strength.scope() == Some(Scope::System) => "relaxed stores, system",
            _ => "relaxed stores, narrower",
        },
        Operation::Atomic { .. } => "atomics",
        Operation::Fence { strength, .. } => match strength.scope() {
            Some(Scope::System) => "fences, system",
            _ => "fences, narrower",
        },
        Operation::Barrier { .. } | Operation::Arrive { .. } => "barriers of the block",
        Operation::Together { .. } => "operations of a warp",
        Operation::Call { .. } => "calls",
        _ => return None,
    })
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Instructions that warps of virtual GPUs have executed, how many lanes of them on average, and how many first lanes."
        )?;
        writeln!(f, "# Of a function or a line of a source: with those of what was inlined there, and its own.")?;
        for (name, kernel) in &self.kernels {
            let Kernel { launches, longest, all, kinds, places } = kernel;
            let lanes = |count: &Count| count.lanes as f64 / count.warps.max(1) as f64;
            let share = |count: &Count| 100.0 * count.warps as f64 / all.warps as f64;
            writeln!(f, "\n{name}: {launches} launches, {longest} instructions in the longest warp")?;
            writeln!(
                f,
                "{:>14} {:>8} {:>6} {:>14} {:>14}  where",
                "instructions", "share", "lanes", "first lanes", "own"
            )?;
            let row = |f: &mut fmt::Formatter<'_>, count: &Count, own: &Count, what: &str| {
                let (share, lanes) = (share(count), lanes(count));
                let Count { warps, leaders, .. } = count;
                writeln!(f, "{warps:14} {share:6.2} % {lanes:6.1} {leaders:14} {:14}  {what}", own.warps)
            };
            row(f, all, all, "everything")?;
            for (kind, count) in kinds {
                row(f, count, count, kind)?;
            }
            let mut places: Vec<_> = places.iter().map(|(&place, counts)| (&self.places[place], counts)).collect();
            places.sort_by_key(|&(place, [_, all])| (Reverse(all.warps), place));
            for (place, [own, all]) in places {
                row(f, all, own, place)?;
            }
        }
        Ok(())
    }
}
