//! The first hour of somebody new: a kernels crate and a program beside a copy of the repository, as README.md says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use congruent_build::{DeviceRustc, Ptxas};
use congruent_tests::{repository, skip};

const FILES: [&str; 4] =
    ["my-kernels/Cargo.toml", "my-kernels/src/lib.rs", "my-program/Cargo.toml", "my-program/src/main.rs"];

/// The newcomer's folder: `my-kernels`, `my-program`, and the repository as `congruent`. Outside the repository, at the same
/// place in every run of a test, so that cargo knows again what it has built there.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (repository(), test).hash(&mut hasher);
        let folder = Self(env::temp_dir().join(format!("congruent-newcomer-{:016x}", hasher.finish())));
        folder.clear();
        for file in FILES {
            let copy = folder.0.join(file);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(repository().join("tests/newcomer").join(file), copy).unwrap();
        }
        for package in ["my-kernels", "my-program"] {
            // Known versions, which are on this machine already.
            fs::copy(repository().join("Cargo.lock"), folder.0.join(package).join("Cargo.lock")).unwrap();
        }
        std::os::unix::fs::symlink(repository(), folder.0.join("congruent")).unwrap();
        folder
    }

    fn clear(&self) {
        // The link itself is removed, not what it leads to. Where there is nothing to remove, that is well.
        let _ = fs::remove_file(self.0.join("congruent"));
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Where these tests were built, and most of what a newcomer's crates need too.
fn target() -> PathBuf {
    let myself = env::current_exe().unwrap();
    myself.ancestors().nth(3).unwrap().to_path_buf()
}

/// Runs cargo without the network, and with it only if that fails.
fn cargo(folder: &Path, arguments: &[&OsStr]) -> Output {
    let run = |offline: &str| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(arguments).current_dir(folder).env("CARGO_NET_OFFLINE", offline);
        // The workspace's own setting, with which the dependencies have been built already.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        command.output().unwrap()
    };
    let offline = run("true");
    let done = if offline.status.success() { offline } else { run("false") };
    assert!(done.status.success(), "cargo {arguments:?}:\n{}", String::from_utf8_lossy(&done.stderr));
    done
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
    let folder = Folder::new("program");
    let target = target();
    let run = ["run", "--quiet", "--target-dir"].map(OsStr::new);
    let done = cargo(&folder.0.join("my-program"), &[&run[..], &[target.as_os_str()]].concat());
    let said = String::from_utf8_lossy(&done.stdout);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["PE 0 has 2", "PE 1 has 4"]);
}

#[test]
fn the_kernels_compile_to_ptx() {
    const TEST: &str = "the_kernels_compile_to_ptx";
    if let Err(error) = DeviceRustc::find() {
        return skip(TEST, &error.to_string());
    }
    let folder = Folder::new("ptx");
    let kernels = folder.0.join("my-kernels");
    // As `congruent-build build`, for one generation only, and with intermediate files where they stay.
    let tool = ["run", "--quiet", "--package", "congruent-build", "--target-dir"].map(OsStr::new);
    let build = ["--", "build", "--target", "sm_90:ptx84", "--manifest-path"].map(OsStr::new);
    let (own, device) = (target(), target().join("newcomer-ptx"));
    let rest = [kernels.as_os_str(), OsStr::new("--target-dir"), device.as_os_str()];
    cargo(repository(), &[&tool[..], &[own.as_os_str()], &build[..], &rest[..]].concat());

    let ptx = kernels.join("ptx/my_kernels.sm_90.ptx");
    let text = fs::read_to_string(&ptx).unwrap();
    assert!(text.contains(".visible .entry double("), "the kernel is an entry of the module");
    assert!(!text.contains(&*folder.0.to_string_lossy()), "the text names no folder of this machine");
    let report = congruent_verify::lint_file(&ptx).unwrap();
    assert!(report.is_clean(), "{}", report.render(false));
    match Ptxas::find() {
        Ok(ptxas) => drop(ptxas.assemble(&ptx).unwrap()),
        Err(error) => skip("the_kernels_compile_to_ptx, its assembly", &error.to_string()),
    }
}
