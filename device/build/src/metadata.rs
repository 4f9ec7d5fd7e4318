//! What cargo knows about the package to compile.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::BuildError;
use crate::toolchain::{TRIPLE, ask};

/// The package to compile and every package it may be compiled with.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The package's name.
    pub(crate) package: String,
    /// The name of its library, as it is in symbols and file names.
    pub(crate) library: String,
    /// Where cargo builds, unless told otherwise.
    pub(crate) target_dir: PathBuf,
    /// The folder of every package, and a name for it that is the same on every machine.
    pub(crate) sources: Vec<(PathBuf, String)>,
}

impl Plan {
    /// Asks cargo about `manifest`, for `package` or the manifest's own.
    pub(crate) fn read(cargo: &Path, manifest: &Path, package: Option<&str>) -> Result<Self, BuildError> {
        let shown = manifest.to_string_lossy();
        let arguments = ["metadata", "--format-version", "1", "--filter-platform", TRIPLE, "--manifest-path", &shown];
        let text = ask(cargo, &arguments)?;
        let metadata: Metadata = serde_json::from_str(&text).map_err(|error| BuildError::Program {
            program: format!("{} metadata", cargo.display()),
            problem: format!("answers in an unknown form: {error}"),
        })?;
        metadata.plan(manifest, package)
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
    targets: Vec<CargoTarget>,
}

#[derive(Deserialize)]
struct CargoTarget {
    name: String,
    kind: Vec<String>,
}

impl Metadata {
    fn plan(self, manifest: &Path, wanted: Option<&str>) -> Result<Plan, BuildError> {
        let members = || self.packages.iter().filter(|package| self.workspace_members.contains(&package.id));
        let known = || members().map(|package| package.name.as_str()).collect::<Vec<_>>().join(", ");
        let package = match wanted {
            Some(name) => members().find(|package| package.name == name).ok_or_else(|| BuildError::NoPackage {
                package: name.to_owned(),
                manifest: manifest.to_path_buf(),
                known: known(),
            })?,
            None => members()
                .find(|package| package.manifest_path == manifest)
                .ok_or_else(|| BuildError::PackageNeeded { manifest: manifest.to_path_buf(), known: known() })?,
        };
        let is_library = |target: &&CargoTarget| target.kind.iter().any(|kind| kind.ends_with("lib"));
        let library = package
            .targets
            .iter()
            .find(is_library)
            .ok_or_else(|| BuildError::NoLibrary { package: package.name.clone() })?;
        let sources = self.packages.iter().filter_map(|package| {
            Some((package.manifest_path.parent()?.to_path_buf(), format!("/{}-{}", package.name, package.version)))
        });
        Ok(Plan {
            package: package.name.clone(),
            library: library.name.replace('-', "_"),
            sources: sources.collect(),
            target_dir: self.target_directory.clone(),
        })
    }
}
