//! A job on several hosts: starts a share of it on each by ssh, and ends them together.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use congruent::bootstrap::{Bootstrap, Token};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::hosts::Host;
use super::output::tell;
use super::wire::{self, Frame, Job, Report, Stream};
use super::{Args, FAREWELL, GRACE, PATIENCE, RunError, SHARE, bind, first_of, pid, system};

/// Lines of ssh's that an error repeats.
const REPEATED: usize = 10;
/// A longer line of a shell's or of ssh's is taken for several.
const LONGEST_LINE: u64 = 4096;
/// Between two looks at what ends without a word.
const POLL: Duration = Duration::from_millis(5);

/// Runs the job to its end. The status of the first PE that failed.
pub(super) fn run(args: &Args, hosts: Vec<Host>) -> Result<Option<ExitStatus>, RunError> {
    // Wrong usage is said before anyone logs in.
    let set = args.across.variables()?;
    let mut hosts = Hosts::start(args, hosts)?;
    match hosts.meet(args, &set)? {
        Some(signal) => Ok(Some(ExitStatus::from_raw(signal.as_raw()))),
        None => hosts.supervise(),
    }
}

/// What happens, and where.
enum Event {
    Host(usize, Said),
    Signal(Signal),
}

/// What comes from a host.
enum Said {
    /// The share is there, and is of this version.
    Greets,
    Reports(Report),
    /// Something for people, of ssh or of a shell there.
    Complains(String),
    /// Nothing comes any more: why, if not because the share is gone.
    Ends(Option<String>),
}

/// Hosts on which a job runs.
struct Hosts {
    hosts: Vec<Remote>,
    events: mpsc::Receiver<Event>,
    /// Ends the thread that hears signals.
    signals: Handle,
}

/// A host, and the ssh that leads there.
struct Remote {
    host: Host,
    first: u32,
    child: Child,
    /// Its end ends the share.
    orders: Option<ChildStdin>,
    complaints: VecDeque<String>,
    greeted: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Runs,
    /// All its PEs have ended.
    Done,
    /// It cannot be reached any more.
    Lost,
}

impl Hosts {
    fn start(args: &Args, hosts: Vec<Host>) -> Result<Self, RunError> {
        let (ssh, program) = (args.across.ssh()?, remote_program(args)?);
        let (heard, events) = mpsc::channel();
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(system("preparing for signals"))?;
        let mut job = Self { hosts: Vec::new(), events, signals: signals.handle() };
        let told = heard.clone();
        thread::spawn(move || {
            let named = signals.forever().filter_map(Signal::from_named_raw);
            named.map(Event::Signal).try_for_each(|event| told.send(event))
        });
        let mut first = 0;
        for (at, host) in hosts.into_iter().enumerate() {
            let mut command = Command::new(&ssh[0]);
            command.args(&ssh[1..]).arg(&host.name).arg(format!("{program} {SHARE}"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // A terminal's signals are for this process, which passes them on.
            bind(&mut command, None);
            let mut child = command.spawn().map_err(|error| host.fails(format!("cannot start {}: {error}", ssh[0])))?;
            listen(at, child.stdout.take(), child.stderr.take(), &heard);
            let (orders, slots) = (child.stdin.take(), host.slots);
            let (complaints, greeted, state) = (VecDeque::new(), false, State::Runs);
            job.hosts.push(Remote { host, first, child, orders, complaints, greeted, state });
            first += slots;
        }
        Ok(job)
    }

    /// Tells the shares of the job, and where its PEs meet, once all are there; or gives the signal that came before.
    fn meet(&mut self, args: &Args, set: &[(OsString, OsString)]) -> Result<Option<Signal>, RunError> {
        let waits = Bootstrap::from_lookup(|name| match name {
            "CONGRUENT_BOOTSTRAP_DEADLINE" => std::env::var_os(name),
            _ => None,
        });
        let waits = waits?.job().deadline;
        let until = Instant::now() + waits;
        let folder = std::env::current_dir().map_err(system("looking for the working directory"))?;
        let names: Vec<_> = self.hosts.iter().map(|remote| remote.host.name.clone()).collect();
        let npes = self.hosts.iter().map(|remote| remote.host.slots).sum();
        let token = Token::random()?.reveal();
        let mut meeting = None;
        while meeting.is_none() || self.hosts.iter().any(|remote| !remote.greeted) {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Host(at, Said::Greets)) => {
                    let remote = &mut self.hosts[at];
                    remote.greeted = true;
                    let job = Job {
                        first: remote.first,
                        count: remote.host.slots,
                        npes,
                        meets_at: (at == 0).then(|| names.clone()),
                        token: token.clone(),
                        label: args.label,
                        folder: folder.clone().into(),
                        set: set.to_vec(),
                        command: args.command.clone(),
                    };
                    remote.order(&wire::message(&job).map_err(system("telling a host of the job"))?);
                    // What was said on the way is for people to know.
                    remote.complaints.drain(..).for_each(|line| remote.host.tell(&line));
                }
                Ok(Event::Host(0, Said::Reports(Report::Meets { place }))) => meeting = Some(place),
                Ok(Event::Host(at, said)) => self.hosts[at].hear(said)?,
                Ok(Event::Signal(signal)) => return Ok(Some(signal)),
                Err(_) => {
                    let silent = self.hosts.iter().find(|remote| !remote.greeted).unwrap_or(&self.hosts[0]);
                    let why = format!("no answer within {} s", waits.as_secs());
                    return Err(silent.host.fails(silent.with_complaints(why)));
                }
            }
        }
        let place = wire::message(&meeting).map_err(system("telling hosts where PEs meet"))?;
        self.hosts.iter_mut().for_each(|remote| remote.order(&place));
        Ok(None)
    }

    /// Waits for all PEs; once one fails, sees that the others end too.
    fn supervise(&mut self) -> Result<Option<ExitStatus>, RunError> {
        let (mut first_failure, mut lost) = (None, None);
        // When the job began to end, and until when shares have to end their PEs.
        let mut ending: Option<(Instant, Instant)> = None;
        while self.hosts.iter().any(|remote| remote.state == State::Runs) {
            let waits = ending.map_or(Duration::MAX, |(_, until)| until.saturating_duration_since(Instant::now()));
            let Ok(event) = self.events.recv_timeout(waits) else {
                for remote in self.hosts.iter().filter(|remote| remote.state == State::Runs) {
                    remote.host.tell("no answer from it; its PEs end with the connection");
                }
                break;
            };
            match event {
                Event::Host(at, Said::Reports(Report::Failed { pe, status, unsignalled })) => {
                    let status = ExitStatus::from_raw(status);
                    if unsignalled {
                        self.hosts[at].host.tell(&format!("PE {pe} failed, {status}"));
                    }
                    first_failure = Some(first_of(first_failure, status, unsignalled));
                }
                Event::Host(at, Said::Reports(Report::Done)) => self.hosts[at].state = State::Done,
                Event::Host(at, said) => {
                    if let Err(error) = self.hosts[at].hear(said) {
                        self.hosts[at].state = State::Lost;
                        // Who loses the PEs of a host may be gone before the host is seen to be.
                        if ending.is_none_or(|(begun, _)| begun.elapsed() < GRACE) {
                            lost.get_or_insert(error);
                        }
                    }
                }
                Event::Signal(signal) => {
                    self.order(&[signal.as_raw() as u8]);
                    let now = Instant::now();
                    ending = Some((now, now + FAREWELL + PATIENCE * 2));
                }
            }
            if ending.is_none() && (first_failure.is_some() || lost.is_some()) {
                self.order(&[wire::FAILURE]);
                let now = Instant::now();
                ending = Some((now, now + GRACE + PATIENCE * 2));
            }
        }
        lost.map_or(Ok(first_failure), Err)
    }

    fn order(&mut self, bytes: &[u8]) {
        self.hosts.iter_mut().for_each(|remote| remote.order(bytes));
    }
}

impl Drop for Hosts {
    /// Shares hear that nobody waits for them, and an ssh that does not end then is ended.
    fn drop(&mut self) {
        self.signals.close();
        self.hosts.iter_mut().for_each(|remote| remote.orders = None);
        let until = Instant::now() + PATIENCE;
        for remote in &mut self.hosts {
            if remote.ended(until).is_none() {
                let _gone = pid(&remote.child).map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
                let _reaped = remote.child.wait();
            }
        }
    }
}

impl Remote {
    /// Tells the share, which may be gone: then its end says so.
    fn order(&mut self, bytes: &[u8]) {
        let _gone = self.orders.as_mut().map(|orders| orders.write_all(bytes));
    }

    /// Takes in what comes from the host: an error if the share does not run any more.
    fn hear(&mut self, said: Said) -> Result<(), RunError> {
        match said {
            Said::Reports(Report::Tells { text }) => self.host.tell(&text),
            Said::Complains(line) if self.greeted => self.host.tell(&line),
            Said::Complains(line) => {
                // The last ones say why.
                self.complaints.push_back(line);
                if self.complaints.len() > REPEATED {
                    self.complaints.pop_front();
                }
            }
            Said::Reports(Report::Refuses { why }) if self.state == State::Runs => return Err(self.host.fails(why)),
            Said::Ends(why) if self.state == State::Runs => {
                let why = why.unwrap_or_else(|| self.end());
                return Err(self.host.fails(self.with_complaints(why)));
            }
            Said::Greets | Said::Reports(_) | Said::Ends(_) => {}
        }
        Ok(())
    }

    /// What is known of the end of a share that has not said why.
    fn end(&mut self) -> String {
        let status = self.ended(Instant::now() + GRACE);
        let how = status.map_or_else(|| "the connection ended".into(), |status| format!("ssh ended, {status}"));
        match (self.greeted, status.and_then(|status| status.code())) {
            (true, _) => format!("{how}, and its PEs with it"),
            (false, Some(126 | 127)) => {
                format!("{how}: is congruent there? Install it, or say where it is with --remote-program")
            }
            (false, _) => format!("{how}, before congruent there said anything"),
        }
    }

    fn ended(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(POLL),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    fn with_complaints(&self, why: String) -> String {
        self.complaints.iter().fold(why, |why, line| format!("{why}\n  {line}"))
    }
}

impl Host {
    fn fails(&self, why: String) -> RunError {
        RunError::Host { host: self.name.clone(), why }
    }

    fn tell(&self, text: &str) {
        tell(&format!("host {}: {text}", self.name));
    }
}

/// This program on the hosts, as a word for their shells.
fn remote_program(args: &Args) -> Result<String, RunError> {
    let program = match &args.across.remote_program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(system("looking for this program"))?,
    };
    let text = program.to_string_lossy();
    let quoted = shlex::try_quote(&text).map_err(|error| RunError::System {
        doing: "quoting the name of the program for hosts",
        source: io::Error::other(error),
    })?;
    Ok(quoted.into_owned())
}

/// Passes on what PEs of a host print, and tells of everything else.
fn listen(at: usize, out: Option<ChildStdout>, err: Option<ChildStderr>, heard: &mpsc::Sender<Event>) {
    let (Some(out), Some(err)) = (out, err) else { return };
    let (told, complains) = (heard.clone(), heard.clone());
    let complaints = thread::spawn(move || {
        let mut err = BufReader::new(err);
        std::iter::from_fn(|| line(&mut err)).try_for_each(|line| complains.send(said(at, &line)))
    });
    thread::spawn(move || {
        let why = hear(at, BufReader::new(out), &told);
        // What ssh says of its end comes before that. A connection that others share may never be closed.
        let until = Instant::now() + GRACE;
        while !complaints.is_finished() && Instant::now() < until {
            thread::sleep(POLL);
        }
        // Nobody hears it where the job has ended.
        let _unheard = told.send(Event::Host(at, Said::Ends(why)));
    });
}

/// The next line.
fn line(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let read = from.take(LONGEST_LINE).read_until(b'\n', &mut line);
    read.is_ok_and(|length| length > 0).then_some(line)
}

fn said(at: usize, line: &[u8]) -> Event {
    Event::Host(at, Said::Complains(String::from_utf8_lossy(line).trim_end().to_owned()))
}

/// Hears a share to its end: why nothing of it is heard any more, if it did not just end.
fn hear(at: usize, mut from: BufReader<ChildStdout>, told: &mpsc::Sender<Event>) -> Option<String> {
    // A shell may say something before.
    loop {
        let line = line(&mut from)?;
        let text = String::from_utf8_lossy(&line);
        // Of a shell that has said something without ending the line, the greeting ends it.
        if text.trim().is_empty() {
            continue;
        }
        if text.trim_end() == wire::GREETING {
            break;
        }
        if text.starts_with(wire::ANY_GREETING) {
            let (here, there) = (wire::GREETING, text.trim_end());
            return Some(format!(
                "congruent is of another version there, {there:?}; here it is {here:?}: install the same"
            ));
        }
        told.send(said(at, &line)).ok()?;
    }
    told.send(Event::Host(at, Said::Greets)).ok()?;
    loop {
        let printed = match wire::read_frame(&mut from) {
            Ok(Frame::Printed(Stream::Out, bytes)) => print(&mut io::stdout().lock(), &bytes),
            Ok(Frame::Printed(Stream::Err, bytes)) => print(&mut io::stderr().lock(), &bytes),
            Ok(Frame::Report(report)) => {
                told.send(Event::Host(at, Said::Reports(report))).ok()?;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(format!("what it says is not congruent's: {error}"));
            }
            Err(_) => return None,
        };
        if let Err(error) = printed {
            return Some(format!("what its PEs print cannot be passed on: {error}"));
        }
    }
}

fn print(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
