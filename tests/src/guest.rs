//! Tests that need an RDMA device run in a virtual machine, which has one in software (SoftRoCE).

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, thread};

use crate::{repository, skip};

/// Set in the virtual machine.
const INSIDE: &str = "CONGRUENT_TEST_GUEST";
/// Which of two it is, and where their wire is.
const HOST: &str = "CONGRUENT_TEST_HOST";
const WIRE: &str = "CONGRUENT_TEST_WIRE";

/// One at a time: each takes the cores of a small machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Whether this process runs in the virtual machine. Where it does not, the tests that this program was asked for are run there, all by the
/// first one that asks, and each is said to be skipped where there is no such machine.
///
/// # Panics
/// Where the test fails there.
pub fn is_inside(test: &str) -> bool {
    static SAID: OnceLock<Option<String>> = OnceLock::new();
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let said = SAID.get_or_init(|| {
        let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = env::args().skip(1).filter(|argument| !argument.contains("nocapture"));
        boot(asked).map(|mut machine| machine.output().map_or_else(|error| error.to_string(), |ended| all_of(&ended)))
    });
    match said {
        Some(said) => assert!(passed(test, said), "{test} in the virtual machine: {said}"),
        None => no_machine(test),
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
            let mut machine = boot(["--exact", "--include-ignored", test].map(str::to_owned))?;
            machine.env(HOST, host.to_string()).env(WIRE, wire.path().join("wire"));
            Some(thread::spawn(move || machine.output()))
        })
        .collect();
    if machines.is_empty() {
        no_machine(test);
    }
    // Both, since what went wrong in one ends the other, too.
    let ended = machines.into_iter().filter_map(|machine| machine.join().ok());
    let said: Vec<_> =
        ended.map(|ended| ended.map_or_else(|error| error.to_string(), |ended| all_of(&ended))).collect();
    assert!(said.iter().all(|said| passed(test, said)), "{test} in two virtual machines: {}", said.join("\n"));
    None
}

/// Whether a machine says that a test has passed: one that was not found, or skipped itself, has not.
fn passed(test: &str, said: &str) -> bool {
    said.contains(&format!("test {test} ... ok\n")) && !said.contains("SKIPPED")
}

fn no_machine(test: &str) {
    skip(test, "no virtual machine with RDMA: `./check tools` makes it on x86-64 Debian");
}

/// What runs this program in a virtual machine, with these arguments; none where there is no machine.
fn boot(arguments: impl IntoIterator<Item = String>) -> Option<Command> {
    let cache = env::var_os("CONGRUENT_CACHE").map_or_else(|| repository().join("target/tools"), PathBuf::from);
    let image = cache.join("guest");
    let program = image.join("kernel").is_file().then(env::current_exe).and_then(Result::ok)?;
    let mut boot = Command::new(repository().join("tests/guest/boot"));
    boot.arg(image).arg(program).args(arguments).args(["--test-threads", "1"]).env(INSIDE, "1");
    Some(boot)
}

/// All that it said, and how it ended. The machine's console ends lines as terminals do.
fn all_of(ended: &Output) -> String {
    let [out, err] = [&ended.stdout, &ended.stderr].map(|said| String::from_utf8_lossy(said).replace('\r', ""));
    format!("{out}\n{err}\n{}", ended.status)
}
