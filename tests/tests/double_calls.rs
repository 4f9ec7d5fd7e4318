//! Every call of the driver that a world makes fails, once as its first use and once as its second; every function of
//! the driver is missing once; and drivers and devices that are not enough. Whatever it is: nothing panics, nobody
//! waits for ever, and the error says what it was.
//!
//! The double does not tell which PE makes a call first, so that any PE may be the one that fails.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod double_support;
mod processes;

use std::fs;
use std::process::Command;
use std::time::Duration;

use congruent::collectives::Op;
use congruent::device::{Sym, kernels};
use congruent::{Error, Grid, LaunchError, World};
use congruent_cuda_double::{built, install, without_symbol};
use double_support::{End, FOLDER, calls, declare, ends, entry, on_double};
use processes::{Port, is_pe, myself, say, seat};

const NPES: u32 = 2;
const HEAP: u64 = 32 << 20;
/// How many numbers each PE gives.
const COUNT: usize = 1000;
/// Longer than a case may take, on a machine that is busy with other things; most take a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// Processes at once.
const AT_ONCE: usize = 6;

/// What the driver may say of any call: resources, arguments, and a context that is lost.
const CODES: [&str; 3] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_FAILED"];

kernels! {
    /// Of blocks that all have to run at once.
    pub fn meet(block, ctx) {
        ctx.barrier(block, &ctx.world());
    }

    /// Fills a PE's numbers.
    pub fn fill(block, ctx, numbers: Sym<f32>) {
        for i in congruent::device::Group::strided(block, numbers.len()) {
            ctx.store(numbers, i, 1.0);
        }
    }
}

/// Everything once: memory, a kernel of the program's own, a collective, and back.
fn scenario(world: &mut World) -> Result<(), Error> {
    let (numbers, sums) = (world.alloc::<f32>(COUNT)?, world.alloc::<f32>(COUNT)?);
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    world.run(&stream, fill, Grid::one(32), (numbers.view(),))?;
    numbers.write(0, &[2.0])?;
    world.barrier()?;
    comm.all_reduce(&stream, sums.view(), numbers.view(), Op::Sum)?;
    world.synchronize(&stream)?;
    let mut found = vec![0.0; COUNT];
    sums.read(0, &mut found)?;
    assert_eq!((found[0], found[1], found[COUNT - 1]), (4.0, 2.0, 2.0));
    // No PE leaves before all have read, or one whose reading fails would find nobody to tell.
    Ok(world.barrier()?)
}

/// Runs the scenario as the environment says, as one PE or all, and tells what came of it and which calls it made.
fn run() {
    match World::builder().heap(HEAP).run(NPES as usize, scenario) {
        Ok(_) => say("RIGHT"),
        Err(error) => say(&format!("REFUSED {}", error.to_string().replace('\n', " "))),
    }
}

/// Calls that may fail and leave the world as good: they give back what nobody uses any more.
const FORGIVEN: [&str; 7] = [
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemAddressFree",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
];

/// How errors tell of a call, where that is not by its name in the library without `_v2`.
const TOLD: [(&str, &str); 7] = [
    ("cuCtxGetCurrent", PRIMARY),
    ("cuCtxSetCurrent", PRIMARY),
    ("cuDeviceGet", PRIMARY),
    ("cuDevicePrimaryCtxRetain", PRIMARY),
    ("cuInit", PRIMARY),
    (RESERVE, "no range of"),
    ("cuMemCreate", "bytes of device memory were asked for"),
];
/// What cudarc does by several calls.
const PRIMARY: &str = "making the primary context: CUDA_ERROR_";
/// Processes that cannot have a place for their heaps try another one.
const RESERVE: &str = "cuMemAddressReserve";

/// This test binary again, with the scenario's kernels, to run one test.
fn again(test: &str, settings: &str) -> Command {
    let mut command = on_double(myself(test), settings);
    command.env("CONGRUENT_PTX", ptx()).env("CONGRUENT_DEADLINE_MS", "5000");
    command
}

fn ptx() -> std::path::PathBuf {
    let path = FOLDER.join("scenario.ptx");
    if path.exists() { path } else { declare("scenario", &[entry::<meet>(), entry::<fill>()]) }
}

/// What a process of the scenario made of it.
#[derive(Debug)]
enum Outcome {
    Right,
    Refused(String),
}

fn outcome(case: &str, end: &End) -> Outcome {
    assert!(end.succeeded, "{case}: {end:?}");
    assert!(!end.said.contains("panicked at"), "{case}: {end:?}");
    let refused = end.said.lines().find_map(|line| line.strip_prefix("REFUSED "));
    match refused {
        Some(why) => Outcome::Refused(why.to_owned()),
        None if end.said.lines().any(|line| line == "RIGHT") => Outcome::Right,
        None => panic!("{case}: {end:?}"),
    }
}

/// How the processes of some cases end, a few cases at a time.
fn all(cases: Vec<(String, Vec<Command>)>) -> Vec<(String, Vec<End>)> {
    let mut done = Vec::new();
    let mut cases = cases.into_iter().peekable();
    while cases.peek().is_some() {
        let some: Vec<_> = cases.by_ref().take(AT_ONCE).collect();
        let sizes: Vec<_> = some.iter().map(|(case, commands)| (case.clone(), commands.len())).collect();
        let mut ended = ends(some.into_iter().flat_map(|(_, commands)| commands).collect(), PATIENCE).into_iter();
        done.extend(sizes.into_iter().map(|(case, many)| (case, ended.by_ref().take(many).collect())));
    }
    done
}

/// The calls that the scenario makes, and how often.
fn made(end: &End) -> Vec<(String, u64)> {
    assert!(matches!(outcome("nothing fails", end), Outcome::Right), "{end:?}");
    let lines = end.said.lines().filter_map(|line| line.strip_prefix("CALLS "));
    let made = lines.filter_map(|line| line.split_once(' '));
    made.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
}

fn tells_of(text: &str, call: &str) -> bool {
    let told = TOLD.iter().find(|(name, _)| *name == call);
    text.contains(call.trim_end_matches("_v2")) || told.is_some_and(|(_, told)| text.contains(told))
}

/// What is wrong with how a failed call was taken, if something is.
fn judge(case: &str, call: &str, outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Right if FORGIVEN.contains(&call) => None,
        Outcome::Right => Some(format!("{case}: nobody noticed")),
        Outcome::Refused(why) if tells_of(&why, call) => None,
        Outcome::Refused(why) => Some(format!("{case}: the error does not tell of it: {why}")),
    }
}

fn run_and_count() {
    run();
    for (name, count) in calls() {
        say(&format!("CALLS {name} {count}"));
    }
}

#[test]
fn every_call_fails_once_on_threads() {
    const TEST: &str = "every_call_fails_once_on_threads";
    if is_pe() {
        return run_and_count();
    }
    let made = made(&ends(vec![again(TEST, "")], PATIENCE)[0]);
    assert!(made.len() > 30, "{made:?}");
    let mut cases = Vec::new();
    for (call, count) in &made {
        let first = CODES.map(|code| (1, code));
        // What matters of the second use is that something is there already.
        for (time, code) in first.into_iter().chain((*count > 1).then_some((2, CODES[1]))) {
            let fail = format!("fail={call}:{time}:{code}");
            cases.push((format!("{call} {fail}"), vec![again(TEST, &fail)]));
        }
    }
    let ended = all(cases);
    let judged = ended.iter().filter_map(|(case, ends)| {
        let call = case.split(' ').next().unwrap();
        judge(case, call, outcome(case, &ends[0]))
    });
    let wrong: Vec<_> = judged.collect();
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), ended.len());
}

#[test]
fn every_call_fails_once_in_one_of_two_processes() {
    const TEST: &str = "every_call_fails_once_in_one_of_two_processes";
    if is_pe() {
        return run_and_count();
    }
    let job = |settings: &str, port: &Port| {
        (0..NPES).map(|pe| seat(again(TEST, if pe == 1 { settings } else { "" }), port, pe, NPES)).collect::<Vec<_>>()
    };
    let port = Port::reserve();
    let made = made(&ends(job("", &port), PATIENCE)[1]);
    assert!(made.iter().any(|(name, _)| name == "cuMemImportFromShareableHandle"), "{made:?}");
    let ports: Vec<Port> = made.iter().map(|_| Port::reserve()).collect();
    let cases = made.iter().zip(&ports).map(|((call, _), port)| {
        let fail = format!("fail={call}:1:CUDA_ERROR_INVALID_VALUE");
        (format!("{call} {fail}"), job(&fail, port))
    });
    let ended = all(cases.collect());
    let mut wrong = Vec::new();
    for (case, ends) in &ended {
        let call = case.split(' ').next().unwrap();
        let (other, failing) = (outcome(case, &ends[0]), outcome(case, &ends[1]));
        if matches!(other, Outcome::Right) != matches!(failing, Outcome::Right) {
            wrong.push(format!("{case}: PE 0 {other:?}, PE 1 {failing:?}"));
        }
        if call != RESERVE || matches!(failing, Outcome::Refused(_)) {
            wrong.extend(judge(case, call, failing));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), ended.len());
}

#[test]
fn every_function_is_missing_once() {
    const TEST: &str = "every_function_is_missing_once";
    if is_pe() {
        return run_and_count();
    }
    let made = made(&ends(vec![again(TEST, "")], PATIENCE)[0]);
    let library = built().unwrap();
    let mut wrong = Vec::new();
    let mut names = congruent_cuda_double::names().peekable();
    while names.peek().is_some() {
        let some: Vec<_> = names.by_ref().take(AT_ONCE).collect();
        let start = |name: &&str| {
            let folder = FOLDER.join(format!("without-{name}"));
            let less = FOLDER.join(format!("without-{name}.so"));
            without_symbol(&library, name, &less).unwrap();
            install(&folder, &less).unwrap();
            fs::remove_file(less).unwrap();
            let mut command = again(TEST, "");
            command.env("LD_LIBRARY_PATH", folder);
            command
        };
        let ended = ends(some.iter().map(start).collect(), PATIENCE);
        for (name, end) in some.iter().zip(&ended) {
            fs::remove_dir_all(FOLDER.join(format!("without-{name}"))).unwrap();
            let needed = made.iter().any(|(call, _)| call == name);
            match outcome(name, end) {
                Outcome::Refused(why) if why.contains(&format!("the CUDA driver has no {name}, ")) => {}
                Outcome::Right if !needed || FORGIVEN.contains(name) => {}
                other => wrong.push(format!("without {name}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A world that cannot be made is refused with the reason, and what to do.
#[test]
fn drivers_and_devices_that_are_not_enough_are_refused() {
    const TEST: &str = "drivers_and_devices_that_are_not_enough_are_refused";
    if is_pe() {
        return run();
    }
    let broken = FOLDER.join("broken");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("libcuda.so.1"), "no library").unwrap();
    let mut no_library = again(TEST, "");
    no_library.env("LD_LIBRARY_PATH", broken);
    let cases: [(&str, Command, &[&str]); 4] = [
        ("an old driver", again(TEST, "version=11080"), &["for CUDA 11.8, and CUDA 12.0 is needed"]),
        ("no device", again(TEST, "devices=0"), &["finds no GPU", "CUDA_VISIBLE_DEVICES"]),
        ("little memory", again(TEST, "memory=40M"), &["of device memory were asked for", "CONGRUENT_HEAP"]),
        ("no library", no_library, &["libcuda.so.1", "install NVIDIA's driver 525 or newer", "run on the CPU"]),
    ];
    let (parts, cases): (Vec<_>, Vec<_>) =
        cases.into_iter().map(|(case, command, parts)| (parts, (case.to_owned(), vec![command]))).unzip();
    for ((case, ended), parts) in all(cases).iter().zip(parts) {
        let Outcome::Refused(why) = outcome(case, &ended[0]) else { panic!("{case}: {ended:?}") };
        assert!(parts.iter().all(|part| why.contains(part)), "{case}: {why}");
    }
}

/// With nothing said of the machine, PEs run on the GPU where there is one that can be used, else on the CPU.
#[test]
fn auto_takes_the_gpu_if_it_can_be_used_and_else_the_cpu() {
    const TEST: &str = "auto_takes_the_gpu_if_it_can_be_used_and_else_the_cpu";
    if is_pe() {
        let machines = World::builder().heap(HEAP).local(2, |world| {
            scenario(world)?;
            Ok::<_, Error>(world.machine())
        });
        return say(&format!("MACHINES {machines:?}"));
    }
    // What runs the kernels, by `World::machine`.
    for (settings, machine) in [("", "cuda, "), ("devices=0", "cpu, "), ("version=11080", "cpu, ")] {
        for kind in ["auto", ""] {
            let mut command = again(TEST, settings);
            match kind {
                "" => command.env_remove("CONGRUENT_MACHINE"),
                kind => command.env("CONGRUENT_MACHINE", kind),
            };
            let end = ends(vec![command], PATIENCE).remove(0);
            let said = end.said.lines().find_map(|line| line.strip_prefix("MACHINES ")).map(str::to_owned);
            let expected = format!("[\"{machine}");
            assert!(end.succeeded && said.is_some_and(|said| said.contains(&expected)), "{settings}: {end:?}");
        }
    }
}

/// Blocks that wait for each other have to fit, those of all PEs on a device together.
#[test]
fn a_grid_that_does_not_fit_is_not_launched() {
    const TEST: &str = "a_grid_that_does_not_fit_is_not_launched";
    if is_pe() {
        let refused = World::builder().heap(HEAP).local(2, |world| {
            let stream = world.stream()?;
            // Two blocks of 128 threads with all registers fit on the one multiprocessor: one of each PE.
            let refused = world.launch(&stream, meet, Grid::new(2, 128), ());
            assert!(matches!(refused, Err(LaunchError::NotCoresident { asked: 2, fits: 1 })), "{refused:?}");
            // And no block of more than 256 threads on any.
            let refused = world.launch(&stream, meet, Grid::one(512), ()).unwrap_err();
            assert!(matches!(refused, LaunchError::TooManyThreads { asked: 512, fits: 256, .. }), "{refused:?}");
            let said = refused.to_string();
            assert!(said.contains("256 or fewer") && said.contains("more blocks"), "{said}");
            world.run(&stream, meet, Grid::one(128), ())?;
            Ok::<_, Error>(())
        });
        refused.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, "sms=1")], PATIENCE).remove(0);
    assert!(matches!(outcome("one multiprocessor", &end), Outcome::Right), "{end:?}");
}
