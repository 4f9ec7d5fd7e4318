//! What a world's parts share: the machine with its memory, and the first failure.
#![allow(clippy::disallowed_types, reason = "sets the abort word that kernels poll, and numbers worlds")]

use std::cell::Cell;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use congruent_collectives::{Operation, PlanWord};
use congruent_device::abi::{self, Cause};
use congruent_heap::Retired;

use crate::bootstrap::{Control, ControlError, Notice};
use crate::cpu::{BlockEnd, CpuStream, Underway};
use crate::cuda::{CudaError, CudaEvent, StreamState};
use crate::fault::{Fault, WorldFailure};
use crate::launches::{Launched, Launches};
use crate::lines::Lines;
use crate::machine::Machine;
use crate::objects::{Objects, Use};
use crate::proxy::{OldestPeer, ProxyFailure};
use crate::shared_memory::ReserveError;
use crate::{AllocError, CollectiveError, GrowError};

/// Lives until the world, its objects and its launches are gone, so that no kernel meets a hole in memory.
pub(crate) struct Shared {
    id: u64,
    control: Control,
    context: abi::Context,
    /// Bytes of one PE's heap, which grows.
    heap_bytes: AtomicU64,
    machine: Machine,
    failure: Mutex<Option<WorldFailure>>,
    failed_at: OnceLock<Instant>,
    retired: Mutex<Retired>,
    launches: Launches,
    objects: Objects,
    lines: Lines,
    /// Whom the proxy waits for.
    oldest: OldestPeer,
    in_flight: Mutex<u64>,
    landed: Condvar,
}

/// How long kernels that wait may take to say what for, once the world has failed.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long kernels may go on after the world has failed.
const GRACE: Duration = Duration::from_secs(5);
/// How often who waits for the last launches looks whether the world has failed.
const LOOK: Duration = Duration::from_millis(50);

/// How long who waits for an event of a GPU's stream pauses.
const POLL: Duration = Duration::from_micros(20);

/// A launch in flight; the world waits for it before it leaves.
pub(crate) struct Running(Arc<Shared>);

impl Shared {
    pub(crate) fn new(control: Control, context: abi::Context, machine: Machine) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            control,
            context,
            heap_bytes: AtomicU64::new(context.heap_bytes),
            machine,
            failure: Mutex::new(None),
            failed_at: OnceLock::new(),
            retired: Mutex::new(Retired::new()),
            launches: Launches::default(),
            objects: Objects::default(),
            lines: Lines::default(),
            oldest: OldestPeer::default(),
            in_flight: Mutex::new(0),
            landed: Condvar::new(),
        });
        let words = abi::SyncLayout::new(context.npes).words(context.block_slots);
        shared.objects.made::<u64>(context.world_sync, words as usize, Location::caller());
        shared.objects.used(context.world_sync, Use::World);
        let weak = Arc::downgrade(&shared);
        shared.control.watch(move |notice| {
            if let Some(shared) = weak.upgrade() {
                shared.heard(notice);
            }
        });
        shared
    }

    /// Tells worlds of one process apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Collective: every PE's bytes, in PE order.
    pub(crate) fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.control.all_gather(bytes).map_err(|error| self.lost(error))
    }

    /// Why PEs did not come together: the world's failure, where the job has ended. A call that waited may know of that sooner than
    /// who watches for it.
    pub(crate) fn lost(&self, error: ControlError) -> CollectiveError {
        if let ControlError::Ended(notice) = &error {
            self.heard(notice.clone());
        }
        self.check().map_or_else(CollectiveError::World, |()| CollectiveError::Control(error))
    }

    pub(crate) fn pe(&self) -> u32 {
        self.context.pe
    }

    /// What kernels that are launched from now on are given.
    pub(crate) fn context(&self) -> abi::Context {
        abi::Context { heap_bytes: self.heap_bytes.load(Ordering::Acquire), ..self.context }
    }

    /// Collective: every heap has `bytes` from here on, which is more than before. All PEs succeed, or all fail and the heaps are
    /// as they were.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), AllocError> {
        let had = self.heap_bytes.load(Ordering::Acquire);
        self.machine.grow(&self.control, had, bytes).map_err(|error| match error {
            GrowError::Memory(ReserveError::Control(lost)) | GrowError::Cuda(CudaError::Control(lost)) => {
                self.lost(lost).into()
            }
            error => AllocError::Grow { bytes, error },
        })?;
        self.has_grown(bytes);
        Ok(())
    }

    /// Every heap has `bytes` from here on.
    pub(crate) fn has_grown(&self, bytes: u64) {
        self.heap_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn launches(&self) -> &Launches {
        &self.launches
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), WorldFailure> {
        self.kept(self.machine.read(offset, out))
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WorldFailure> {
        self.kept(self.machine.write(offset, bytes))
    }

    /// Zeroes this PE's copy of an object.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) -> Result<(), WorldFailure> {
        self.kept(self.machine.zero(offset, bytes))
    }

    fn kept<R>(&self, outcome: Result<R, CudaError>) -> Result<R, WorldFailure> {
        outcome.map_err(|error| self.machine_failed(&error))
    }

    /// The first failure, where there is one.
    pub(crate) fn check(&self) -> Result<(), WorldFailure> {
        match &*self.failure() {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// The same for what goes on a stream. Of a world that another PE gave up, what a kernel of this one waited for is told, too, which the
    /// kernel says a little after the other's word has come.
    pub(crate) fn check_in_full(&self) -> Result<(), WorldFailure> {
        // Since the world has failed, so that all calls together wait no longer.
        let may_come = || self.failed_at.get().is_some_and(|failed| failed.elapsed() < LAST_WORDS);
        while let Err(WorldFailure::Aborted { waited: None, .. }) = self.check()
            && may_come()
        {
            let count = self.in_flight();
            if *count == 0 {
                break;
            }
            drop(self.landed.wait_timeout(count, Duration::from_millis(1)));
        }
        self.check()
    }

    /// Counts a launch as in flight for as long as what this returns lives.
    pub(crate) fn running(self: &Arc<Self>) -> Running {
        *self.in_flight() += 1;
        Running(Arc::clone(self))
    }

    /// Whether no launch is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        *self.in_flight() == 0 && self.machine.is_idle()
    }

    /// Waits until no launch is in flight.
    pub(crate) fn wait_idle(&self) {
        if let Machine::Cuda(pe) = &self.machine {
            for state in pe.states() {
                self.wait_for_state(&state, state.submitted());
            }
        }
        let mut count = self.in_flight();
        while *count > 0 && self.is_patient() {
            count = self.landed.wait_timeout(count, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes note of how a block of a kernel ended.
    pub(crate) fn block_ended(&self, kernel: &'static str, block: u32, end: BlockEnd) {
        match end {
            BlockEnd::Panicked { thread, message } => {
                let failure = WorldFailure::KernelPanicked { kernel, pe: self.pe(), block, thread, message };
                self.fail(failure, abi::Abort::Fault);
            }
            BlockEnd::StoodStill(lanes) => {
                self.fail(WorldFailure::StoodStill { kernel, pe: self.pe(), block, lanes }, abi::Abort::Fault);
            }
            BlockEnd::Done => self.look_for_fault(),
        }
    }

    /// What becomes of the lines that kernels print.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Takes note of a fault that kernels have left, and prints their lines.
    pub(crate) fn look_for_fault(&self) {
        self.lines.take(self);
        if let Ok(()) | Err(WorldFailure::Aborted { waited: None, .. }) = self.check()
            && let Some(failure) = self.fault()
        {
            self.fail(failure, abi::Abort::Fault);
        }
    }

    /// Looks after what streams of a GPU wait for: a wait that has passed its deadline is a fault, and once the world has failed
    /// they all end.
    pub(crate) fn look_after_waits(&self) {
        let Machine::Cuda(pe) = &self.machine else { return };
        for state in pe.states() {
            let failed = match pe.overdue(&state, self.context.deadline_ns) {
                Ok(overdue) => {
                    if let Some(cause) = overdue {
                        self.fail(WorldFailure::Fault(Fault::new(self.pe(), cause)), abi::Abort::Fault);
                    }
                    self.failed_at.get().map_or(Ok(()), |_| state.release())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                self.machine_failed(&error);
            }
        }
    }

    /// Whether to wait on for kernels. Once the world has failed that is for a while only: a kernel that waits for nothing does not
    /// hear of it.
    pub(crate) fn is_patient(&self) -> bool {
        self.failed_at.get().is_none_or(|failed| failed.elapsed() < GRACE)
    }

    /// Waits until the first `count` launches of a stream of the CPU machine are complete. Of a kernel that takes longer than any
    /// wait of its may, it says so, since it may hang: nothing else would tell.
    pub(crate) fn wait_for_stream(&self, stream: &CpuStream, count: u64) {
        let deadline = Duration::from_nanos(self.context.deadline_ns);
        let mut tell = (0, deadline);
        let waited = stream.wait_for(count, |underway| {
            if let Some(Underway { launch, since }) = underway {
                if tell.0 != launch {
                    tell = (launch, deadline);
                }
                let took = since.elapsed();
                if took >= tell.1 {
                    tell.1 = took * 2;
                    self.tell_of_long(launch, "", took);
                }
            }
            self.is_patient()
        });
        if !waited {
            tracing::error!(pe = self.pe(), "a kernel goes on {GRACE:?} after the world failed; its memory is kept");
        }
    }

    /// Says on the standard error that a launch, or what else it may be, runs for long.
    fn tell_of_long(&self, launch: u32, or_else: &str, took: Duration) {
        let (pe, deadline) = (self.pe(), Duration::from_nanos(self.context.deadline_ns));
        let name = |of: Launched| format!("kernel {}, launched at {},{or_else}", of.kernel, of.by.at);
        let kernel = self.launches.of(launch).map_or_else(|| "a kernel".to_owned(), name);
        // Nobody may be there to read it.
        let _written = writeln!(
            io::stderr(),
            "congruent: PE {pe}: {kernel} has run for {took:.1?}, longer than the deadline of {deadline:?} for one wait. It may compute, \
             or wait many times; if a loop of its own waits, call ctx.pause() in it, which heeds the deadline"
        );
    }

    /// Waits until the first `count` launches of a stream are complete, and takes note of how they ended. Where they take longer than
    /// any wait of theirs may, it names the first that may still run: a stream does not tell how far it is.
    pub(crate) fn wait_for_state(&self, state: &StreamState, count: u64) {
        let (began, tell) = (Instant::now(), Cell::new(Duration::from_nanos(self.context.deadline_ns)));
        let patient = || {
            self.look_for_fault();
            let took = began.elapsed();
            if took >= tell.get() {
                tell.set(took * 2);
                self.tell_of_long(state.first().unwrap_or(0), " or what came after it on its stream,", took);
            }
            self.is_patient()
        };
        match state.wait_for(count, patient) {
            Ok(true) => self.look_for_fault(),
            Ok(false) => {
                tracing::error!(
                    pe = self.pe(),
                    "a kernel goes on {GRACE:?} after the world failed; its memory is kept"
                );
                if let Machine::Cuda(pe) = &self.machine {
                    pe.abandon();
                }
            }
            Err(error) => {
                self.machine_failed(&error);
            }
        }
    }

    /// Waits until an event of a GPU's stream is complete, or the world has failed and it does not come.
    pub(crate) fn wait_for_event(&self, event: &CudaEvent) {
        loop {
            match event.is_complete() {
                Ok(true) => break,
                Ok(false) => self.look_for_fault(),
                Err(error) => {
                    self.machine_failed(&error);
                    return;
                }
            }
            if !self.is_patient() {
                return;
            }
            std::thread::sleep(POLL);
        }
        self.look_for_fault();
    }

    /// What the machine cannot do ends the world. Gives the first failure, which is the one that is told.
    pub(crate) fn machine_failed(&self, error: &CudaError) -> WorldFailure {
        // A kernel that left a fault ends in order; a trap leaves both, and its record says more.
        self.look_for_fault();
        let failure = WorldFailure::Device { pe: self.pe(), message: error.to_string() };
        self.fail(failure.clone(), abi::Abort::Fault);
        self.check().err().unwrap_or(failure)
    }

    /// Whom the proxy waits for.
    pub(crate) fn oldest_peer(&self) -> &OldestPeer {
        &self.oldest
    }

    /// Takes note of what the proxy cannot go on with.
    pub(crate) fn proxy_failed(&self, failure: &ProxyFailure) {
        match failure {
            ProxyFailure::Transport(error) => {
                let failure = WorldFailure::PeerFailed { pe: error.peer().raw(), evidence: error.to_string() };
                self.fail(failure, abi::Abort::Peer);
            }
            &ProxyFailure::Lost { ring, request } => {
                self.fail(WorldFailure::RequestLost { pe: self.pe(), ring, request }, abi::Abort::Fault);
            }
        }
    }

    /// This PE gives up, for a reason of the program's own.
    pub(crate) fn give_up(&self, reason: &str) {
        self.control.abort(reason.as_bytes());
    }

    /// The same, and its own kernels end and its own calls fail, too.
    pub(crate) fn abort(&self, reason: &str) {
        let failure = WorldFailure::Aborted { by: self.pe(), reason: reason.to_owned(), waited: None };
        if self.keep_first(failure, abi::Abort::Peer) {
            self.give_up(reason);
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<WorldFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, u64> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, notice: Notice) {
        let failure = match notice {
            Notice::Aborted { by, .. } if by == self.pe() => return,
            Notice::Aborted { by, reason } => {
                let reason = String::from_utf8_lossy(&reason).into_owned();
                WorldFailure::Aborted { by, reason, waited: None }
            }
            Notice::PeerFailed { pe, evidence } => WorldFailure::PeerFailed { pe, evidence },
        };
        self.keep_first(failure, abi::Abort::Peer);
    }

    /// Keeps the failure if it is the first, ends this PE's waits, and tells the other PEs. Of a world that another PE gave up, it
    /// keeps what this one waited for then.
    fn fail(&self, failure: WorldFailure, abort: abi::Abort) {
        let reason = failure.to_string();
        if self.keep_first(failure, abort) {
            self.control.abort(reason.as_bytes());
        }
    }

    fn keep_first(&self, failure: WorldFailure, abort: abi::Abort) -> bool {
        let mut first = self.failure();
        let is_first = first.is_none();
        match (&mut *first, failure) {
            (None, failure) => {
                tracing::error!(pe = self.pe(), "{failure}");
                *first = Some(failure);
                self.failed_at.get_or_init(Instant::now);
            }
            (Some(WorldFailure::Aborted { waited, .. }), WorldFailure::Fault(fault)) => {
                waited.get_or_insert_with(|| Box::new(fault));
            }
            _ => {}
        }
        // SAFETY: the word is in the control block, aligned, and only accessed atomically.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.machine.control()).abort) };
        // Kernels that see it end; the failure was stored before, under the lock that `check` takes.
        let _first_reason_stays = word.compare_exchange(0, abort as u32, Ordering::Release, Ordering::Relaxed);
        is_first
    }

    /// The fault that the device left, once it is complete.
    fn fault(&self) -> Option<WorldFailure> {
        let block = self.machine.control();
        // SAFETY: the word is in the control block, aligned, and only accessed atomically.
        let state = unsafe { AtomicU32::from_ptr(&raw mut (*block).fault_state) };
        if state.load(Ordering::Acquire) != abi::FaultState::Complete as u32 {
            return None;
        }
        // SAFETY: its one writer is done with the record, and the acquire load means that we see all of it.
        let record = unsafe { &(*block).fault };
        let launched = self.launches.of(record.launch);
        let cause = match record.cause()? {
            // Of all peers, the one that the proxy waits for.
            Cause::Proxy { peer: abi::NO_PE, expected, seen, waited_ns } => {
                Cause::Proxy { peer: self.oldest.peer(), expected, seen, waited_ns }
            }
            cause => cause,
        };
        let fault = || Fault::new(self.pe(), cause).of(record, launched);
        Some(match cause {
            Cause::Panicked => WorldFailure::panicked(self.pe(), record, launched),
            Cause::Timeout { .. } => WorldFailure::Fault(self.waiting_for(fault())),
            _ => WorldFailure::Fault(fault()),
        })
    }

    /// The fault of a wait, with what it waited for.
    fn waiting_for(&self, fault: Fault) -> Fault {
        let Some(word) = self.objects.word(fault.offset) else { return fault };
        let read = |pe, offset| {
            let mut bytes = [0; 8];
            self.machine.peek(pe, offset, &mut bytes).then(|| u64::from_ne_bytes(bytes))
        };
        let operation = |pe| {
            let heads = word.of_plan.iter().flat_map(PlanWord::heads);
            heads.filter_map(|head| Operation::under_way(read(pe, head)?)).next()
        };
        Fault {
            object: Some(word.text.clone()),
            chunk: word.of_plan.and_then(|word| word.chunk(fault.expected, |offset| read(fault.pe, offset))),
            operation: operation(fault.pe),
            peer_operation: fault.peer.and_then(operation),
            ..fault
        }
    }
}

impl Running {
    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.in_flight() -= 1;
        self.0.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::builder::{Emulation, build};
    use crate::cuda::Contexts;
    use crate::{Error, Tunables, World, bootstrap};

    type Call = fn(&mut World) -> Result<(), Error>;

    /// What PE 0 of two is told by a call that PE 1 ends while it waits, before PE 0's world has heard of it.
    fn cut_off(call: Call) -> Error {
        let [mine, other] = <[Control; 2]>::try_from(bootstrap::local(2).unwrap()).unwrap_or_else(|_| unreachable!());
        mine.watch(|_| thread::sleep(Duration::from_secs(1)));
        let world = |control| build(control, Tunables::default(), &Contexts::default(), Emulation::default()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let world = world(other);
                thread::sleep(Duration::from_millis(50));
                world.shared().give_up("no reason");
            });
            call(&mut world(mine)).unwrap_err()
        })
    }

    #[test]
    fn a_call_that_the_end_of_the_job_cuts_off_tells_the_worlds_failure() {
        let calls: [Call; 4] = [
            |world| Ok(world.barrier()?),
            |world| world.alloc::<u8>(8).map(drop).map_err(Error::from),
            |world| world.comm(world.team()).map(drop).map_err(Error::from),
            // The gather itself, as where the calls have been compared.
            |world| world.shared().all_gather(&[]).map(drop).map_err(Error::from),
        ];
        for call in calls {
            let told = cut_off(call);
            let ended = WorldFailure::Aborted { by: 1, reason: "no reason".to_owned(), waited: None };
            assert_eq!(told.world_failure(), Some(&ended), "{told}");
        }
    }
}
