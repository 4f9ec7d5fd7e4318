//! The thread that runs launches: which blocks begin, which warp has its turn, and what happens where all wait.
#![allow(clippy::disallowed_types, reason = "counts what is executed")]

mod replay;

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::profile::{Counts, Profile};
use super::{Done, Launch, Request, Settings, Stream};
use crate::block::{Block, Surroundings};
use crate::fault::{Cause, Fault};
use crate::inject::Injections;
use crate::memory::Segment;
use crate::order::{Begin, Knowledge, Order};
use crate::record::{Event, Recorder, Replay};
use crate::schedule::{Chance, Schedule, Trail};
use crate::warp::{LANES, Stop};
use crate::watch::{Watches, Who};

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
    counts: Option<Counts>,
    done: Done,
}

/// How much of a device's multiprocessors is used: parts of each, where a launch that has room for n blocks takes 1/n.
struct Device {
    used: Vec<f64>,
    injections: Injections,
}

pub(super) struct Engine {
    settings: Settings,
    inbox: Receiver<Request>,
    devices: Vec<Device>,
    running: Vec<Running>,
    launches: u64,
    /// How many launches and blocks have ended.
    ended: u64,
    /// Instructions of lanes.
    pub(super) executed: Arc<AtomicU64>,
    watches: Watches,
    order: Option<Order>,
    chance: Chance,
    /// Nanoseconds of the devices' own time: one for each step of a warp, and what passes while nobody runs.
    time: u64,
    round: u64,
    recorder: Option<Recorder>,
    replay: Option<Replay>,
    profile: Option<Profile>,
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

impl Engine {
    pub(super) fn new(settings: Settings, inbox: Receiver<Request>, trail: Arc<Mutex<Trail>>) -> std::io::Result<Self> {
        let machine = settings.described();
        let recorder = settings.record.as_ref().map(|path| Recorder::new(path, &machine)).transpose()?;
        let replay = settings.replay.as_ref().map(|path| Replay::new(path, &machine)).transpose()?;
        let profile = settings.profile.as_deref().map(Profile::new).transpose()?;
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
            profile,
            early: Vec::new(),
        })
    }

    /// Runs until nobody can ask for anything any more.
    pub(super) fn run(mut self) {
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
            counts: self.profile.as_ref().map(|_| Counts::new(&launch.program)),
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
        let Running { number, launch, shared_places, params, blocks, executed: total_executed, counts, .. } =
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
            counts: counts.as_mut(),
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
            let (order, ended, counts) = (&mut self.order, &mut self.ended, &mut running.counts);
            if let Some(used) = used {
                running.blocks.retain(|block| {
                    let goes_on = !block.has_ended();
                    if !goes_on {
                        *ended += 1;
                        if let Some(counts) = counts {
                            let longest = block.warps.iter().map(|warp| warp.issued).max();
                            counts.longest = counts.longest.max(longest.unwrap_or(0));
                        }
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
        let Running { stream: number, launch, mut then, done, counts, .. } = running;
        if let (Some(profile), Some(counts)) = (&mut self.profile, &counts) {
            profile.add(&launch.kernel, &launch.program, counts);
            if self.running.is_empty() && then.is_empty() {
                profile.write();
            }
        }
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
