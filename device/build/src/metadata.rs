//! What cargo knows about the package to compile.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::BuildError;
use crate::target::Target;
use crate::toolchain::{TRIPLE, ask};

/// The package to compile and its workspace.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The package's name.
    pub(crate) package: String,
    /// Its version.
    pub(crate) version: String,
    /// The name of its library, as it is in symbols and file names.
    pub(crate) library: String,
    /// How its manifest wants it to be compiled.
    pub(crate) settings: Settings,
    /// The folder of the workspace.
    pub(crate) workspace: PathBuf,
    /// The packages that lie in that folder.
    pub(crate) members: Vec<Member>,
}

/// A package of the workspace's folder.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// As cargo writes it.
    pub(crate) id: String,
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
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
    /// What tools other than cargo may read, of any form.
    metadata: serde_json::Value,
    targets: Vec<CargoTarget>,
}

/// `[package.metadata.congruent]` of a manifest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// What it is compiled for, unless asked otherwise.
    #[serde(default = "Settings::usual")]
    pub(crate) targets: Vec<Target>,
    /// Whether its files are compressed.
    #[serde(default)]
    pub(crate) packed: bool,
}

impl Settings {
    fn usual() -> Vec<Target> {
        vec![Target::default()]
    }
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
        let inside = self.packages.iter().filter(|other| other.manifest_path.starts_with(&self.workspace_root));
        let member = |other: &Package| Member { name: other.name.clone(), id: other.id.clone() };
        Ok(Plan {
            package: package.name.clone(),
            version: package.version.clone(),
            library: library.name.replace('-', "_"),
            settings: package.settings()?,
            members: inside.map(member).collect(),
            workspace: self.workspace_root.clone(),
        })
    }
}

impl Package {
    fn settings(&self) -> Result<Settings, BuildError> {
        let Some(settings) = self.metadata.get("congruent") else {
            return Ok(Settings { targets: Settings::usual(), packed: false });
        };
        let refused = |problem| BuildError::BadSettings { manifest: self.manifest_path.clone(), problem };
        match Settings::deserialize(settings) {
            Ok(settings) if settings.targets.is_empty() => Err(refused("`targets` names none".to_owned())),
            Ok(settings) => Ok(settings),
            Err(error) => Err(refused(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn targets(metadata: Value) -> Result<Vec<Target>, BuildError> {
        let package = json!({
            "id": "path+file:///k#0.1.0", "name": "k", "version": "0.1.0", "manifest_path": "/k/Cargo.toml", "targets": [], "metadata": metadata
        });
        serde_json::from_value::<Package>(package).expect("a package").settings().map(|settings| settings.targets)
    }

    #[test]
    fn a_manifest_may_say_its_targets() {
        let shown = |metadata| targets(metadata).expect("targets").iter().map(Target::to_string).collect::<Vec<_>>();
        assert_eq!(shown(json!(null)), ["sm_80:ptx80"]);
        assert_eq!(shown(json!({"docs": {"rs": 1}})), ["sm_80:ptx80"]);
        let two = json!({"congruent": {"targets": ["sm_90:ptx82", "sm_100:ptx88"]}});
        assert_eq!(shown(two), ["sm_90:ptx82", "sm_100:ptx88"]);
    }

    #[test]
    fn a_manifest_with_mistakes_is_refused_by_name() {
        for (settings, word) in [
            (json!({"targets": ["sm_90"]}), "`sm_90`"),
            (json!({"targets": []}), "none"),
            (json!({"target": ["sm_90:ptx82"]}), "`target`"),
            (json!(1), "invalid type"),
        ] {
            let error = targets(json!({"congruent": settings})).expect_err(word).to_string();
            assert!(error.contains(word) && error.contains("/k/Cargo.toml"), "{error}");
        }
    }
}
