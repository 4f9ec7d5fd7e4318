//! Tests that need an RDMA device run in a virtual machine, which has one in software (SoftRoCE).

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{repository, skip};

/// Set in the virtual machine.
const INSIDE: &str = "CONGRUENT_TEST_GUEST";

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
    let cache = env::var_os("CONGRUENT_CACHE").map_or_else(|| repository().join("target/tools"), PathBuf::from);
    let image = cache.join("guest");
    let Some(program) = image.join("kernel").is_file().then(env::current_exe).and_then(Result::ok) else {
        skip(test, "no virtual machine with RDMA: `./check tools` makes it on x86-64 Debian");
        return false;
    };
    let mut boot = Command::new(repository().join("tests/guest/boot"));
    boot.arg(image).arg(program).args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(INSIDE, "1");
    let ended = boot.output().unwrap_or_else(|error| panic!("tests/guest/boot: {error}"));
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    // A test that was not found is no success.
    let passed = ended.status.success() && out.contains("1 passed") && !out.contains("SKIPPED");
    assert!(passed, "{test} in the virtual machine: {}\n{out}\n{err}", ended.status);
    false
}
