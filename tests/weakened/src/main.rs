//! Runs the shipped PTX, each time with one fence, order, scope, barrier or wait less, on virtual GPUs, and says whether anything
//! but its text shows it: wrong data, a race, a read of what nobody wrote, a fault or a deadlock.
//!
//! `congruent-weakened` runs all such programs, `--slice TEXT N` N of them that a hash of TEXT chooses, `--part I N` every N-th of
//! them from the I-th on. Programs that nothing shows to be weakened have to be in `survivors.txt`, with the reason. Each run
//! can be repeated: it has no other input than the program, the recording and a seed.

mod calls;
mod recording;
mod survivors;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use congruent_verify::ptx::{self, Module};
use congruent_virtual_gpu::{Mutant, Program, Schedule};
use recording::{How, Recording, Wrong};
use survivors::Survivors;

/// The image that is taken: the one with most to take away.
const IMAGE: &str = "sm_90";
/// Calls are recorded for jobs of so many PEs.
const PES: [usize; 1] = [3];
/// To find out what a call comes to.
const PLAIN: How = How { schedule: Schedule::Lockstep, seed: 0, is_strict: false };

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments == ["--unchanged"] {
        return unchanged();
    }
    let text = image()?;
    let module = ptx::parse(text).map_err(|error| error.message)?;
    let all = Program::of(&module, text)?.mutants();
    let chosen = choose(&all, &arguments)?;
    println!("{} of the {} programs with one thing less that {IMAGE} gives", chosen.len(), all.len());
    let judge = Judge { text, module: &module, recordings: record()? };
    let table = Survivors::read(include_str!("../survivors.txt"))?;
    let (mut programs, mut caught, mut unknown) = (BTreeMap::new(), 0, 0);
    for mutant in &chosen {
        let Mutant { loss, line, instruction, .. } = mutant;
        let place = format!("{loss} in line {line} of {}: {instruction}", mutant.function);
        match judge.notice(mutant, &mut programs)? {
            Verdict::Caught(how) => {
                caught += 1;
                println!("caught   {place}: {how}");
            }
            Verdict::Survived { reached } => match table.reason(mutant, reached) {
                Some(reason) => println!("survived {place}: {reason}"),
                None => {
                    unknown += 1;
                    println!("SURVIVED {place}: {}, and survivors.txt has no reason", survivors::word(reached));
                }
            },
        }
    }
    println!("{caught} of {} caught, {unknown} survived without a reason", chosen.len());
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs everything with the program as it is: nothing may be noticed.
fn unchanged() -> Result<ExitCode, Box<dyn Error>> {
    let recordings = record()?;
    let (mut runs, mut wrong) = (0, 0);
    for recording in &recordings {
        for how in [PLAIN].into_iter().chain(ways(recording.pes)) {
            runs += 1;
            if let Err(error) = recording.run_unchanged(&how) {
                wrong += 1;
                println!("WRONG in {}, {how}: {error}", recording.name);
            }
        }
    }
    println!("{} recordings, {runs} runs of the unchanged program, {wrong} of them wrong", recordings.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn image() -> Result<&'static str, Box<dyn Error>> {
    let found = congruent::kernels::PTX.images.iter().find(|(name, _)| *name == IMAGE);
    Ok(found.ok_or_else(|| format!("there is no image {IMAGE}"))?.1)
}

/// Those that the arguments ask for, in the order of the text.
fn choose(all: &[Mutant], arguments: &[&str]) -> Result<Vec<Mutant>, Box<dyn Error>> {
    let mut chosen: Vec<usize> = (0..all.len()).collect();
    match *arguments {
        [] => {}
        ["--slice", text, many] => {
            let hash = |words: &str| words.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
            chosen.sort_by_key(|&index| hash(&format!("{text} {index}")).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            chosen.truncate(many.parse()?);
            chosen.sort_unstable();
        }
        ["--part", part, parts] => {
            let (part, parts): (usize, usize) = (part.parse()?, parts.parse()?);
            chosen.retain(|index| index % parts == part);
        }
        _ => return Err("usage: congruent-weakened [--slice TEXT N | --part I N]".into()),
    }
    Ok(chosen.into_iter().map(|index| all[index].clone()).collect())
}

/// One step of the hash of Fowler, Noll and Vo (FNV-1a).
fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

fn record() -> Result<Vec<Recording>, congruent::Error> {
    let mut recordings = Vec::new();
    for pes in PES {
        recordings.extend(calls::record(pes)?);
    }
    Ok(recordings)
}

/// What came of a program.
enum Verdict {
    /// By what it was noticed.
    Caught(String),
    Survived {
        /// Whether a call comes to the place.
        reached: bool,
    },
}

/// Runs programs.
struct Judge<'j> {
    text: &'j str,
    module: &'j Module,
    recordings: Vec<Recording>,
}

impl Judge<'_> {
    /// What notices that a program has less, and nothing of a program that has not: in all calls of the kernels that have it,
    /// until one does.
    fn notice(
        &self,
        mutant: &Mutant,
        programs: &mut BTreeMap<String, Arc<Program>>,
    ) -> Result<Verdict, Box<dyn Error>> {
        let mut reached = false;
        for kernel in &mutant.kernels {
            let program = match programs.get(kernel) {
                Some(program) => program.clone(),
                None => programs.entry(kernel.clone()).or_insert(self.alone(kernel)?).clone(),
            };
            let same = |own: &Mutant| (own.line, own.loss) == (mutant.line, mutant.loss);
            let own = program.mutants().into_iter().find(same).ok_or("a kernel without its own instruction")?;
            let (trapped, mutated) = (program.trapped(&own), program.mutated(&own));
            for recording in self.recordings.iter().filter(|recording| recording.kernels.contains(kernel)) {
                if recording.run(&trapped, &PLAIN).is_ok() {
                    continue;
                }
                reached = true;
                for how in ways(recording.pes) {
                    if let Err(wrong) = recording.run(&mutated, &how)
                        && recording.run_unchanged(&how).is_ok()
                    {
                        return Ok(Verdict::Caught(format!("{} in {}, {how}", brief(&wrong), recording.name)));
                    }
                }
            }
        }
        Ok(Verdict::Survived { reached })
    }

    /// A program of one kernel, which is quick to copy.
    fn alone(&self, kernel: &str) -> Result<Arc<Program>, Box<dyn Error>> {
        let mut module = self.module.clone();
        module.functions.retain(|function| !function.is_entry || function.name == kernel);
        Ok(Program::of(&module, self.text)?)
    }
}

/// How recordings of so many PEs are run: in order, each of the first PEs far behind, and by chance.
fn ways(pes: usize) -> Vec<How> {
    let behind = (0..pes.min(4) as u32).map(Schedule::Behind);
    let schedules = [Schedule::Lockstep].into_iter().chain(behind);
    let schedules = schedules.chain([Schedule::Random, Schedule::Priorities, Schedule::Random, Schedule::Priorities]);
    (1..).zip(schedules).map(|(seed, schedule)| How { schedule, seed, is_strict: true }).collect()
}

/// The first line of what is wrong.
fn brief(wrong: &Wrong) -> String {
    wrong.to_string().lines().next().unwrap_or_default().chars().take(100).collect()
}
