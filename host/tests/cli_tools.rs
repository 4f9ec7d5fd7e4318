//! `congruent info`, `doctor`, `lint` and `litmus`, and what all commands have in common.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod cli_support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use cli_support::{congruent, ended};
use serde_json::Value;

fn repository(path: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path).display().to_string()
}

#[test]
fn info_tells_the_machine_and_every_setting() {
    let shown = ended(congruent(&["info"]).env("CONGRUENT_HEAP", "32M"));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""));
    for part in
        [env!("CARGO_PKG_VERSION"), "kernel ABI", "PE 0 of 1", "cpu, width 1", "launcher: none", "CONGRUENT_CPU_WIDTH"]
    {
        assert!(shown.out.contains(part), "no {part} in:\n{}", shown.out);
    }
    let heap = shown.out.lines().find(|line| line.starts_with("CONGRUENT_HEAP")).unwrap();
    assert_eq!(heap.split_whitespace().collect::<Vec<_>>()[1..3], ["32M", "environment"]);
    let json = ended(&mut congruent(&["info", "--json"]));
    let document: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&document["pes"], &document["pe"]), (&1.into(), &0.into()));
    assert_eq!(document["tunables"][0]["name"], "CONGRUENT_HEAP");
}

#[test]
fn info_tells_the_job_once_and_keeps_its_secret() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let shown = ended(&mut congruent(&["run", "-n", "2", "--", program, "info"]));
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert_eq!(shown.out.matches("PE 0 of 2, launcher: congruent run").count(), 1, "{}", shown.out);
    assert!(!shown.out.contains("PE 1 of 2"));
    let token = shown.out.lines().find(|line| line.starts_with("CONGRUENT_JOB_TOKEN")).unwrap();
    assert_eq!(token.split_whitespace().nth(1), Some("(set)"));
}

#[test]
fn a_misspelt_variable_is_refused_everywhere_and_the_list_still_comes() {
    for command in [&["info"][..], &["perf", "put", "-e", "8"]] {
        let refused = ended(congruent(command).env("CONGRUENT_HAEP", "1G"));
        assert_eq!((refused.code, &*refused.out), (Some(1), ""), "{command:?}");
        assert!(refused.err.contains("did you mean CONGRUENT_HEAP?"), "{}", refused.err);
    }
    let listed = ended(congruent(&["info", "--env"]).env("CONGRUENT_HAEP", "1G"));
    assert_eq!(listed.code, Some(1));
    assert!(
        listed.out.contains("CONGRUENT_HEAP ") && listed.err.contains("did you mean CONGRUENT_HEAP?"),
        "{listed:?}"
    );
}

#[test]
fn info_env_lists_variables_only() {
    let listed = ended(&mut congruent(&["info", "--env"]));
    assert_eq!(listed.code, Some(0));
    for name in ["CONGRUENT_HEAP", "CONGRUENT_DEADLINE_MS", "CONGRUENT_PE", "CONGRUENT_RENDEZVOUS"] {
        assert!(listed.out.contains(name), "no {name}");
    }
    assert!(!listed.out.lines().any(|line| line.trim_start().starts_with("machine ")));
}

#[test]
fn doctor_finds_that_this_machine_can_run() {
    let shown = ended(&mut congruent(&["doctor"]));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""), "{}", shown.out);
    for subject in ["cores", "memory", "sealed memory", "futex", "pidfd", "a world of two PEs", "NVIDIA GPU", "ptxas"] {
        assert!(shown.out.contains(subject), "no {subject} in:\n{}", shown.out);
    }
    // Not a terminal, so no colours.
    assert!(!shown.out.contains('\u{1b}'));
    let json = ended(&mut congruent(&["doctor", "--json"]));
    let lines: Vec<Value> = serde_json::from_str(&json.out).unwrap();
    assert!(lines.iter().all(|line| line["verdict"] == "ok" || line["next"].is_string()));
}

#[test]
fn doctor_says_no_where_a_world_cannot_be_built() {
    let shown = ended(congruent(&["doctor"]).env("CONGRUENT_HAEP", "1G"));
    assert_eq!(shown.code, Some(1), "{shown:?}");
    let line = shown.out.lines().find(|line| line.starts_with("fatal")).unwrap();
    assert!(line.contains("a world of two PEs") && line.contains("did you mean CONGRUENT_HEAP?"), "{line}");
    assert!(shown.out.contains("Kernels cannot run"));
}

#[test]
fn verify_passes_good_ptx() {
    let good = repository("verify/tests/fixtures/put_signal.sm_90.ptx");
    let shown = ended(&mut congruent(&["verify", &good]));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""), "{}", shown.out);
    let expected = format!("{good}: 77 lines, 0 findings\nfiles: 1, findings: 0, not readable as PTX: 0\n");
    assert_eq!(shown.out, expected);
}

#[test]
fn verify_shows_what_is_bad_and_goes_on() {
    let bad = repository("verify/tests/fixtures/stack_frame.ptx");
    let files = [&*repository("Cargo.toml"), &bad, "/nonexistent.ptx"];
    let shown = ended(congruent(&["verify"]).args(files));
    assert_eq!(shown.code, Some(1));
    for part in ["error[stack-frame]", "stack_frame.ptx:8", "help:", "no PTX token", "cannot read /nonexistent.ptx"] {
        assert!(shown.out.contains(part), "no {part} in:\n{}", shown.out);
    }
    let json = ended(congruent(&["verify", "--json"]).args(files));
    assert_eq!(json.code, Some(1));
    let linted: Value = serde_json::from_str(&json.out).unwrap();
    assert!(linted[0]["error"].is_string() && linted[2]["error"].is_string());
    assert_eq!(
        (&linted[1]["findings"][0]["rule"], &linted[1]["findings"][0]["line"]),
        (&"stack-frame".into(), &8.into())
    );
    let alone = ended(congruent(&["verify", &bad]).arg("--json"));
    assert_eq!(alone.code, Some(1));
}

#[test]
fn verify_tells_of_each_file_when_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("slow.ptx");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let good = repository("verify/tests/fixtures/put_signal.sm_90.ptx");
    let mut verify = congruent(&["verify", &good]).arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(verify.stdout.take().unwrap());
    // Nothing has been written into the second file when the first one's line comes.
    let (sender, first) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut lines = [String::new(), String::new(), String::new()];
        for line in &mut lines {
            out.read_line(line).unwrap();
            sender.send(line.clone()).unwrap();
        }
    });
    let early = first.recv_timeout(std::time::Duration::from_secs(60));
    std::fs::write(&pipe, ".version 8.4\n").unwrap();
    assert_eq!(verify.wait().unwrap().code(), Some(0));
    reader.join().unwrap();
    assert_eq!(early.unwrap(), format!("{good}: 77 lines, 0 findings\n"));
    assert!(first.recv().unwrap().ends_with("slow.ptx: 1 lines, 0 findings\n"));
}

#[test]
fn litmus_tells_each_verdict_and_its_clauses() {
    let file = repository("verify/tests/litmus/patterns.litmus");
    let shown = ended(&mut congruent(&["litmus", &file]));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""), "{}", shown.out);
    for part in ["store-buffering: forbidden, by 8.9.4 8.10.6 (", "load-buffering: allowed, by", "not as expected: 0,"]
    {
        assert!(shown.out.contains(part), "no {part} in:\n{}", shown.out);
    }
    assert!(!shown.out.contains("reads 1 from"), "nobody asked for an execution:\n{}", shown.out);
    let witness = ended(&mut congruent(&["litmus", "--witness", &file]));
    assert!(witness.out.contains("# reads 1 from P1 `st.relaxed.sys.u64 [x], 1`"), "{}", witness.out);
    let markdown = ended(&mut congruent(&["litmus", "--markdown", &file]));
    assert!(markdown.out.starts_with("## patterns.litmus\n\n| test |"), "{}", markdown.out);
}

#[test]
fn litmus_fails_where_a_verdict_is_another_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.litmus");
    let test = "test t\nthread P0\n  st.u64 [x], 1;\nthread P1\n  ld.u64 r0, [x];\nexists r0 == 1\nexpect forbidden\n";
    std::fs::write(&wrong, test).unwrap();
    let files = [repository("Cargo.toml"), wrong.display().to_string(), "/nonexistent.litmus".to_owned()];
    let shown = ended(congruent(&["litmus"]).args(&files));
    assert_eq!(shown.code, Some(1));
    for part in ["t: allowed, EXPECTED forbidden", "reads 1 from P0 `st.u64 [x], 1`", "files not readable as tests: 2"]
    {
        assert!(shown.out.contains(part), "no {part} in:\n{}", shown.out);
    }
    assert!(shown.err.contains("line 1: expected `test NAME`") && shown.err.contains("/nonexistent.litmus"));
    let json = ended(congruent(&["litmus", "--json"]).args(&files));
    assert_eq!(json.code, Some(1));
    let decided: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&decided[0]["verdict"], &decided[0]["line"]), (&"allowed".into(), &1.into()));
}

#[test]
fn seeds_are_tried_until_one_shows_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("a record");
    let seeds = |script: &str| {
        let mut run = congruent(&["run", "--virtual", "2", "--seeds", "4", "--races", "--record"]);
        ended(run.arg(&record).args(["--", "sh", "-c"]).arg(script))
    };
    // The driver is told a seed, a schedule and what to look for, and the program alone says what is wrong.
    let told =
        "case $CONGRUENT_VIRTUAL_DRIVER in schedule=random,seed=[02],races=1|schedule=priorities,seed=[13],races=1)";
    std::fs::write(&record, "of an earlier search").unwrap();
    let well = seeds(&format!("echo hello; {told} exit 0;; esac; exit 9"));
    assert_eq!((well.code, &*well.err), (Some(0), ""), "{}", well.out);
    assert_eq!(well.out, "congruent run: no mistake with 4 seeds, 0 to 3\n");
    // Nothing is found, so what was found before is still there, and nothing else.
    assert_eq!(std::fs::read_to_string(&record).unwrap(), "of an earlier search");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);

    let fails = seeds("echo sum $CONGRUENT_PE; case $CONGRUENT_VIRTUAL_DRIVER in *seed=2*) exit 4;; esac");
    assert_eq!((fails.code, &*fails.out), (Some(1), ""));
    for part in ["[0] sum 0\n", "[1] sum 1\n", "a failure with seed 2, the 3. of 4; to see it again:\n  congruent run "]
    {
        assert!(fails.err.contains(part), "no {part} in:\n{}", fails.err);
    }

    let script = "echo 'congruent virtual GPU: data race\n  write by lane 0' 1>&2; echo more";
    let reported = seeds(script);
    assert_ne!(std::fs::read_to_string(&record).unwrap(), "of an earlier search");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let again = shlex::try_quote(script).unwrap();
    let expected = format!(
        "congruent virtual GPU: data race\n  write by lane 0\ncongruent run: a mistake with seed 0, the 1. of 4; to see it \
         again:\n  congruent run --virtual 2x1 --seed 0 --races --replay '{}' -- sh -c {again}\n",
        record.display()
    );
    assert_eq!((reported.code, &*reported.out, &*reported.err), (Some(1), "", &*expected));
}

#[test]
fn a_record_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let replayed =
        || ended(congruent(&["run", "--virtual", "2", "--seed", "3", "--replay"]).arg(&record).args(["--", "true"]));
    let missing = replayed();
    assert!(missing.code == Some(1) && missing.err.contains(&*record.to_string_lossy()), "{missing:?}");
    std::fs::write(&record, "something\n").unwrap();
    let other = replayed();
    assert!(other.code == Some(1) && other.err.contains("recorded on another machine:\n  something"), "{other:?}");
    let comma = ended(&mut congruent(&["run", "--virtual", "2", "--record", "a,b", "--", "true"]));
    assert!(comma.code == Some(2) && comma.err.contains("has no comma"), "{comma:?}");
}

#[test]
fn help_and_version() {
    let version = ended(&mut congruent(&["--version"]));
    assert_eq!(
        (version.code, version.out),
        (Some(0), concat!("congruent ", env!("CARGO_PKG_VERSION"), "\n").to_owned())
    );
    let helped = [
        &["--help"][..],
        &["perf", "--help"],
        &["info", "--help"],
        &["verify", "--help"],
        &["litmus", "--help"],
        &["run", "--help"],
    ];
    for command in helped {
        let help = ended(&mut congruent(command));
        assert_eq!(help.code, Some(0), "{command:?}");
        assert!(help.out.contains("Examples:") && help.out.contains("Usage:"), "{command:?}: {}", help.out);
    }
    for command in
        [&[][..], &["pref"], &["run", "-n", "0", "--", "true"], &["run", "-n", "2"], &["verify"], &["litmus"]]
    {
        let refused = ended(&mut congruent(command));
        assert_eq!((refused.code, &*refused.out), (Some(2), ""), "{command:?}: {}", refused.err);
    }
}

#[test]
fn a_reader_who_leaves_is_no_failure() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let job = ["run", "-n", "3", "--", program, "perf", "all-reduce", "-e", "64K", "-n", "3"];
    for command in [&["perf", "all-reduce", "-e", "64K"][..], &job, &["info"], &["doctor"]] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let child = congruent(command).stdout(write).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{command:?}: {output:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure_in_a_line() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = congruent(&["perf", "put", "-e", "64"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with("error: cannot write to standard output") && err.lines().count() == 1, "{err}");
}
