//! The CUDA machine: kernels run on a GPU, from PTX.
//!
//! PEs of one process that share a GPU share its primary context, unless the program gives others, and each has streams of its own.
//! cudarc stays in this folder.

#![allow(clippy::disallowed_types, reason = "a flag between host threads")]

mod access;
mod agree;
mod borrow;
mod calls;
pub(crate) mod connections;
mod control;
mod device;
mod device_memory;
mod driver;
mod error;
mod files;
mod functions;
mod graph;
mod heap;
mod import;
mod lend;
mod memory;
mod module;
pub(crate) mod monitor;
mod multicast;
mod native;
mod objects;
mod parameters;
mod patience;
mod residents;
mod shareable;
mod stream;
mod stream_state;
#[cfg(test)]
mod tests;
mod trace;
mod waits;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use congruent_device::abi;
use cudarc::driver::CudaContext;
pub(crate) use cudarc::driver::{CudaView, CudaViewMut};
pub(crate) use device::Device;
pub use device::Properties;
pub(crate) use device_memory::DeviceMemory;
pub use driver::Driver;
pub use error::{CudaError, CudaVersion};
pub use functions::Functions;
pub(crate) use graph::CudaGraph;
pub(crate) use heap::CudaHeap;
pub use import::ImportError;
pub(crate) use module::Entry;
pub(crate) use objects::Event as CudaEvent;
pub(crate) use stream::CudaRunner;
pub(crate) use stream_state::StreamState;
pub(crate) use waits::AwaitedWord;

use crate::MachineKind;
use crate::bootstrap::Control;
use crate::trace::Recorder;
use crate::tunables::{Key, TextKey, Tunables};
use agree::agree;
use control::ControlBlock;
pub(crate) use control::Pinned;
use heap::Growth;
use module::Modules;
use multicast::{WINDOWS, Windows};
use residents::Residents;
pub(crate) use trace::Trace;

/// The contexts that a program gives, by PE and from the first again.
pub(crate) type Contexts = Arc<[Arc<CudaContext>]>;

/// One PE's GPU, or its share of one.
pub(crate) struct CudaPe {
    pe: u32,
    device: Arc<Device>,
    modules: Arc<Modules>,
    residents: Arc<Residents>,
    /// They reach the heap, so they go before it. Without multicast, why there is none.
    windows: ManuallyDrop<Result<Windows, String>>,
    /// Whether it is an error to have none.
    multicast_forced: bool,
    heap: ManuallyDrop<CudaHeap>,
    control: ManuallyDrop<ControlBlock>,
    /// What kernels and the proxy share.
    rings: ManuallyDrop<OnceLock<Pinned>>,
    /// What buffers of the host's have given back.
    spare: ManuallyDrop<Mutex<Vec<Pinned>>>,
    /// Whether other processes have the device too, each for a slice of time.
    take_turns: bool,
    /// Whether a kernel still runs that nobody waits for any more: its memory must stay.
    abandoned: AtomicBool,
    /// Those that are still there: the world is idle when they all are.
    streams: Mutex<Vec<Weak<StreamState>>>,
    /// Where it tells what its streams do.
    trace: Option<Trace>,
}

impl CudaPe {
    /// Why this process finds no driver with a GPU that the machine can use, or nothing where it does.
    pub(crate) fn lacks_gpu() -> Option<String> {
        let all = match Driver::get().and_then(Properties::all) {
            Ok(all) => all,
            Err(error) => return Some(error.to_string()),
        };
        let mut lacks = "there is no GPU".to_owned();
        for device in &all {
            lacks = format!("{} lacks {}", device.name, device.lacks()?);
        }
        Some(lacks)
    }

    /// Takes this PE's share of a GPU and sets its heap aside.
    ///
    /// # Collective
    /// All PEs succeed, or all fail.
    pub(crate) fn new(
        control: &Control,
        tunables: &Tunables,
        contexts: &Contexts,
        (heap_bytes, heap_max): (u64, u64),
        trace: Option<&Arc<Recorder>>,
    ) -> Result<Self, CudaError> {
        let read = || tunables.text(TextKey::Ptx).map_or(Ok(()), files::read);
        let kind = tunables.text(TextKey::Machine).and_then(MachineKind::parse).unwrap_or_default();
        let own =
            if kind == MachineKind::Virtual && !contexts.is_empty() { Err(CudaError::OtherDriver) } else { read() };
        let driver = agree(control, Driver::of(kind).and_then(|driver| own.map(|()| driver)))?;
        let listed = tunables.text(TextKey::Device).into_iter().flat_map(|all| all.split(','));
        let listed: Vec<u32> = listed.filter_map(|ordinal| ordinal.parse().ok()).collect();
        let theirs = contexts.get(control.pe() as usize % contexts.len().max(1)).cloned();
        let device = Device::choose(driver, control, &listed, theirs)?;
        let wish = tunables.get(Key::NvlsEnable);
        let step = match wish {
            0 => Err("CONGRUENT_NVLS_ENABLE is 0".to_owned()),
            _ if !control.same_host() => Err("the PEs are on several hosts".to_owned()),
            _ if tunables.get(Key::P2pDisable) == 1 => Err("CONGRUENT_P2P_DISABLE is 1".to_owned()),
            _ => multicast::step(&device, control, heap_max)?,
        };
        let step = forced_or(wish == 1, step)?;
        let mut heap = CudaHeap::reserve(&device, control, heap_bytes, heap_max, *step.as_ref().unwrap_or(&1))?;
        let windows = match step {
            Ok(_) => windows_of_world(&device, control, &heap),
            Err(reason) => Ok(Err(reason)),
        };
        let windows = forced_or(wish == 1, windows?)?;
        let block = agree(control, ControlBlock::new(&device))?;
        heap.measure(&device, control)?;
        let (bytes, beyond) = (heap.part_bytes(), heap.bytes_used());
        let multicast = windows.as_ref().err().map_or("yes", String::as_str);
        tracing::info!(pe = control.pe(), bytes, beyond, multicast, "heap on {}", device.properties.name);
        let (name, pes) = (&device.properties.name, device.sharing());
        let take_turns = pes > 1 && !control.in_process() && !device.properties.mps;
        if take_turns {
            tracing::warn!(
                pe = control.pe(),
                "{pes} PEs are processes on {name} and take turns there, so that whatever one waits for of another takes \
                 milliseconds: start MPS by `nvidia-cuda-mps-control -d`, or make them threads of one process"
            );
        }
        let device = Arc::new(device);
        let modules = Arc::new(Modules::new(&device, tunables.get(Key::LazyLoading) == 1));
        // Before any PE launches a kernel that waits.
        agree(control, modules.load_known(windows.is_ok()))?;
        let trace =
            agree(control, trace.map(|recorder| Trace::new(recorder, control.pe(), &device)).transpose())?.flatten();
        Ok(Self {
            take_turns,
            windows: ManuallyDrop::new(windows),
            multicast_forced: wish == 1,
            pe: control.pe(),
            modules,
            residents: Arc::default(),
            device,
            heap: ManuallyDrop::new(heap),
            control: ManuallyDrop::new(block),
            rings: ManuallyDrop::default(),
            spare: ManuallyDrop::default(),
            abandoned: AtomicBool::new(false),
            streams: Mutex::default(),
            trace,
        })
    }

    /// What it is, in a few words.
    pub(crate) fn describe(&self) -> String {
        let (name, pes) = (&self.device.properties.name, self.device.sharing());
        let how = if self.take_turns { " that take turns, as no MPS runs" } else { "" };
        format!("cuda, {name}{}", if pes > 1 { format!(", shared by {pes} PEs{how}") } else { String::new() })
    }

    /// How many PEs the world has, where they are several and all share this GPU.
    pub(crate) fn shared_by_all(&self) -> Option<u32> {
        self.device.shared_by_all()
    }

    /// The device's index in this process.
    pub(crate) fn ordinal(&self) -> u32 {
        self.device.properties.ordinal
    }

    /// Multiprocessors, those of this PE where several share the GPU.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.device.properties.sms / self.device.sharing().max(1)
    }

    pub(crate) fn heap(&self) -> &CudaHeap {
        &self.heap
    }

    /// Collective: every part has `to_bytes` afterwards, and so have all multicast windows. All PEs succeed, or all fail for the
    /// same cause and nothing has changed.
    pub(crate) fn grow(&self, control: &Control, to_bytes: u64) -> Result<(), CudaError> {
        match self.heap.grow(&self.device, control, to_bytes)? {
            Some(growth) => self.take(control, growth),
            None => Ok(()),
        }
    }

    /// Collective: what every part has grown by is bound to all windows, and theirs.
    fn take(&self, control: &Control, growth: Growth) -> Result<(), CudaError> {
        if let Ok(windows) = &*self.windows {
            agree(control, windows.bind(growth.chunk())).inspect_err(|_| windows.unbind(growth.chunk()))?;
        }
        self.heap.commit(growth);
        Ok(())
    }

    /// Where multicast windows begin, and how many there are; 0 without multicast.
    pub(crate) fn windows(&self) -> (u64, u32) {
        self.windows.as_ref().map_or((0, 0), |windows| (windows.base(), WINDOWS))
    }

    /// Why there is no multicast.
    pub(crate) fn lacks_multicast(&self) -> Option<&str> {
        self.windows.as_ref().err().map(String::as_str)
    }

    /// Collective over all PEs: the number of the multicast windows of these teams, which share no PE; 0 where this PE's team, or
    /// the machine, has none. `of` is the heap offset of the teams' words, with which the windows go.
    ///
    /// # Errors
    /// Where `CONGRUENT_NVLS_ENABLE` is 1; the PEs lost each other.
    pub(crate) fn open_window(&self, control: &Control, teams: &[Vec<u32>], of: u64) -> Result<u32, CudaError> {
        let Ok(windows) = &*self.windows else { return Ok(0) };
        let teams: Vec<_> = teams.iter().filter(|team| team.len() > 1).cloned().collect();
        if teams.is_empty() {
            return Ok(0);
        }
        let mine = teams.iter().any(|team| team.contains(&control.pe()));
        match windows.open(&self.device, control, &self.heap, &teams, of) {
            Ok(number) => Ok(if mine { number } else { 0 }),
            Err(error) if self.multicast_forced || matches!(error, CudaError::Control(_)) => Err(error),
            Err(error) => {
                tracing::warn!(pe = self.pe, "a team does without multicast: {error}");
                Ok(0)
            }
        }
    }

    /// The words of teams at this heap offset are gone on all PEs, and so are their windows.
    pub(crate) fn close_window(&self, of: u64) {
        if let Ok(windows) = &*self.windows {
            windows.close(of);
        }
    }

    /// Its control block: host memory that kernels reach at the same address.
    pub(crate) fn control(&self) -> *mut abi::Control {
        self.control.as_ptr()
    }

    /// Where it tells what its streams do.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Zeroed memory of the host that kernels reach at the same address, until the machine is gone: so many lines of 64 bytes. Given
    /// once.
    pub(crate) fn rings(&self, lines: usize) -> Result<*mut u8, CudaError> {
        let pinned = Pinned::new(&self.device, lines * 64)?;
        Ok(self.rings.get_or_init(|| pinned).as_ptr())
    }

    /// Loads the module that has the kernel, with all its kernels.
    pub(crate) fn load(&self, entry: &Entry) -> Result<(), CudaError> {
        self.modules.load(entry)
    }

    /// A new stream.
    pub(crate) fn stream(&self) -> Result<CudaRunner, CudaError> {
        let state = connections::count(&self.device, StreamState::new(&self.device)?)?;
        Ok(self.register(state))
    }

    /// The world waits for the streams that it knows.
    fn register(&self, state: Arc<StreamState>) -> CudaRunner {
        let row = self.trace.as_ref().map(Trace::row);
        let runner = CudaRunner::new(state, &self.device, &self.modules, &self.residents, row);
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(runner.state()));
        runner
    }

    /// Whether no launch of any stream is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.states().iter().all(|state| state.is_idle())
    }

    /// Gives up on kernels that do not end: their memory is kept until the process ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// The streams that are still there.
    pub(crate) fn states(&self) -> Vec<Arc<StreamState>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), CudaError> {
        let from = self.at(offset);
        // SAFETY: the range is on this PE's heap, which is mapped, and as long as `out`, which is borrowed until the copy is done.
        self.device
            .keeper()
            .now(|driver, on| unsafe { driver.memcpy_to_host(out.as_mut_ptr().cast(), from, out.len(), on) })
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let to = self.at(offset);
        // SAFETY: the range is on this PE's heap, which is mapped, and as long as `bytes`, which is borrowed until the copy is done.
        self.device
            .keeper()
            .now(|driver, on| unsafe { driver.memcpy_to_device(to, bytes.as_ptr().cast(), bytes.len(), on) })
    }

    /// Zeroes bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) -> Result<(), CudaError> {
        let at = self.at(offset);
        // SAFETY: the range is on this PE's heap, which is mapped.
        self.device.keeper().now(|driver, on| unsafe { driver.memset(at, 0, bytes, on) })
    }

    fn at(&self, offset: u64) -> u64 {
        self.heap.base() + u64::from(self.pe) * self.heap.stride() + offset
    }
}

/// Collective: multicast windows, with the world's open as number 1; or why there are none.
fn windows_of_world(device: &Device, control: &Control, heap: &CudaHeap) -> Result<Result<Windows, String>, CudaError> {
    let all = [(0..control.npes()).collect()];
    let windows = Windows::reserve(device, control, heap).and_then(|windows| {
        // The heap's header goes with the world, as this window does.
        windows.open(device, control, heap, &all, 0).map(|_first| windows)
    });
    match windows {
        Err(error @ CudaError::Control(_)) => Err(error),
        Err(error) => {
            tracing::warn!(pe = control.pe(), "the world does without multicast: {error}");
            Ok(Err(error.to_string()))
        }
        Ok(windows) => Ok(Ok(windows)),
    }
}

/// Passes on what was found out about multicast, unless there is none and it was asked for.
fn forced_or<T>(forced: bool, found: Result<T, String>) -> Result<Result<T, String>, CudaError> {
    match found {
        Err(reason) if forced => Err(CudaError::NoMulticast { reason }),
        found => Ok(found),
    }
}

impl Drop for CudaPe {
    fn drop(&mut self) {
        if *self.abandoned.get_mut() {
            return;
        }
        // SAFETY: each is dropped here only, and not used after.
        unsafe {
            ManuallyDrop::drop(&mut self.control);
            ManuallyDrop::drop(&mut self.rings);
            ManuallyDrop::drop(&mut self.spare);
            ManuallyDrop::drop(&mut self.windows);
            ManuallyDrop::drop(&mut self.heap);
        }
    }
}
