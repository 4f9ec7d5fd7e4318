//! What all kernels crates of a user share: the core library and the crates that they depend on, compiled once.

use std::ffi::OsString;
use std::fs;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::BuildError;
use crate::metadata::Plan;
use crate::target::Target;
use crate::toolchain::{DeviceRustc, TRIPLE};

/// Cargo calls it in rustc's place. A flag of cargo's own would be one for all packages, and then each crate with packages of
/// its own would compile the core library anew. What comes first gives way to flags that follow.
const WRAPPER: &str = r#"#!/bin/sh
# Written by congruent-build: keeps the folder in which a package lies out of what is compiled of it.
rustc=$1
shift
exec "$rustc" ${CARGO_MANIFEST_DIR:+"--remap-path-prefix=$CARGO_MANIFEST_DIR=/$CARGO_PKG_NAME-$CARGO_PKG_VERSION"} "$@"
"#;

/// There is nothing to link: the assembly is all that is wanted. Cargo takes a crate for compiled that left a file where it looks
/// for one.
const LINKER: &str = r#"#!/bin/sh
# Written by congruent-build: leaves an empty file in place of what would be linked.
while [ $# -gt 1 ]; do
    [ "$1" != -o ] || : >"$2"
    shift
done
"#;

/// The folder that holds what was compiled and `ptx/`, the assembler; it may be removed while nothing is built.
///
/// It is `CONGRUENT_CACHE`, or `congruent` in `XDG_CACHE_HOME` or in `~/.cache`.
pub fn cache_folder() -> Result<PathBuf, BuildError> {
    congruent_verify::lines::cache_folder().ok_or(BuildError::NoCache)
}

/// The compiler of CUDA C++ that `./check tools` puts there, for tests that compare with what it makes.
#[doc(hidden)]
pub fn nvcc() -> Option<PathBuf> {
    beside_nvcc("nvcc")
}

/// What shows machine code as text, which is there likewise.
#[doc(hidden)]
pub fn nvdisasm() -> Option<PathBuf> {
    beside_nvcc("nvdisasm")
}

fn beside_nvcc(program: &str) -> Option<PathBuf> {
    let path = cache_folder().ok()?.join("nvcc/nvidia/cu13/bin").join(program);
    path.is_file().then_some(path)
}

/// Where a compiler builds for a target: for one crate at a time, until this is dropped.
pub(crate) struct Workshop {
    pub(crate) folder: PathBuf,
    _lock: File,
}

impl Workshop {
    /// Takes it, when others are done with it.
    pub(crate) fn take(base: &Path, rustc: &DeviceRustc, target: &Target) -> Result<Self, BuildError> {
        let folder = base.join(rustc.release()).join(format!("{}-{}", target.arch(), target.ptx()));
        fs::create_dir_all(&folder).map_err(BuildError::io(&folder))?;
        let lock = folder.join("lock");
        let failed = |error| BuildError::io(&lock)(error);
        let file = File::create(&lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another build for {target} in {}", folder.display());
                file.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(Self { folder, _lock: file })
    }

    /// What cargo calls in rustc's place.
    pub(crate) fn wrapper(&self) -> Result<PathBuf, BuildError> {
        self.script("rustc", WRAPPER)
    }

    /// What the compiler calls as a linker.
    pub(crate) fn linker(&self) -> Result<PathBuf, BuildError> {
        self.script("linker", LINKER)
    }

    fn script(&self, name: &str, text: &str) -> Result<PathBuf, BuildError> {
        let path = self.folder.join(name);
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            fs::write(&path, text).map_err(BuildError::io(&path))?;
        }
        // Also where a run before was stopped between the two.
        fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(BuildError::io(&path))?;
        Ok(path)
    }

    /// Forgets what was compiled of packages that are called like those of `plan` and lie in another workspace.
    ///
    /// Cargo knows a package by its name and its place within its workspace, and so takes such packages for the same.
    pub(crate) fn forget_namesakes(&self, cargo: &Path, manifest: &Path, plan: &Plan) -> Result<(), BuildError> {
        let owners = self.folder.join("owners");
        fs::create_dir_all(&owners).map_err(BuildError::io(&owners))?;
        let here = plan.workspace.as_os_str().as_encoded_bytes();
        let mut namesakes: Vec<&str> = Vec::new();
        let mut ours = Vec::new();
        for package in &plan.members {
            let owner = owners.join(&package.name);
            match fs::read(&owner) {
                Ok(owner) if owner == here => continue,
                Ok(_) => namesakes.push(&package.id),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(BuildError::io(&owner)(error)),
            }
            ours.push(owner);
        }
        if !namesakes.is_empty() {
            let mut clean = Command::new(cargo);
            clean.args(["clean", "--quiet", "--release", "--target", TRIPLE, "--manifest-path"]).arg(manifest);
            clean.args(namesakes.into_iter().flat_map(|id| ["--package", id]));
            clean.envs(self.variables()).env_remove("RUSTUP_TOOLCHAIN");
            let failed = |problem| BuildError::Program { program: format!("{} clean", cargo.display()), problem };
            let output = clean.output().map_err(|error| failed(format!("cannot be started: {error}")))?;
            if !output.status.success() {
                return Err(failed(format!("fails: {}", String::from_utf8_lossy(&output.stderr).trim())));
            }
        }
        ours.into_iter().try_for_each(|owner| fs::write(&owner, here).map_err(BuildError::io(&owner)))
    }

    /// What makes cargo build here, whatever its configuration says.
    pub(crate) fn variables(&self) -> [(&str, OsString); 2] {
        ["CARGO_TARGET_DIR", "CARGO_BUILD_BUILD_DIR"].map(|name| (name, self.folder.clone().into_os_string()))
    }
}
