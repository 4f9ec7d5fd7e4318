//! A race in a user's kernel, as `congruent run --seeds` finds it: with the lines of the user's source, and the seed that shows it
//! again. It is the one that docs/virtual-gpu.md shows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use congruent_build::DeviceRustc;
use congruent_tests::{repository, skip};
use user_crates::{Folder, cargo, target};

/// How often the run is had again by its record.
const REPLAYS: usize = 10;
const FILES: [&str; 3] = ["my-kernels/Cargo.toml", "my-kernels/src/lib.rs", "my-kernels/examples/shift.rs"];

/// A program that was built here, with nothing but what it needs set.
fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONGRUENT_") && name != "CONGRUENT_DEVICE_RUSTC" {
            command.env_remove(name);
        }
    }
    // For the table of lines alone.
    command.env("CONGRUENT_CACHE", target().join("racy"));
    command
}

/// What a program says, in lines that are the same for any compiler and whoever comes first.
fn said(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(settled).collect()
}

/// A line without numbers of PEs, devices, warps, lanes, registers and lines of the PTX, without lines of the source, and without
/// places of the machine.
fn settled(line: &str) -> String {
    let line = line.split_once("; (").map_or(line, |(line, _)| line);
    let (mut words, mut is_number) = (Vec::new(), false);
    for word in line.split_whitespace() {
        let is_register = word.trim_start_matches('[').starts_with('%');
        words.push(match word {
            _ if is_number => "N".to_owned(),
            _ if is_register => word.chars().filter(|c| !c.is_ascii_digit()).collect(),
            _ if word.ends_with("/examples/shift") => "shift".to_owned(),
            _ => word.to_owned(),
        });
        is_number = ["PE", "device", "warp", "lane", "line"].contains(&word);
    }
    words.join(" ")
}

/// The lines of a report that say what races with what, and what is missing.
fn race(report: &[String]) -> BTreeSet<&String> {
    let begins = ["congruent virtual GPU: data race", "read by", "write by", "missing:"];
    report.iter().filter(|line| begins.iter().any(|begin| line.starts_with(begin))).collect()
}

#[test]
fn a_race_is_found_with_its_lines_and_again_with_its_seed() {
    const TEST: &str = "a_race_is_found_with_its_lines_and_again_with_its_seed";
    if let Err(error) = DeviceRustc::find() {
        return skip(TEST, &error.to_string());
    }
    // In the folder of `newcomer.rs`'s program, so that the repository's packages need not be built once more.
    let folder = Folder::new("program", "tests/racy", &FILES, &["my-kernels"]);
    let (kernels, own) = (folder.join("my-kernels"), target());
    let in_target = [OsStr::new("--target-dir"), own.as_os_str()];
    let tools = congruent_tests::program().unwrap();
    cargo(&kernels, &[&["build", "--quiet", "--example", "shift"].map(OsStr::new)[..], &in_target].concat());
    let mut build = program(&tools.with_file_name("congruent-build"));
    build.args(["build", "--lines", "--target", "sm_90:ptx82", "--manifest-path"]).arg(&kernels);
    let built = build.arg("--target-dir").arg(own.join("newcomer-ptx")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let run = |arguments: &[&str], rest: &[&str]| {
        let mut command = program(&tools);
        command.args(["run", "--virtual", "2"]).args(arguments).arg("--races").arg("--");
        command.arg(own.join("debug/examples/shift")).args(rest);
        command.env("CONGRUENT_PTX", kernels.join("ptx/my_kernels.sm_90.ptx")).output().unwrap()
    };
    let record = own.join("tmp/virtual_races.record");
    let record = record.to_str().unwrap();
    let found = run(&["--seeds", "1000", "--record", record], &[]);
    let report = said(&found);
    assert_eq!(found.status.code(), Some(1), "{report:#?}");
    assert!(found.stdout.is_empty());
    assert_eq!(race(&report).len(), 4, "{report:#?}");
    let text = String::from_utf8_lossy(&found.stderr);
    for pe in 0..2 {
        assert!(text.contains(&format!(" by kernel shift of PE {pe} on device {pe}, ")), "{text}");
    }
    let source = fs::read_to_string(kernels.join("src/lib.rs")).unwrap();
    let page = fs::read_to_string(repository().join("docs/virtual-gpu.md")).unwrap();
    for (access, code) in [("  write by", "ctx.put_value("), ("  read by", "came[i]")] {
        let line = source.lines().position(|line| line.contains(code)).unwrap() + 1;
        let place = format!("my-kernels-0.1.0/src/lib.rs:{line}");
        for report in [&*text, &page] {
            let access = report.lines().find(|line| line.starts_with(access)).unwrap();
            assert!(access.contains(&place), "{access}: not {place}");
        }
    }

    // Again with the seed, by itself.
    let again = report.last().unwrap();
    let seed = again.split(' ').skip_while(|word| *word != "--seed").nth(1).unwrap();
    let shown = said(&run(&["--seed", seed], &[]));
    assert_eq!(race(&shown), race(&report));

    // And to the letter with the record, which the last line names.
    assert!(again.contains(&format!("--seed {seed} --races --replay {record} -- ")), "{again}");
    let of_reports = |text: &str| -> BTreeSet<String> {
        let unlabelled = text.lines().map(|line| line.split_once("] ").map_or(line, |(_, line)| line));
        let begins = ["  read by", "  write by", "  in kernel"];
        unlabelled.filter(|line| begins.iter().any(|begin| line.starts_with(begin))).map(str::to_owned).collect()
    };
    let replays: Vec<_> = (0..REPLAYS)
        .map(|_| run(&["--seed", seed, "--replay", record, "--label"], &[]))
        .map(|replay| of_reports(&String::from_utf8_lossy(&replay.stderr)))
        .collect();
    // Both PEs may have a race to report, of which the first is shown above.
    assert!(of_reports(&text).is_subset(&replays[0]), "{:#?} of {:#?}", of_reports(&text), replays[0]);
    assert!(replays.iter().all(|replay| *replay == replays[0]), "{replays:#?}");
    fs::remove_file(record).unwrap();

    let mended = run(&["--seeds", "3"], &["in order"]);
    assert_eq!(
        String::from_utf8_lossy(&mended.stdout),
        "congruent run: no mistake with 3 seeds, 0 to 2\n",
        "{:?}",
        said(&mended)
    );

    let page: Vec<_> = page.lines().map(settled).collect();
    let kernel: Vec<_> = source.lines().skip(4).take_while(|line| !line.is_empty()).map(settled).collect();
    let shows_kernel = page.windows(kernel.len()).any(|part| part == kernel);
    assert!(shows_kernel, "docs/virtual-gpu.md does not show {kernel:#?}");
    assert!(race(&report).is_subset(&page.iter().collect()), "docs/virtual-gpu.md does not show this:\n{text}");
}
