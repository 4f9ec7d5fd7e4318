//! What runs kernels' PTX: an engine of this process, or the one of the whole job.
//!
//! What is asked of it is a [`Request`] either way. Memory goes there as a file, so that memory that several processes have is one
//! and the same to it.

mod client;
mod server;
mod session;
mod wire;

use std::os::fd::BorrowedFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, LazyLock};

use congruent_virtual_gpu::{Outline, Space};
use cudarc::driver::sys::CUresult;
use serde::{Deserialize, Serialize};

use crate::config::{self, Engine};
use crate::driver;
use crate::errors::Outcome;
use crate::image::Refusal;
use crate::pages::Access;
use crate::say::say;
use client::Client;
pub use server::Server;
use session::{Job, Session};

/// The variable that names the [`Server`] of a process's job. Without it, each process has virtual GPUs of its own.
pub const ENGINE: &str = "CONGRUENT_VIRTUAL_ENGINE";

/// What a process asks.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// Takes in PTX, and answers with its outline.
    Outline { text: String },
    /// Takes in a module, with the addresses of its variables.
    Load { module: u64, text: String, globals: Vec<u64> },
    /// Forgets one.
    Unload { module: u64 },
    /// Puts the first bytes of a file at addresses. No device has access yet.
    Map { at: u64, bytes: u64, object: Object },
    /// Says what each device may do at what was mapped at an address; those not listed, nothing.
    Allow { at: u64, access: Vec<(u32, Access)> },
    /// The host has written memory that nobody had written at first.
    Written { at: u64, bytes: u64 },
    /// Takes away what is mapped in a range.
    Unmap { at: u64, bytes: u64 },
    /// Gives a device a part of a multicast object: the first file is the object, the second the memory.
    Bind { devices: u32, part: Part, from: u64 },
    /// Takes a part away again.
    Unbind { devices: u32, part: Part },
    /// Runs a kernel to its end.
    Launch(Kernel),
    /// Says that it is there.
    Alive,
}

/// What a file is.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Object {
    /// Memory.
    Memory,
    /// Memory that nobody has written.
    Unwritten,
    /// A multicast object of so many devices.
    Multicast { devices: u32 },
}

/// A range of a multicast object that a device has.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) device: u32,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// A kernel to run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) module: u64,
    pub(crate) name: String,
    pub(crate) pe: Option<u32>,
    pub(crate) device: u32,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) registers: u32,
    pub(crate) params: Vec<u8>,
}

/// What comes of a request; an outline where that was asked for.
type Answer = Result<Option<Outline>, Refusal>;

/// Called with the answer. Dropped without if there is no engine any more.
type Done = Box<dyn FnOnce(Answer) + Send>;

/// The engine of this process.
enum Link {
    Own(Session),
    OfJob(Arc<Client>),
}

static LINK: LazyLock<Result<Link, Refusal>> = LazyLock::new(|| {
    let unavailable = |why: String| {
        say(why);
        gone()
    };
    match config::variable(ENGINE).map_err(unavailable)? {
        None => {
            let job = Job::new(driver::get()?.config);
            Ok(Link::Own(job.map_err(|error| unavailable(format!("starting it: {error}")))?.join()))
        }
        Some(name) => {
            let client = Client::connect(&name);
            client.map(Link::OfJob).map_err(|error| unavailable(format!("no connection to the job's engine: {error}")))
        }
    }
});

/// The devices of this process's own engine.
pub(crate) fn spaces() -> Vec<Arc<Space>> {
    match &*LINK {
        Ok(Link::Own(session)) => session.spaces(),
        Ok(Link::OfJob(_)) | Err(_) => Vec::new(),
    }
}

/// Has something done, and waits until it is. Native functions need no engine, so that nothing is done where they are what runs.
///
/// # Errors
/// Why it was not done
pub(crate) fn ask(request: Request, files: &[BorrowedFd<'_>]) -> Answer {
    if config::get().map(|config| config.engine) == Ok(Engine::Native) {
        return Ok(None);
    }
    let (done, answer) = sync_channel(1);
    let done = Box::new(move |outcome| {
        // There is room for one, and whoever waits is below.
        let _told = done.send(outcome);
    });
    match LINK.as_ref().map_err(Clone::clone)? {
        Link::Own(session) => session.serve(request, files, done),
        Link::OfJob(client) => client.serve(&request, files, done),
    }
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

/// As [`ask`], of what fails for reasons that a code says enough of.
///
/// # Errors
/// The code
pub(crate) fn tell(request: Request, files: &[BorrowedFd<'_>]) -> Outcome {
    ask(request, files).map(drop).map_err(|refusal| refusal.code)
}

/// What the engine makes of PTX.
///
/// # Errors
/// Why it executes none of it
pub(crate) fn outline(text: String) -> Result<Outline, Refusal> {
    ask(Request::Outline { text }, &[])?.ok_or_else(gone)
}

/// How many instructions the lanes of this process's own engine have executed.
pub(crate) fn executed() -> u64 {
    match LazyLock::get(&LINK) {
        Some(Ok(Link::Own(session))) => session.executed(),
        _ => 0,
    }
}

/// There is no engine any more. Who found out has said so.
fn gone() -> Refusal {
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE.into()
}
