//! What a PE must know to join its job.

use super::control::Control;
use super::environment;
use super::error::BootstrapError;
use super::token::Token;
use super::{DEFAULT_DEADLINE, connect};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::time::Duration;

/// A PE's place in its job and the way to the others.
#[derive(Clone, Debug)]
pub struct Job {
    /// This PE's index.
    pub pe: u32,
    /// The number of PEs.
    pub npes: u32,
    /// This PE's index among those of its host, where the launcher tells.
    pub local_rank: Option<u32>,
    /// The job's name, the same on all PEs; jobs of different names do not mix.
    pub name: String,
    /// Where the PEs meet.
    pub rendezvous: Rendezvous,
    /// What proves that a PE belongs to the job.
    pub token: Token,
    /// How long to wait for the others, when joining and in every collective.
    pub deadline: Duration,
    /// Who started the PE.
    pub launcher: Launcher,
}

/// Where the PEs of a job meet.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendezvous {
    /// Nowhere: there is but one PE.
    Alone,
    /// PE 0 listens at the first free one of `ports` ports from `port`; a port of someone else's is told by the token.
    Address {
        /// Name or address of PE 0's host. PE 0 listens there and on no other interface.
        host: String,
        /// The first port.
        port: u16,
        /// The number of ports, at least one.
        ports: u16,
    },
    /// For PE 0 only: it listens at a socket that is open already. The others are told its address.
    Inherited {
        /// The socket's descriptor, which stays open as long as this process may join a job by it.
        descriptor: RawFd,
    },
    /// All PEs are on one host: PE 0 listens on loopback and leaves its address and a fresh token in a file of this
    /// name, which only its user can read. The file is removed when all are there.
    File {
        /// A name that all PEs of the job know.
        name: String,
    },
}

/// Who started a PE.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody: a single PE.
    None,
    /// `congruent run`.
    Congruent,
    /// torchrun, or whoever sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A PMI launcher, such as MPICH's hydra.
    Pmi,
    /// Slurm's srun.
    Slurm,
}

/// A job to join.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    job: Job,
}

impl Bootstrap {
    /// Reads what the launcher set. Without a launcher it is a job of one PE.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with the environment given as a function.
    pub fn from_lookup(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, BootstrapError> {
        environment::read(&variable).map(|job| Self { job })
    }

    /// A job of one PE.
    pub fn single() -> Self {
        Self { job: Job::single() }
    }

    /// The job that was found.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Waits this long for the other PEs, instead of the 60 seconds of [`DEFAULT_DEADLINE`].
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.job.deadline = deadline;
        self
    }

    /// Joins the job.
    pub fn connect(&self) -> Result<Control, BootstrapError> {
        connect(&self.job)
    }
}

impl From<Job> for Bootstrap {
    fn from(job: Job) -> Self {
        Self { job }
    }
}

impl Job {
    /// A job of one PE.
    pub fn single() -> Self {
        Self {
            pe: 0,
            npes: 1,
            local_rank: Some(0),
            name: String::new(),
            rendezvous: Rendezvous::Alone,
            token: Token::derive(&[]),
            deadline: DEFAULT_DEADLINE,
            launcher: Launcher::None,
        }
    }
}
