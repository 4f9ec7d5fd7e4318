//! Runs the shipped PTX, and fused kernels of the examples, each time with one fence, order, scope, barrier or wait less, on virtual
//! GPUs, and says whether anything but its text shows it: wrong data, a race, a read of what nobody wrote, a fault or a deadlock.
//!
//! `congruent-weakened` runs all such programs, `--slice TEXT N` N of them that a hash of TEXT chooses, `--part I N` every N-th of
//! them from the I-th on, `--at IMAGE LINE ..` those of some lines, `--in NAME ..` those of functions whose names have one of these in
//! them. `--unreached` names those in places that no recorded call comes to. `--unchanged` runs the program as it is in all these ways, and `--seeds N` a call for each core of the protocols in N schedules by
//! chance; nothing may be wrong then. Lines of the source are named where the PTX was compiled with `congruent-build build --lines`.
//! Programs that nothing shows to be weakened have to be in `survivors.txt`, with the reason. Each run can be repeated: it has no
//! other input than the program, the recording and a seed. The virtual driver needs `CONGRUENT_VIRTUAL_DRIVER=multicast=1`, as
//! `./check` has it.

mod calls;
mod recording;
mod stand_in;
mod survivors;

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::error::Error;
use std::iter;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use calls::Which;
use congruent::{fixed_kernels, moe_kernels, sum_kernels};
use congruent_example_kernels as examples;
use congruent_verify::ptx;
use congruent_virtual_gpu::{Mutant, Program, Schedule};
use recording::{How, Recording, Wrong};
use stand_in::{End, FEW_SLOTS, Host, MANY_SLOTS};
use survivors::Survivors;

/// What is recorded, in jobs of so many PEs.
const JOBS: [(usize, Which); 4] = [(3, Which::All), (1, Which::Alone), (9, Which::Many), (2, Which::Fused)];
/// Kernels of the examples in which computation and communication overlap. What they call is in shipped kernels too, and weakened there.
const FUSED: [&str; 8] = [
    "answer_by_experts",
    "embed",
    "flash_decode",
    "gather_gemm",
    "gemm_scatter",
    "multiply_sum_and_norm",
    "prefill_and_decode",
    "ring_attention",
];
/// So many functions are named that have the most places that nothing comes to.
const WORST: usize = 20;
/// Kernels of each image whose calls end in every way.
const ENDED: [&str; 3] = ["all_gather_direct", "perf_put", "all_gather_multimem"];
/// Kernels whose requests nobody serves while they wait for a slot of a ring, or, of more slots, for a request to be done.
const UNSERVED: [&str; 6] =
    ["all_gather_direct", "all_gather_multimem", "all_gather_v_direct", "perf_fetch_add", "perf_put", "perf_put_value"];
/// Short calls whose names begin so wait for packets and lines that do not come.
const STARVED: [&str; 4] =
    ["all-gather one-shot ll", "all-reduce one-shot ll", "all-reduce ring ll", "broadcast ring ll128"];
/// Calls of many PEs that one does not come to, so that the others say of whom they waited for what.
const MISSED: [&str; 3] = ["meet of 9", "barrier by a list of 9", "all-gather multimem simple from 0 to 2 of 9"];
/// Kernels all of whose calls the last PE leaves: after so many launches, where the others make so many.
const LEFT: [(&str, usize, usize); 2] = [("moe_dispatch_send", 0, 4), ("moe_dispatch_send", 4, 8)];
/// Kernels that find out that PE 0 gives something else: which word of its arguments, behind so many bytes, is so much more.
const DIFFERENT: [(&str, usize, u64); 4] = [
    // How long the source is, how many elements the lists count in, a list, and what is described.
    ("all_gather_v_direct", 24, 1),
    ("all_to_all_v_direct", 64, 1),
    ("send_recv_direct", 32, 360),
    ("agree_on", 8, 1),
];
/// Kernels that reach some PEs directly and others through proxies in one call.
const MIXED: [&str; 6] =
    ["agree_on", "all_gather_direct", "all_gather_recursive", "broadcast_direct", "gather_direct", "perf_ping_pong"];
/// Kernels that move bytes through links and signal through proxies.
const MULTIMEM: [&str; 2] = ["all_gather_multimem", "all_reduce_multimem"];
/// Calls that come to a place are run, so many of them in two ways, and so many in all.
const MANY: usize = 24;
const CALLS: usize = 8;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["--unchanged"] => return unchanged(),
        ["--seeds", seeds] => return explore(seeds.parse()?),
        ["--unreached"] => return unreached(),
        _ => {}
    }
    let programs = programs()?;
    let all = mutants(&programs);
    let chosen = choose(&all, &arguments)?;
    println!("{} of the {} programs with one thing less", chosen.len(), all.len());
    let judge = Judge::new(programs, record()?)?;
    let reaches = |(of, mutant): &&(usize, Mutant)| judge.reaching(*of, mutant).next().is_some();
    let reached = all.iter().filter(reaches).count();
    println!("{} calls come to {reached} of all", judge.recordings.len());
    let mut elsewhere = BTreeMap::<&str, usize>::new();
    all.iter().filter(|one| !reaches(one)).for_each(|(_, mutant)| *elsewhere.entry(&mutant.function).or_default() += 1);
    let mut elsewhere: Vec<_> = elsewhere.into_iter().collect();
    elsewhere.sort_by_key(|&(_, places)| core::cmp::Reverse(places));
    for (function, places) in elsewhere.into_iter().take(WORST) {
        println!("nothing comes to {places} of {function}");
    }
    let table = Survivors::read(include_str!("../survivors.txt"))?;
    let (mut caught, mut left_out, mut unknown) = (0, 0, 0);
    let mut counts: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    if arguments.first() == Some(&"--at") {
        for (of, mutant) in &chosen {
            judge.reaching(*of, mutant).for_each(|index| println!("{} comes there", judge.recordings[index].name));
        }
    }
    for ((of, mutant), noticed) in chosen.iter().zip(judge.notice_all(&chosen)) {
        let [of_kind, was_caught, was_left_out, is_unreached] = counts.entry(mutant.loss.to_string()).or_default();
        *of_kind += 1;
        let place = place(mutant);
        match noticed {
            Noticed::Caught(how) => {
                caught += 1;
                *was_caught += 1;
                println!("caught   {place}: {how}");
            }
            Noticed::LeftOut(how) => {
                left_out += 1;
                *was_left_out += 1;
                println!("left out {place}: {how}");
            }
            Noticed::Nothing => {
                let reached = judge.reaching(*of, mutant).next().is_some();
                *is_unreached += usize::from(!reached);
                match table.reason(mutant, reached) {
                    Some(reason) => println!("survived {place}: {reason}"),
                    None => {
                        unknown += 1;
                        println!("SURVIVED {place}: {}, and survivors.txt has no reason", survivors::word(reached));
                    }
                }
            }
        }
    }
    for (loss, [of_kind, caught, left_out, unreached]) in counts {
        println!(
            "{loss}: of {of_kind} {caught} caught, {left_out} by leaving out the access, {unreached} in places that nothing comes to"
        );
    }
    let reached = chosen.iter().filter(reaches).count();
    println!(
        "{reached} are in places that runs come to; {left_out} are caught by leaving out an access that has no order"
    );
    println!("{} of {} caught, {unknown} survived without a reason", caught + left_out, chosen.len());
    // A few say how it is; all of them are judged.
    let is_judged = arguments.first() != Some(&"--slice");
    Ok(if unknown == 0 || !is_judged { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs everything with the program as it is: nothing may be noticed.
fn unchanged() -> Result<ExitCode, Box<dyn Error>> {
    let recordings = record()?;
    let (mut runs, mut wrong) = (0, 0);
    for recording in &recordings {
        for how in ways(recording.pes) {
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

/// Names all places that no call comes to.
fn unreached() -> Result<ExitCode, Box<dyn Error>> {
    let programs = programs()?;
    let judge = Judge::new(programs.clone(), record()?)?;
    for (of, mutant) in mutants(&programs).iter().filter(|(of, mutant)| judge.reaching(*of, mutant).next().is_none()) {
        println!("image {of}: {}", place(mutant));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs cores of the protocols as they are: half of the seeds in jobs of two PEs, half in jobs of three.
fn explore(seeds: u64) -> Result<ExitCode, Box<dyn Error>> {
    let host = Host::new()?;
    let mut recordings = Vec::new();
    // Those of more PEs take longer, and so come first.
    for pes in [3, 2] {
        let calls = calls::record(pes, Which::Cores)?;
        let far: Vec<_> = calls.iter().filter(|one| one.is_far).map(|one| host.proxied(one)).collect();
        recordings.extend(calls.into_iter().chain(far));
    }
    let cores = recordings.len() / 2;
    let wrong = two_at_a_time(&recordings, recordings.len(), |recordings, index| {
        explore_call(&recordings[index], ((index / cores) as u64..seeds).step_by(2))
    });
    let wrong: usize = wrong.into_iter().sum();
    println!("{cores} cores of protocols in {seeds} seeds each, {wrong} of the runs wrong");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a call with these seeds; gives how many runs are wrong.
fn explore_call(call: &Recording, seeds: impl Iterator<Item = u64> + Clone) -> usize {
    let (mut wrong, many, start) = (0, seeds.clone().count(), Instant::now());
    for seed in seeds {
        let schedule = if seed / 2 % 2 == 0 { Schedule::Random } else { Schedule::Priorities };
        let how = How { schedule, seed, is_strict: true };
        if let Err(error) = call.run_unchanged(&how) {
            wrong += 1;
            println!("WRONG in {}, {how}: {error}", call.name);
        }
    }
    println!("{many} seeds of {}: {:.1} s", call.name, start.elapsed().as_secs_f64());
    wrong
}

/// Does `work` of each of so many things, with recordings of its own for each of two threads; in their order.
fn two_at_a_time<T: Send>(
    recordings: &[Recording],
    many: usize,
    work: impl Fn(&[Recording], usize) -> T + Sync,
) -> Vec<T> {
    let next = Mutex::new(0..many);
    let work = |recordings: &[Recording]| {
        let claim = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        iter::from_fn(claim).map(|index| (index, work(recordings, index))).collect::<Vec<_>>()
    };
    let copies: Vec<Recording> = recordings.iter().map(Recording::apart).collect();
    let mut all = thread::scope(|scope| {
        let other = scope.spawn(|| work(&copies));
        let mut all = work(recordings);
        all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        all
    });
    all.sort_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, done)| done).collect()
}

/// The images that are shipped, and at last that of the examples.
fn programs() -> Result<Vec<Arc<Program>>, Box<dyn Error>> {
    let texts = [&fixed_kernels::PTX, &fixed_kernels::MULTIMEM, &moe_kernels::PTX, &sum_kernels::PTX, &examples::PTX]
        .into_iter()
        .flat_map(|module| module.images);
    let programs = texts.map(|(_, text)| {
        let module = ptx::parse(text).map_err(|error| error.message)?;
        Ok(Program::of(&module, text)?)
    });
    programs.collect()
}

/// All that can be taken away: of each shipped image, and of kernels of the examples. A function that several images have is judged in the
/// first of them.
fn mutants(programs: &[Arc<Program>]) -> Vec<(usize, Mutant)> {
    let examples = programs.len() - 1;
    let each = programs.iter().enumerate();
    let all = each.flat_map(|(of, program)| program.mutants().into_iter().map(move |less| (of, less)));
    let mut first_in: HashMap<String, usize> = HashMap::new();
    all.filter(|(of, less)| match of {
        _ if *of == examples => FUSED.contains(&less.function.as_str()),
        _ => *first_in.entry(source_of(&less.function)).or_insert(*of) == *of,
    })
    .collect()
}

/// The name of a function without the numbers that its crates have in an image, and without the crate that it was compiled in.
fn source_of(function: &str) -> String {
    let mut parts = function.split("Cs");
    let mut name = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let after = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_of_crate = after.starts_with('_') && after.len() < part.len();
        name.push_str("Cs");
        name.push_str(if is_of_crate { after } else { part });
    }
    match name.rfind("Cs_") {
        Some(at) if name.ends_with("kernels") => name[..at].to_string(),
        _ => name,
    }
}

/// Those that the arguments ask for, in the order of the texts.
fn choose(all: &[(usize, Mutant)], arguments: &[&str]) -> Result<Vec<(usize, Mutant)>, Box<dyn Error>> {
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
        ["--at", ref places @ ..] => {
            let places = places.iter().map(|place| place.parse()).collect::<Result<Vec<usize>, _>>()?;
            chosen.retain(|&index| places.chunks(2).any(|place| place == [all[index].0, all[index].1.line]));
        }
        ["--in", ref names @ ..] => {
            chosen.retain(|&index| names.iter().any(|name| all[index].1.function.contains(name)));
        }
        _ => {
            return Err(
                "usage: congruent-weakened [--slice TEXT N | --part I N | --at IMAGE LINE .. | --in NAME .. | --unreached | --unchanged | --seeds N]"
                    .into(),
            );
        }
    }
    Ok(chosen.into_iter().map(|index| all[index].clone()).collect())
}

/// One step of the hash of Fowler, Noll and Vo (FNV-1a).
fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

/// What is run: calls, those that may be over proxies, and a call of each kernel that ends before its time.
fn record() -> Result<Vec<Recording>, Box<dyn Error>> {
    let (host, mut recordings) = (Host::new()?, Vec::new());
    for (pes, which) in JOBS {
        recordings.extend(calls::record(pes, which)?);
    }
    let mut far: Vec<_> = recordings.iter().filter(|one| one.is_far).map(|one| host.proxied(one)).collect();
    // The first call of each kernel, and the first by the most PEs.
    let (mut first, mut widest) = (BTreeMap::new(), BTreeMap::new());
    for recording in &recordings {
        first.entry(recording.kernel()).or_insert(recording);
        let widest = widest.entry(recording.kernel()).or_insert(recording);
        if recording.pes > widest.pes {
            *widest = recording;
        }
    }
    let mixed = MIXED.iter().filter_map(|kernel| widest.get(kernel));
    let multimem = MULTIMEM.iter().filter_map(|kernel| first.get(kernel));
    far.extend(mixed.chain(multimem).map(|one| host.partly_proxied(one)));
    let mut ended = Vec::new();
    let mut end = |recording: &Recording, end| -> Result<(), String> {
        let one = host.ended(recording, end, &ways(recording.pes));
        ended.push(one.map_err(|wrong| format!("{}: {wrong}", recording.name))?);
        Ok(())
    };
    for (&kernel, recording) in &first {
        end(recording, End::Without(2.min(recording.pes - 1)))?;
        if ENDED.contains(&kernel) {
            end(recording, End::Without(0))?;
            end(recording, End::Aborted(2))?;
            end(recording, End::Refused)?;
        }
        if UNSERVED.contains(&kernel) {
            for slots in [FEW_SLOTS, MANY_SLOTS] {
                end(recording, End::Unserved(slots))?;
                end(recording, End::UnservedAborted(slots))?;
            }
        }
        for (_, at, more) in DIFFERENT.into_iter().filter(|(of, ..)| *of == kernel) {
            end(recording, End::Differs(at, more))?;
        }
    }
    for (kernel, last, others) in LEFT {
        let mut all = recordings.iter().filter(|one| one.kernel() == kernel);
        all.try_for_each(|one| end(one, End::Leaves(last, others)))?;
    }
    let is_starved = |name: &str| name.ends_with(" 37 of 3") && STARVED.iter().any(|start| name.starts_with(start));
    let is_missed = |name: &str| is_starved(name) || MISSED.contains(&name);
    for missed in recordings.iter().filter(|one| is_missed(&one.name)) {
        end(missed, End::Without(2))?;
        end(missed, End::Aborted(2))?;
    }
    recordings.extend(far);
    recordings.extend(ended);
    Ok(recordings)
}

/// What shows that a program has one thing less.
enum Noticed {
    Caught(String),
    /// Only what shows that the access is left out: one with less order does the same on a virtual GPU.
    LeftOut(String),
    Nothing,
}

/// Runs programs.
struct Judge {
    programs: Vec<Arc<Program>>,
    recordings: Vec<Recording>,
    /// Of each recording, the cheapest first, programs that know where they came.
    traces: Vec<(usize, [Vec<Arc<Program>>; 2])>,
    /// In which runs the program as it is is right.
    right: Mutex<BTreeMap<(usize, u64), bool>>,
}

impl Judge {
    fn new(programs: Vec<Arc<Program>>, recordings: Vec<Recording>) -> Result<Self, String> {
        let trace = |recordings: &[Recording], index: usize| {
            let all_traced = || programs.iter().map(|program| program.traced()).collect::<Vec<_>>();
            let (recording, start, traced) = (&recordings[index], Instant::now(), [all_traced(), all_traced()]);
            for (schedule, traced) in [Schedule::Lockstep, Schedule::Behind(1)].into_iter().zip(&traced) {
                let how = How { schedule, seed: 0, is_strict: false };
                recording.run(traced, &how).map_err(|wrong| format!("{}, {how}: {wrong}", recording.name))?;
            }
            Ok((start.elapsed(), (index, traced)))
        };
        let traces = two_at_a_time(&recordings, recordings.len(), trace).into_iter();
        let mut traces = traces.collect::<Result<Vec<_>, String>>()?;
        traces.sort_by_key(|(time, _)| *time);
        let traces = traces.into_iter().map(|(_, trace)| trace).collect();
        Ok(Self { programs, recordings, traces, right: Mutex::default() })
    }

    /// The calls that come to a place of a program, the cheapest first.
    fn reaching(&self, of: usize, mutant: &Mutant) -> impl Iterator<Item = usize> {
        let reaches = move |traced: &[Vec<Arc<Program>>; 2]| traced.iter().any(|traced| traced[of].has_reached(mutant));
        self.traces.iter().filter(move |(_, traced)| reaches(traced)).map(|&(index, _)| index)
    }

    /// What notices each of these, in their order.
    fn notice_all(&self, mutants: &[(usize, Mutant)]) -> Vec<Noticed> {
        two_at_a_time(&self.recordings, mutants.len(), |recordings, index| self.judge(recordings, &mutants[index]))
    }

    fn judge(&self, recordings: &[Recording], (of, mutant): &(usize, Mutant)) -> Noticed {
        let notice = |mutant: &Mutant| self.notice(recordings, *of, mutant);
        if let Some(how) = notice(mutant) {
            return Noticed::Caught(how);
        }
        let without = mutant.without_access().find_map(|mutant| notice(&mutant));
        without.map_or(Noticed::Nothing, Noticed::LeftOut)
    }

    /// What notices that a program has less, and nothing of the program that has not, in calls that come there.
    fn notice(&self, recordings: &[Recording], of: usize, mutant: &Mutant) -> Option<String> {
        let mut mutated = self.programs.clone();
        mutated[of] = mutated[of].mutated(mutant);
        let notice = |index: usize, how: How| {
            let recording = &recordings[index];
            let wrong = recording.run(&mutated, &how).err().filter(|_| self.is_right(recording, index, &how))?;
            Some(format!("{} in {}, {how}", brief(&wrong), recording.name))
        };
        // Many calls in order and by chance, those that end early in order, then a few in all ways.
        let (ended, calls): (Vec<_>, Vec<_>) =
            self.reaching(of, mutant).partition(|&index| self.recordings[index].is_ended);
        let ways = |index: usize| ways(self.recordings[index].pes);
        let first = evenly(&calls, MANY).flat_map(|index| {
            let ways = ways(index);
            [ways[0], ways[ways.len() - 1]].map(|how| (index, how))
        });
        let first = first.chain(evenly(&ended, MANY).map(|index| (index, ways(index)[0])));
        let rest = evenly(&calls, CALLS).flat_map(|index| {
            let ways = ways(index);
            let last = ways.len() - 1;
            ways.into_iter().take(last).skip(1).map(move |how| (index, how))
        });
        first.chain(rest).find_map(|(index, how)| notice(index, how))
    }

    fn is_right(&self, recording: &Recording, index: usize, how: &How) -> bool {
        let right = || self.right.lock().unwrap_or_else(PoisonError::into_inner);
        let known = right().get(&(index, how.seed)).copied();
        known.unwrap_or_else(|| {
            let is_right = recording.run_unchanged(how).is_ok();
            right().insert((index, how.seed), is_right);
            is_right
        })
    }
}

/// At most so many of a list, from its beginning to its end.
fn evenly(all: &[usize], most: usize) -> impl Iterator<Item = usize> {
    let count = all.len().min(most);
    (0..count).map(move |i| all[i * all.len() / count])
}

/// How recordings of so many PEs are run: in order, each of the first PEs far behind, and by chance.
fn ways(pes: usize) -> Vec<How> {
    let behind = (0..pes.min(4) as u32).map(Schedule::Behind);
    let schedules = [Schedule::Lockstep].into_iter().chain(behind);
    let schedules = schedules.chain([Schedule::Random, Schedule::Priorities, Schedule::Random, Schedule::Priorities]);
    (1..).zip(schedules).map(|(seed, schedule)| How { schedule, seed, is_strict: true }).collect()
}

/// What is taken away, and where.
fn place(Mutant { loss, function, line, instruction, source, .. }: &Mutant) -> String {
    let source = source.as_deref().map(|source| format!(", from {source}")).unwrap_or_default();
    format!("{loss} in line {line} of {function}: {instruction}{source}")
}

/// The first line of what is wrong.
fn brief(wrong: &Wrong) -> String {
    wrong.to_string().lines().next().unwrap_or_default().chars().take(100).collect()
}
