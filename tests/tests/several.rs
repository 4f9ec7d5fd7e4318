//! What a GPU gives a user's kernels: registers, and no stack, however many collectives a launch calls.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;

use std::process::Command;

use congruent_build::{DeviceRustc, Ptxas};
use congruent_tests::{program, skip};
use user_crates::Folder;

const FILES: [&str; 2] = ["several-kernels/Cargo.toml", "several-kernels/src/lib.rs"];

/// The most registers of a thread.
const MOST: [(&str, u32); 2] = [("one", 96), ("eight", 168)];

#[test]
fn kernels_with_several_collectives_have_no_stack() {
    const TEST: &str = "kernels_with_several_collectives_have_no_stack";
    let ptxas = match (DeviceRustc::find(), Ptxas::find()) {
        (Ok(_), Ok(ptxas)) => ptxas,
        (Err(error), _) | (_, Err(error)) => return skip(TEST, &error.to_string()),
    };
    let folder = Folder::new("several", "tests/several", &FILES, &["several-kernels"]);
    let kernels = folder.join("several-kernels");
    let mut build = Command::new(program().unwrap().with_file_name("congruent-build"));
    let built = build.args(["build", "--manifest-path"]).arg(&kernels).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ptx = kernels.join("ptx/several_kernels.sm_80.ptx");
    for arch in ["sm_80", "sm_90", "sm_100"] {
        let functions = ptxas.assemble_for(&ptx, arch).unwrap().functions;
        for (name, most) in MOST {
            let cost = functions.iter().find(|function| function.name == name).unwrap();
            assert_eq!((cost.stack, cost.spill_stores, cost.spill_loads), (0, 0, 0), "{name} for {arch}: {cost:?}");
            assert!(cost.registers.unwrap() <= most, "{name} for {arch}: {cost:?}, at most {most} registers");
        }
    }
}
