//! The first hour of somebody new: a kernels crate and a program beside a copy of the repository, as README.md says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;

use std::ffi::OsStr;
use std::fs;

use congruent_build::{DeviceRustc, Ptxas};
use congruent_tests::{repository, skip};
use user_crates::{Folder, cargo, run, target};

const FILES: [&str; 4] =
    ["my-kernels/Cargo.toml", "my-kernels/src/lib.rs", "my-program/Cargo.toml", "my-program/src/main.rs"];

fn folder(test: &str) -> Folder {
    Folder::new(test, "tests/newcomer", &FILES, &["my-kernels", "my-program"])
}

#[test]
fn the_readme_shows_these_kernels() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let shown: Vec<&str> = readme.lines().map(str::trim).collect();
    for file in &FILES[..2] {
        let text = fs::read_to_string(repository().join("tests/newcomer").join(file)).unwrap();
        // Everybody knows how a manifest starts.
        let from = if file.ends_with(".toml") { text.find("[dependencies]").unwrap() } else { 0 };
        let lines: Vec<&str> = text[from..].lines().map(str::trim).collect();
        assert!(
            shown.windows(lines.len()).any(|part| part == lines),
            "README.md does not show this:\n{}",
            &text[from..]
        );
    }
}

#[test]
fn the_program_runs_on_two_pes() {
    let folder = folder("program");
    assert_eq!(run(&folder.join("my-program")), ["PE 0 has 2", "PE 1 has 4"]);
}

#[test]
fn the_kernels_compile_to_ptx() {
    const TEST: &str = "the_kernels_compile_to_ptx";
    if let Err(error) = DeviceRustc::find() {
        return skip(TEST, &error.to_string());
    }
    let folder = folder("ptx");
    let kernels = folder.join("my-kernels");
    // As `congruent-build build`, for one generation only, and with intermediate files where they stay.
    let tool = ["run", "--quiet", "--package", "congruent-build", "--target-dir"].map(OsStr::new);
    let build = ["--", "build", "--target", "sm_90:ptx82", "--manifest-path"].map(OsStr::new);
    let (own, device) = (target(), target().join("newcomer-ptx"));
    let rest = [kernels.as_os_str(), OsStr::new("--target-dir"), device.as_os_str()];
    cargo(repository(), &[&tool[..], &[own.as_os_str()], &build[..], &rest[..]].concat());

    let ptx = kernels.join("ptx/my_kernels.sm_90.ptx");
    let text = fs::read_to_string(&ptx).unwrap();
    assert!(text.contains(".visible .entry double("), "the kernel is an entry of the module");
    assert!(!text.contains(&*folder.path().to_string_lossy()), "the text names no folder of this machine");
    let report = congruent_verify::lint_file(&ptx).unwrap();
    assert!(report.is_clean(), "{}", report.render(false));
    match Ptxas::find() {
        Ok(ptxas) => drop(ptxas.assemble(&ptx).unwrap()),
        Err(error) => skip("the_kernels_compile_to_ptx, its assembly", &error.to_string()),
    }
}
