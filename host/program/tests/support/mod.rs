//! Running the `congruent` program.
#![allow(clippy::unwrap_used, reason = "part of tests: what fails here fails the test")]

use std::process::{Command, Output};

/// The program, in an environment without a launcher's or a user's variables.
pub(crate) fn congruent(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_congruent"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONGRUENT_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs it to its end.
pub(crate) fn ended(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code(), out: text(stdout), err: text(stderr) }
}
