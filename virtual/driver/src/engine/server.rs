//! The engine of a job, for all its processes.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::session::Job;
use super::{Answer, Request, wire};
use crate::config::{self, Engine};
use crate::monitor::lock;

/// How long a process may leave its answers lying. The engine waits for it meanwhile.
const SLOW: Duration = Duration::from_secs(1);

/// The engine of a job. Its processes lose it when this is dropped, or ends with its process.
pub struct Server {
    listener: Arc<UnixListener>,
}

impl Server {
    /// Starts an engine of so many GPUs, or as many as its processes have by themselves, under a name that these are told by
    /// [`ENGINE`](super::ENGINE); none where the configuration has kernels run natively. What it is like is said by
    /// [`VARIABLE`](crate::VARIABLE), and by `settings`, a list like that one's, behind it.
    ///
    /// # Errors
    /// What is wrong with the configuration, and what the system refuses
    pub fn start(name: &str, gpus: Option<u32>, settings: &str) -> Result<Option<Self>, String> {
        let config = config::of_job(gpus, settings)?;
        if config.engine == Engine::Native {
            return Ok(None);
        }
        Self::listen(name, config).map(Some).map_err(|error| format!("starting virtual GPUs: {error}"))
    }

    fn listen(name: &str, config: &'static config::Config) -> io::Result<Self> {
        let listener = Arc::new(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?);
        let job = Job::new(config)?;
        let own = listener.clone();
        thread::Builder::new().name("virtual GPUs' door".to_owned()).spawn(move || {
            while let Ok((stream, _)) = own.accept() {
                let job = job.clone();
                // Without a thread for it, the process finds the connection closed.
                let _started =
                    thread::Builder::new().name("virtual GPUs' guest".to_owned()).spawn(move || attend(&job, stream));
            }
        })?;
        Ok(Self { listener })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread that accepts is woken by this, and ends.
        let _closed = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Does what a process asks until it ends. What it sends wrongly ends the connection, and all that it had.
fn attend(job: &Arc<Job>, stream: UnixStream) -> io::Result<()> {
    wire::same_user(&stream)?;
    let hello = wire::receive::<String>(&stream)?;
    wire::send(&stream, 0, &wire::HELLO, &[])?;
    if hello.is_none_or(|(_, hello, _)| hello != wire::HELLO) {
        return Ok(());
    }
    stream.set_write_timeout(Some(SLOW))?;
    let answers = Arc::new(Mutex::new(stream.try_clone()?));
    let session = job.join();
    while let Some((number, request, files)) = wire::receive::<Request>(&stream)? {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let mut reply = Reply { number, to: answers.clone(), is_given: false };
        session.serve(request, &files, Box::new(move |answer| reply.give(&answer)));
    }
    Ok(())
}

/// What a process waits for. If it cannot be given, the process is let know by the end of the connection.
struct Reply {
    number: u64,
    to: Arc<Mutex<UnixStream>>,
    is_given: bool,
}

impl Reply {
    fn give(&mut self, answer: &Answer) {
        self.is_given = wire::send(&lock(&self.to), self.number, answer, &[]).is_ok();
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_given {
            // It may be closed already.
            let _closed = lock(&self.to).shutdown(Shutdown::Both);
        }
    }
}
