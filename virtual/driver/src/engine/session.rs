//! An engine as its processes have it: what they share, and what each has for itself.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use congruent_virtual_gpu::{
    self as gpu, Backing, Cause, Machine, Member, Multicast, Multiprocessor, Program, Segment, Settings, Space, Window,
};
use cudarc::driver::sys::CUresult;

use super::{Answer, Done, Kernel, Object, Part, Request};
use crate::config::Config;
use crate::device::SHARED_RESERVED;
use crate::errors::Outcome;
use crate::image::{self, Refusal};
use crate::monitor::lock;
use crate::pages::{self, Access, Identity, Pages};
use crate::recording;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// An engine, and what its processes share.
pub(crate) struct Job {
    config: &'static Config,
    machine: Arc<Machine>,
    /// How many there were.
    processes: Mutex<u64>,
    memories: Known<Segment>,
    multicasts: Known<Multicast>,
}

/// Files that are known, and what they are for the engine. The same file is the same thing, from whichever process it comes.
struct Known<T>(Mutex<HashMap<Identity, Weak<T>>>);

impl<T> Known<T> {
    fn find(&self, file: BorrowedFd<'_>, make: impl FnOnce() -> Outcome<Arc<T>>) -> Outcome<Arc<T>> {
        let mut known = lock(&self.0);
        let identity = pages::identity(file)?;
        if let Some(found) = known.get(&identity).and_then(Weak::upgrade) {
            return Ok(found);
        }
        // What is made keeps the file, so that its identity stays its own.
        let made = make()?;
        known.retain(|_, known| known.strong_count() > 0);
        known.insert(identity, Arc::downgrade(&made));
        Ok(made)
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl Job {
    /// Starts an engine.
    ///
    /// # Errors
    /// As [`Machine::new`]
    pub(crate) fn new(config: &'static Config) -> io::Result<Arc<Self>> {
        let settings = Settings {
            devices: config.devices,
            multiprocessors: config.sms,
            multiprocessor: Multiprocessor { shared: config.shared + SHARED_RESERVED, ..Multiprocessor::default() },
            schedule: config.schedule,
            seed: config.seed,
            races: config.races,
            weak: config.weak,
            patience: Duration::from_secs(config.patience.into()),
            budget: config.budget.unwrap_or(u64::MAX),
            leap: config.leap.map(|leap| Duration::from_millis(leap.into())),
            injections: config.injections.clone(),
            record: config.record.clone(),
            replay: config.replay.clone(),
            profile: config.profile.clone(),
            ..Settings::default()
        };
        let machine = Machine::new(settings)?;
        let (processes, memories, multicasts) = Default::default();
        Ok(Arc::new(Self { config, machine, processes, memories, multicasts }))
    }

    /// What one more process has.
    pub(crate) fn join(self: &Arc<Self>) -> Session {
        let process = {
            let mut processes = lock(&self.processes);
            *processes += 1;
            *processes
        };
        let spaces = (0..self.config.devices).map(|device| Space::of(process, device)).collect();
        let (modules, ranges, bound) = Default::default();
        Session { job: self.clone(), process, spaces, modules, ranges, bound }
    }

    fn memory(&self, file: BorrowedFd<'_>) -> Outcome<Arc<Segment>> {
        self.memories.find(file, || Ok(Pages::whole(file)?.segment()))
    }

    fn multicast(&self, file: BorrowedFd<'_>, devices: u32) -> Outcome<Arc<Multicast>> {
        self.multicasts.find(file, || {
            let kept = file.try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
            Ok(Multicast::new(devices as usize, kept))
        })
    }
}

/// One process of an engine. What it has ends with it.
pub(crate) struct Session {
    job: Arc<Job>,
    process: u64,
    /// The devices, as this process sees them.
    spaces: Vec<Arc<Space>>,
    modules: Mutex<BTreeMap<u64, Module>>,
    /// What is mapped, by first address.
    ranges: Mutex<BTreeMap<u64, (u64, Backing)>>,
    /// Multicast objects that have memory of this process.
    bound: Mutex<Vec<Arc<Multicast>>>,
}

struct Module {
    program: Arc<Program>,
    globals: Arc<[u64]>,
}

impl Session {
    /// How many instructions the lanes of the engine have executed.
    pub(crate) fn executed(&self) -> u64 {
        self.job.machine.executed()
    }

    /// Does what is asked, and calls `done` when that is done: at once, but for launches. Then it is called on the engine's own
    /// thread, and must not wait; or dropped, if the engine is gone.
    pub(crate) fn serve(&self, request: Request, files: &[BorrowedFd<'_>], done: Done) {
        let outcome = match request {
            Request::Launch(kernel) => match self.prepared(kernel) {
                Ok(launch) => {
                    recording::keep(&launch);
                    return self
                        .job
                        .machine
                        .submit(launch, move |outcome| done(outcome.map(|()| None).map_err(|fault| refusal(&fault))));
                }
                Err(code) => Err(code.into()),
            },
            Request::Outline { text } => image::program(&text, self.job.config).map(|program| Some(program.outline())),
            Request::Load { module, text, globals } => self.load(module, &text, globals),
            other => self.change(other, files).map(|()| None).map_err(Refusal::from),
        };
        done(outcome);
    }

    /// The devices, as the process sees them.
    pub(crate) fn spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.clone()
    }

    fn load(&self, module: u64, text: &str, globals: Vec<u64>) -> Answer {
        let program = image::program(text, self.job.config)?;
        lock(&self.modules).insert(module, Module { program, globals: globals.into() });
        Ok(None)
    }

    fn prepared(&self, kernel: Kernel) -> Outcome<gpu::Launch> {
        let Kernel { module, name, pe, device, blocks, threads, shared, registers, params } = kernel;
        let modules = lock(&self.modules);
        let Module { program, globals } = modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(gpu::Launch {
            program: program.clone(),
            globals: globals.clone(),
            kernel: name,
            space: self.spaces.get(device as usize).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?.clone(),
            pe,
            blocks,
            threads,
            shared,
            registers,
            params,
        })
    }

    fn change(&self, request: Request, files: &[BorrowedFd<'_>]) -> Outcome {
        match (request, files) {
            (Request::Map { at, bytes, object }, &[file]) => self.map(at, bytes, object, file),
            (Request::Allow { at, access }, _) => self.allow(at, &access),
            (Request::Written { at, bytes }, _) => {
                self.written(at, bytes);
                Ok(())
            }
            (Request::Unmap { at, bytes }, _) => {
                let end = at.saturating_add(bytes);
                lock(&self.ranges).retain(|start, _| !(at..end).contains(start));
                self.spaces.iter().for_each(|space| space.unmap(at, bytes));
                Ok(())
            }
            (Request::Bind { devices, part, from }, &[object, memory]) => {
                self.bind(devices, part, from, object, memory)
            }
            (Request::Unbind { devices, part }, &[object]) => {
                let Part { device, at, bytes } = part;
                let object = self.job.multicast(object, devices)?;
                object.unbind(|member| {
                    (member.process, member.device) == (self.process, device)
                        && at <= member.at
                        && member.at + member.bytes <= at.saturating_add(bytes)
                });
                Ok(())
            }
            (Request::Alive, _) => Ok(()),
            (Request::Unload { module }, _) => {
                lock(&self.modules).remove(&module);
                Ok(())
            }
            _ => Err(INVALID),
        }
    }

    fn map(&self, at: u64, bytes: u64, object: Object, file: BorrowedFd<'_>) -> Outcome {
        let backing = match object {
            Object::Memory => Backing::Memory(self.job.memory(file)?, 0),
            Object::Unwritten => {
                let memory = self.job.memory(file)?;
                memory.begin_unwritten();
                Backing::Memory(memory, 0)
            }
            Object::Multicast { devices } => Backing::Multicast(self.job.multicast(file, devices)?),
        };
        if matches!(&backing, Backing::Memory(memory, _) if memory.bytes() < bytes) || at.checked_add(bytes).is_none() {
            return Err(INVALID);
        }
        lock(&self.ranges).insert(at, (bytes, backing));
        Ok(())
    }

    fn written(&self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        for (&start, (bytes, backing)) in lock(&self.ranges).range(..end).rev() {
            let (from, to) = (at.max(start), end.min(start + bytes));
            if from >= to {
                // What lies further ahead does not reach it either.
                break;
            }
            if let Backing::Memory(memory, offset) = backing {
                memory.host_wrote(offset + (from - start), to - from);
            }
        }
    }

    fn allow(&self, at: u64, access: &[(u32, Access)]) -> Outcome {
        let ranges = lock(&self.ranges);
        let (bytes, backing) = ranges.get(&at).ok_or(INVALID)?;
        for (device, space) in (0..).zip(&self.spaces) {
            let allowed = access.iter().find(|(of, _)| *of == device).map_or(Access::None, |&(_, access)| access);
            let access = match allowed {
                Access::None => {
                    space.unmap(at, *bytes);
                    continue;
                }
                Access::Read => gpu::Access::Read,
                Access::ReadWrite => gpu::Access::ReadWrite,
            };
            space.map(Window { at, bytes: *bytes, backing: backing.clone(), access });
        }
        Ok(())
    }

    fn bind(&self, devices: u32, part: Part, from: u64, object: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> Outcome {
        let Part { device, at, bytes } = part;
        let (object, memory) = (self.job.multicast(object, devices)?, self.job.memory(memory)?);
        if from.checked_add(bytes).is_none_or(|end| end > memory.bytes()) || at.checked_add(bytes).is_none() {
            return Err(INVALID);
        }
        object.bind(Member { process: self.process, device, at, bytes, memory, from });
        let mut bound = lock(&self.bound);
        if !bound.iter().any(|known| Arc::ptr_eq(known, &object)) {
            bound.push(object);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.job.machine.withdraw(self.process);
        for object in &*lock(&self.bound) {
            object.unbind(|member| member.process == self.process);
        }
    }
}

/// What a launch's process is told of its fault.
fn refusal(fault: &gpu::Fault) -> Refusal {
    Refusal { code: code(&fault.cause), log: fault.to_string() }
}

/// What the driver says of a cause (CUDA driver API, `CUresult`).
fn code(cause: &Cause) -> CUresult {
    match cause {
        Cause::Unmapped { .. }
        | Cause::NoAccess { .. }
        | Cause::Shared { .. }
        | Cause::Local { .. }
        | Cause::Param { .. }
        | Cause::PlainMulticast { .. }
        | Cause::NoMulticast { .. }
        | Cause::Unbound { .. } => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        Cause::Misaligned { .. } => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        Cause::NoTarget { .. } | Cause::NoFunction { .. } => CUresult::CUDA_ERROR_INVALID_PC,
        Cause::StackOverflow { .. } => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Cause::StoodStill { .. }
        | Cause::NoRoom { .. }
        | Cause::Deadlock { .. }
        | Cause::Halted { .. }
        | Cause::Endless { .. } => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        _ => CUresult::CUDA_ERROR_LAUNCH_FAILED,
    }
}
