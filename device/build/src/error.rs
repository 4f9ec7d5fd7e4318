//! What can go wrong, each with what to do next.

use std::io;
use std::path::{Path, PathBuf};

use crate::target::Target;

/// Why a kernels crate could not be compiled, checked or assembled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No compiler for the device was found.
    #[error(
        "no rustc that compiles for nvptx64-nvidia-cuda was found; looked at {looked}\n\
         help: `rustup toolchain install nightly && rustup target add nvptx64-nvidia-cuda --toolchain nightly`, or on \
         Debian `apt-get install rustc-web rust-web-src`, or name one in CONGRUENT_DEVICE_RUSTC"
    )]
    NoDeviceRustc {
        /// The places searched, for people.
        looked: String,
    },
    /// A compiler was named, but it has neither the device's core library nor the source to build it.
    #[error(
        "`{}` cannot compile for nvptx64-nvidia-cuda: its sysroot `{}` holds neither that target's core library nor the \
         library's source\nhelp: `rustup target add nvptx64-nvidia-cuda` for its toolchain, or install its rust-src",
        rustc.display(), sysroot.display()
    )]
    NoCore {
        /// The compiler.
        rustc: PathBuf,
        /// Where it looks for libraries.
        sysroot: PathBuf,
    },
    /// A program could not be started, or failed at a question it should answer.
    #[error("`{program}` {problem}")]
    Program {
        /// What was run.
        program: String,
        /// What happened.
        problem: String,
    },
    /// The package asked for is not there.
    #[error("no package `{package}` in the workspace of `{}`\nhelp: it has {known}", manifest.display())]
    NoPackage {
        /// The name asked for.
        package: String,
        /// The manifest searched.
        manifest: PathBuf,
        /// The packages there.
        known: String,
    },
    /// A workspace without a package of its own needs to be told which one is meant.
    #[error("`{}` is no package itself\nhelp: name one with `--package`: {known}", manifest.display())]
    PackageNeeded {
        /// The manifest searched.
        manifest: PathBuf,
        /// The packages there.
        known: String,
    },
    /// The package has no library to compile.
    #[error("package `{package}` has no library\nhelp: kernels are compiled from `src/lib.rs`")]
    NoLibrary {
        /// The package.
        package: String,
    },
    /// What the manifest says in `package.metadata.congruent` cannot be read.
    #[error(
        "[package.metadata.congruent] in `{}`: {problem}\n\
         help: write targets = [\"sm_90:ptx82\"] there, or nothing for the default", manifest.display()
    )]
    BadSettings {
        /// The manifest.
        manifest: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// There is no folder for what crates share.
    #[error(
        "there is no folder for the cache: neither HOME nor XDG_CACHE_HOME is set\nhelp: name one in CONGRUENT_CACHE"
    )]
    NoCache,
    /// The compiler refused; it has said why on standard error.
    #[error("`{package}` does not compile for {target}; the compiler's messages are above")]
    Compile {
        /// The package.
        package: String,
        /// The target being compiled for.
        target: Target,
    },
    /// The compiler succeeded without writing PTX.
    #[error("the compiler wrote no `{}`\nhelp: remove its folder and build again", path.display())]
    NoPtx {
        /// The file expected.
        path: PathBuf,
    },
    /// What the compiler wrote for a debugger cannot be read.
    #[error("the line tables for {target} cannot be read: {source}\nhelp: build without lines")]
    Lines {
        /// The target being compiled for.
        target: Target,
        /// What is wrong.
        source: gimli::Error,
    },
    /// A target that is not written as `sm_90:ptx84`.
    #[error("`{0}` is not a target\nhelp: write it as `sm_90:ptx84`")]
    BadTarget(String),
    /// No assembler was found.
    #[error(
        "no `ptxas` was found in CONGRUENT_PTXAS, the cache, PATH, /usr/local/cuda/bin or Python's nvidia-cuda-nvcc\n\
         help: `device/build/install-toolchain` puts one into the cache; or name one in CONGRUENT_PTXAS"
    )]
    NoPtxas,
    /// The assembler refused a file.
    #[error("ptxas refuses `{}`:\n{message}", path.display())]
    Rejected {
        /// The file.
        path: PathBuf,
        /// What the assembler said.
        message: String,
    },
    /// Kernels that keep locals or registers in memory.
    #[error(
        "these kernels use the stack, which is slow memory:\n{rows}\n\
         help: without spills, arrays that are indexed by variables and structures that are passed by reference cause it; \
         with spills, too many values live across loops and calls"
    )]
    StackFrames {
        /// Their rows of the table of usage.
        rows: String,
    },
    /// A file could not be read or written.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl BuildError {
    /// Ties an input/output error to the path it concerns.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }
}
