//! Whoever can be measured: a C program built on another library, or our own side.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, io};

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::sample::Sample;
use crate::{candidates, checked, fused, ours, proxied};

/// The name of our own side.
pub const OURS: &str = "congruent";

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// PEs of the job.
    pub pes: u32,
    /// Repeats of each work and size.
    pub repeats: u32,
    /// The largest buffer.
    pub max_bytes: u64,
}

/// A library, or the bare machine, that does the works of [`Work`](crate::sample::Work), or some of them.
pub trait Peer {
    /// What the table calls it.
    fn name(&self) -> &str;

    /// Whether it has works of more than two PEs.
    fn scales(&self) -> bool;

    /// Measures every work that this peer has, in processes of its own.
    fn run(&self, effort: Effort) -> Result<Vec<Sample>, PeerError>;
}

/// Why there are no times of a peer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A program that it needs is not installed.
    #[error("`{tool}` is not installed; on Debian and Ubuntu: {install}")]
    Missing {
        /// The program.
        tool: String,
        /// The command that brings it.
        install: &'static str,
    },
    /// It is not made for this machine.
    #[error("its library is for x86-64 alone")]
    Elsewhere,
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The command.
        program: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program failed, or took longer than [`PATIENCE`] seconds (status 124).
    #[error("{program} ended with {status}:\n{stderr}")]
    Failed {
        /// The command.
        program: String,
        /// Its exit status, in words.
        status: String,
        /// What it complained of.
        stderr: String,
    },
    /// A program printed something else than samples.
    #[error("{program} printed a line that is no sample: {line}")]
    NotASample {
        /// The command.
        program: String,
        /// The line.
        line: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The system binds no thread to a core, or one did not come.
    #[error("cannot measure what two threads on cores of their own cost each other")]
    Threads(#[source] rustix::io::Errno),
}

/// Seconds after which a peer counts as hung.
pub const PATIENCE: u32 = 300;

/// A program of `benches/compare`, compiled here and run as processes.
#[derive(Debug)]
pub struct CPeer {
    name: &'static str,
    source: &'static str,
    compiler: &'static str,
    launcher: Launcher,
    /// The folder of its library among those that `./check tools` brings, if that is not the system's.
    folder: Option<&'static str>,
    /// The command that brings it.
    install: &'static str,
    /// What it is linked with.
    library: Option<&'static str>,
    scales: bool,
}

/// What starts the processes of a program.
#[derive(Debug, Clone, Copy)]
enum Launcher {
    /// The program itself, two of them.
    Itself,
    /// Open MPI's launcher.
    Mpirun,
    /// That of MPICH and what is made of it.
    Hydra,
}

impl Launcher {
    /// The words before the program. Two processes get a core each. More are not bound and yield when they wait: what Open
    /// MPI's own pages tell users to do who run more processes than there are cores.
    fn words(self, pes: u32) -> Vec<String> {
        let words = match self {
            Self::Itself => return Vec::new(),
            Self::Mpirun if pes == 2 => "mpirun --allow-run-as-root --bind-to core -x SHMEM_SYMMETRIC_SIZE=512M -n",
            Self::Mpirun => "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n",
            Self::Hydra if pes == 2 => "mpiexec -bind-to core -n",
            // The second is Intel's.
            Self::Hydra => "mpiexec -bind-to none -genv I_MPI_PIN 0 -n",
        };
        words.split(' ').map(str::to_owned).chain([pes.to_string()]).collect()
    }

    /// The program that must be there.
    fn tool(self) -> Option<&'static str> {
        match self {
            Self::Itself => None,
            Self::Mpirun => Some("mpirun"),
            Self::Hydra => Some("mpiexec"),
        }
    }
}

/// A program of the folder, of two processes, with the system's libraries.
const PLAIN: CPeer = CPeer {
    name: "memcpy",
    source: "memcpy_peer.c",
    compiler: "cc",
    launcher: Launcher::Itself,
    folder: None,
    install: "apt-get install gcc libc6-dev",
    library: None,
    scales: false,
};

/// What uses an MPI.
const MPI: CPeer = CPeer {
    name: "Open MPI",
    source: "mpi_peer.c",
    compiler: "mpicc",
    launcher: Launcher::Mpirun,
    install: "apt-get install openmpi-bin libopenmpi-dev",
    scales: true,
    ..PLAIN
};

/// The same of those in folders.
const FETCHED: CPeer = CPeer { install: "./check tools", ..MPI };

/// Everyone to measure but ourselves.
const PROGRAMS: [CPeer; 6] = [
    PLAIN,
    MPI,
    CPeer { name: "Open MPI 5", folder: Some("openmpi"), ..FETCHED },
    // It spins while it waits: of processes that share a core, each for as long as the system lets it.
    CPeer { name: "MPICH", folder: Some("mpich"), launcher: Launcher::Hydra, scales: false, ..FETCHED },
    CPeer { name: "Intel MPI", folder: Some("impi"), launcher: Launcher::Hydra, ..FETCHED },
    CPeer { name: "Open MPI OSHMEM", source: "oshmem_peer.c", compiler: "oshcc", scales: false, ..MPI },
];

/// Everyone to measure.
pub fn peers() -> Vec<Box<dyn Peer>> {
    let programs = PROGRAMS.into_iter().map(|program| Box::new(program) as Box<dyn Peer>);
    [Box::new(Ours) as Box<dyn Peer>].into_iter().chain(programs).collect()
}

/// The fastest MPI at each work.
pub const BEST_MPI: &str = "best MPI";

/// Whether a peer is an MPI.
pub fn is_mpi(name: &str) -> bool {
    PROGRAMS.iter().any(|program| program.name == name && program.source == MPI.source)
}

/// Puts over libfabric. Not one of [`peers`], whose heaps are in one memory.
pub(crate) fn libfabric() -> CPeer {
    CPeer {
        name: proxied::LIBFABRIC,
        source: "fabric_peer.c",
        install: "apt-get install gcc libfabric-dev",
        library: Some("-lfabric"),
        ..PLAIN
    }
}

/// Our own side.
#[derive(Debug)]
struct Ours;

impl Peer for Ours {
    fn name(&self) -> &str {
        OURS
    }

    fn scales(&self) -> bool {
        true
    }

    fn run(&self, effort: Effort) -> Result<Vec<Sample>, PeerError> {
        samples_of(&mut ourselves(ours::WORD, effort)?)
    }
}

impl Peer for CPeer {
    fn name(&self) -> &str {
        self.name
    }

    fn scales(&self) -> bool {
        self.scales
    }

    fn run(&self, effort: Effort) -> Result<Vec<Sample>, PeerError> {
        self.samples(effort)
    }
}

impl CPeer {
    pub(crate) fn samples(&self, effort: Effort) -> Result<Vec<Sample>, PeerError> {
        let program = self.compile()?;
        let mut words = self.launcher.words(effort.pes);
        if let (Some(launcher), Some(tool)) = (words.first_mut(), self.launcher.tool()) {
            *launcher = self.tool(tool)?.display().to_string();
        }
        words.push(program.display().to_string());
        samples_of(self.with_library(&mut patiently(&words, effort)))
    }

    /// Builds the program beside the running one.
    fn compile(&self) -> Result<PathBuf, PeerError> {
        let compiler = self.tool(self.compiler)?;
        let name = [self.folder.unwrap_or_default(), self.source.trim_end_matches(".c")].concat();
        let program = this_program()?.with_file_name(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("compare").join(self.source);
        let flags = ["-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-o"];
        let mut command = Command::new(compiler);
        finish(self.with_library(command.args(flags).args([&program, &source]).args(self.library)))?;
        Ok(program)
    }

    /// Where its library is, if that is not the system's.
    fn root(&self) -> Option<PathBuf> {
        let cache = env::var_os("CONGRUENT_CACHE")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools"), PathBuf::from);
        self.folder.map(|folder| cache.join("mpi").join(folder))
    }

    /// The path of a program that it needs.
    fn tool(&self, tool: &str) -> Result<PathBuf, PeerError> {
        let root = self.root();
        if root.is_some() && !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err(PeerError::Elsewhere);
        }
        let found = root.map_or_else(|| on_path(tool), |root| Some(root.join("bin").join(tool)));
        let found = found.filter(|path| path.is_file());
        found.ok_or_else(|| PeerError::Missing { tool: tool.to_owned(), install: self.install })
    }

    /// Tells a program where the library is, which its makers had somewhere else.
    fn with_library<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        match self.root() {
            Some(root) => command.env("LD_LIBRARY_PATH", root.join("lib")).env("I_MPI_ROOT", root),
            None => command,
        }
    }
}

fn this_program() -> Result<PathBuf, PeerError> {
    env::current_exe().map_err(|source| PeerError::Start { program: "this program".to_owned(), source })
}

/// This very program, called by another word.
fn ourselves(word: &str, effort: Effort) -> Result<Command, PeerError> {
    let program = this_program()?;
    Ok(patiently(&[program.display().to_string(), word.to_owned(), effort.pes.to_string()], effort))
}

/// The times of every way to do an all-reduce, and which of them is chosen.
///
/// # Errors
/// As for peers.
pub fn candidates(effort: Effort) -> Result<Vec<candidates::Timed>, PeerError> {
    samples_of(&mut ourselves(candidates::WORD, effort)?)
}

/// The times of calls that PEs compare, and of the same that they do not.
///
/// # Errors
/// As for peers.
pub fn checked(effort: Effort) -> Result<Vec<checked::Timed>, PeerError> {
    let max_bytes = checked::LARGEST;
    samples_of(&mut ourselves(checked::WORD, Effort { max_bytes, ..effort })?)
}

/// The times of a norm behind an all-reduce, fused and apart.
///
/// # Errors
/// As for peers.
pub fn fused(effort: Effort) -> Result<Vec<fused::Timed>, PeerError> {
    let max_bytes = fused::SIZES.into_iter().fold(0, u64::max) * 2;
    samples_of(&mut ourselves(fused::WORD, Effort { max_bytes, ..effort })?)
}

/// Our own side, with every peer reached through the proxy by this transport.
pub(crate) fn proxied(effort: Effort, transport: &str) -> Result<Vec<Sample>, PeerError> {
    let mut command = ourselves(proxied::WORD, effort)?;
    command.env("CONGRUENT_P2P_DISABLE", "1").env("CONGRUENT_TRANSPORT", transport);
    samples_of(command.env("CONGRUENT_MACHINE", "cpu").env("CONGRUENT_SOCKET_IFNAME", "lo"))
}

/// A program, ended by `timeout` if it hangs, in a way that lets a launcher end its processes.
fn patiently(words: &[String], effort: Effort) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &PATIENCE.to_string()]).args(words);
    command.args([effort.repeats.to_string(), effort.max_bytes.to_string()]);
    command
}

/// Runs a program that prints one sample a line.
pub fn samples_of<S: DeserializeOwned>(command: &mut Command) -> Result<Vec<S>, PeerError> {
    let output = finish(command)?;
    let sample = |line: &str| {
        serde_json::from_str(line).map_err(|source| PeerError::NotASample {
            program: words(command),
            line: line.to_owned(),
            source,
        })
    };
    String::from_utf8_lossy(&output.stdout).lines().map(sample).collect()
}

/// Runs a program to its end, which must be a good one.
fn finish(command: &mut Command) -> Result<Output, PeerError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| PeerError::Start { program: words(command), source })?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(PeerError::Failed { program: words(command), status: output.status.to_string(), stderr })
}

fn on_path(tool: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(tool)).find(|path| path.is_file())
}

/// A command as one would type it.
fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Work;

    fn shell(script: &str) -> Result<Vec<Sample>, PeerError> {
        samples_of(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn samples_are_read_line_by_line() {
        let samples = shell(r#"echo '{"work":"put_both","pes":2,"bytes":65536,"ns":1.5}'"#).unwrap();
        assert_eq!(samples, [Sample { work: Work::PutBoth, pes: 2, bytes: 65536, ns: 1.5 }]);
    }

    #[test]
    fn what_went_wrong_is_told() {
        assert!(matches!(shell("echo hello"), Err(PeerError::NotASample { line, .. }) if line == "hello"));
        assert!(matches!(shell("echo why >&2; exit 3"), Err(PeerError::Failed { stderr, .. }) if stderr == "why\n"));
        let missing = CPeer { compiler: "no-such-compiler", install: "apt-get install such-packages", ..PLAIN };
        let error = missing.run(Effort { pes: 2, repeats: 1, max_bytes: 8 }).unwrap_err();
        assert!(error.to_string().contains("apt-get install such-packages"));
    }
}
