//! Every call of the driver that worlds make fails, and every function of the driver is missing once. Whatever it is: nothing
//! panics, nobody waits for ever, every PE is told, and the error says what it was.
//!
//! The virtual driver does not tell which PE makes a call first, so that on threads any PE may be the one that fails.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod virtual_cases;
mod virtual_support;

use std::collections::BTreeSet;
use std::fs;

use congruent_tests::repository;
use congruent_virtual_library::{built, install, names, without_symbol};
use processes::{Port, is_pe};
use virtual_cases::scenarios::{
    self, BUFFERS, EVERYTHING, GRAPHS, GROWTH, IMPORT, MULTICAST, NPES, PROXIED, STREAMS, Scenario,
};
use virtual_cases::{Case, Made, Outcome, PATIENCE, Uses, again, all, job, made_by_process, made_by_threads, outcome};
use virtual_support::{End, FOLDER, ends};

/// What the driver may say of any call: resources, arguments, and a context that is lost.
const CODES: [&str; 3] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_FAILED"];

/// Calls that may fail and leave the world as good: they give back what nobody uses any more, or spare others' captures.
const FORGIVEN: [&str; 13] = [
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuMulticastUnbind",
    "cuStreamDestroy_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// How errors tell of a call, where that is not by its name in the library without `_v2`.
const TOLD: [(&str, &[&str]); 4] = [
    (RESERVE, &["no range of"]),
    ("cuMemCreate", &["bytes of device memory were asked for"]),
    ("cuMemAllocAsync", &["bytes of device memory were asked for"]),
    ("cuPointerGetAttribute", &["is no memory of a device"]),
];
/// Processes that cannot have a place for their heaps try another one.
const RESERVE: &str = "cuMemAddressReserve";

/// Functions that are looked up when the driver is loaded, though no scenario calls them: they put failures into words.
const WORDS: [&str; 2] = ["cuGetErrorName", "cuGetErrorString"];

/// What only an RDMA device asks for: `conformance_verbs` has one, in a virtual machine.
const OF_DEVICES: [&str; 2] = ["cuFlushGPUDirectRDMAWrites", "cuMemGetHandleForAddressRange"];

/// Functions that worlds do without where a driver is too old for them: kernels are loaded at their first launch then.
const SPARED: [&str; 1] = ["cuFuncLoad"];

fn tells_of(text: &str, call: &str) -> bool {
    let told = TOLD.iter().find(|(name, _)| *name == call).map_or(&[][..], |(_, told)| told);
    text.contains(call.trim_end_matches("_v2")) || told.iter().any(|told| text.contains(told))
}

/// What is wrong with how a failed call was taken, if something is.
fn judge(case: &str, call: &str, outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Right if FORGIVEN.contains(&call) => None,
        Outcome::Right => Some(format!("{case}: nobody noticed")),
        Outcome::Refused(why) if tells_of(why, call) => None,
        Outcome::Refused(why) => Some(format!("{case}: the error does not tell of it: {why}")),
    }
}

/// What is wrong with what the PEs were told that had a world: one of them was let down, and another was not.
fn disagree(case: &str, ends: &[End]) -> Option<String> {
    let lines = |word: &str| {
        let told = |pe: u32| ends.iter().any(|end| end.said.lines().any(|line| line == format!("PE {pe} {word}")));
        (0..NPES).filter(|pe| told(*pe)).collect::<Vec<_>>()
    };
    let (well, failed) = (lines("WELL"), lines("FAILED"));
    let differ = !failed.is_empty() && failed.len() < NPES as usize;
    differ.then(|| format!("{case}: PEs {failed:?} failed, and {well:?} did not"))
}

/// Which uses of a call are to fail: the first and the second, by which something is there already, and the first once there is a
/// world. A call that another scenario has failed like that fails once, in what this one does.
fn failures(call: &str, uses: Uses, known: bool) -> Vec<String> {
    let fail = |(time, code): (u64, &str)| format!("fail={call}:{time}:{code}");
    let in_world = (uses.all > uses.before && (known || uses.before > 1)).then_some((uses.before + 1, CODES[1]));
    let first = CODES.map(|code| (1, code)).into_iter().chain((uses.all > 1).then_some((2, CODES[1])));
    first.filter(|_| !known).chain(in_world).map(fail).collect()
}

/// The test of a scenario whose PEs are threads. What `known` makes fails in a test of its own.
fn each_fails_on_threads(test: &str, scenario: Scenario, known: Option<Scenario>) {
    if is_pe() {
        return scenarios::run(scenario);
    }
    let known = known.map(|known| made_by_threads("every_call_fails_once_on_threads", known)).unwrap_or_default();
    let case = |(call, &uses): (&String, &Uses)| {
        let fails = failures(call, uses, known.contains_key(call));
        fails.into_iter().map(|fail| (format!("{call} {fail}"), vec![again(test, scenario, &fail)])).collect::<Vec<_>>()
    };
    let cases: Vec<Case> = made_by_threads(test, scenario).iter().flat_map(case).collect();
    let ended = all(cases);
    let judged = ended.iter().flat_map(|(case, ends)| {
        let call = case.split(' ').next().unwrap();
        [judge(case, call, &outcome(case, &ends[0])), disagree(case, ends)]
    });
    let wrong: Vec<_> = judged.flatten().collect();
    assert!(wrong.is_empty() && ended.len() > 10, "{} of {} cases: {wrong:#?}", wrong.len(), ended.len());
}

#[test]
fn every_call_fails_once_on_threads() {
    each_fails_on_threads("every_call_fails_once_on_threads", EVERYTHING, None);
}

#[test]
fn every_call_of_graphs_fails_once() {
    each_fails_on_threads("every_call_of_graphs_fails_once", GRAPHS, Some(EVERYTHING));
}

#[test]
fn every_call_of_streams_fails_once() {
    each_fails_on_threads("every_call_of_streams_fails_once", STREAMS, Some(EVERYTHING));
}

#[test]
fn every_call_of_buffers_fails_once() {
    each_fails_on_threads("every_call_of_buffers_fails_once", BUFFERS, Some(EVERYTHING));
}

#[test]
fn every_call_of_growth_fails_once() {
    each_fails_on_threads("every_call_of_growth_fails_once", GROWTH, Some(EVERYTHING));
}

#[test]
fn every_call_of_multicast_fails_once() {
    each_fails_on_threads("every_call_of_multicast_fails_once", MULTICAST, Some(EVERYTHING));
}

#[test]
fn every_call_of_proxies_fails_once() {
    each_fails_on_threads("every_call_of_proxies_fails_once", PROXIED, Some(EVERYTHING));
}

#[test]
fn every_call_of_an_import_fails_once() {
    each_fails_on_threads("every_call_of_an_import_fails_once", IMPORT, Some(EVERYTHING));
}

/// The test of a scenario whose PEs are processes. Each call that `chosen` takes fails, at the use that it gives.
fn each_fails_in_a_process(test: &str, scenario: Scenario, chosen: impl Fn(&str, Uses) -> Option<u64>) {
    if is_pe() {
        return scenarios::run(scenario);
    }
    let made = made_by_process(test, scenario);
    let times: Vec<_> = made.iter().filter_map(|(call, &uses)| Some((call, chosen(call, uses)?))).collect();
    assert!(times.iter().any(|(name, _)| *name == "cuMemImportFromShareableHandle"), "{made:?}");
    let ports: Vec<Port> = times.iter().map(|_| Port::reserve()).collect();
    let cases = times.iter().zip(&ports).map(|((call, time), port)| {
        let fail = format!("fail={call}:{time}:CUDA_ERROR_INVALID_VALUE");
        (format!("{call} {fail}"), job(test, scenario, &fail, port))
    });
    let ended = all(cases.collect());
    let mut wrong = Vec::new();
    for (case, ends) in &ended {
        let call = case.split(' ').next().unwrap();
        let (other, failing) = (outcome(case, &ends[0]), outcome(case, &ends[1]));
        if other.is_right() != failing.is_right() {
            wrong.push(format!("{case}: PE 0 {other:?}, PE 1 {failing:?}"));
        }
        if call != RESERVE || !failing.is_right() {
            wrong.extend(judge(case, call, &failing));
        }
        wrong.extend(disagree(case, ends));
    }
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), ended.len());
}

#[test]
fn every_call_fails_once_in_one_of_two_processes() {
    each_fails_in_a_process("every_call_fails_once_in_one_of_two_processes", EVERYTHING, |_, _| Some(1));
}

/// What differs between processes when heaps grow: memory that is handed over.
#[test]
fn every_call_about_memory_fails_once_while_the_heap_of_one_of_two_processes_grows() {
    each_fails_in_a_process(
        "every_call_about_memory_fails_once_while_the_heap_of_one_of_two_processes_grows",
        GROWTH,
        |call, uses| (call.starts_with("cuMem") && uses.all > uses.before).then_some(uses.before + 1),
    );
}

/// And of multicast: objects are handed over, too.
#[test]
fn every_call_about_memory_fails_once_in_one_of_two_processes_with_multicast() {
    each_fails_in_a_process(
        "every_call_about_memory_fails_once_in_one_of_two_processes_with_multicast",
        MULTICAST,
        |call, uses| {
            let handed = call.starts_with("cuMulticast") || call.contains("ShareableHandle");
            handed.then_some(if uses.before > 1 { uses.before } else { 1 })
        },
    );
}

/// The processes of a scenario in which a function of the driver is missing.
fn without(test: &str, scenario: Scenario, name: &str) -> Case {
    let library = built().unwrap();
    let (folder, less) = (FOLDER.join(format!("{test}-{name}")), FOLDER.join(format!("{test}-{name}.so")));
    without_symbol(&library, name, &less).unwrap();
    install(&folder, &less).unwrap();
    fs::remove_file(less).unwrap();
    let mut command = again(test, scenario, "");
    command.env("LD_LIBRARY_PATH", folder);
    (name.to_owned(), vec![command])
}

/// What is wrong with how worlds do without each of these functions.
fn each_is_missing(test: &str, scenario: Scenario, names: &[&str], right: impl Fn(&str, &End) -> bool) {
    let cases = names.iter().map(|name| without(test, scenario, name));
    let ended = all(cases.collect());
    for name in names {
        fs::remove_dir_all(FOLDER.join(format!("{test}-{name}"))).unwrap();
    }
    let wrong: Vec<_> = ended.iter().filter(|(name, ends)| !right(name, &ends[0])).collect();
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), ended.len());
}

fn lacks(name: &str, end: &End) -> bool {
    matches!(outcome(name, end), Outcome::Refused(why) if why.contains(&format!("the CUDA driver has no {name}, ")))
}

/// A function that is missing is an error where it is used, and nowhere before.
#[test]
fn every_function_is_missing_once() {
    const TEST: &str = "every_function_is_missing_once";
    if is_pe() {
        return scenarios::run(EVERYTHING);
    }
    let made = made_by_threads(TEST, EVERYTHING);
    each_is_missing(TEST, EVERYTHING, &names().collect::<Vec<_>>(), |name, end| {
        let spared = FORGIVEN.contains(&name) || SPARED.contains(&name);
        let needed = made.contains_key(name) && !spared;
        if needed { lacks(name, end) } else { outcome(name, end).is_right() }
    });
}

/// The test of functions that a world need not have: what uses them is refused, when it does.
fn each_is_missing_where_it_is_used(test: &str, scenario: Scenario, expected: &[&str]) {
    if is_pe() {
        return scenarios::run(scenario);
    }
    let (known, table) = (made_by_threads("every_call_fails_once_on_threads", EVERYTHING), table());
    let made = made_by_threads(test, scenario);
    let own: Vec<_> = names()
        .filter(|name| made.contains_key(*name) && !known.contains_key(*name) && table.contains(*name))
        .collect();
    assert_eq!(own, expected);
    each_is_missing(test, scenario, &own, |name, end| {
        let in_world = end.said.contains("BEFORE ");
        FORGIVEN.contains(&name) && outcome(name, end).is_right()
            || lacks(name, end) && in_world == (made[name].before == 0)
    });
}

#[test]
fn functions_that_streams_need_are_missing_once() {
    each_is_missing_where_it_is_used(
        "functions_that_streams_need_are_missing_once",
        STREAMS,
        &[
            "cuMemcpyAsync",
            "cuDeviceCanAccessPeer",
            "cuEventCreate",
            "cuEventRecord",
            "cuEventQuery",
            "cuEventDestroy_v2",
            "cuStreamGetCtx",
            "cuStreamIsCapturing",
            "cuStreamWriteValue64_v2",
            "cuStreamWaitValue64_v2",
        ],
    );
}

#[test]
fn functions_that_buffers_need_are_missing_once() {
    each_is_missing_where_it_is_used(
        "functions_that_buffers_need_are_missing_once",
        BUFFERS,
        &[
            "cuMemcpyAsync",
            "cuEventCreate",
            "cuEventRecord",
            "cuEventQuery",
            "cuEventElapsedTime",
            "cuEventDestroy_v2",
            "cuMemAllocAsync",
            "cuMemFreeAsync",
            "cuPointerGetAttribute",
            "cuFuncSetAttribute",
            "cuStreamWaitEvent",
        ],
    );
}

#[test]
fn functions_that_imports_need_are_missing_once() {
    each_is_missing_where_it_is_used(
        "functions_that_imports_need_are_missing_once",
        IMPORT,
        &[
            "cuMemcpyAsync",
            "cuMemGetAddressRange_v2",
            "cuMemRetainAllocationHandle",
            "cuMemGetAllocationPropertiesFromHandle",
        ],
    );
}

#[test]
fn functions_that_multicast_needs_are_missing_once() {
    each_is_missing_where_it_is_used(
        "functions_that_multicast_needs_are_missing_once",
        MULTICAST,
        &[
            "cuDeviceCanAccessPeer",
            "cuLaunchCooperativeKernel",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
            "cuMulticastCreate",
            "cuMulticastAddDevice",
            "cuMulticastBindMem",
            "cuMulticastUnbind",
            "cuMulticastGetGranularity",
        ],
    );
}

/// The functions of the driver that congruent calls, as its sources have them.
fn table() -> BTreeSet<String> {
    let source = fs::read_to_string(repository().join("host/src/cuda/calls.rs")).unwrap();
    let rows = source.lines().filter_map(|line| line.trim().split_once(" = ")?.1.split_once(' '));
    let table: BTreeSet<_> = rows.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("cu")).collect();
    assert!(table.contains("cuInit") && table.contains("cuMulticastUnbind"), "the table has moved");
    table
}

/// No call is used that does not fail in one of the tests above, or be looked for in vain.
#[test]
fn every_call_that_is_used_fails_in_some_scenario() {
    const THREADS: [(&str, Scenario); 8] = [
        ("every_call_fails_once_on_threads", EVERYTHING),
        ("every_call_of_graphs_fails_once", GRAPHS),
        ("every_call_of_streams_fails_once", STREAMS),
        ("every_call_of_buffers_fails_once", BUFFERS),
        ("every_call_of_growth_fails_once", GROWTH),
        ("every_call_of_proxies_fails_once", PROXIED),
        ("every_call_of_an_import_fails_once", IMPORT),
        ("every_call_of_multicast_fails_once", MULTICAST),
    ];
    let mut made: Made = made_by_process("every_call_fails_once_in_one_of_two_processes", EVERYTHING);
    for (test, scenario) in THREADS {
        made.extend(made_by_threads(test, scenario));
    }
    let made: BTreeSet<_> = made.into_keys().collect();
    let used: BTreeSet<_> = table().into_iter().chain(WORDS.map(str::to_owned)).collect();
    let never: Vec<_> =
        used.difference(&made).filter(|name| !WORDS.iter().chain(&OF_DEVICES).any(|word| word == name)).collect();
    assert!(never.is_empty(), "no scenario makes these calls: {never:?}");
    let unknown: Vec<_> = made.difference(&used).collect();
    assert!(unknown.is_empty(), "nobody looks for these calls before they are made: {unknown:?}");
}

/// A driver that cannot put a failure into words is told of all the same.
#[test]
fn a_failure_without_words_names_the_call_and_the_code() {
    const TEST: &str = "a_failure_without_words_names_the_call_and_the_code";
    if is_pe() {
        return scenarios::run(EVERYTHING);
    }
    let words = WORDS.map(|name| format!("fail={name}:*:CUDA_ERROR_INVALID_VALUE")).join(",");
    let fail = format!("{words},fail=cuMemMap:1:CUDA_ERROR_INVALID_VALUE");
    let end = ends(vec![again(TEST, EVERYTHING, &fail)], PATIENCE).remove(0);
    let Outcome::Refused(why) = outcome(TEST, &end) else { panic!("{end:?}") };
    assert!(why.contains("cuMemMap: an error without a name (1), which this driver does not explain"), "{why}");
}
