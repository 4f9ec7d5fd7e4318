//! Finding a rustc that compiles for the device, and the core library it does it with.

use core::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::error::BuildError;

/// A compiler for `nvptx64-nvidia-cuda`.
#[derive(Clone, Debug)]
pub struct DeviceRustc {
    /// The program.
    pub path: PathBuf,
    /// Where its libraries are.
    pub sysroot: PathBuf,
    /// Its version line, `rustc 1.96.0 (ac68faa20 2026-05-25)`.
    pub version: String,
    /// The code generator's version, `22.1.8`.
    pub llvm: String,
    /// How it gets the device's core library.
    pub core: CoreLibrary,
}

/// How a device compiler gets the core library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreLibrary {
    /// The toolchain ships it compiled (`rustup target add nvptx64-nvidia-cuda`).
    Prebuilt,
    /// It is compiled along, from source (`-Zbuild-std=core`; Debian's `rust-web-src`, rustup's `rust-src`).
    Source,
}

/// The triple of the device.
pub(crate) const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// Names the device compiler to use, before all others.
pub(crate) const RUSTC_VARIABLE: &str = "CONGRUENT_DEVICE_RUSTC";

impl DeviceRustc {
    /// Finds one: the program that `CONGRUENT_DEVICE_RUSTC` names, a rustup toolchain with the target installed, or
    /// `/usr/bin/rustc` with its source.
    pub fn find() -> Result<Self, BuildError> {
        if let Some(path) = env::var_os(RUSTC_VARIABLE) {
            return Self::at(Path::new(&path));
        }
        let mut candidates = rustup_compilers();
        candidates.push(PathBuf::from("/usr/bin/rustc"));
        let usable = candidates.iter().filter(|path| path.is_file()).find_map(|path| Self::at(path).ok());
        usable.ok_or_else(|| BuildError::NoDeviceRustc {
            looked: format!("{RUSTC_VARIABLE}, rustup's toolchains, /usr/bin/rustc"),
        })
    }

    /// The compiler at `path`, if it can compile for the device.
    pub fn at(path: &Path) -> Result<Self, BuildError> {
        let sysroot = PathBuf::from(ask(path, &["--print", "sysroot"])?.trim());
        let verbose = ask(path, &["-vV"])?;
        let line = |prefix: &str| verbose.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or("unknown");
        let core = if has_prebuilt_core(&sysroot) {
            CoreLibrary::Prebuilt
        } else if library_source(&sysroot).join("core/Cargo.toml").is_file() {
            CoreLibrary::Source
        } else {
            return Err(BuildError::NoCore { rustc: path.to_path_buf(), sysroot });
        };
        let version = verbose.lines().next().unwrap_or("rustc unknown").to_owned();
        let llvm = line("LLVM version: ").to_owned();
        Ok(Self { path: path.to_path_buf(), sysroot, version, llvm, core })
    }

    /// Its version as the name of a folder, `1.96.0-ac68faa20`.
    pub(crate) fn release(&self) -> String {
        let mut words = self.version.split_whitespace().skip(1).map(|word| {
            word.chars().filter(|&c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')).collect::<String>()
        });
        let (number, commit) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        format!("{number}-{commit}")
    }

    /// The cargo to drive it with: its own where it has one, since rustup keeps them in pairs.
    pub(crate) fn cargo(&self) -> PathBuf {
        let sibling = self.path.with_file_name("cargo");
        if sibling.is_file() {
            return sibling;
        }
        env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
    }
}

impl fmt::Display for CoreLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prebuilt => "prebuilt core",
            Self::Source => "core from source",
        })
    }
}

/// Where a toolchain keeps the source of its libraries, if it has it.
pub(crate) fn library_source(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust/library")
}

/// Runs `program`, giving its standard output.
pub(crate) fn ask(program: &Path, arguments: &[&str]) -> Result<String, BuildError> {
    let failed = |problem: String| BuildError::Program { program: program.display().to_string(), problem };
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| failed(format!("cannot be started: {error}\nhelp: check that it is installed and on PATH")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("fails at `{}`: {}", arguments.join(" "), said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn has_prebuilt_core(sysroot: &Path) -> bool {
    let libraries = sysroot.join("lib/rustlib").join(TRIPLE).join("lib");
    fs::read_dir(libraries).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libcore-")))
    })
}

/// The compilers of rustup's toolchains that have the device's core, nightly first since it has the newest code
/// generator, then by name so that the choice does not depend on the file system.
fn rustup_compilers() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    let Some(entries) = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok()) else {
        return Vec::new();
    };
    let mut sysroots: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| has_prebuilt_core(path)).collect();
    let is_nightly = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nightly"));
    sysroots.sort_by_key(|path| (!is_nightly(path), path.clone()));
    sysroots.into_iter().map(|sysroot| sysroot.join("bin/rustc")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_an_error_that_names_it() {
        let error = DeviceRustc::at(Path::new("/nonexistent/rustc")).expect_err("it does not exist");
        assert!(error.to_string().contains("/nonexistent/rustc"), "{error}");
    }

    #[test]
    fn a_folder_without_libraries_has_no_core() {
        assert!(!has_prebuilt_core(&env::temp_dir()));
    }
}
