//! Two hosts for launchers: network namespaces, with a stand-in for ssh that enters them.
#![allow(dead_code, reason = "each suite uses its own part")]

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use congruent_tests::namespaces::Hosts;
use congruent_tests::{program, skip};
use congruent_transports::Fabric;
use tempfile::TempDir;

use crate::processes::alone;

pub(crate) const A: &str = Hosts::ADDRESSES[0];
pub(crate) const B: &str = Hosts::ADDRESSES[1];
/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts, and a way to each.
pub(crate) struct Stage {
    pub(crate) hosts: Hosts,
    pub(crate) folder: TempDir,
    pub(crate) program: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// How a launcher ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Stage {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let _alone = alone();
        let hosts = match Hosts::new() {
            Ok(hosts) => hosts,
            Err(error) => {
                skip(test, &format!("no network namespaces can be made: {error}"));
                return None;
            }
        };
        let program = program().unwrap();
        let stage = Self { hosts, folder: tempfile::tempdir().unwrap(), program, _alone };
        let [a, b] = [0, 1].map(|host| stage.hosts.name(host));
        let script = format!(
            "#!/bin/sh
case $1 in
{A} | localhost) host={a} ;;
{B}) host={b} ;;
*) echo \"ssh: Could not resolve hostname $1: Name or service not known\" >&2; exit 255 ;;
esac
shift
cd /
env -i PATH=\"$PATH\" FAR=there ip netns exec $host sh -c \"${{HIDDEN:+mount -t tmpfs none $HIDDEN && }}$*\"
exit $?
"
        );
        let path = stage.file("enter", &script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        Some(stage)
    }

    /// The same for tests that build worlds.
    pub(crate) fn with_fabric(test: &str) -> Option<Self> {
        match Fabric::find() {
            Ok(_) => Self::new(test),
            Err(error) => {
                skip(test, &error.to_string());
                None
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// A launcher with the stand-in for ssh, in an environment without a user's variables.
    pub(crate) fn launcher(&self) -> Command {
        let mut command = clean(Command::new(&self.program));
        command.args(["run", "--ssh"]).arg(self.path("enter"));
        command
    }

    /// A job of two PEs on each host.
    pub(crate) fn job(&self, options: &[&str], command: &[&OsStr]) -> Command {
        let mut launcher = self.launcher();
        launcher.args(["--hosts", &format!("{A}:2,{B}:2")]).args(options).arg("--").args(command);
        launcher
    }

    /// One whose PEs are a script.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Command {
        self.job(options, &["sh".as_ref(), "-c".as_ref(), script.as_ref()])
    }

    /// One whose PEs measure an operation, by this program.
    pub(crate) fn perf(&self, words: &[&str]) -> Command {
        let words = words.iter().map(OsStr::new);
        self.job(&[], &[self.program.as_os_str()].into_iter().chain(words).collect::<Vec<_>>())
    }

    /// Runs a command on a host.
    pub(crate) fn on(&self, host: usize, command: impl AsRef<OsStr>) -> Command {
        let mut enter = clean(Command::new("ip"));
        enter.args(["netns", "exec", &self.hosts.name(host)]).arg(command);
        enter
    }

    /// Waits until no more processes than these are on the hosts, and says which are there too long.
    pub(crate) fn left(&self, but: &[i32]) -> Vec<String> {
        let until = Instant::now() + PATIENCE / 4;
        loop {
            let there = [0, 1].into_iter().flat_map(|host| self.hosts.processes(host).unwrap());
            let there: Vec<_> = there.filter(|process| !but.contains(process)).map(command_of).collect();
            if there.is_empty() || Instant::now() > until {
                return there;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Without a user's variables.
pub(crate) fn clean(mut command: Command) -> Command {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONGRUENT_")) {
        command.env_remove(name);
    }
    command.env("CONGRUENT_MACHINE", "cpu");
    command
}

/// Runs it to its end, or ends it after [`PATIENCE`].
pub(crate) fn ended(command: &mut Command) -> Ended {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (id, (waiting, ends)) = (child.id(), mpsc::channel::<()>());
    thread::spawn(move || {
        if ends.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            signal("-KILL", id);
        }
    });
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    drop(waiting);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code(), out: text(stdout), err: text(stderr) }
}

pub(crate) fn command_of(process: i32) -> String {
    let words = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
    format!("{process}: {}", words.replace('\0', " "))
}

pub(crate) fn signal(signal: &str, process: impl ToString) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// Where `./check tools` has unpacked something.
pub(crate) fn unpacked(name: &str) -> PathBuf {
    congruent_build::cache_folder().unwrap_or_default().join(name)
}

/// What a measurement of an all-reduce over both hosts, run by `start`, is to say and to do: [`ALL_REDUCE`] with this many PEs.
pub(crate) fn all_reduce_is_right(stage: &Stage, pes: u32, start: impl FnOnce() -> Ended) {
    let before = stage.hosts.bytes().unwrap();
    let Ended { code, out, err } = start();
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains(&format!("PEs: {pes} processes")) && out.contains("by libfabric tcp on v0"), "{out}");
    let rows = out.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<Vec<_>> = rows.map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["8", "256", "8192", "262144"], "{out}");
    // The columns of both ways that count wrong elements.
    assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{out}");
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
    // Both ways of each size, five rounds each; what a host knows crosses at least once.
    let moved = stage.hosts.bytes().unwrap() - before;
    assert!(moved > 2 * 5 * (262_144 + 8192), "{moved} bytes went from host to host");
}

/// What [`all_reduce_is_right`] expects to be run, by `congruent`.
pub(crate) const ALL_REDUCE: [&str; 10] = ["perf", "all-reduce", "-b", "8", "-e", "256K", "-f", "32", "-n", "5"];
