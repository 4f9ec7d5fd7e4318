//! The machine: devices with multiprocessors, launches with blocks, and the thread that runs them all.
#![allow(clippy::disallowed_types, reason = "counts what is executed")]

mod engine;
mod profile;

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engine::Engine;
pub(crate) use profile::{Count, Counts};

use crate::alu::matrix;
use crate::fault::{Cause, Fault, Whose};
use crate::inject::Injection;
use crate::memory::{AddressMap, Window};
use crate::order::Promises;
use crate::program::Program;
use crate::schedule::{Explored, Schedule, Trail};
use crate::warp::LANES;

/// What a multiprocessor has, as those of Hopper do.
#[derive(Clone, Copy, Debug)]
pub struct Multiprocessor {
    /// Threads at one time.
    pub threads: u32,
    /// Blocks at one time.
    pub blocks: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// Registers of 32 bits.
    pub registers: u32,
}

impl Default for Multiprocessor {
    fn default() -> Self {
        Self { threads: 2048, blocks: 32, shared: 228 << 10, registers: 64 << 10 }
    }
}

/// What a machine is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many devices.
    pub devices: u32,
    /// Multiprocessors of each.
    pub multiprocessors: u32,
    /// What each of these has.
    pub multiprocessor: Multiprocessor,
    /// How warps take turns.
    pub schedule: Schedule,
    /// What choices come from.
    pub seed: u64,
    /// Whether data races, and reads of what nobody wrote, end a launch.
    pub races: bool,
    /// Whether loads may see any write that the memory model allows them to see, beside what hardware promises.
    pub weak: Option<Promises>,
    /// In which order `mma` adds the products of floats, which PTX leaves open.
    pub sums: matrix::Order,
    /// How long all may wait, with nobody writing anything, until that is a deadlock. In the devices' own time.
    pub patience: Duration,
    /// When all have waited for so long, by a clock on the wall, the devices' own time goes on as fast as they can look at it:
    /// what ends at a deadline ends soon. Without, their time is never ahead of the clock on the wall.
    pub leap: Option<Duration>,
    /// How many instructions the warps of a launch may execute.
    pub budget: u64,
    /// Faults that are injected.
    pub injections: Vec<Injection>,
    /// Where to write down when launches come and how long all wait, which nothing else here says.
    pub record: Option<PathBuf>,
    /// A record to follow, of a machine like this one: launches begin when it says, in its order. Behind its end they begin as they
    /// come.
    pub replay: Option<PathBuf>,
    /// Where to write down what launches have executed, by lines of their sources.
    pub profile: Option<PathBuf>,
    /// Whether nobody but its launches writes what they wait for: then it is in vain that all wait, whatever they do meanwhile,
    /// and a fault ends all launches.
    pub alone: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            multiprocessors: 16,
            multiprocessor: Multiprocessor::default(),
            schedule: Schedule::Lockstep,
            seed: 0,
            races: false,
            weak: None,
            sums: matrix::Order::default(),
            patience: Duration::from_secs(60),
            leap: None,
            budget: u64::MAX,
            injections: Vec::new(),
            record: None,
            replay: None,
            profile: None,
            alone: false,
        }
    }
}

impl Settings {
    /// All of it in one line, but for where records are.
    fn described(&self) -> String {
        format!("{:?}", Self { record: None, replay: None, ..self.clone() })
    }
}

/// A device as one process sees it: its addresses.
pub struct Space {
    process: u64,
    device: u32,
    map: RwLock<Arc<AddressMap>>,
}

impl Space {
    /// A device without any memory, of the only process.
    pub fn new(device: u32) -> Arc<Self> {
        Self::of(0, device)
    }

    /// A device without any memory, of one of several processes.
    pub fn of(process: u64, device: u32) -> Arc<Self> {
        Arc::new(Self { process, device, map: RwLock::default() })
    }

    /// Which device it is.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Puts memory at addresses, in place of what was there.
    pub fn map(&self, window: Window) {
        self.change(|map| map.insert(window));
    }

    /// Takes away all windows that touch a range.
    pub fn unmap(&self, at: u64, bytes: u64) {
        self.change(|map| map.remove(at, bytes));
    }

    fn change(&self, change: impl FnOnce(&mut AddressMap)) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut map));
    }

    /// All of its memory, as it is now.
    pub fn windows(&self) -> Vec<Window> {
        self.current().windows().to_vec()
    }

    fn current(&self) -> Arc<AddressMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A kernel to run.
#[derive(Clone)]
pub struct Launch {
    /// The module that has it.
    pub program: Arc<Program>,
    /// Where each of the module's [`globals`](crate::Outline::globals) is.
    pub globals: Arc<[u64]>,
    /// Its name.
    pub kernel: String,
    /// The device, as the process sees it.
    pub space: Arc<Space>,
    /// Which PE launches it, for reports.
    pub pe: Option<u32>,
    /// How many blocks, in each dimension.
    pub blocks: [u32; 3],
    /// How many threads of a block, in each dimension.
    pub threads: [u32; 3],
    /// Bytes of shared memory beside what the kernel declares.
    pub shared: u32,
    /// Registers of a thread, of 32 bits.
    pub registers: u32,
    /// The parameters' bytes, laid out as [`Program::parameters`] says.
    pub params: Vec<u8>,
}

impl Launch {
    /// What it is, in words that are the same in every run.
    fn described(&self) -> String {
        let Self { kernel, space, pe, blocks: [x, y, z], threads: [u, v, w], .. } = self;
        format!("{kernel} {} in {x}x{y}x{z} blocks of {u}x{v}x{w} threads", Whose(*pe, space.device))
    }
}

/// Executes launches, on a thread of its own.
pub struct Machine {
    settings: Settings,
    requests: Mutex<Sender<Request>>,
    engine: Mutex<Option<JoinHandle<()>>>,
    executed: Arc<AtomicU64>,
}

/// Called with what comes of launches. Dropped without if the engine is gone.
type Done = Box<dyn FnOnce(Result<(), Box<Fault>>) + Send>;

enum Request {
    Launches(Vec<Stream>),
    /// Ends all launches of a process.
    Withdraw(u64),
}

/// The stream of all that the host submits: it may have waited for whatever has ended.
const HOST: u32 = 0;

/// Launches to run, each behind the one before.
struct Stream {
    /// Launches of different streams that begin together are not ordered, in whatever order they end.
    number: u32,
    launch: Launch,
    then: VecDeque<Launch>,
    done: Done,
}

impl Machine {
    /// Starts a machine.
    ///
    /// # Errors
    /// If there can be no more threads, or what is wrong with a record
    pub fn new(settings: Settings) -> std::io::Result<Arc<Self>> {
        Self::along(settings, Arc::default())
    }

    /// Runs something again and again, each time on a new machine, until all executions have come that
    /// [`Schedule::Exhaustive`] of the settings leaves, or so many. What is run has to be the same each time: kernels that one
    /// launch begins, and memory of their own.
    ///
    /// # Errors
    /// As [`Machine::new`]
    pub fn explore(settings: &Settings, most: u64, mut run: impl FnMut(&Self)) -> std::io::Result<Explored> {
        let trail = Arc::new(Mutex::new(Trail::default()));
        let mut executions = 0;
        loop {
            // The engine is gone with the machine.
            run(&*Self::along(settings.clone(), trail.clone())?);
            executions += 1;
            let mut trail = trail.lock().unwrap_or_else(PoisonError::into_inner);
            let goes_on = trail.advance();
            if !goes_on || executions == most {
                return Ok(Explored { executions, is_cut: goes_on || trail.is_cut });
            }
        }
    }

    fn along(settings: Settings, trail: Arc<Mutex<Trail>>) -> std::io::Result<Arc<Self>> {
        let (requests, inbox) = channel();
        let engine = Engine::new(settings.clone(), inbox, trail)?;
        let executed = engine.executed.clone();
        let engine = thread::Builder::new().name("virtual GPUs".to_owned()).spawn(move || engine.run())?;
        Ok(Arc::new(Self { settings, requests: Mutex::new(requests), engine: Mutex::new(Some(engine)), executed }))
    }

    /// How many instructions lanes have executed so far, of all launches: one of a whole warp counts 32.
    pub fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// What it is like.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Blocks of a kernel that a multiprocessor holds at one time; 0 if none fits.
    pub fn occupancy(&self, threads: u32, registers: u32, shared: u64) -> u32 {
        self.settings.multiprocessor.room(threads, registers, shared)
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// What went wrong in it
    pub fn launch(&self, launch: Launch) -> Result<(), Box<Fault>> {
        self.launch_all(vec![vec![launch]])
    }

    /// Runs the launches of several streams to their end, those of a stream one behind the other. They begin together, so a
    /// machine of one seed does the same with them each time.
    ///
    /// # Errors
    /// What went wrong first in one of them
    pub fn launch_all(&self, streams: Vec<Vec<Launch>>) -> Result<(), Box<Fault>> {
        let mut outcomes = Vec::new();
        let mut begun = Vec::new();
        for (number, stream) in (HOST + 1..).zip(streams) {
            let mut then = VecDeque::from(stream);
            let Some(launch) = then.pop_front() else { continue };
            let (done, outcome) = sync_channel(1);
            outcomes.push((outcome, Fault::of(&launch, Cause::Stopped)));
            let done = move |result| {
                // There is room for one, and whoever waits is below.
                let _told = done.send(result);
            };
            begun.push(Stream { number, launch, then, done: Box::new(done) });
        }
        self.ask(Request::Launches(begun));
        let ended =
            outcomes.into_iter().map(|(outcome, stopped)| outcome.recv().unwrap_or_else(|_| Err(Box::new(stopped))));
        let faults = ended.filter_map(Result::err).collect::<Vec<_>>();
        let first = faults.iter().position(|fault| fault.cause != Cause::Stopped).unwrap_or(0);
        faults.into_iter().nth(first).map_or(Ok(()), Err)
    }

    /// Runs a kernel, and calls `done` on the engine's own thread with what comes of it: it must not wait for anything. Where the
    /// engine is gone it is dropped instead.
    pub fn submit(&self, launch: Launch, done: impl FnOnce(Result<(), Box<Fault>>) + Send + 'static) {
        self.ask(Request::Launches(vec![Stream { number: HOST, launch, then: VecDeque::new(), done: Box::new(done) }]));
    }

    /// Ends all launches of a process that is gone.
    pub fn withdraw(&self, process: u64) {
        self.ask(Request::Withdraw(process));
    }

    fn ask(&self, request: Request) {
        let sender = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // An engine that is gone drops what it is asked, which tells who waits.
        let _asked = sender.send(request);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The engine ends when nobody can ask it for anything.
        let (nobody, _) = channel();
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner) = nobody;
        if let Some(engine) = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the engine has been told to all who waited for it.
            let _ended = engine.join();
        }
    }
}

impl Multiprocessor {
    fn room(self, threads: u32, registers: u32, shared: u64) -> u32 {
        let threads = threads.next_multiple_of(LANES as u32).max(1);
        let registers = registers.max(1).next_multiple_of(8);
        let by_shared = match shared {
            0 => self.blocks,
            bytes => (u64::from(self.shared) / (bytes + 1024)) as u32,
        };
        (self.threads / threads).min(self.registers / (registers * threads)).min(by_shared).min(self.blocks)
    }
}

impl Fault {
    /// One that no single instruction is to blame for.
    fn of(launch: &Launch, cause: Cause) -> Self {
        Self {
            cause,
            kernel: launch.kernel.clone(),
            function: launch.kernel.clone(),
            line: 0,
            instruction: String::new(),
            source: None,
            pe: launch.pe,
            device: launch.space.device,
            block: [0; 3],
            warp: 0,
            lanes: 0,
        }
    }
}
