//! The `congruent` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    congruent_program::main()
}
