//! `congruent run`: starts the PEs of a job on this host, and ends them together.

mod explore;

use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use congruent::MachineKind;
use congruent::bootstrap::{BootstrapError, MAX_PES, Token};
use congruent::program::{CONNECTIONS, advised_connections, mps_listens};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// After the first failure the other PEs have this long to notice and to report it themselves.
const GRACE: Duration = Duration::from_millis(500);
/// Between asking a PE to end and ending it.
const PATIENCE: Duration = Duration::from_secs(3);
/// After a signal from outside, PEs may want to save their work.
const FAREWELL: Duration = Duration::from_secs(10);
/// Descriptors that the launcher itself needs.
const OWN_FILES: u64 = 32;
/// A line of output longer than this is passed on in pieces.
const LONGEST_LINE: u64 = 64 * 1024;

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

/// The name of the engine that a job's PEs on virtual GPUs have together.
const ENGINE: &str = "CONGRUENT_VIRTUAL_ENGINE";

/// Starts N PEs of a program on this host.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of PEs
    #[arg(short = 'n', long = "npes", value_name = "N", required_unless_present = "on", conflicts_with = "on")]
    pub npes: Option<u32>,
    /// On virtual GPUs instead: 2x4 is two of them with four PEs on each, 4 is four with one PE on each
    #[arg(id = "on", long = "virtual", value_name = "SHAPE")]
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

/// What virtual GPUs look for, and how.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Look {
    /// End with a report where nothing orders two accesses of one place
    #[arg(long, requires = "on")]
    pub races: bool,
    /// Let loads see any write that the memory model lets them see
    #[arg(long, requires = "on")]
    pub weak: bool,
    /// Take turns as this seed has it: by chance if it is even, with one warp far behind at times if it is odd
    #[arg(long, value_name = "SEED", requires = "on")]
    pub seed: Option<u64>,
    /// Run the program with so many seeds, from 0 or --seed on, until one of them shows a mistake
    #[arg(long, value_name = "N", requires = "on", conflicts_with = "label")]
    pub seeds: Option<NonZeroU64>,
    /// Write down when launches come; with --seeds the run that shows a mistake is kept, in congruent.record if not here
    #[arg(long, value_name = "FILE", requires = "on", value_parser = record())]
    pub record: Option<PathBuf>,
    /// Follow a record of the same seed: launches begin when it says
    #[arg(long, value_name = "FILE", requires = "on", value_parser = record(), conflicts_with_all = ["seeds", "record"])]
    pub replay: Option<PathBuf>,
}

/// A file that can be named in a list of settings.
fn record() -> impl TypedValueParser<Value = PathBuf> {
    NonEmptyStringValueParser::new().try_map(|text| match text.contains(',') {
        true => Err("the name of a record has no comma"),
        false => Ok(PathBuf::from(text)),
    })
}

impl Look {
    /// For the variable of the virtual driver, behind what the user has there.
    fn settings(&self) -> String {
        let schedule = |seed: u64| format!("schedule={},seed={seed}", ["random", "priorities"][(seed % 2) as usize]);
        let mut settings: Vec<_> = self.seed.map(schedule).into_iter().collect();
        settings.extend(
            [("races=1", self.races), ("weak=1", self.weak)]
                .map(|(word, asked)| asked.then(|| word.to_owned()))
                .into_iter()
                .flatten(),
        );
        settings.join(",")
    }

    /// The same for the engine of a job, which alone knows of records.
    fn engine_settings(&self) -> String {
        let records = [("record", &self.record), ("replay", &self.replay)];
        let records = records.into_iter().filter_map(|(key, file)| Some(format!("{key}={}", file.as_ref()?.display())));
        [self.settings()].into_iter().chain(records).collect::<Vec<_>>().join(",")
    }
}

/// Virtual GPUs, and how many PEs there are on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many GPUs.
    pub gpus: u32,
    /// How many PEs on each.
    pub pes: u32,
}

/// The most virtual GPUs of a job.
const MAX_GPUS: u32 = 64;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.gpus, self.pes)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (gpus, pes) = text.split_once('x').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let shape = number(gpus).zip(number(pes)).filter(|(gpus, _)| *gpus <= MAX_GPUS);
        let (gpus, pes) =
            shape.ok_or_else(|| format!("give up to {MAX_GPUS} GPUs, or GPUs and PEs on each, such as 2x4"))?;
        Ok(Self { gpus, pes })
    }
}

impl Args {
    fn npes(&self) -> u32 {
        self.npes.or(self.on.map(|on| on.gpus.saturating_mul(on.pes))).unwrap_or(0)
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
    #[error("-n {npes} takes {needed} open files and the limit is {limit}: raise it with ulimit -n")]
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
    let output = if args.label { Output::Labelled } else { Output::Own };
    let first_failure = Launch::start(args, output)?.supervise()?;
    Ok(first_failure.map_or(ExitCode::SUCCESS, |status| ExitCode::from(code(status))))
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A job that runs.
struct Launch {
    /// Its virtual GPUs, if it has some.
    _engine: Option<Box<dyn Any>>,
    pes: Vec<Pe>,
    interrupts: [(Signal, UnixStream, signal_hook::SigId); 3],
    /// Whether it was told to end from outside.
    interrupted: bool,
    output: Output,
    /// What passes output on, until it is dropped; and who hears that all of it is.
    passing: (mpsc::Sender<()>, mpsc::Receiver<()>),
}

struct Pe {
    index: u32,
    child: Child,
    /// Readable once the process has ended.
    ended: OwnedFd,
    running: bool,
}

impl Launch {
    fn start(args: &Args, output: Output) -> Result<Self, RunError> {
        let npes = args.npes();
        if !(1..=MAX_PES).contains(&npes) {
            return Err(RunError::Size { npes });
        }
        let needed = u64::from(npes) * if matches!(output, Output::Own) { 1 } else { 3 } + OWN_FILES;
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if needed > limit {
            return Err(RunError::Files { npes, needed, limit });
        }
        let token = Token::random()?.reveal();
        // PE 0 is given the socket itself, so nobody can listen there in its place, and who comes before it waits there.
        let mut listener = Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("listening for PE 0"))?);
        let place = listener.as_ref().map_or(Ok(String::new()), |at| at.local_addr().map(|at| at.to_string()));
        let place = place.map_err(system("listening for PE 0"))?;
        let interrupts = [(Signal::INT, SIGINT), (Signal::TERM, SIGTERM), (Signal::CHILD, SIGCHLD)];
        let [int, term, child] = interrupts.map(|(signal, number)| interrupt(signal, number));
        let interrupts = [int?, term?, child?];
        let name = Token::random()?.reveal();
        let engine = engine(args, &name)?;
        let has_engine = engine.is_some();
        let mut launch =
            Self { _engine: engine, pes: Vec::new(), interrupts, interrupted: false, output, passing: mpsc::channel() };
        for index in 0..npes {
            let mut command = prepare(args, index, listener.take())?;
            command.env("CONGRUENT_RENDEZVOUS", &place).env("CONGRUENT_JOB_TOKEN", &token);
            if has_engine {
                command.env(ENGINE, &name);
            }
            if !matches!(launch.output, Output::Own) {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let program = command.get_program().display().to_string();
            let mut child = command.spawn().map_err(|source| RunError::Start { pe: index, program, source })?;
            launch.output.forward(index, &mut child, &launch.passing.0);
            let ended = rustix::process::pidfd_open(pid(&child)?, PidfdFlags::empty());
            // Without a way to watch it, the child is ended at once with the others, by `drop`.
            let watched = ended.map_err(system("watching a PE")).inspect_err(|_| drop(child.kill()));
            launch.pes.push(Pe { index, child, ended: watched?, running: true });
        }
        Ok(launch)
    }

    /// Waits for all PEs; once one fails, sees that the others end too. The status of the first that failed.
    fn supervise(&mut self) -> Result<Option<ExitStatus>, RunError> {
        let mut first_failure = None;
        let mut escalation: Option<(Instant, Signal)> = None;
        while self.pes.iter().any(|pe| pe.running) {
            let (ended, interrupts) = self.wait(escalation.map(|(due, _)| due))?;
            let failures = self.reap(&ended)?;
            // Who ends after being told to has not failed.
            if escalation.is_none_or(|(_, next)| next == Signal::TERM) {
                for (index, status) in &failures {
                    self.output.tell(&format!("congruent run: PE {index} failed, {status}"));
                }
            }
            if let Some((_, status)) = failures.first() {
                let earlier = *first_failure.get_or_insert(*status);
                // The system closes a killed process's connections before its end can be seen, and who loses one may be gone
                // before. Until this process signals anyone, whoever is killed is where it began.
                let unsignalled = escalation.is_none_or(|(_, next)| next == Signal::TERM);
                if unsignalled && earlier.signal().is_none() && status.signal().is_some() {
                    first_failure = Some(*status);
                }
                escalation.get_or_insert((Instant::now() + GRACE, Signal::TERM));
            }
            for signal in interrupts {
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
        // The last lines, but not for a daemon that has left its group with the output open.
        self.passing.0 = mpsc::channel().0;
        while self.passing.1.recv_timeout(GRACE).is_ok() {}
        Ok(first_failure)
    }

    /// Which PEs have ended, and which signals this process was sent.
    fn wait(&mut self, until: Option<Instant>) -> Result<(Vec<usize>, Vec<Signal>), RunError> {
        let running: Vec<_> = (0..self.pes.len()).filter(|&at| self.pes[at].running).collect();
        let fds = running.iter().map(|&at| PollFd::new(&self.pes[at].ended, PollFlags::IN));
        let mut fds: Vec<_> =
            fds.chain(self.interrupts.iter().map(|(_, stream, _)| PollFd::new(stream, PollFlags::IN))).collect();
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("waiting for the PEs")(error)),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (pes, interrupts) = ready.split_at(running.len());
        let ended = running.iter().zip(pes).filter(|(_, ready)| **ready).map(|(at, _)| *at).collect();
        let mut signals = Vec::new();
        for ((signal, stream, _), _) in self.interrupts.iter_mut().zip(interrupts).filter(|(_, ready)| **ready) {
            let _ = stream.read(&mut [0; 64]);
            signals.push(*signal);
        }
        Ok((ended, signals))
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
                eprintln!(
                    "congruent run: PE {index} was stopped by signal {signal} and the others wait for it: kill -CONT {pid}"
                );
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

/// The command of one PE: with the job's place in its environment, in a process group of its own, and bound to die with
/// this thread. A listener is left to it.
fn prepare(args: &Args, index: u32, listener: Option<TcpListener>) -> Result<Command, RunError> {
    let (program, arguments) = args.command.split_first().ok_or(RunError::NoProgram)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    for name in PLACING_VARIABLES.into_iter().chain([ENGINE]) {
        command.env_remove(name);
    }
    match &listener {
        Some(listener) => command.env("CONGRUENT_LISTENER", listener.as_raw_fd().to_string()),
        None => command.env_remove("CONGRUENT_LISTENER"),
    };
    command.env("CONGRUENT_PE", index.to_string()).env("CONGRUENT_NPES", args.npes().to_string());
    if let Some(on) = args.on {
        command.env("CONGRUENT_MACHINE", MachineKind::Virtual.name()).env("CONGRUENT_VIRTUAL", on.to_string());
        let said = std::env::var_os(VIRTUAL_DRIVER).filter(|said| !said.is_empty());
        let settings = [said, Some(args.look.settings().into())].into_iter().flatten();
        let settings: Vec<OsString> = settings.filter(|settings| !settings.is_empty()).collect();
        command.env(VIRTUAL_DRIVER, settings.join(OsStr::new(",")));
    }
    for (variable, value) in driver_variables(args.npes(), mps_listens()) {
        if std::env::var_os(variable).is_none() {
            command.env(variable, value);
        }
    }
    // A process outside the terminal's own group is stopped when it reads from it.
    if index > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
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
    unsafe { command.pre_exec(bind) };
    Ok(command)
}

/// Virtual GPUs for a job that runs on some, under a name.
fn engine(args: &Args, name: &str) -> Result<Option<Box<dyn Any>>, RunError> {
    if args.on.is_some() || std::env::var("CONGRUENT_MACHINE").is_ok_and(|kind| kind == MachineKind::Virtual.name()) {
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

/// Where the PEs' output goes.
#[derive(Clone)]
enum Output {
    /// Where the launcher's own goes: they write there themselves.
    Own,
    /// The same, each line with its PE.
    Labelled,
    /// Here, each line with its PE.
    Kept(Kept),
}

/// Lines, in the order in which they were written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn forward(&self, index: u32, child: &mut Child, passing: &mpsc::Sender<()>) {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (done, done_too) = (passing.clone(), passing.clone());
        match self.clone() {
            Self::Own => {}
            Self::Labelled => {
                std::thread::spawn(move || copy(index, out, io::stdout, done));
                std::thread::spawn(move || copy(index, err, io::stderr, done_too));
            }
            Self::Kept(kept) => {
                let kept_too = kept.clone();
                std::thread::spawn(move || copy(index, out, || kept.clone(), done));
                std::thread::spawn(move || copy(index, err, || kept_too.clone(), done_too));
            }
        }
    }

    /// What the launcher itself has to say of the job.
    fn tell(&self, line: &str) {
        match self {
            Self::Own | Self::Labelled => eprintln!("{line}"),
            Self::Kept(kept) => _ = writeln!(kept.clone(), "{line}"),
        }
    }
}

/// Passes lines on whole, so that PEs do not cut each other's; and those that came at once at once, so that what a PE prints does not cut
/// the report that its driver writes.
fn copy<W: Write>(index: u32, from: Option<impl Read>, to: impl Fn() -> W, _done: mpsc::Sender<()>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut lines = Vec::new();
    loop {
        let _ = write!(lines, "[{index}] ");
        let label = lines.len();
        match from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut lines) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if lines[label..].last() != Some(&b'\n') {
            lines.push(b'\n');
        }
        if from.buffer().contains(&b'\n') && (lines.len() as u64) < LONGEST_LINE {
            continue;
        }
        if to().write_all(&lines).is_err() {
            return;
        }
        lines.clear();
    }
}

/// For `map_err`: what was being done when the system refused.
fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> RunError {
    move |error| RunError::System { doing, source: error.into() }
}

#[cfg(test)]
mod tests;
