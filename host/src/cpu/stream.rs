//! A stream of the CPU machine: a thread that does what it is given in order, with a worker for each further block.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, panic};

use super::{BlockEnd, Body, CpuMachine, Site};

/// A launch, ready to run.
pub(crate) struct Launch {
    pub(crate) site: Site,
    pub(crate) body: Arc<Body>,
    /// Called with each block's end, before the launch counts as complete.
    pub(crate) ended: Arc<dyn Fn(u32, BlockEnd) + Send + Sync>,
}

/// What a stream is given.
pub(crate) enum Task {
    Launch(Launch),
    /// To be reached when all that was given before is complete.
    Mark(Arc<Mark>),
    /// What is given later begins when this is reached. Where nobody is patient any more before that, nothing later begins.
    Wait(Arc<Mark>, Arc<dyn Fn() -> bool + Send + Sync>),
}

/// A point that a stream reaches, once.
#[derive(Default)]
pub(crate) struct Mark {
    reached: Mutex<Option<Instant>>,
    now: Condvar,
}

impl Mark {
    /// When it was reached.
    pub(crate) fn when(&self) -> Option<Instant> {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.now.notify_all();
    }

    /// Waits until it is reached, as long as `patient`, which is asked again and again, says. Whether it is.
    pub(crate) fn wait(&self, patient: impl Fn() -> bool) -> bool {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while reached.is_none() && patient() {
            reached = self.now.wait_timeout(reached, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        reached.is_some()
    }
}

/// How often who waits for a stream looks at what runs on it.
const LOOK: Duration = Duration::from_millis(50);

/// A launch that runs: its number, and since when.
#[derive(Clone, Copy)]
pub(crate) struct Underway {
    pub(crate) launch: u32,
    pub(crate) since: Instant,
}

/// Does its tasks one after the other, each asynchronously to the caller. Its user waits for what was launched before it drops it;
/// what nobody has the patience for goes on, on threads of its own.
pub(crate) struct CpuStream {
    tasks: Option<Sender<Task>>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Progress {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    submitted: u64,
    completed: u64,
    underway: Option<Underway>,
}

impl CpuStream {
    /// A stream on its own thread.
    pub(crate) fn new(machine: CpuMachine, name: &str) -> io::Result<Self> {
        let (tasks, queue) = mpsc::channel();
        let progress = Arc::new(Progress::default());
        let seen = Arc::clone(&progress);
        let thread = Builder::new().name(format!("{name}/0")).spawn({
            let name = name.to_owned();
            move || Runner { machine, name, workers: Vec::new() }.serve(&queue, &seen)
        })?;
        Ok(Self { tasks: Some(tasks), progress, thread: Some(thread) })
    }

    /// Adds a task to the end of the stream and returns.
    pub(crate) fn submit(&self, task: Task) {
        self.progress.with(|counts| counts.submitted += 1);
        let gone = self.tasks.as_ref().is_none_or(|tasks| tasks.send(task).is_err());
        if gone {
            // The runner ends only when the sender is dropped, so this is unreachable; count it done rather than hang.
            self.progress.with(|counts| counts.completed += 1);
        }
    }

    /// How many tasks it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.progress.lock().submitted
    }

    /// How many of those are complete.
    pub(crate) fn completed(&self) -> u64 {
        self.progress.lock().completed
    }

    /// Waits until its first `count` tasks are complete, as long as `patient`, which is asked again and again, says of the one
    /// that runs. Whether they are complete.
    pub(crate) fn wait_for(&self, count: u64, mut patient: impl FnMut(Option<Underway>) -> bool) -> bool {
        let mut asked = Instant::now();
        let mut counts = self.progress.lock();
        while counts.completed < count {
            counts = self.progress.changed.wait_timeout(counts, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            // By the clock: others may change the counts all the time.
            if asked.elapsed() >= LOOK && counts.completed < count {
                let underway = counts.underway;
                drop(counts);
                if !patient(underway) {
                    return false;
                }
                asked = Instant::now();
                counts = self.progress.lock();
            }
        }
        true
    }

    /// Whether everything submitted so far is complete.
    pub(crate) fn is_idle(&self) -> bool {
        let counts = self.progress.lock();
        counts.completed == counts.submitted
    }
}

impl Drop for CpuStream {
    fn drop(&mut self) {
        drop(self.tasks.take());
        // What still runs was given up.
        if let Some(thread) = self.thread.take().filter(|_| self.is_idle()) {
            // The runner catches what kernels throw; a join error would mean it broke, and there is nothing left to undo.
            let _ended = thread.join();
        }
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, change: impl FnOnce(&mut Counts) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }
}

struct Runner {
    machine: CpuMachine,
    name: String,
    /// One for each block after the first, kept for the next launch.
    workers: Vec<Worker>,
}

struct Worker {
    blocks: Sender<(Arc<Launch>, u32)>,
    done: Receiver<()>,
}

impl Runner {
    fn serve(mut self, queue: &Receiver<Task>, progress: &Progress) {
        let mut given_up = false;
        for task in queue {
            match task {
                _ if given_up => {}
                Task::Launch(launch) => {
                    let underway = Underway { launch: launch.site.context.launch, since: Instant::now() };
                    progress.lock().underway = Some(underway);
                    self.run(launch);
                }
                Task::Mark(mark) => mark.reach(),
                Task::Wait(mark, patient) => given_up = !mark.wait(&*patient),
            }
            progress.with(|counts| {
                counts.completed += 1;
                counts.underway = None;
            });
        }
    }

    /// Runs a launch to its end.
    fn run(&mut self, launch: Launch) {
        let launch = Arc::new(launch);
        let at_once = launch.site.at_once();
        let missing = self.hire(at_once);
        for (worker, first) in self.workers.iter().zip(1..at_once) {
            let _sent = worker.blocks.send((Arc::clone(&launch), first));
        }
        match missing {
            None => run_blocks(&self.machine, &launch, 0),
            Some(error) => {
                let message = format!("no thread for every block: {error}");
                (launch.ended)(0, BlockEnd::Panicked { thread: 0, message });
            }
        }
        for (worker, _) in self.workers.iter().zip(1..at_once) {
            let _done = worker.done.recv();
        }
    }

    /// Makes sure that each of `blocks` blocks that run at once has a thread.
    fn hire(&mut self, blocks: u32) -> Option<io::Error> {
        for block in self.workers.len() as u32 + 1..blocks {
            let (send_block, blocks) = mpsc::channel::<(Arc<Launch>, u32)>();
            let (send_done, done) = mpsc::channel();
            let machine = self.machine.clone();
            let worker = Builder::new().name(format!("{}/{block}", self.name)).spawn(move || {
                for (launch, first) in blocks {
                    run_blocks(&machine, &launch, first);
                    drop(launch);
                    let _sent = send_done.send(());
                }
            });
            match worker {
                Ok(_detached) => self.workers.push(Worker { blocks: send_block, done }),
                Err(error) => return Some(error),
            }
        }
        None
    }
}

/// Runs a block, and one after the other those that are as many further on as run at once.
fn run_blocks(machine: &CpuMachine, launch: &Launch, first: u32) {
    for block in (first..launch.site.blocks).step_by(launch.site.at_once() as usize) {
        let site = Site { block, ..launch.site };
        let end = panic::catch_unwind(panic::AssertUnwindSafe(|| machine.run(site, &*launch.body)));
        let end = end.unwrap_or_else(|thrown| BlockEnd::Panicked { thread: 0, message: super::message(&*thrown) });
        (launch.ended)(block, end);
    }
}
