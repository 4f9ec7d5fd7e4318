//! The first hour of somebody new: what `congruent new` writes builds, runs and passes its own test, and becomes PTX, which virtual GPUs run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod user_crates;

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use congruent_build::{DeviceRustc, Ptxas};
use congruent_tests::{program, repository, skip};
use user_crates::{Folder, cargo, run, target};

/// The program as it was written, in a folder of its own.
fn written(test: &str) -> (Folder, PathBuf) {
    let folder = Folder::new(test, "", &[], &[]);
    let halo = folder.join("halo");
    let mut new = Command::new(program().unwrap());
    let done = new.arg("new").arg(&halo).arg("--congruent").arg(folder.join("congruent")).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    // Known versions, which are on this machine already.
    fs::copy(repository().join("Cargo.lock"), halo.join("Cargo.lock")).unwrap();
    (folder, halo)
}

#[test]
fn the_readme_shows_the_kernels_and_the_program() {
    let (_folder, halo) = written("readme");
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let shown: Vec<&str> = readme.lines().map(str::trim).collect();
    for file in ["kernels/src/lib.rs", "src/main.rs"] {
        let text = fs::read_to_string(halo.join(file)).unwrap();
        // But for the program's test.
        let (text, _) = text.split_once("\n#[test]").unwrap_or((&text, ""));
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim).collect();
        assert!(shown.windows(lines.len()).any(|part| part == lines), "README.md does not show this:\n{text}");
    }
}

#[test]
fn it_runs_passes_its_test_and_becomes_ptx_which_virtual_gpus_run() {
    const TEST: &str = "it_runs_passes_its_test_and_becomes_ptx_which_virtual_gpus_run";
    // The folder of `fused.rs`'s program, so that the repository's packages need not be built once more.
    let (folder, halo) = written("program");
    let expected = [0, 1, 2, 3].map(|pe| format!("PE {pe} of 4 has 20 (cpu, width 1)"));
    assert_eq!(run(&halo), expected);
    let here = |words: &[&str]| {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        cargo(&halo, &[&words[..], &[OsStr::new("--target-dir"), target().as_os_str()]].concat())
    };
    let tested = here(&["test"]);
    let said = String::from_utf8_lossy(&tested.stdout);
    assert!(said.contains("test numbers_are_doubled_and_summed ... ok"), "{said}");

    if let Err(error) = DeviceRustc::find() {
        return skip(TEST, &error.to_string());
    }
    let kernels = halo.join("kernels");
    let (tools, own) = (program().unwrap(), target());
    let build = ["build", "--manifest-path"].map(OsStr::new);
    let built = Command::new(tools.with_file_name("congruent-build")).args(build).arg(&kernels).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let ptx = kernels.join("ptx/halo_kernels.sm_80.ptx");
    let text = fs::read_to_string(&ptx).unwrap();
    assert!(text.contains(".visible .entry double_and_sum("), "the kernel is an entry of the module");
    assert!(!text.contains(&*folder.path().to_string_lossy()), "the text names no folder of this machine");
    let report = congruent_verify::lint_file(&ptx).unwrap();
    assert!(report.is_clean(), "{}", report.render(false));
    match Ptxas::find() {
        Ok(ptxas) => drop(ptxas.assemble(&ptx).unwrap()),
        Err(error) => skip(&format!("{TEST}, its assembly"), &error.to_string()),
    }
    here(&["build"]);
    let halo = Command::new(own.join("debug/halo")).env("CONGRUENT_MACHINE", "virtual").output().unwrap();
    let said = String::from_utf8_lossy(&halo.stdout);
    assert_eq!(said.matches(" of 4 has 20 (cuda, congruent virtual GPU").count(), 4, "{halo:?}");
}
