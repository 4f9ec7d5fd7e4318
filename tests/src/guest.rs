//! Tests that need an RDMA device run in a virtual machine, which has one in software (SoftRoCE).

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::{env, io, thread};

use crate::{repository, skip};

/// Set in the virtual machine.
const INSIDE: &str = "CONGRUENT_TEST_GUEST";
/// Which of two it is, and where their wire is.
const HOST: &str = "CONGRUENT_TEST_HOST";
const WIRE: &str = "CONGRUENT_TEST_WIRE";

/// One at a time: each takes the cores of a small machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Whether this process runs in the virtual machine. Where it does not, this test of this program is run there, and said to be skipped where
/// there is none.
///
/// # Panics
/// Where the test fails there.
pub fn is_inside(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = boot(test).and_then(|mut machine| failure(machine.output())) {
        panic!("{test}: {failure}");
    }
    false
}

/// Which of two virtual machines this process runs in, which a wire joins. Where it is in neither, this test of this program is run in both.
///
/// # Panics
/// As [`is_inside`].
pub fn host(test: &str) -> Option<usize> {
    if env::var_os(INSIDE).is_some() {
        return env::var(HOST).ok().and_then(|host| host.parse().ok());
    }
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let wire = tempfile::tempdir().unwrap_or_else(|error| panic!("{test}: {error}"));
    let machines: Vec<_> = (0..2)
        .filter_map(|host| {
            let mut machine = boot(test)?;
            machine.env(HOST, host.to_string()).env(WIRE, wire.path().join("wire"));
            Some(thread::spawn(move || machine.output()))
        })
        .collect();
    // Both, since what went wrong in one ends the other, too.
    let failures: Vec<_> = machines.into_iter().filter_map(|machine| machine.join().ok()).filter_map(failure).collect();
    assert!(failures.is_empty(), "{test}: {}", failures.join("\n"));
    None
}

/// What runs a test in a virtual machine, or a word that there is none.
fn boot(test: &str) -> Option<Command> {
    let cache = env::var_os("CONGRUENT_CACHE").map_or_else(|| repository().join("target/tools"), PathBuf::from);
    let image = cache.join("guest");
    let Some(program) = image.join("kernel").is_file().then(env::current_exe).and_then(Result::ok) else {
        skip(test, "no virtual machine with RDMA: `./check tools` makes it on x86-64 Debian");
        return None;
    };
    let mut boot = Command::new(repository().join("tests/guest/boot"));
    boot.arg(image)
        .arg(program)
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1");
    Some(boot)
}

/// What a virtual machine said, unless the test has run there, and passed.
fn failure(ended: io::Result<Output>) -> Option<String> {
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return Some(format!("tests/guest/boot: {error}")),
    };
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    // A test that was not found is no success.
    let passed = ended.status.success() && out.contains("1 passed") && !out.contains("SKIPPED");
    (!passed).then(|| format!("in the virtual machine: {}\n{out}\n{err}", ended.status))
}
