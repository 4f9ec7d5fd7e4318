//! The machine: devices with multiprocessors, launches with blocks, and the thread that runs them all.
#![allow(clippy::disallowed_types, reason = "counts what is executed")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::alu::matrix;
use crate::block::{Block, Surroundings};
use crate::fault::{Cause, Fault, Whose};
use crate::inject::{Injection, Injections};
use crate::memory::{AddressMap, Segment, Window};
use crate::order::{Begin, Knowledge, Order, Promises};
use crate::program::Program;
use crate::record::{Event, Recorded, Recorder, Replay};
use crate::schedule::{Chance, Explored, Schedule, Trail};
use crate::warp::{LANES, Stop};
use crate::watch::{Watches, Who};

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
    /// Where each of the module's [`globals`](Program::globals) is.
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

/// A launch with blocks that run and blocks that have not begun.
struct Running {
    number: u64,
    stream: u32,
    launch: Launch,
    entry: usize,
    shared_places: Vec<u64>,
    shared_bytes: u64,
    params: Arc<Segment>,
    /// What its stream has behind it.
    then: VecDeque<Launch>,
    blocks: Vec<Block>,
    next: u64,
    total: u64,
    executed: u64,
    done: Done,
}

/// How much of a device's multiprocessors is used: parts of each, where a launch that has room for n blocks takes 1/n.
struct Device {
    used: Vec<f64>,
    injections: Injections,
}

struct Engine {
    settings: Settings,
    inbox: Receiver<Request>,
    devices: Vec<Device>,
    running: Vec<Running>,
    launches: u64,
    /// How many launches and blocks have ended.
    ended: u64,
    /// Instructions of lanes.
    executed: Arc<AtomicU64>,
    watches: Watches,
    order: Option<Order>,
    chance: Chance,
    /// Nanoseconds of the devices' own time: one for each step of a warp, and what passes while nobody runs.
    time: u64,
    round: u64,
    recorder: Option<Recorder>,
    replay: Option<Replay>,
    /// Launches that have come before a record says that they do.
    early: Vec<Stream>,
}

/// Instructions that a warp executes before the next one runs.
const TURN: u32 = 256;
/// After so many rounds those who wait look again, whether or not somebody wrote what they wait for.
const LOOK: u64 = 512;
/// Who looks at words and waits again needs fewer rounds than this; more are work.
const COMPUTING: u64 = 64;
/// How many of those who wait in vain are listed.
const LISTED: usize = 8;
/// How long nobody looks while all wait, at first and at most.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);
/// How often those who wait look after each such time, once nothing has happened for longer: kernels look at the clock once in a
/// thousand times.
const LOOKS: u32 = 16;
/// How far time goes on where all wait, in nanoseconds.
const LEAP: u64 = 1_000_000;
/// How long what a record says may take to come, by a clock on the wall.
const COMES: Duration = Duration::from_secs(30);

impl Engine {
    fn new(settings: Settings, inbox: Receiver<Request>, trail: Arc<Mutex<Trail>>) -> std::io::Result<Self> {
        let machine = settings.described();
        let recorder = settings.record.as_ref().map(|path| Recorder::new(path, &machine)).transpose()?;
        let replay = settings.replay.as_ref().map(|path| Replay::new(path, &machine)).transpose()?;
        let device = |device| Device {
            used: vec![0.0; settings.multiprocessors as usize],
            injections: Injections::of(device, &settings.injections),
        };
        Ok(Self {
            devices: (0..settings.devices).map(device).collect(),
            chance: Chance::new(settings.schedule, settings.seed, trail),
            order: (settings.races || settings.weak.is_some()).then(|| Order::new(settings.races, settings.weak)),
            settings,
            inbox,
            running: Vec::new(),
            launches: 0,
            ended: 0,
            executed: Arc::default(),
            watches: Watches::default(),
            time: 0,
            round: 0,
            recorder,
            replay,
            early: Vec::new(),
        })
    }

    /// Runs until nobody can ask for anything any more.
    fn run(mut self) {
        let mut pause = SHORTEST;
        let mut quiet = Quiet { since: Instant::now(), time: self.time, last: [0; 3] };
        // For how many rounds there was something to do.
        let mut busy = 0_u64;
        let mut looks = 0;
        loop {
            if !self.follow() {
                return;
            }
            if self.replay.is_none() {
                if self.running.is_empty() {
                    match self.inbox.recv() {
                        Ok(request) => self.take(request),
                        Err(_) => return,
                    }
                }
                while let Ok(request) = self.inbox.try_recv() {
                    self.take(request);
                }
            }
            self.place_blocks();
            let ran = self.turn();
            self.end_launches();
            self.round += 1;
            if ran {
                busy += 1;
                pause = SHORTEST;
                if self.round.is_multiple_of(LOOK) {
                    self.wake_all();
                }
                continue;
            }
            // Everybody waits: for the host, for another process, or in vain.
            let computed = core::mem::take(&mut busy) > COMPUTING && !self.settings.alone;
            quiet.look(self.time, [self.watches.writes, self.launches, self.ended], computed);
            if self.time - quiet.time > self.settings.patience.as_nanos() as u64 {
                self.end_deadlock();
                continue;
            }
            if !self.follow() {
                return;
            }
            if self.replay.is_some() {
                self.wait_as_recorded();
                continue;
            }
            if self.settings.leap.is_some_and(|leap| leap <= quiet.since.elapsed()) {
                self.note(|| Event::Leap);
                self.time += LEAP;
                self.wake_all();
                continue;
            }
            if looks > 0 {
                looks -= 1;
                self.note(|| Event::Idle(0));
                self.wake_all();
                continue;
            }
            let start = Instant::now();
            looks = if quiet.since.elapsed() > LONGEST { LOOKS } else { 0 };
            match self.inbox.recv_timeout(pause) {
                Ok(request) => self.take(request),
                Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(LONGEST),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let waited = start.elapsed().as_nanos() as u64;
            self.note(|| Event::Idle(waited));
            self.time += waited;
            self.wake_all();
        }
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(self.round, event());
        }
    }

    /// Begins what a record says that begins now, and waits until that has come. Whether there is anybody left to ask for anything.
    fn follow(&mut self) -> bool {
        while self.replay.is_some() {
            while let Ok(request) = self.inbox.try_recv() {
                self.take_early(request);
            }
            let Some(Recorded { round, event, .. }) = self.replay.as_ref().and_then(Replay::next) else {
                self.replay = None;
                core::mem::take(&mut self.early).into_iter().for_each(|stream| self.begin_noted(stream));
                return true;
            };
            let is_over = self.running.is_empty() && matches!(event, Event::Launch(_)) && *round > self.round;
            if *round < self.round || is_over {
                self.lose_track(&format!("nothing of it until round {}", self.round));
                continue;
            }
            let Event::Launch(launch) = event else { return true };
            if *round > self.round {
                return true;
            }
            if let Some(at) = self.early.iter().position(|stream| stream.launch.described() == *launch) {
                let stream = self.early.remove(at);
                self.replay.iter_mut().for_each(Replay::advance);
                self.begin_noted(stream);
            } else if !self.await_recorded() {
                return false;
            }
        }
        true
    }

    /// Waits for a launch that is due by a record. Whether there is anybody left to ask for anything.
    fn await_recorded(&mut self) -> bool {
        let names = self.early.iter().map(|stream| stream.launch.described());
        let odd = names.into_iter().find(|name| self.replay.as_ref().is_some_and(|replay| !replay.has(name)));
        if let Some(odd) = odd {
            self.lose_track(&odd);
            return true;
        }
        // Where nobody is there who could be told, it may take any time.
        let limit = if self.running.is_empty() && self.early.is_empty() { Duration::MAX } else { COMES };
        match self.inbox.recv_timeout(limit) {
            Ok(request) => self.take_early(request),
            Err(RecvTimeoutError::Timeout) => self.lose_track(&format!("nothing for {} s", COMES.as_secs())),
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Everybody waits: as long as a record says.
    fn wait_as_recorded(&mut self) {
        let next = self.replay.as_ref().and_then(Replay::next).filter(|next| next.round == self.round);
        let time = match next.map(|next| &next.event) {
            Some(&Event::Idle(time)) => {
                // The host has as long for what it does meanwhile.
                thread::sleep(Duration::from_nanos(time));
                time
            }
            Some(Event::Leap) => LEAP,
            Some(Event::Launch(_)) | None => {
                return self.lose_track(&format!("a wait of all in round {}", self.round));
            }
        };
        self.replay.iter_mut().for_each(Replay::advance);
        self.time += time;
        self.wake_all();
    }

    fn take_early(&mut self, request: Request) {
        match request {
            Request::Launches(streams) => self.early.extend(streams),
            Request::Withdraw(process) => {
                self.early.retain(|stream| stream.launch.space.process != process);
                self.take(Request::Withdraw(process));
            }
        }
    }

    /// The run is another one than was recorded: all that runs and waits ends, and what comes later begins as it comes.
    fn lose_track(&mut self, came: &str) {
        let replay = self.replay.take();
        let Some(next) = replay.as_ref().and_then(Replay::next) else { return };
        let cause = Cause::Unrecorded { line: next.line, recorded: next.to_string(), came: came.to_owned() };
        for index in (0..self.running.len()).rev() {
            let fault = Fault::of(&self.running[index].launch, cause.clone());
            self.end(index, Err(Box::new(fault)));
        }
        for Stream { launch, done, .. } in core::mem::take(&mut self.early) {
            done(Err(Box::new(Fault::of(&launch, cause.clone()))));
        }
    }

    /// Begins the first launch of a stream that the host asks for.
    fn begin_noted(&mut self, stream: Stream) {
        self.note(|| Event::Launch(stream.launch.described()));
        self.begin(stream, None);
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Launches(streams) => streams.into_iter().for_each(|stream| self.begin_noted(stream)),
            Request::Withdraw(process) => {
                for index in (0..self.running.len()).rev() {
                    let launch = &self.running[index].launch;
                    if launch.space.process == process {
                        let fault = Fault::of(launch, Cause::Stopped);
                        self.end(index, Err(Box::new(fault)));
                    }
                }
            }
        }
    }

    /// Begins a launch, the next one of its stream where there is something that the one before hands on.
    fn begin(&mut self, Stream { number: stream, launch, then, done }: Stream, before: Option<Arc<Knowledge>>) {
        let Some(entry) = launch.program.entry(&launch.kernel) else {
            // The driver asks for kernels by the names that the module has.
            done(Err(Box::new(Fault::of(&launch, Cause::NoFunction { at: 0 }))));
            return;
        };
        let (shared_places, shared) = launch.program.layout(entry);
        let params = Segment::zeroed(launch.params.len().max(1) as u64);
        params.write(0, &launch.params);
        self.launches += 1;
        if let Some(order) = &mut self.order {
            order.launch(self.launches, stream, before);
        }
        self.running.push(Running {
            number: self.launches,
            stream,
            entry,
            shared_places,
            shared_bytes: shared + u64::from(launch.shared),
            params,
            then,
            blocks: Vec::new(),
            next: 0,
            executed: 0,
            total: launch.blocks.iter().map(|&part| u64::from(part)).product(),
            launch,
            done,
        });
    }

    /// Begins blocks where there is room, in the order of launches.
    fn place_blocks(&mut self) {
        for running in &mut self.running {
            let Some(device) = self.devices.get_mut(running.launch.space.device as usize) else { continue };
            let part = running.part(&self.settings);
            while running.next < running.total {
                let sm = device.used.iter().position(|used| used + part <= 1.0 + 1e-9);
                let Some(sm) = sm else { break };
                device.used[sm] += part;
                let Launch { program, blocks, threads, .. } = &running.launch;
                let threads = threads.iter().product();
                let mut block =
                    Block::new(running.next, *blocks, threads, running.shared_bytes, sm as u32, program, running.entry);
                if let Some(order) = &mut self.order {
                    for warp in &mut block.warps {
                        warp.past = order.begin(&Begin {
                            program,
                            kernel: &running.launch.kernel,
                            process: running.launch.space.process,
                            pe: running.launch.pe,
                            device: running.launch.space.device,
                            launch: running.number,
                            block: block.number,
                            index: block.index,
                            warp: warp.index,
                        });
                    }
                }
                running.blocks.push(block);
                running.next += 1;
            }
        }
    }

    /// Ends all launches: each waits, and nobody writes.
    fn end_deadlock(&mut self) {
        let seconds = self.settings.patience.as_secs();
        for index in (0..self.running.len()).rev() {
            let Running { launch, blocks, next, total, .. } = &self.running[index];
            let waiting = |block: &Block| {
                let [x, y, z] = block.index;
                let who = block.waiting(&launch.program);
                who.into_iter().map(move |who| format!("block ({x}, {y}, {z}): {who}"))
            };
            let halted = self.device(launch.space.device).and_then(|device| device.injections.halted());
            let cause = match (halted, total - next) {
                (Some(step), _) => Cause::Halted { step },
                (None, 0) => {
                    let waiting: Vec<_> = blocks.iter().flat_map(waiting).take(LISTED).collect();
                    Cause::Deadlock { seconds, waiting: waiting.join("; ") }
                }
                (None, pending) => Cause::NoRoom { resident: blocks.len() as u32, pending: pending as u32 },
            };
            let fault = Fault::of(launch, cause);
            self.end(index, Err(Box::new(fault)));
        }
    }

    /// Lets every warp that can have its turn; tells whether there was one.
    fn turn(&mut self) -> bool {
        let mut order: VecDeque<(usize, usize, usize)> = VecDeque::new();
        for (launch, running) in self.running.iter().enumerate() {
            if self.device(running.launch.space.device).is_some_and(|device| device.injections.halted().is_some()) {
                continue;
            }
            for (block, own) in running.blocks.iter().enumerate() {
                let ready = own.warps.iter().enumerate().filter(|(_, warp)| warp.is_ready());
                order.extend(ready.map(|(warp, _)| (launch, block, warp)));
            }
        }
        let who = |&(launch, block, warp): &(usize, usize, usize)| {
            let running = &self.running[launch];
            Who { launch: running.number, block: running.blocks[block].number, warp: warp as u32 }
        };
        match self.chance.schedule() {
            Schedule::Exhaustive(_) if !order.is_empty() => {
                let ready: Vec<Who> = order.iter().map(who).collect();
                let is_at_access = |index: usize| {
                    let (launch, block, warp) = order[index];
                    let running = &self.running[launch];
                    running.blocks[block].warps[warp].is_at_access(&running.launch.program)
                };
                let next = self.chance.next(&ready, is_at_access);
                order = [order[next]].into();
            }
            Schedule::Lockstep | Schedule::Exhaustive(_) => {}
            Schedule::Random => {
                for index in 0..order.len() {
                    let other = self.chance.below(order.len());
                    order.swap(index, other);
                }
            }
            Schedule::Priorities => {
                let chance = &mut self.chance;
                if let Some(&first) = order.iter().max_by_key(|&one| chance.priority(who(one))) {
                    chance.may_demote(who(&first));
                    order = [first].into();
                }
            }
            Schedule::Behind(device) => {
                let is_slow =
                    |&(launch, ..): &(usize, usize, usize)| self.running[launch].launch.space.device == device;
                if !order.iter().all(is_slow) {
                    order.retain(|who| !is_slow(who));
                }
            }
        }
        let mut faults = Vec::new();
        let any = !order.is_empty();
        for (launch, block, warp) in order {
            if faults.iter().any(|(failed, _)| *failed == launch) {
                continue;
            }
            let budget = match self.chance.schedule() {
                Schedule::Random | Schedule::Priorities => 1 + self.chance.below(12) as u32,
                Schedule::Exhaustive(_) => 1,
                Schedule::Lockstep | Schedule::Behind(_) => TURN,
            };
            if let Err(fault) = self.run_warp(launch, block, warp, budget) {
                faults.push((launch, fault));
            }
            for who in self.watches.take_woken() {
                self.wake(who);
            }
        }
        faults.sort_by_key(|(launch, _)| *launch);
        let is_over = self.settings.alone && !faults.is_empty();
        for (launch, fault) in faults.into_iter().rev() {
            self.end(launch, Err(fault));
        }
        for launch in (0..self.running.len()).rev().filter(|_| is_over) {
            let stopped = Fault::of(&self.running[launch].launch, Cause::Stopped);
            self.end(launch, Err(Box::new(stopped)));
        }
        any
    }

    fn device(&self, number: u32) -> Option<&Device> {
        self.devices.get(number as usize)
    }

    fn run_warp(&mut self, launch: usize, block: usize, warp: usize, budget: u32) -> Result<(), Box<Fault>> {
        let Running { number, launch, shared_places, params, blocks, executed: total_executed, .. } =
            &mut self.running[launch];
        let injections = self.devices.get_mut(launch.space.device as usize).map(|device| &mut device.injections);
        let flip = injections.as_ref().and_then(|injections| injections.flip());
        let budget = injections.as_ref().map_or(budget, |injections| injections.budget(budget));
        let own = &mut blocks[block];
        let shared = own.shared.clone();
        let mut around = Surroundings {
            program: &launch.program,
            map: launch.space.current(),
            globals: &launch.globals,
            shared: &shared,
            shared_places,
            params,
            dynamic_shared: launch.shared,
            threads: launch.threads,
            block: own.index,
            blocks: launch.blocks,
            grid: *number,
            sm: own.sm,
            sms: self.settings.multiprocessors,
            time: self.time,
            round: self.round,
            who: Who { launch: *number, block: own.number, warp: 0 },
            watches: &mut self.watches,
            chance: &mut self.chance,
            arrivals: Vec::new(),
            flip,
            sums: self.settings.sums,
            order: self.order.as_mut(),
        };
        let outcome = own.run(warp, &mut around, budget);
        let has_flipped = flip.is_some() && around.flip.is_none();
        let stop = match outcome {
            Ok(executed) => {
                self.executed.fetch_add(executed, Ordering::Relaxed);
                let instructions = executed.div_ceil(LANES as u64);
                injections.into_iter().for_each(|injections| injections.passed(instructions, has_flipped));
                self.time += instructions;
                *total_executed += instructions;
                if let Some(cause) = own.stood_still(&launch.program) {
                    return Err(Box::new(Fault { block: own.index, ..Fault::of(launch, cause) }));
                }
                // Whoever goes on shows where, most likely in what does not end.
                let warp = &own.warps[warp];
                let goes_on = warp.groups.first().filter(|_| *total_executed > self.settings.budget);
                let Some(group) = goes_on else { return Ok(()) };
                let (code, at) = warp.place(group);
                Stop { cause: Cause::Endless { instructions: *total_executed }, code, at, lanes: group.lanes }
            }
            Err(stop) => stop,
        };
        let Stop { cause, code, at, lanes } = stop;
        let code = &launch.program.codes[code];
        let (line, instruction, source) = launch.program.place(&code.instructions[at]);
        Err(Box::new(Fault {
            function: code.name.clone(),
            line,
            instruction,
            source,
            block: own.index,
            warp: own.warps[warp].index,
            lanes,
            ..Fault::of(launch, cause)
        }))
    }

    fn wake(&mut self, who: Who) {
        let is_late = |device: u32| self.devices.get(device as usize).is_some_and(|device| device.injections.is_late);
        let running = self.running.iter_mut().find(|running| running.number == who.launch);
        let running = running.filter(|running| !is_late(running.launch.space.device));
        let block = running.and_then(|running| running.blocks.iter_mut().find(|block| block.number == who.block));
        if let Some(warp) = block.and_then(|block| block.warps.get_mut(who.warp as usize)) {
            warp.wake();
        }
    }

    fn wake_all(&mut self) {
        self.watches.clear();
        let blocks = self.running.iter_mut().flat_map(|running| &mut running.blocks);
        blocks.flat_map(|block| &mut block.warps).for_each(|warp| {
            warp.wake();
        });
    }

    /// Takes away blocks that have ended, and launches without any left.
    fn end_launches(&mut self) {
        for index in (0..self.running.len()).rev() {
            let running = &mut self.running[index];
            let (part, number) = (running.part(&self.settings), running.number);
            let device = self.devices.get_mut(running.launch.space.device as usize);
            let used = device.map(|device| &mut device.used);
            let (order, ended) = (&mut self.order, &mut self.ended);
            if let Some(used) = used {
                running.blocks.retain(|block| {
                    let goes_on = !block.has_ended();
                    if !goes_on {
                        *ended += 1;
                        if let Some(order) = order {
                            order.forget(&block.shared);
                            block.warps.iter().flat_map(|warp| &warp.past).for_each(|past| order.leave(number, past));
                        }
                        used[block.sm as usize] -= part;
                    }
                    goes_on
                });
            }
            if running.blocks.is_empty() && running.next == running.total {
                self.end(index, Ok(()));
            }
        }
    }

    fn end(&mut self, index: usize, outcome: Result<(), Box<Fault>>) {
        let running = self.running.remove(index);
        let known = self.order.as_mut().and_then(|order| order.end(running.number));
        self.chance.forget(running.number);
        let part = running.part(&self.settings);
        if let Some(device) = self.devices.get_mut(running.launch.space.device as usize) {
            running.blocks.iter().for_each(|block| device.used[block.sm as usize] -= part);
        }
        let Running { stream: number, mut then, done, .. } = running;
        match then.pop_front().filter(|_| outcome.is_ok()) {
            Some(launch) => self.begin(Stream { number, launch, then, done }, known),
            None => done(outcome),
        }
    }
}

/// Since when nothing has happened, by a clock on the wall and by that of the devices.
struct Quiet {
    since: Instant,
    time: u64,
    last: [u64; 3],
}

impl Quiet {
    fn look(&mut self, time: u64, now: [u64; 3], computed: bool) {
        if now != self.last || computed {
            *self = Self { since: Instant::now(), time, last: now };
        }
    }
}

impl Running {
    /// The part of a multiprocessor that a block takes.
    fn part(&self, settings: &Settings) -> f64 {
        let threads = self.launch.threads.iter().product();
        let fit = settings.multiprocessor.room(threads, self.launch.registers, self.shared_bytes);
        1.0 / f64::from(fit.max(1))
    }
}
