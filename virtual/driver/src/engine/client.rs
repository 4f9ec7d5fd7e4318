//! A process whose engine is that of the job.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Answer, Done, Request, gone, wire};
use crate::config;
use crate::driver;
use crate::monitor::lock;
use crate::say::say;

/// The number of requests whose answers nobody waits for.
const ALIVE: u64 = 0;

/// A connection to an engine.
pub(super) struct Client {
    stream: Mutex<UnixStream>,
    waiting: Mutex<Waiting>,
    /// How long the engine may say nothing while somebody waits for it.
    silence: Duration,
}

/// Who waits for an answer, by the number of the request.
#[derive(Default)]
struct Waiting {
    last: u64,
    /// Why nobody does any more, once there is no engine to wait for.
    over: Option<CUresult>,
    done: BTreeMap<u64, Done>,
}

impl Client {
    /// Connects to the engine of a name. All that is done with it from here on ends after the silence that is allowed.
    pub(super) fn connect(name: &str) -> io::Result<Arc<Self>> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        wire::same_user(&stream)?;
        let config = config::get().map_err(io::Error::other)?;
        let silence = Duration::from_secs(config.silence.into());
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        wire::send(&stream, 0, &wire::HELLO, &[])?;
        let (_, hello, _) = wire::receive::<String>(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if hello != wire::HELLO {
            return Err(io::Error::other(format!("the engine is {hello}, this process has {}", wire::HELLO)));
        }
        let answers = stream.try_clone()?;
        let client = Arc::new(Self { stream: Mutex::new(stream), waiting: Mutex::default(), silence });
        let own = client.clone();
        thread::Builder::new().name("virtual GPUs".to_owned()).spawn(move || own.listen(&answers))?;
        Ok(client)
    }

    /// Asks, and has `done` called with the answer, or with why there is none.
    pub(super) fn serve(&self, request: &Request, files: &[BorrowedFd<'_>], done: Done) {
        let number = {
            let mut waiting = lock(&self.waiting);
            if let Some(code) = waiting.over {
                drop(waiting);
                return done(Err(code.into()));
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.done.insert(number, done);
            number
        };
        self.send(number, request, files);
    }

    /// Sends a request. If it cannot be sent whole the connection is of no use any more, which whoever listens finds out.
    fn send(&self, number: u64, request: &Request, files: &[BorrowedFd<'_>]) {
        let stream = lock(&self.stream);
        if wire::send(&stream, number, request, files).is_err() {
            // It may be closed already.
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes answers until the engine is gone, or silent. Then nothing of the driver works any more.
    fn listen(&self, answers: &UnixStream) {
        let code = loop {
            match self.is_there(answers) {
                Ok(true) => {}
                Ok(false) => {
                    say(format_args!("the engine of this job has said nothing for {} s", self.silence.as_secs()));
                    break CUresult::CUDA_ERROR_TIMEOUT;
                }
                Err(_) => break self.lost(),
            }
            let Ok(Some((number, answer, _))) = wire::receive::<Answer>(answers) else { break self.lost() };
            let done = lock(&self.waiting).done.remove(&number);
            if let Some(done) = done {
                done(answer);
            }
        };
        if let Ok(driver) = driver::get() {
            driver.devices().iter().for_each(|device| device.context.fail(code));
        }
        let waiting = {
            let mut waiting = lock(&self.waiting);
            waiting.over = Some(code);
            core::mem::take(&mut waiting.done)
        };
        waiting.into_values().for_each(|done| done(Err(code.into())));
    }

    fn lost(&self) -> CUresult {
        say("the engine of this job is gone");
        gone().code
    }

    /// Waits until the engine says something; not, if it is silent for long. A launch may take long, so the engine is first asked for a
    /// sign of life, and has all of that time for it. While nobody waits for it, it may be silent.
    fn is_there(&self, answers: &UnixStream) -> io::Result<bool> {
        let [half, whole] = [self.silence / 2, self.silence].map(Timespec::try_from);
        let (half, whole) = (half.map_err(io::Error::other)?, whole.map_err(io::Error::other)?);
        let mut is_asked = false;
        loop {
            let mut awaited = [PollFd::new(answers, PollFlags::IN)];
            match poll(&mut awaited, Some(if is_asked { &whole } else { &half })) {
                Ok(0) if lock(&self.waiting).done.is_empty() => is_asked = false,
                Ok(0) if is_asked => return Ok(false),
                Ok(0) => {
                    self.send(ALIVE, &Request::Alive, &[]);
                    is_asked = true;
                }
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
