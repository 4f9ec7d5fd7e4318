//! What goes wrong before there is a world: the environment, the launcher's word, and PEs that do not fit together. Each
//! is an error in words that say what to do, on every PE that can know of it, and in time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::process::Command;
use std::time::{Duration, Instant};

use congruent::{Error, World};
use processes::{Pe, Port, alone, is_pe, myself, say, seat};

/// Until a process says how it ended. PEs give up after two seconds here, most long before.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program of every process here: joins its job, and says how that ended. In the environment of a test it runs the
/// test's own half instead.
fn ended(program: impl FnOnce() -> Result<(), Error>) -> bool {
    if is_pe() {
        match program() {
            Ok(()) => say("ENDED well"),
            Err(error) => say(&format!("ENDED {}", error.to_string().replace('\n', " "))),
        }
    }
    is_pe()
}

fn build() -> Result<(), Error> {
    World::builder().build()?.barrier()?;
    Ok(())
}

fn run() -> Result<(), Error> {
    congruent::run(2, |world| Ok::<_, Error>(world.barrier()?)).map(drop)
}

fn local() -> Result<(), Error> {
    congruent::local(1, |world| Ok::<_, Error>(world.barrier()?)).map(drop)
}

/// What one process says in an environment with these variables.
fn said_with(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = myself(test);
    command.envs(variables.iter().copied());
    Pe::start(command).hear("ENDED", PATIENCE)
}

#[track_caller]
fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}

#[test]
fn variables_that_are_misspelt_or_out_of_range() {
    const TEST: &str = "variables_that_are_misspelt_or_out_of_range";
    if ended(local) {
        return;
    }
    let cases: [(&str, &str, &[&str]); 10] = [
        ("CONGRUENT_HAEP", "1G", &["CONGRUENT_HAEP is not a variable", "did you mean CONGRUENT_HEAP?"]),
        ("CONGRUENT_NONSENSE_ALTOGETHER", "1", &["CONGRUENT_NONSENSE_ALTOGETHER is not a variable", "info --env"]),
        ("CONGRUENT_HEAP", "lots", &["CONGRUENT_HEAP=lots", "whole number, with K, M or G"]),
        ("CONGRUENT_HEAP", "1K", &["CONGRUENT_HEAP=1024", "from 2097152 to"]),
        ("CONGRUENT_CPU_WIDTH", "64", &["CONGRUENT_CPU_WIDTH=64", "from 1 to 32"]),
        ("CONGRUENT_MAX_BLOCKS", "0", &["CONGRUENT_MAX_BLOCKS=0", "from 1 to 1024"]),
        ("CONGRUENT_NVLS_ENABLE", "3", &["CONGRUENT_NVLS_ENABLE=3", "from 0 to 2"]),
        ("CONGRUENT_NVLS_ENABLE", "1", &["CONGRUENT_NVLS_ENABLE=1 asks for multicast", "set it to 2"]),
        ("CONGRUENT_DEADLINE_MS", "-1", &["CONGRUENT_DEADLINE_MS=-1", "whole number"]),
        ("CONGRUENT_DEADLINE_MS", "", &["CONGRUENT_DEADLINE_MS=", "whole number"]),
    ];
    for (name, value, words) in cases {
        assert_says(&said_with(TEST, &[(name, value)]), words);
    }
    let good = [("CONGRUENT_HEAP", "4M"), ("CONGRUENT_CPU_WIDTH", "4"), ("CONGRUENT_DEADLINE_MS", "0")];
    assert_eq!(said_with(TEST, &good), "well");
}

/// Names and values.
type Variables<'a> = &'a [(&'a str, &'a str)];

#[test]
fn launchers_that_say_too_little_or_contradict_each_other() {
    const TEST: &str = "launchers_that_say_too_little_or_contradict_each_other";
    if ended(run) {
        return;
    }
    let rank = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let cases: [(Variables<'_>, &[&str]); 9] = [
        (&rank[..1], &["RANK is set but WORLD_SIZE is not"]),
        (&rank[1..], &["WORLD_SIZE is set but RANK is not"]),
        (&rank, &["RANK is set but MASTER_ADDR is not"]),
        (
            &[rank[0], rank[1], ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), MASTER[0], MASTER[1]],
            &["RANK=0 and OMPI_COMM_WORLD_RANK=1 disagree"],
        ),
        (&[("CONGRUENT_PE", "0"), ("CONGRUENT_NPES", "2")], &["CONGRUENT_JOB_TOKEN"]),
        (&[("CONGRUENT_PE", "0"), ("CONGRUENT_NPES", "2"), ("CONGRUENT_JOB_TOKEN", "t")], &["CONGRUENT_RENDEZVOUS"]),
        (&[("CONGRUENT_PE", "2"), ("CONGRUENT_NPES", "2")], &["CONGRUENT_PE=2", "less than CONGRUENT_NPES=2"]),
        (&[("CONGRUENT_PE", "zero"), ("CONGRUENT_NPES", "2")], &["CONGRUENT_PE=zero", "whole number"]),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "0")], &["PMI_SIZE=0", "between 1 and 4096"]),
    ];
    for (variables, words) in cases {
        assert_says(&said_with(TEST, variables), words);
    }
    assert_eq!(said_with(TEST, &[("RANK", "0"), ("WORLD_SIZE", "1")]), "well");
    assert_eq!(said_with(TEST, &[]), "well", "two PEs as threads, where there is no launcher");
}

const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

/// What the processes of a job say, where `change` makes one of them differ: in place of PE and number of PEs, or in its
/// environment.
fn job(test: &str, npes: u32, place: impl Fn(u32) -> (u32, u32), change: impl Fn(u32, &mut Command)) -> Vec<String> {
    let _alone = alone();
    let port = Port::reserve();
    let start = |process| {
        let (pe, npes) = place(process);
        let mut command = seat(myself(test), &port, pe, npes);
        command.env("CONGRUENT_BOOTSTRAP_DEADLINE", "2");
        change(process, &mut command);
        Pe::start(command)
    };
    let started = Instant::now();
    let mut pes: Vec<Pe> = (0..npes).map(start).collect();
    let said = pes.iter_mut().map(|pe| pe.hear("ENDED", PATIENCE)).collect();
    assert!(started.elapsed() < PATIENCE);
    said
}

#[test]
fn a_pe_of_another_job() {
    const TEST: &str = "a_pe_of_another_job";
    if ended(build) {
        return;
    }
    let said = job(
        TEST,
        2,
        |process| (process, 2),
        |process, command| {
            command.env("CONGRUENT_JOB_TOKEN", format!("of process {process}"));
        },
    );
    assert_says(&said[0], &["PEs [1] did not come within 2s"]);
    assert_says(&said[1], &["do not share the job's token", "CONGRUENT_JOB_TOKEN"]);
}

#[test]
fn a_pe_that_was_told_another_number() {
    const TEST: &str = "a_pe_that_was_told_another_number";
    if ended(build) {
        return;
    }
    let said = job(TEST, 2, |process| (process, 2 + process), |_, _| {});
    for said in said {
        assert_says(&said, &["PE 1 was told of 3 PEs but PE 0 of 2"]);
    }
}

#[test]
fn two_processes_with_one_place() {
    const TEST: &str = "two_processes_with_one_place";
    if ended(build) {
        return;
    }
    let said = job(TEST, 3, |process| (process.min(1), 3), |_, _| {});
    for said in said {
        assert_says(&said, &["two processes were started as PE 1"]);
    }
}

#[test]
fn a_pe_that_never_comes() {
    const TEST: &str = "a_pe_that_never_comes";
    if ended(build) {
        return;
    }
    let said = job(TEST, 2, |process| (process, 3), |_, _| {});
    for said in said {
        assert_says(&said, &["PEs [2] did not come within 2s"]);
    }
}

#[test]
fn settings_that_differ_between_pes() {
    const TEST: &str = "settings_that_differ_between_pes";
    if ended(build) {
        return;
    }
    let settings = [("CONGRUENT_HEAP", "4194304"), ("CONGRUENT_CPU_WIDTH", "8"), ("CONGRUENT_MAX_BLOCKS", "7")];
    for (name, value) in settings {
        let said = job(
            TEST,
            2,
            |process| (process, 2),
            |process, command| {
                if process == 1 {
                    command.env(name, value);
                }
            },
        );
        assert_says(&said[0], &[name, &format!("but {value} on PE 1")]);
        assert_says(&said[1], &[&format!("{name} is {value} here"), "on PE 0", "same value"]);
    }
}

#[test]
fn transports_that_do_not_join_the_pes() {
    const TEST: &str = "transports_that_do_not_join_the_pes";
    if ended(build) {
        return;
    }
    let on_two_hosts = |change: fn(u32, &mut Command)| {
        job(
            TEST,
            2,
            |process| (process, 2),
            |process, command| {
                command.env("CONGRUENT_MACHINE", "cpu").env("CONGRUENT_HOST_ID", process.to_string());
                change(process, command);
            },
        )
    };
    for said in on_two_hosts(|_, command| {
        command.env("CONGRUENT_TRANSPORT", "local");
    }) {
        assert_says(&said, &["different hosts", "CONGRUENT_TRANSPORT=local", "fabric"]);
    }
    let said = on_two_hosts(|process, command| {
        command.env("CONGRUENT_P2P_DISABLE", process.to_string());
    });
    for said in said {
        assert_says(&said, &["CONGRUENT_P2P_DISABLE is", "give every PE the same value"]);
    }
    for said in on_two_hosts(|_, command| {
        command.env("CONGRUENT_TRANSPORT", "verbs").env("CONGRUENT_IB_HCA", "none0");
    }) {
        assert_says(&said, &["CONGRUENT_TRANSPORT=verbs"]);
        assert!(said.contains("none0 was looked for") || said.contains("install it"), "{said}");
    }
    let said = on_two_hosts(|process, command| {
        command.env("CONGRUENT_IB_DISABLE", process.to_string());
    });
    for said in said {
        assert_says(&said, &["CONGRUENT_IB_DISABLE is", "give every PE the same value"]);
    }
    if let Err(error) = congruent_transports::Fabric::find() {
        return congruent_tests::skip(TEST, &error.to_string());
    }
    // The first that fails is what all are told.
    for said in on_two_hosts(|_, command| {
        command.env("CONGRUENT_SOCKET_IFNAME", "nix0");
    }) {
        assert_says(&said, &["no tcp on interface nix0", "lo"]);
    }
    for said in on_two_hosts(|_, command| {
        command.env("CONGRUENT_LIBFABRIC_PROVIDER", "none0");
    }) {
        assert_says(&said, &["no provider none0 here", "fi_info -l"]);
    }
    let said = on_two_hosts(|process, command| {
        let provider = ["tcp;ofi_rxm", "sockets"][process as usize];
        command.env("CONGRUENT_SOCKET_IFNAME", "lo").env("CONGRUENT_LIBFABRIC_PROVIDER", provider);
    });
    for said in said {
        assert_says(&said, &["its provider of libfabric is", "give every PE the same CONGRUENT_LIBFABRIC_PROVIDER"]);
    }
    assert_eq!(
        on_two_hosts(|_, command| {
            command.env("CONGRUENT_SOCKET_IFNAME", "lo");
        }),
        ["well"; 2]
    );
}
