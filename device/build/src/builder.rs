//! The recipe: one cargo run per target, and the text it leaves.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io, path};

use congruent_verify::lines::Lines;

use crate::cache::{Workshop, cache_folder};
use crate::error::BuildError;
use crate::metadata::Plan;
use crate::target::Target;
use crate::toolchain::{CoreLibrary, DeviceRustc, TRIPLE, library_source};
use crate::{bounds, header, lines, symbols};

/// Compiles one kernels crate for several targets.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest: PathBuf,
    package: Option<String>,
    features: Vec<String>,
    targets: Vec<Target>,
    out_dir: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    rustc: Option<DeviceRustc>,
    lines: bool,
}

/// One PTX file written by [`Builder::build`].
#[derive(Clone, Debug)]
pub struct PtxFile {
    /// The target it is for.
    pub target: Target,
    /// Where it is: `OUT/NAME.sm_90.ptx`, after the library's name, and `.zst` behind it where the manifest wants it packed.
    pub path: PathBuf,
}

impl Builder {
    /// Compiles the package of `manifest`, a `Cargo.toml` or the folder of one.
    pub fn new(manifest: impl Into<PathBuf>) -> Self {
        let mut manifest = manifest.into();
        if !manifest.ends_with("Cargo.toml") {
            manifest.push("Cargo.toml");
        }
        Self {
            manifest,
            package: None,
            features: Vec::new(),
            targets: Vec::new(),
            out_dir: None,
            target_dir: None,
            rustc: None,
            lines: false,
        }
    }

    /// Compiles this package of the manifest's workspace instead of its own.
    pub fn package(mut self, name: impl Into<String>) -> Self {
        self.package = Some(name.into());
        self
    }

    /// Turns on features of the package.
    pub fn features(mut self, features: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.features = features.into_iter().map(Into::into).collect();
        self
    }

    /// Compiles for these targets instead of those in `package.metadata.congruent` of the manifest, or, where it names none,
    /// [the default](Target::default).
    pub fn targets(mut self, targets: impl IntoIterator<Item = Target>) -> Self {
        self.targets = targets.into_iter().collect();
        self
    }

    /// Writes the files here instead of into `ptx/` beside the manifest, and as text, whether or not the manifest wants them packed.
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(folder.into());
        self
    }

    /// Keeps intermediate files here instead of in the [cache](crate::cache_folder) that all crates share.
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(folder.into());
        self
    }

    /// Compiles with this compiler instead of the one [`DeviceRustc::find`] finds.
    pub fn rustc(mut self, rustc: DeviceRustc) -> Self {
        self.rustc = Some(rustc);
        self
    }

    /// Compiles a second time, with line tables, and leaves [a table](congruent_verify::lines) of the lines of the source in the
    /// cache, by which reports of virtual GPUs name them. The PTX stays the same.
    pub fn lines(mut self, wanted: bool) -> Self {
        self.lines = wanted;
        self
    }

    /// Compiles for every target and writes the files, replacing those that differ.
    pub fn build(&self) -> Result<Vec<PtxFile>, BuildError> {
        let out_dir = self.output_folder()?;
        fs::create_dir_all(&out_dir).map_err(BuildError::io(&out_dir))?;
        let mut files = Vec::new();
        for Compiled { target, file, text, lines } in self.compile()? {
            if let Some(lines) = lines {
                write_lines(&text, &lines)?;
            }
            // An unchanged file keeps its time stamp, so that nothing which includes it is rebuilt.
            let path = file.path(&out_dir);
            if file.read(&out_dir).ok().as_deref() != Some(text.as_str()) {
                file.write(&out_dir, &text).map_err(BuildError::io(&path))?;
            }
            files.push(PtxFile { target, path });
        }
        Ok(files)
    }

    /// The files' texts, one per target, without writing them.
    pub(crate) fn compile(&self) -> Result<Vec<Compiled>, BuildError> {
        let rustc = self.compiler()?;
        let manifest = absolute(&self.manifest)?;
        let plan = Plan::read(&rustc.cargo(), &manifest, self.package.as_deref())?;
        let base = match &self.target_dir {
            Some(folder) => absolute(folder)?,
            None => cache_folder()?.join("kernels"),
        };
        let targets = if self.targets.is_empty() { &plan.settings.targets } else { &self.targets };
        let recipe = Recipe { rustc: &rustc, manifest: &manifest, plan: &plan, features: &self.features };
        let compile = |target: &Target| {
            let workshop = Workshop::take(&base, &rustc, target)?;
            let ptx = recipe.run(target, &workshop, "false")?;
            let ptx = bounds::with_directives(&symbols::without_notes(&symbols::renumber_crates(&ptx)));
            let text = header::with_header(&ptx, &rustc, target);
            let debug = self.lines.then(|| recipe.run(target, &workshop, "line-tables-only")).transpose()?;
            let lines = debug.map(|debug| lines::lines(&text, &debug)).transpose();
            let lines = lines.map_err(|source| BuildError::Lines { target: target.clone(), source })?;
            let name = format!("{}.{}.ptx", plan.library, target.arch());
            let file = Output { name, packed: plan.settings.packed && self.out_dir.is_none() };
            Ok(Compiled { target: target.clone(), file, text, lines })
        };
        targets.iter().map(compile).collect()
    }

    /// The compiler that will be used.
    pub(crate) fn compiler(&self) -> Result<DeviceRustc, BuildError> {
        self.rustc.clone().map_or_else(DeviceRustc::find, Ok)
    }

    /// Where the files go.
    pub(crate) fn output_folder(&self) -> Result<PathBuf, BuildError> {
        match &self.out_dir {
            Some(folder) => Ok(folder.clone()),
            None => Ok(absolute(&self.manifest)?.with_file_name("ptx")),
        }
    }
}

/// One compiled text.
pub(crate) struct Compiled {
    pub(crate) target: Target,
    pub(crate) file: Output,
    pub(crate) text: String,
    /// The lines of its source, if they are wanted.
    lines: Option<Lines>,
}

/// A file with a text.
pub(crate) struct Output {
    name: String,
    packed: bool,
}

impl Output {
    /// zstd's level: a slow one, since packing is rare.
    const LEVEL: i32 = 19;

    pub(crate) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{}", self.name, if self.packed { PACKED } else { "" }))
    }

    pub(crate) fn read(&self, folder: &Path) -> io::Result<String> {
        read_text(&self.path(folder))
    }

    fn write(&self, folder: &Path, text: &str) -> io::Result<()> {
        let packed = self.packed.then(|| zstd::encode_all(text.as_bytes(), Self::LEVEL)).transpose()?;
        fs::write(self.path(folder), packed.as_deref().unwrap_or(text.as_bytes()))
    }
}

/// What is behind the name of a packed file.
const PACKED: &str = ".zst";

/// The text of a file, which is packed if its name says so.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = fs::read(path)?;
    if path.as_os_str().as_encoded_bytes().ends_with(PACKED.as_bytes()) {
        bytes = zstd::decode_all(&*bytes)?;
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Leaves the table of a text in the cache.
fn write_lines(text: &str, lines: &Lines) -> Result<(), BuildError> {
    let path = Lines::file(text).ok_or(BuildError::NoCache)?;
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(BuildError::io(&path))?;
    fs::write(&path, lines.to_string()).map_err(BuildError::io(&path))
}

/// One cargo run.
pub(crate) struct Recipe<'a> {
    rustc: &'a DeviceRustc,
    manifest: &'a Path,
    plan: &'a Plan,
    features: &'a [String],
}

impl Recipe<'_> {
    /// The flags that decide about the code, for every crate of the build.
    pub(crate) fn flags(target: &Target) -> Vec<String> {
        vec![
            format!("-Ctarget-cpu={}", target.arch()),
            format!("-Ctarget-feature=+{}", target.ptx()),
            // This pass copies a barrier into both arms of a branch, which the device forbids.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
        ]
    }

    /// Compiles for `target` in `workshop`, with as much for a debugger as the profile's `debug` says; gives the compiler's text.
    fn run(&self, target: &Target, workshop: &Workshop, debug: &str) -> Result<String, BuildError> {
        workshop.forget_namesakes(&self.rustc.cargo(), self.manifest, self.plan)?;
        // It stays for as long as cargo finds that nothing has changed, which cargo keeps for each library of each package.
        let Plan { package, version, library, .. } = self.plan;
        let ptx = workshop.folder.join(format!("{package}-{version}-{library}.ptx"));
        let mut cargo = Command::new(self.rustc.cargo());
        cargo
            .args(["rustc", "--quiet", "--lib", "--crate-type", "cdylib", "--release", "--target", TRIPLE])
            .arg("--manifest-path")
            .arg(self.manifest)
            .args(["--package", &self.plan.package])
            .args(self.features.iter().map(|feature| format!("--features={feature}")));
        if self.rustc.core == CoreLibrary::Source {
            cargo.arg("-Zbuild-std=core");
        }
        // A folder that is put in the place of another may hold older files, which by their times would pass for the same.
        cargo.arg("-Zchecksum-freshness");
        // Under fat LTO the last crate's assembly is the whole program. It is complete before linking starts.
        cargo.arg("--").arg(joined("--emit=asm=", &ptx));
        cargo
            .env("RUSTC", &self.rustc.path)
            .env("RUSTC_BOOTSTRAP", "1")
            .envs(workshop.variables())
            .env("CARGO_ENCODED_RUSTFLAGS", self.encoded_flags(target, &workshop.folder))
            // Cargo prefers these to the profile in the user's manifest, which therefore needs none.
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
            .env("CARGO_PROFILE_RELEASE_DEBUG", debug)
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false")
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false")
            .env("RUSTC_WRAPPER", workshop.wrapper()?)
            .env("CARGO_TARGET_NVPTX64_NVIDIA_CUDA_LINKER", workshop.linker()?)
            // This one is for host builds: clippy's would check instead of compile.
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("RUSTUP_TOOLCHAIN")
            .stdin(Stdio::null());
        let status = cargo.status().map_err(|error| BuildError::Program {
            program: self.rustc.cargo().display().to_string(),
            problem: format!("cannot be started: {error}\nhelp: check that it is installed and on PATH"),
        })?;
        if !status.success() {
            return Err(BuildError::Compile { package: self.plan.package.clone(), target: target.clone() });
        }
        match fs::read_to_string(&ptx) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BuildError::NoPtx { path: ptx }),
            Err(error) => Err(BuildError::io(&ptx)(error)),
        }
    }

    /// [`Self::flags`] and those that keep paths out of the text, in cargo's encoding. They are the same for all crates, which
    /// therefore share what is compiled with them.
    fn encoded_flags(&self, target: &Target, folder: &Path) -> OsString {
        let mut flags: Vec<OsString> = Self::flags(target).into_iter().map(OsString::from).collect();
        let library = library_source(&self.rustc.sysroot);
        flags.extend([(folder, "/target"), (&library, "/rust/library")].map(|(path, name)| {
            let mut flag = joined("--remap-path-prefix=", path);
            flag.push("=");
            flag.push(name);
            flag
        }));
        flags.join(OsString::from("\u{1f}").as_os_str())
    }
}

fn joined(prefix: &str, path: &Path) -> OsString {
    let mut text = OsString::from(prefix);
    text.push(path);
    text
}

fn absolute(path: &Path) -> Result<PathBuf, BuildError> {
    path::absolute(path).map_err(BuildError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_file_is_read_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("congruent-packed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let text = ".version 8.0\n".repeat(1000);
        for packed in [false, true] {
            let file = Output { name: "k.sm_80.ptx".to_owned(), packed };
            assert!(file.read(&folder).is_err());
            file.write(&folder, &text).unwrap();
            assert_eq!(file.read(&folder).unwrap(), text);
            assert_eq!(fs::metadata(file.path(&folder)).unwrap().len() < 200, packed);
        }
        fs::write(folder.join("k.sm_80.ptx.zst"), "no frame").unwrap();
        let damaged = Output { name: "k.sm_80.ptx".to_owned(), packed: true };
        assert!(damaged.read(&folder).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
