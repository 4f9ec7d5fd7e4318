//! A user's kernel, in a crate outside the workspace, that computes, sums over one team and exchanges with another in one launch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use congruent_tests::repository;

const FILES: [&str; 4] =
    ["fused-kernels/Cargo.toml", "fused-kernels/src/lib.rs", "fused-program/Cargo.toml", "fused-program/src/main.rs"];

/// The user's folder: two crates, and the repository as `congruent`. Outside the repository, where `newcomer.rs` has its
/// program: cargo tells packages apart by their paths, and so need not build the repository's once more.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let mut hasher = DefaultHasher::new();
        (repository(), "program").hash(&mut hasher);
        let folder = Self(env::temp_dir().join(format!("congruent-newcomer-{:016x}", hasher.finish())));
        folder.clear();
        for file in FILES {
            let copy = folder.0.join(file);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(repository().join("tests/fused").join(file), copy).unwrap();
        }
        // Known versions, which are on this machine already.
        fs::copy(repository().join("Cargo.lock"), folder.0.join("fused-program/Cargo.lock")).unwrap();
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

/// Where these tests were built, and most of what the user's crates need too.
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
fn one_launch_computes_sums_over_one_team_and_exchanges_with_another() {
    let folder = Folder::new();
    let target = target();
    let run = ["run", "--quiet", "--target-dir"].map(OsStr::new);
    let done = cargo(&folder.0.join("fused-program"), &[&run[..], &[target.as_os_str()]].concat());
    let said = String::from_utf8_lossy(&done.stdout);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    // Of 700, 0, 1 and 1999 tokens, in the order in which a pair's members send to each other.
    let received = [700, 2699, 700, 2699, 700, 2699];
    let expected = (0..).zip(received).map(|(pe, tokens)| format!("PE {pe} received {tokens} tokens, 0 of them wrong"));
    assert_eq!(lines, expected.collect::<Vec<_>>());
}
