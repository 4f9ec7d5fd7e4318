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
    #[error("`{tool}` is not installed; on Debian and Ubuntu: apt-get install {packages}")]
    Missing {
        /// The program.
        tool: String,
        /// The Debian packages that bring it.
        packages: &'static str,
    },
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
    packages: &'static str,
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
}

impl Launcher {
    /// The words before the program. Two processes get a core each. More are not bound and yield when they wait: what Open
    /// MPI's own pages tell users to do who run more processes than there are cores.
    fn words(self, pes: u32) -> Vec<String> {
        let words = match self {
            Self::Itself => return Vec::new(),
            Self::Mpirun if pes == 2 => "mpirun --allow-run-as-root --bind-to core -x SHMEM_SYMMETRIC_SIZE=512M -n",
            Self::Mpirun => "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n",
        };
        words.split(' ').map(str::to_owned).chain([pes.to_string()]).collect()
    }

    /// The program that must be there.
    fn tool(self) -> Option<&'static str> {
        match self {
            Self::Itself => None,
            Self::Mpirun => Some("mpirun"),
        }
    }
}

/// Everyone to measure.
pub fn peers() -> Vec<Box<dyn Peer>> {
    let open_mpi = "openmpi-bin libopenmpi-dev";
    vec![
        Box::new(Ours),
        Box::new(CPeer {
            name: "memcpy",
            source: "memcpy_peer.c",
            compiler: "cc",
            launcher: Launcher::Itself,
            packages: "gcc libc6-dev",
            library: None,
            scales: false,
        }),
        Box::new(CPeer {
            name: "Open MPI",
            source: "mpi_peer.c",
            compiler: "mpicc",
            launcher: Launcher::Mpirun,
            packages: open_mpi,
            library: None,
            scales: true,
        }),
        Box::new(CPeer {
            name: "Open MPI OSHMEM",
            source: "oshmem_peer.c",
            compiler: "oshcc",
            launcher: Launcher::Mpirun,
            packages: open_mpi,
            library: None,
            scales: false,
        }),
    ]
}

/// Puts over libfabric. Not one of [`peers`], whose heaps are in one memory.
pub(crate) fn libfabric() -> CPeer {
    CPeer {
        name: proxied::LIBFABRIC,
        source: "fabric_peer.c",
        compiler: "cc",
        launcher: Launcher::Itself,
        packages: "gcc libfabric-dev",
        library: Some("-lfabric"),
        scales: false,
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
        words.push(program.display().to_string());
        samples_of(&mut patiently(&words, effort))
    }

    /// Builds the program beside the running one.
    fn compile(&self) -> Result<PathBuf, PeerError> {
        for tool in [Some(self.compiler), self.launcher.tool()].into_iter().flatten() {
            if !on_path(tool) {
                return Err(PeerError::Missing { tool: tool.to_owned(), packages: self.packages });
            }
        }
        let program = this_program()?.with_file_name(self.source).with_extension("");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("compare").join(self.source);
        let flags = ["-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-o"];
        finish(Command::new(self.compiler).args(flags).args([&program, &source]).args(self.library))?;
        Ok(program)
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

fn on_path(tool: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
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
        let missing = CPeer {
            name: "x",
            source: "x.c",
            compiler: "no-such-compiler",
            launcher: Launcher::Itself,
            packages: "such-packages",
            library: None,
            scales: false,
        };
        let error = missing.run(Effort { pes: 2, repeats: 1, max_bytes: 8 }).unwrap_err();
        assert!(error.to_string().contains("apt-get install such-packages"));
    }
}
