//! Jobs whose PEs are processes: this test binary again, running one test, which finds its place in the environment.
#![allow(dead_code, reason = "each suite uses its own part")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use socket2::{Domain, Socket, Type};

/// One job at a time: the PEs of one already share the cores of a small machine.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process is a PE of a test's job.
pub(crate) fn is_pe() -> bool {
    env::var_os("CONGRUENT_TEST_PE").is_some()
}

/// Says something to the test, with what the test harness prints left behind on the line before.
pub(crate) fn say(text: &str) {
    println!("\n{text}");
    // A test that has gone away hears nothing, and that is all right.
    let _ = io::stdout().flush();
}

/// This test binary, about to run the test of that name alone.
pub(crate) fn myself(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "--include-ignored", test, "--nocapture"])
        .env("CONGRUENT_TEST_PE", "1")
        .env_remove("RUST_BACKTRACE");
    command
}

/// A process of a job.
pub(crate) struct Pe {
    pub(crate) child: Child,
    lines: Receiver<String>,
    complaints: Option<thread::JoinHandle<String>>,
}

impl Pe {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        let complaints = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, lines, complaints: Some(complaints) }
    }

    /// What follows `word` on the next line that has it.
    pub(crate) fn hear(&mut self, word: &str, within: Duration) -> String {
        let until = Instant::now() + within;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
        let _ = self.child.kill();
        panic!("no word of {word} within {within:?}; it complained: {}", self.complaints());
    }

    /// Passes over what it has said so far.
    pub(crate) fn hear_all(&mut self) {
        while self.lines.try_recv().is_ok() {}
    }

    /// What it wrote to standard error, once it has ended.
    pub(crate) fn complaints(&mut self) -> String {
        self.complaints.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }
}

impl Drop for Pe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The place of one PE in a job that meets at `port`, as `congruent run` would tell it.
pub(crate) fn seat(mut command: Command, port: &Port, pe: u32, npes: u32) -> Command {
    command
        .env("CONGRUENT_PE", pe.to_string())
        .env("CONGRUENT_NPES", npes.to_string())
        .env("CONGRUENT_RENDEZVOUS", format!("127.0.0.1:{}", port.number))
        .env("CONGRUENT_JOB_TOKEN", format!("test {}", port.number));
    command
}

/// A loopback port that is bound but not listened at, so that PE 0 can have it and nobody else is given it by chance.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: Socket,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let number = held.local_addr().unwrap().as_socket().unwrap().port();
        Self { number, _held: held }
    }
}
