//! `congruent run`: starts the PEs of a job, and ends them together. Here is what runs those of one host; `ssh.rs` has such a share of
//! the job run on each of several, by `share.rs` there.

mod explore;
mod hosts;
mod look;
mod output;
mod share;
mod ssh;
mod wire;

use congruent::MachineKind;
use congruent::bootstrap::{BootstrapError, MAX_PES, Token};
use congruent::program::{CONNECTIONS, advised_connections, mps_listens};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hosts::{Across, HostsError};
pub use look::{Look, Shape};
use output::{Kept, Output, Passing};
pub(crate) use share::{NAME as SHARE, run as run_share};

/// After the first failure the other PEs have this long to notice and to report it themselves.
const GRACE: Duration = Duration::from_millis(500);
/// Between asking a PE to end and ending it.
const PATIENCE: Duration = Duration::from_secs(3);
/// After a signal from outside, PEs may want to save their work.
const FAREWELL: Duration = Duration::from_secs(10);
/// Descriptors that the launcher itself needs.
const OWN_FILES: u64 = 32;
/// What the virtual driver is told, a list of settings.
const VIRTUAL_DRIVER: &str = "CONGRUENT_VIRTUAL_DRIVER";

/// The variables by which other launchers give a process its place. A PE that starts a job of its own must not pass its
/// own place on.
const PLACING_VARIABLES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
];

/// Says on what kernels run.
const MACHINE: &str = "CONGRUENT_MACHINE";
/// The name of the engine that a job's PEs on virtual GPUs have together.
const ENGINE: &str = "CONGRUENT_VIRTUAL_ENGINE";

/// Starts N PEs of a program on this host, or some on each of several.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Number of PEs
    #[arg(short = 'n', long = "npes", value_name = "N", required_unless_present_any = ["on", "list"])]
    #[arg(conflicts_with_all = ["on", "list"])]
    pub npes: Option<u32>,
    /// On which hosts, if not on this one.
    #[command(flatten)]
    pub across: Across,
    /// On virtual GPUs instead: 2x4 is two of them with four PEs on each, 4 is four with one PE on each
    #[arg(id = "on", long = "virtual", value_name = "SHAPE", conflicts_with = "list")]
    pub on: Option<Shape>,
    /// What virtual GPUs look for, and how.
    #[command(flatten)]
    pub look: Look,
    /// Begin every line of output with the PE it comes from
    #[arg(long)]
    pub label: bool,
    /// Program and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROG")]
    pub command: Vec<OsString>,
}

impl Args {
    fn npes(&self) -> u32 {
        self.npes.or(self.on.map(|on| on.gpus.saturating_mul(on.pes))).unwrap_or(0)
    }
}

/// The PEs of a job that are on one host.
struct Share {
    /// The first of them.
    first: u32,
    /// How many there are.
    count: u32,
    /// How many the job has.
    npes: u32,
    /// Where all PEs of the job meet.
    place: String,
    /// The socket that listens there, for PE 0.
    listener: Option<TcpListener>,
    /// The job's secret.
    token: String,
    /// What these PEs have in their environment beside what this process has.
    set: Vec<(OsString, OsString)>,
    /// Where this process is told of the rest of the job: a byte for each signal, by its number, and 0 for a failure elsewhere. The
    /// end of it is the launcher's.
    orders: Option<OwnedFd>,
}

impl Share {
    /// All of a job.
    fn whole(npes: u32) -> Result<Self, RunError> {
        // PE 0 is given the socket itself, so nobody can listen there in its place, and who comes before it waits there.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("listening for PE 0"))?;
        let place = listener.local_addr().map_err(system("listening for PE 0"))?.to_string();
        let (token, listener) = (Token::random()?.reveal(), Some(listener));
        Ok(Self { first: 0, count: npes, npes, place, listener, token, set: Vec::new(), orders: None })
    }
}

/// Why a job could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A job needs between one PE and [`MAX_PES`].
    #[error("-n {npes}: give between 1 and {MAX_PES}")]
    Size {
        /// The number asked for.
        npes: u32,
    },
    /// So many PEs need more open files than this process may have.
    #[error("{npes} PEs on one host take {needed} open files and the limit is {limit}: raise it with ulimit -n")]
    Files {
        /// The number of PEs asked for.
        npes: u32,
        /// How many files that takes.
        needed: u64,
        /// How many there may be.
        limit: u64,
    },
    /// There is no program to start.
    #[error("no program given")]
    NoProgram,
    /// A PE could not be started.
    #[error("PE {pe}: cannot start {program}: {source}")]
    Start {
        /// The PE.
        pe: u32,
        /// Its program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something the launcher needs.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There are no virtual GPUs.
    #[error("{0}")]
    Virtual(String),
    /// The job's token could not be made.
    #[error(transparent)]
    Token(#[from] BootstrapError),
    /// The hosts are not said as they should be.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The working directory is not on a host.
    #[error("cannot go to {folder}, where the job was started: {source}")]
    Folder {
        /// The folder.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// There is no place for PEs of several hosts to meet.
    #[error(
        "{name} is no address of this host that other hosts reach: name it in the list as they do, or by its address"
    )]
    Unreached {
        /// What it was called.
        name: String,
    },
    /// A host's share of the job does not run, or no longer.
    #[error("host {host}: {why}")]
    Host {
        /// The host, as it was given.
        host: String,
        /// What is known of the reason.
        why: String,
    },
}

/// Runs the job to its end: success if all PEs succeed, else the code of the first that failed, or 128 and its signal. One that
/// was killed counts before those that failed just ahead of it, because they may have heard of its end sooner than this process.
///
/// Where several seeds are asked for, it is run with one after the other until one shows a mistake: then it is a failure.
///
/// The PEs live no longer than the calling thread, even if it is killed.
pub fn run(args: &Args) -> Result<ExitCode, RunError> {
    if let Some(seeds) = args.look.seeds {
        return explore::explore(args, seeds);
    }
    let first_failure = match args.across.list()? {
        Some(hosts) => ssh::run(args, hosts)?,
        None => {
            let output = if args.label { Output::Labelled } else { Output::Own };
            Launch::start(args, Share::whole(args.npes())?, output)?.supervise()?
        }
    };
    Ok(first_failure.map_or(ExitCode::SUCCESS, |status| ExitCode::from(code(status))))
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The failure that counts, of one known before and one just seen. The system closes a killed process's connections before its end can
/// be seen, and who loses one may be gone before: until the PEs are signalled, whoever is killed is where it began.
fn first_of(earlier: Option<ExitStatus>, status: ExitStatus, unsignalled: bool) -> ExitStatus {
    match earlier {
        Some(earlier) if !unsignalled || earlier.signal().is_some() || status.signal().is_none() => earlier,
        _ => status,
    }
}

/// What has happened.
#[derive(Default)]
struct Heard {
    /// Which PEs have ended, by their place among those of this process.
    ended: Vec<usize>,
    /// Signals that this process was sent, or told of.
    signals: Vec<Signal>,
    /// Whether a PE has failed on another host.
    elsewhere: bool,
    /// Whether nobody gives orders any longer.
    alone: bool,
}

/// PEs that run.
struct Launch {
    /// Its virtual GPUs, if it has some.
    _engine: Option<Box<dyn Any>>,
    pes: Vec<Pe>,
    interrupts: [(Signal, UnixStream, signal_hook::SigId); 3],
    orders: Option<OwnedFd>,
    /// Whether it was told to end from outside.
    interrupted: bool,
    output: Output,
    passing: Passing,
}

struct Pe {
    index: u32,
    child: Child,
    /// Readable once the process has ended.
    ended: OwnedFd,
    running: bool,
}

impl Launch {
    fn start(args: &Args, mut share: Share, output: Output) -> Result<Self, RunError> {
        let Share { first, count, npes, .. } = share;
        if !(1..=MAX_PES).contains(&npes) {
            return Err(RunError::Size { npes });
        }
        let needed = u64::from(count) * if matches!(output, Output::Own) { 1 } else { 3 } + OWN_FILES;
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if needed > limit {
            return Err(RunError::Files { npes: count, needed, limit });
        }
        let interrupts = [(Signal::INT, SIGINT), (Signal::TERM, SIGTERM), (Signal::CHILD, SIGCHLD)];
        let [int, term, child] = interrupts.map(|(signal, number)| interrupt(signal, number));
        let interrupts = [int?, term?, child?];
        let name = Token::random()?.reveal();
        let engine = engine(args, &share, &name)?;
        let has_engine = engine.is_some();
        let (orders, passing) = (None, Passing::new());
        let mut launch =
            Self { _engine: engine, pes: Vec::new(), interrupts, orders, interrupted: false, output, passing };
        for index in first..first + count {
            let mut command = prepare(args, &mut share, index)?;
            if has_engine {
                command.env(ENGINE, &name);
            }
            if !matches!(launch.output, Output::Own) {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let program = command.get_program().display().to_string();
            let mut child = command.spawn().map_err(|source| RunError::Start { pe: index, program, source })?;
            launch.output.forward(index, &mut child, &launch.passing);
            let ended = rustix::process::pidfd_open(pid(&child)?, PidfdFlags::empty());
            // Without a way to watch it, the child is ended at once with the others, by `drop`.
            let watched = ended.map_err(system("watching a PE")).inspect_err(|_| drop(child.kill()));
            launch.pes.push(Pe { index, child, ended: watched?, running: true });
        }
        launch.orders = share.orders.take();
        Ok(launch)
    }

    /// Waits for all PEs; once one fails, sees that the others end too. The status of the first that failed.
    fn supervise(&mut self) -> Result<Option<ExitStatus>, RunError> {
        let mut first_failure = None;
        let mut escalation: Option<(Instant, Signal)> = None;
        while self.pes.iter().any(|pe| pe.running) {
            let Heard { ended, signals, elsewhere, alone } = self.wait(escalation.map(|(due, _)| due))?;
            let failures = self.reap(&ended)?;
            // Who ends after being told to has not failed.
            let unsignalled = escalation.is_none_or(|(_, next)| next == Signal::TERM);
            for (index, status) in &failures {
                self.output.tell_failure(*index, *status, unsignalled);
            }
            if let Some((_, status)) = failures.first() {
                first_failure = Some(first_of(first_failure, *status, unsignalled));
            }
            if elsewhere || !failures.is_empty() {
                escalation.get_or_insert((Instant::now() + GRACE, Signal::TERM));
            }
            if alone {
                self.orders = None;
                self.interrupted = true;
                self.signal_all(Signal::KILL);
                escalation = Some((Instant::now() + PATIENCE, Signal::KILL));
            }
            for signal in signals {
                if signal == Signal::CHILD {
                    self.tell_stopped();
                    continue;
                }
                self.interrupted = true;
                // Whoever asks twice does not want to wait.
                let again = escalation.is_some_and(|(_, next)| next == Signal::KILL);
                self.signal_all(if again { Signal::KILL } else { signal });
                escalation = Some((Instant::now() + FAREWELL, Signal::KILL));
            }
            if let Some((due, signal)) = escalation
                && Instant::now() >= due
            {
                self.signal_all(signal);
                escalation = Some((Instant::now() + PATIENCE, Signal::KILL));
            }
        }
        // The last lines, unless nobody wants them.
        while self.passing.goes_on(GRACE) {
            let Heard { signals, alone, .. } = self.wait(Some(Instant::now()))?;
            if alone || signals.iter().any(|signal| *signal != Signal::CHILD) {
                break;
            }
        }
        Ok(first_failure)
    }

    /// Waits for something to happen.
    fn wait(&mut self, until: Option<Instant>) -> Result<Heard, RunError> {
        let running: Vec<_> = (0..self.pes.len()).filter(|&at| self.pes[at].running).collect();
        let fds = running.iter().map(|&at| PollFd::new(&self.pes[at].ended, PollFlags::IN));
        let fds = fds.chain(self.interrupts.iter().map(|(_, stream, _)| PollFd::new(stream, PollFlags::IN)));
        let mut fds: Vec<_> = fds.chain(self.orders.iter().map(|orders| PollFd::new(orders, PollFlags::IN))).collect();
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("waiting for the PEs")(error)),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (pes, others) = ready.split_at(running.len());
        let (interrupts, orders) = others.split_at(self.interrupts.len());
        let ended = running.iter().zip(pes).filter(|(_, ready)| **ready).map(|(at, _)| *at).collect();
        let mut heard = Heard { ended, ..Heard::default() };
        for ((signal, stream, _), _) in self.interrupts.iter_mut().zip(interrupts).filter(|(_, ready)| **ready) {
            let _ = stream.read(&mut [0; 64]);
            heard.signals.push(*signal);
        }
        if let Some(orders) = self.orders.as_ref().filter(|_| orders.contains(&true)) {
            let mut bytes = [0; 64];
            let length = rustix::io::retry_on_intr(|| rustix::io::read(orders, &mut bytes)).unwrap_or(0);
            heard.alone = length == 0;
            heard.elsewhere = bytes[..length].contains(&wire::FAILURE);
            heard.signals.extend(bytes[..length].iter().filter_map(|&byte| Signal::from_named_raw(byte.into())));
        }
        Ok(heard)
    }

    /// Takes in the statuses of PEs that have ended, and tells those that failed: the killed first, as others that end at
    /// the same moment end because of them.
    fn reap(&mut self, ended: &[usize]) -> Result<Vec<(u32, ExitStatus)>, RunError> {
        let mut failures = Vec::new();
        for &at in ended {
            let pe = &mut self.pes[at];
            let status = pe.reap().map_err(system("waiting for a PE"))?;
            if !status.success() {
                failures.push((pe.index, status));
            }
        }
        failures.sort_by_key(|(index, status)| (status.signal().is_none(), *index));
        Ok(failures)
    }

    /// Says which PEs have been stopped since it was last called. They are not ended: a person may look at one.
    fn tell_stopped(&self) {
        for pe in self.pes.iter().filter(|pe| pe.running) {
            let Ok(pid) = pid(&pe.child) else { continue };
            let stops = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            if let Ok(Some(status)) = rustix::process::waitid(WaitId::Pid(pid), stops)
                && let Some(signal) = status.stopping_signal()
            {
                let (index, pid) = (pe.index, pid.as_raw_nonzero());
                self.output.tell(&format!(
                    "PE {index} was stopped by signal {signal} and the others wait for it: kill -CONT {pid}"
                ));
            }
        }
    }

    fn signal_all(&self, signal: Signal) {
        self.pes.iter().filter(|pe| pe.running).for_each(|pe| pe.signal(signal));
    }
}

impl Drop for Launch {
    /// On the way out of an error no PE is left behind.
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
        for pe in self.pes.iter_mut().filter(|pe| pe.running) {
            let _ = pe.reap();
        }
        for (_, _, id) in &self.interrupts {
            signal_hook::low_level::unregister(*id);
        }
    }
}

impl Pe {
    /// Signals the process and all it has started. A stopped one goes on, because it hears of nothing else but KILL.
    fn signal(&self, signal: Signal) {
        if let Ok(pid) = pid(&self.child) {
            let _ = rustix::process::kill_process_group(pid, signal);
            let _ = rustix::process::kill_process_group(pid, Signal::CONT);
        }
    }

    /// Waits for the process. What it left running ends with it: until the wait is over, the group's number is its own.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.running = false;
        Ok(status)
    }
}

fn pid(child: &Child) -> Result<Pid, RunError> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| system("watching a PE")(io::Error::from(io::ErrorKind::InvalidData)))
}

/// What the CUDA driver is told unless the user tells it something else. Streams that share a hardware queue would wait for each
/// other, and 8 queues, the default, are few; under MPS there are so many for all PEs that share a GPU, which may be all of the job.
/// Kernels that are loaded at their first launch may have to wait for those of other PEs.
fn driver_variables(npes: u32, mps: bool) -> [(&'static str, String); 2] {
    let queues = advised_connections(npes, mps);
    [(CONNECTIONS, queues.to_string()), ("CUDA_MODULE_LOADING", "EAGER".to_owned())]
}

/// The command of one PE, with the job's place in its environment.
fn prepare(args: &Args, share: &mut Share, index: u32) -> Result<Command, RunError> {
    let (program, arguments) = args.command.split_first().ok_or(RunError::NoProgram)?;
    let mut command = Command::new(program);
    command.args(arguments);
    for name in PLACING_VARIABLES.into_iter().chain([ENGINE]) {
        command.env_remove(name);
    }
    for (variable, value) in driver_variables(share.count, mps_listens()) {
        if std::env::var_os(variable).is_none() {
            command.env(variable, value);
        }
    }
    command.envs(share.set.iter().map(|(name, value)| (name, value)));
    let listener = share.listener.take();
    match &listener {
        Some(listener) => command.env("CONGRUENT_LISTENER", listener.as_raw_fd().to_string()),
        None => command.env_remove("CONGRUENT_LISTENER"),
    };
    command.env("CONGRUENT_PE", index.to_string()).env("CONGRUENT_NPES", share.npes.to_string());
    command.env("CONGRUENT_LOCAL_RANK", (index - share.first).to_string());
    command.env("CONGRUENT_RENDEZVOUS", &share.place).env("CONGRUENT_JOB_TOKEN", &share.token);
    if let Some(on) = args.on {
        command.env(MACHINE, MachineKind::Virtual.name()).env("CONGRUENT_VIRTUAL", on.to_string());
        let said = std::env::var_os(VIRTUAL_DRIVER).filter(|said| !said.is_empty());
        let settings = [said, Some(args.look.settings().into())].into_iter().flatten();
        let settings: Vec<OsString> = settings.filter(|settings| !settings.is_empty()).collect();
        command.env(VIRTUAL_DRIVER, settings.join(OsStr::new(",")));
    }
    // A process outside the terminal's own group is stopped when it reads from it. A share's is not the user's.
    if index > 0 || share.orders.is_some() || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    bind(&mut command, listener);
    Ok(command)
}

/// Has a command run in a process group of its own and end with this thread. A listener is left to it.
fn bind(command: &mut Command, listener: Option<TcpListener>) {
    let launcher = rustix::process::getpid();
    let bind = move || {
        if let Some(listener) = &listener {
            rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty())?;
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the line above.
        match rustix::process::getppid() {
            Some(parent) if parent == launcher => Ok(()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes three system calls and touches no lock and no memory of others.
    unsafe { command.process_group(0).pre_exec(bind) };
}

/// Virtual GPUs for a job that runs on some, under a name.
fn engine(args: &Args, share: &Share, name: &str) -> Result<Option<Box<dyn Any>>, RunError> {
    let told = share.set.iter().rev().find(|(name, _)| name == MACHINE).map(|(_, value)| value.clone());
    let machine = told.or_else(|| std::env::var_os(MACHINE));
    if args.on.is_some() || machine.is_some_and(|kind| kind == MachineKind::Virtual.name()) {
        let server =
            congruent_virtual_driver::Server::start(name, args.on.map(|on| on.gpus), &args.look.engine_settings());
        return Ok(server.map_err(RunError::Virtual)?.map(|server| Box::new(server) as Box<dyn Any>));
    }
    Ok(None)
}

fn interrupt(signal: Signal, number: i32) -> Result<(Signal, UnixStream, signal_hook::SigId), RunError> {
    let (heard, told) = UnixStream::pair().map_err(system("preparing for signals"))?;
    let id = signal_hook::low_level::pipe::register(number, told).map_err(system("preparing for signals"))?;
    Ok((signal, heard, id))
}

/// For `map_err`: what was being done when the system refused.
fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> RunError {
    move |error| RunError::System { doing, source: error.into() }
}

#[cfg(test)]
mod tests;
