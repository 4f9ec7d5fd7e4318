//! A process whose engine is that of the job.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Answer, Done, Request, gone, wire};
use crate::driver;
use crate::monitor::lock;
use crate::say::say;

/// A connection to an engine.
pub(super) struct Client {
    stream: Mutex<UnixStream>,
    waiting: Mutex<Waiting>,
}

/// Who waits for an answer, by the number of the request.
#[derive(Default)]
struct Waiting {
    last: u64,
    /// Nobody, once the engine is gone.
    over: bool,
    done: BTreeMap<u64, Done>,
}

impl Client {
    /// Connects to the engine of a name.
    pub(super) fn connect(name: &str) -> io::Result<Arc<Self>> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        wire::same_user(&stream)?;
        wire::send(&stream, 0, &wire::HELLO, &[])?;
        let (_, hello, _) = wire::receive::<String>(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if hello != wire::HELLO {
            return Err(io::Error::other(format!("the engine is {hello}, this process has {}", wire::HELLO)));
        }
        let answers = stream.try_clone()?;
        let client = Arc::new(Self { stream: Mutex::new(stream), waiting: Mutex::default() });
        let own = client.clone();
        thread::Builder::new().name("virtual GPUs".to_owned()).spawn(move || own.listen(&answers))?;
        Ok(client)
    }

    /// Asks, and has `done` called with the answer; it is dropped if the engine is gone.
    pub(super) fn serve(&self, request: &Request, files: &[BorrowedFd<'_>], done: Done) {
        let number = {
            let mut waiting = lock(&self.waiting);
            if waiting.over {
                return;
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.done.insert(number, done);
            number
        };
        if wire::send(&lock(&self.stream), number, request, files).is_err() {
            lock(&self.waiting).done.remove(&number);
        }
    }

    /// Takes answers until the engine is gone. Then nothing of the driver works any more.
    fn listen(&self, answers: &UnixStream) {
        while let Ok(Some((number, answer, _))) = wire::receive::<Answer>(answers) {
            let done = lock(&self.waiting).done.remove(&number);
            if let Some(done) = done {
                done(answer);
            }
        }
        say("the engine of this job is gone");
        if let Ok(driver) = driver::get() {
            driver.devices().iter().for_each(|device| device.context.fail(gone().code));
        }
        let mut waiting = lock(&self.waiting);
        waiting.over = true;
        waiting.done.clear();
    }
}
