//! The conformance suite on virtual GPUs: the host's CUDA half as on a GPU, and kernels from the PTX that a GPU gets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsString;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::{env, process};

use congruent::collectives::{Algorithm, Op, Protocol};
use congruent::{Error, World};
use congruent_build::Builder;
use congruent_tests::conformance::{
    self, LIMIT, all_shapes, cuda_hosts, cuda_processes, cuda_threads, few_shapes, is_child,
};
use congruent_tests::{repository, skip};
use congruent_virtual_driver::{ENGINE, Server};

/// The most elements of a case, and where everything is to be tried: instructions are executed one by one.
const MOST: u32 = 50;
const MOST_OF_ALL: u32 = 130;

/// What all PEs are told.
static GPUS: LazyLock<Vec<(&str, OsString)>> = LazyLock::new(|| {
    let here = env::current_exe().unwrap().parent().unwrap().join("virtual");
    let most = if all_shapes() { MOST_OF_ALL } else { MOST };
    // Past the harness, which hides what passing tests print.
    let _ = writeln!(
        stderr(),
        "{LIMIT}={most}: cases of more elements have so many, repeated ones {} rounds; `flags` has one period of three",
        most / 16
    );
    vec![
        ("CONGRUENT_MACHINE", "virtual".into()),
        (
            "CONGRUENT_PTX",
            env::var_os("CONGRUENT_PTX").unwrap_or_else(|| ptx("tests/kernels", here, "sm_80:ptx80").into()),
        ),
        (LIMIT, most.to_string().into()),
        // PEs take in their PTX before they wait, on a busy machine not all at the same time.
        ("CONGRUENT_DEADLINE_MS", "120000".into()),
    ]
});

/// PTX of kernels for a target, `sm_80:ptx80` for what every GPU can run.
fn ptx(kernels: &str, here: PathBuf, target: &str) -> PathBuf {
    let builder = Builder::new(repository().join(kernels)).out_dir(here.join("ptx"));
    builder.targets([target.parse().unwrap()]).build().unwrap().swap_remove(0).path
}

/// Settings of the virtual GPUs.
fn gpus(settings: &str) -> Vec<(&'static str, OsString)> {
    [&GPUS[..], &[("CONGRUENT_VIRTUAL_DRIVER", settings.into())]].concat()
}

/// With how many PEs; and by chance, which takes several times as long.
const MANY: [usize; 3] = [1, 2, 4];
fn by_chance_many() -> &'static [usize] {
    if all_shapes() { &[1, 2, 3, 4] } else { &[3] }
}

/// Seeded, and races are errors.
const BY_CHANCE: &str = "schedule=random,seed=1,races=1";

/// A test of each family.
macro_rules! each {
    ($($family:ident)* => $how:literal, $run:ident, $many:expr, $settings:expr) => {$(
        #[test]
        fn $family() {
            $run(concat!($how, "::", stringify!($family)), conformance::$family, $many, || $settings);
        }
    )*};
}

/// What processes of one engine are told. Each with its own, they would all take in the same megabytes of PTX.
fn of_one_engine() -> Vec<(&'static str, OsString)> {
    static SERVER: LazyLock<(String, Server)> = LazyLock::new(|| {
        let name = format!("congruent-test-{}-all", process::id());
        let server = Server::start(&name, None, FOUR).unwrap().unwrap();
        (name, server)
    });
    const FOUR: &str = "devices=4";
    [gpus(FOUR), vec![(ENGINE, SERVER.0.clone().into())]].concat()
}

/// In lockstep as processes, and by chance as threads, where races between PEs are errors. Families in brackets have nothing that another
/// order of PEs could change.
macro_rules! families {
    ($($family:ident)* [$($alone:ident)*]) => {
        mod in_lockstep {
            use super::*;
            each! { $($family)* $($alone)* => "in_lockstep", cuda_processes, &MANY, of_one_engine() }
        }

        mod by_chance {
            use super::*;
            each! { $($family)* => "by_chance", cuda_threads, by_chance_many(), gpus(BY_CHANCE) }
            each! { $($alone)* => "by_chance", in_all_shapes, by_chance_many(), gpus(BY_CHANCE) }
        }
    };
}

families! {
    rma signals ordering atomics teams groups moe bulk direct collectives in_kernel norm flags protocols streams
    [lanes shared matrix buffers prints arithmetic]
}

/// As `cuda_threads`, only where all shapes are asked for.
fn in_all_shapes(
    test: &str,
    family: fn(&mut World) -> Result<(), Error>,
    many: &[usize],
    settings: impl FnOnce() -> Vec<(&'static str, OsString)>,
) {
    if !all_shapes() && !is_child() {
        return skip(test, "it takes long, and PEs have nothing to do with each other: ./check --full runs it");
    }
    cuda_threads(test, family, many, settings);
}

/// PEs as threads that share a GPU and its context: what one loads waits for the kernels of the others.
mod on_one_gpu {
    use super::*;

    macro_rules! families {
        ($($family:ident)*) => {$(
            #[test]
            fn $family() {
                let test = concat!("on_one_gpu::", stringify!($family));
                let settings = "devices=1,schedule=random,seed=3,races=1";
                cuda_threads(test, conformance::$family, &[3], || [gpus(settings), vec![(LIMIT, "20".into())]].concat());
            }
        )*};
    }

    families! { collectives protocols streams }
}

/// Every peer through the proxy, whose rings are memory that the driver pinned.
mod proxied {
    use super::*;

    fn over_the_proxy(settings: &str) -> Vec<(&'static str, OsString)> {
        [gpus(settings), vec![("CONGRUENT_P2P_DISABLE", "1".into()), (LIMIT, "20".into())]].concat()
    }

    macro_rules! families {
        ($($name:ident: $family:expr $(, $ignored:meta)?;)*) => {$(
            #[test]
            $(#[$ignored])?
            fn $name() {
                let test = concat!("proxied::", stringify!($name));
                cuda_threads(test, $family, &[2], || over_the_proxy("schedule=random,seed=5,races=1"));
            }
        )*};
    }

    families! {
        rma: conformance::rma;
        signals: conformance::signals;
        ordering: conformance::ordering;
        atomics: conformance::atomics, ignore = "takes long: ./check --full runs it";
        streams: conformance::streams;
        collectives: some_collectives;
    }

    #[test]
    fn rma_of_processes() {
        cuda_processes("proxied::rma_of_processes", conformance::rma, &[2], || over_the_proxy("schedule=lockstep"));
    }

    /// A reduction by each algorithm that works over the proxy, and an all-gather.
    pub(super) fn some_collectives(world: &mut World) -> Result<(), Error> {
        const LEN: usize = 300;
        assert!(world.is_proxied() && world.machine().contains("through the proxy"), "{}", world.machine());
        let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (me, npes) = (world.pe().raw(), world.npes());
        let (all, mine) = (world.alloc::<u32>(LEN * npes)?, world.alloc::<u32>(LEN)?);
        let first: Vec<u32> = (0..LEN as u32).collect();
        let of = |pe: u32| first.iter().map(move |i| i * 10 + pe);
        let sum: Vec<u32> = (0..LEN).map(|i| (0..npes as u32).map(|pe| i as u32 * 10 + pe).sum()).collect();
        // Packets do not go through the proxy.
        let ways = [Algorithm::RING, Algorithm::TREE, Algorithm::RECURSIVE];
        for algorithm in ways {
            mine.write(0, &of(me).collect::<Vec<_>>())?;
            world.barrier()?;
            comm.force(algorithm, Protocol::Simple);
            comm.all_reduce(&stream, mine.view(), mine.view(), Op::Sum)?;
            world.synchronize(&stream)?;
            assert_eq!(mine.to_vec()?, sum, "{algorithm}");
        }
        mine.write(0, &of(me).collect::<Vec<_>>())?;
        comm.force(Algorithm::RING, Protocol::Simple);
        comm.all_gather(&stream, all.view(), mine.view())?;
        world.synchronize(&stream)?;
        let expected: Vec<u32> = (0..npes as u32).flat_map(of).collect();
        assert_eq!(all.to_vec()?, expected, "all-gather");
        Ok(world.barrier()?)
    }
}

/// GPUs of two hosts, each of which is a network namespace: those of one reach each other, the others are proxied by libfabric, for which
/// the proxies stage in the host's memory.
mod hosts {
    use super::*;

    macro_rules! families {
        ($($name:ident: $family:expr, $each:expr $(, $ignored:meta)?;)*) => {$(
            #[test]
            $(#[$ignored])?
            fn $name() {
                let test = concat!("hosts::", stringify!($name));
                if few_shapes() && !is_child() && !["signals", "levels"].contains(&stringify!($name)) {
                    return skip(test, "few shapes are asked for: ./check test runs it");
                }
                let of_hosts = || [gpus("schedule=lockstep"), vec![(LIMIT, "20".into())]].concat();
                cuda_hosts(test, $family, &$each, of_hosts);
            }
        )*};
    }

    families! {
        rma: conformance::rma, [1];
        signals: conformance::signals, [1];
        ordering: conformance::ordering, [1];
        atomics: conformance::atomics, [1], ignore = "takes long: ./check --full runs it";
        streams: conformance::streams, [1];
        collectives: proxied::some_collectives, [1];
        levels: conformance::levels, [2];
    }
}

/// With a deadline that is soon over.
fn hasty() -> Vec<(&'static str, OsString)> {
    [&GPUS[..], &[("CONGRUENT_DEADLINE_MS", "500".into())]].concat()
}

/// Collectives of all kinds behind each other, by two teams on two streams, with members that are late.
#[test]
fn mixed() {
    cuda_threads("mixed", |world| conformance::mixed(world, 7, 60), &[3, 4], || gpus(BY_CHANCE));
}

/// What a kernel gets wrong is a fault, and leaves the device to others.
#[test]
fn misuse() {
    cuda_threads("misuse", conformance::misuse, &[1], || GPUS.clone());
}

#[test]
fn waits_in_vain() {
    cuda_threads("waits_in_vain", conformance::waits_in_vain, &[1], hasty);
}

#[test]
fn deadline_of_threads() {
    cuda_threads("deadline_of_threads", conformance::deadline, &[2, 4], hasty);
}

#[test]
fn deadline_of_processes() {
    cuda_processes("deadline_of_processes", conformance::deadline, &[2, 4], hasty);
}

#[test]
fn dead_process() {
    cuda_processes("dead_process", conformance::dead, &[2, 4], || GPUS.clone());
}

fn impatient() -> Vec<(&'static str, OsString)> {
    [&GPUS[..], &[("CONGRUENT_DEADLINE_MS", "2000".into())]].concat()
}

/// A wait of a stream that nobody answers.
#[test]
fn unanswered() {
    cuda_threads("unanswered", conformance::unanswered, &[1, 3], impatient);
}

/// And one that takes posts, which is a kernel.
#[test]
fn unposted() {
    cuda_threads("unposted", conformance::unposted, &[1, 2], impatient);
}

/// With the instructions of newer GPUs.
#[test]
fn capable() {
    let newer = || [gpus("capability=9.0"), vec![("CONGRUENT_PTX", newer_ptx())]].concat();
    cuda_threads("capable", conformance::arithmetic, &[1], newer);
}

/// PTX for newer GPUs.
fn newer_ptx() -> OsString {
    ptx("tests/kernels/newer", env::current_exe().unwrap().parent().unwrap().join("virtual"), "sm_90:ptx82").into()
}

/// Each PE on a device of its own, with one engine for all, which reaches the memory of all processes.
#[test]
fn multicast() {
    let settings = "devices=4,capability=9.0,multicast=1";
    let name = format!("congruent-test-{}", process::id());
    let server = (!is_child()).then(|| Server::start(&name, None, settings).unwrap().unwrap());
    cuda_processes("multicast", conformance::multicast, &[4], || {
        [gpus(settings), vec![("CONGRUENT_PTX", newer_ptx()), (ENGINE, name.into())]].concat()
    });
    drop(server);
}

/// An all-gather over lines.
fn lined(world: &mut World) -> Result<(), Error> {
    const LEN: usize = 1001;
    let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (all, mine) = (world.alloc::<u32>(LEN * world.npes())?, world.alloc::<u32>(LEN)?);
    mine.fill(world.pe().raw() + 1)?;
    comm.force(Algorithm::ONE_SHOT, Protocol::Ll128);
    comm.all_gather(&stream, all.view(), mine.view())?;
    world.synchronize(&stream)?;
    let expected: Vec<u32> = (1..=world.npes() as u32).flat_map(|pe| [pe; LEN]).collect();
    assert_eq!(all.to_vec()?, expected);
    Ok(())
}

/// The self-test of lines has failed.
fn refused(world: &mut World) -> Result<(), Error> {
    let told = lined(world).unwrap_err().to_string();
    assert!(told.contains("the self-test of LL128 failed"), "{told}");
    Ok(())
}

/// On GPUs of each of these settings, where lines may be used if they pass their test.
fn each(test: &str, family: fn(&mut World) -> Result<(), Error>, settings: &[&str]) {
    // A child has its settings, and runs once.
    for settings in &settings[..if is_child() || few_shapes() { 1 } else { settings.len() }] {
        let with_lines = || [gpus(settings), vec![("CONGRUENT_LL128_ENABLE", "1".into())]].concat();
        cuda_threads(test, family, &[2], with_lines);
    }
}

/// Lines pass their test where hardware promises that they come in order.
#[test]
fn lines() {
    each("lines", lined, &["weak=ll128", "schedule=random,seed=3", "weak=ll128,schedule=random,seed=3"]);
}

/// The memory model does not promise it, and neither do vectors that come as one.
#[test]
fn lines_without_a_promise() {
    each("lines_without_a_promise", refused, &["weak=1", "weak=v4"]);
}
