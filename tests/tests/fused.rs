//! A user's kernel, in a crate outside the workspace, that computes, sums over one team and exchanges with another in one launch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;

use user_crates::{Folder, run};

const FILES: [&str; 4] =
    ["fused-kernels/Cargo.toml", "fused-kernels/src/lib.rs", "fused-program/Cargo.toml", "fused-program/src/main.rs"];

#[test]
fn one_launch_computes_sums_over_one_team_and_exchanges_with_another() {
    // In the folder of `newcomer.rs`'s program, so that the repository's packages need not be built once more.
    let folder = Folder::new("program", "tests/fused", &FILES, &["fused-program"]);
    let lines = run(&folder.join("fused-program"));
    // Of 700, 0, 1 and 1999 tokens, in the order in which a pair's members send to each other.
    let received = [700, 2699, 700, 2699, 700, 2699];
    let expected = (0..).zip(received).map(|(pe, tokens)| format!("PE {pe} received {tokens} tokens, 0 of them wrong"));
    assert_eq!(lines, expected.collect::<Vec<_>>());
}
