//! A stream of the CPU machine: a thread that runs launches in order, with a worker for each further block.

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

/// How often who waits for a stream looks at what runs on it.
const LOOK: Duration = Duration::from_millis(50);

/// A launch that runs: its number, and since when.
#[derive(Clone, Copy)]
pub(crate) struct Underway {
    pub(crate) launch: u32,
    pub(crate) since: Instant,
}

/// Runs launches one after the other, each asynchronously to the caller. Its user waits for what was launched before it drops it;
/// what nobody has the patience for goes on, on threads of its own.
pub(crate) struct CpuStream {
    launches: Option<Sender<Launch>>,
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
        let (launches, queue) = mpsc::channel();
        let progress = Arc::new(Progress::default());
        let seen = Arc::clone(&progress);
        let thread = Builder::new().name(format!("{name}/0")).spawn({
            let name = name.to_owned();
            move || Runner { machine, name, workers: Vec::new() }.serve(&queue, &seen)
        })?;
        Ok(Self { launches: Some(launches), progress, thread: Some(thread) })
    }

    /// Adds a launch to the end of the stream and returns.
    pub(crate) fn submit(&self, launch: Launch) {
        self.progress.with(|counts| counts.submitted += 1);
        let gone = self.launches.as_ref().is_none_or(|launches| launches.send(launch).is_err());
        if gone {
            // The runner ends only when the sender is dropped, so this is unreachable; count it done rather than hang.
            self.progress.with(|counts| counts.completed += 1);
        }
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.progress.lock().submitted
    }

    /// Waits until its first `count` launches are complete, as long as `patient`, which is asked again and again, says of the one
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
        drop(self.launches.take());
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
    fn serve(mut self, queue: &Receiver<Launch>, progress: &Progress) {
        for launch in queue {
            let launch = Arc::new(launch);
            let underway = Underway { launch: launch.site.context.launch, since: Instant::now() };
            progress.lock().underway = Some(underway);
            let missing = self.hire(launch.site.blocks);
            for (worker, block) in self.workers.iter().zip(1..launch.site.blocks) {
                let _sent = worker.blocks.send((Arc::clone(&launch), block));
            }
            match missing {
                None => run_block(&self.machine, &launch, 0),
                Some(error) => (launch.ended)(0, BlockEnd::Panicked(format!("no thread for every block: {error}"))),
            }
            for (worker, _) in self.workers.iter().zip(1..launch.site.blocks) {
                let _done = worker.done.recv();
            }
            drop(launch);
            progress.with(|counts| {
                counts.completed += 1;
                counts.underway = None;
            });
        }
    }

    /// Makes sure that each of `blocks` blocks has a thread: they wait for each other, so they must run at once.
    fn hire(&mut self, blocks: u32) -> Option<io::Error> {
        for block in self.workers.len() as u32 + 1..blocks {
            let (send_block, blocks) = mpsc::channel::<(Arc<Launch>, u32)>();
            let (send_done, done) = mpsc::channel();
            let machine = self.machine.clone();
            let worker = Builder::new().name(format!("{}/{block}", self.name)).spawn(move || {
                for (launch, block) in blocks {
                    run_block(&machine, &launch, block);
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

fn run_block(machine: &CpuMachine, launch: &Launch, block: u32) {
    let site = Site { block, ..launch.site };
    let end = panic::catch_unwind(panic::AssertUnwindSafe(|| machine.run(site, &*launch.body)));
    let end = end.unwrap_or_else(|thrown| BlockEnd::Panicked(super::message(&*thrown)));
    (launch.ended)(block, end);
}
