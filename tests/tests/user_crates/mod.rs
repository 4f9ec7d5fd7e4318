//! Crates of a user's, outside the workspace, built and run as users do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use congruent_tests::repository;

/// A user's folder: crates of theirs, and the repository as `congruent`. Outside the repository, at the same place in every run
/// of a test, so that cargo knows again what it has built there. It tells packages apart by their paths: folders of one name
/// share what it has built.
pub(crate) struct Folder {
    path: PathBuf,
    /// Other tests may want the folder, in this process or another: they wait until this is closed.
    _lock: File,
}

impl Folder {
    /// Copies of these files, whose paths start at `from`, a folder of the repository; each of the packages is built by itself.
    pub(crate) fn new(name: &str, from: &str, files: &[&str], packages: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        (repository(), name).hash(&mut hasher);
        // A file that every copy of the repository has, and that cargo does not lock.
        let lock = File::open(repository().join("tests/tests/user_crates/mod.rs")).unwrap();
        lock.lock().unwrap();
        let path = env::temp_dir().join(format!("congruent-newcomer-{:016x}", hasher.finish()));
        let folder = Self { path, _lock: lock };
        folder.clear();
        fs::create_dir_all(&folder.path).unwrap();
        for file in files {
            let copy = folder.path.join(file);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(repository().join(from).join(file), copy).unwrap();
        }
        for package in packages {
            // Known versions, which are on this machine already.
            fs::copy(repository().join("Cargo.lock"), folder.path.join(package).join("Cargo.lock")).unwrap();
        }
        std::os::unix::fs::symlink(repository(), folder.path.join("congruent")).unwrap();
        folder
    }

    pub(crate) fn join(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// What programs in this folder must not tell others of.
    #[allow(dead_code, reason = "each suite uses its own part")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn clear(&self) {
        // The link itself is removed, not what it leads to. Where there is nothing to remove, that is well.
        let _ = fs::remove_file(self.path.join("congruent"));
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Where these tests were built.
pub(crate) fn target() -> PathBuf {
    let myself = env::current_exe().unwrap();
    myself.ancestors().nth(3).unwrap().to_path_buf()
}

/// What a program says, in lines in order of the alphabet.
#[allow(dead_code, reason = "each suite uses its own part")]
pub(crate) fn run(program: &Path) -> Vec<String> {
    let target = target();
    let run = ["run", "--quiet", "--target-dir"].map(OsStr::new);
    let done = cargo(program, &[&run[..], &[target.as_os_str()]].concat());
    let mut lines: Vec<_> = String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Runs cargo without the network, and with it only if that fails.
pub(crate) fn cargo(folder: &Path, arguments: &[&OsStr]) -> Output {
    let run = |offline: &str| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(arguments).current_dir(folder).env("CARGO_NET_OFFLINE", offline);
        // One level for all, so that they share what is built; and the one that is built in half the time.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
        command.output().unwrap()
    };
    let offline = run("true");
    let done = if offline.status.success() { offline } else { run("false") };
    assert!(done.status.success(), "cargo {arguments:?}:\n{}", String::from_utf8_lossy(&done.stderr));
    done
}
