//! A user's crate, outside the workspace, that uses cudarc's slices, streams and events together with a world.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;
mod virtual_support;

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use user_crates::{Folder, cargo, target};
use virtual_support::{declare, declared, ends, on_virtual};

const FILES: [&str; 4] = [
    "beside-kernels/Cargo.toml",
    "beside-kernels/src/lib.rs",
    "beside-program/Cargo.toml",
    "beside-program/src/main.rs",
];

#[test]
fn cudarc_and_a_world_share_memory_streams_and_events_in_a_crate_of_a_users() {
    // In the folder of `newcomer.rs`'s program, so that the repository's packages need not be built once more.
    let folder = Folder::new("program", "tests/beside", &FILES, &["beside-program"]);
    let own = target();
    let build = ["build", "--quiet", "--target-dir"].map(OsStr::new);
    cargo(&folder.join("beside-program"), &[&build[..], &[own.as_os_str()]].concat());
    let program = || Command::new(own.join("debug/beside-program"));
    let mut on_cpu = program();
    on_cpu.env("CONGRUENT_MACHINE", "cpu");
    // As the kernel takes them: a number, two slices and a symmetric object.
    let kernel = declared("axpy", &[4, 16, 16, 16], "ret;");
    let mut on_gpus = on_virtual(program(), "devices=2");
    on_gpus.env("CONGRUENT_PTX", declare("beside", &[kernel]));
    let ended = ends(vec![on_cpu, on_gpus], Duration::from_secs(60));
    for (end, machine) in ended.iter().zip(["the CPU", "a GPU"]) {
        // Twice 999 and 1000, and both together.
        let lines = [1998, 2000].iter().zip(0..).map(|(y, pe)| format!("PE {pe} on {machine}: {y} and 3998"));
        assert!(end.succeeded && lines.into_iter().all(|line| end.said.contains(&line)), "{end:?}");
    }
}
