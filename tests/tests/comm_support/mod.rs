//! Worlds for tests of communicators.
#![allow(dead_code, reason = "each suite uses its own part")]

use std::process::Command;
use std::time::Duration;

use congruent::{Builder, Error, World};

/// Machines that tests run on: one lane and four, by load and store and through the proxy.
pub(crate) const MACHINES: [(u32, bool); 3] = [(1, false), (4, false), (1, true)];

pub(crate) fn builder() -> Builder {
    World::builder().heap(96 << 20).deadline(Duration::from_secs(20))
}

pub(crate) fn local<R: Send>(npes: usize, program: impl Fn(&mut World) -> Result<R, Error> + Sync) -> Vec<R> {
    builder().local(npes, program).unwrap()
}

/// Set for the process in which a test of this file looks at itself.
pub(crate) const CHILD: &str = "CONGRUENT_TEST_CHILD";

/// This test again, in a process of its own that succeeds; what it writes.
pub(crate) fn child(test: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").envs(environment.iter().copied());
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    said
}
