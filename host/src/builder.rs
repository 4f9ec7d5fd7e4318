//! Building a world.

use std::num::NonZeroU32;
use std::sync::{Arc, Once};
use std::time::Duration;

use congruent_device::{Note, Pe, Signal, abi};
use congruent_heap::Allocator;
use congruent_transports::{Faults, Local, Transport};

use crate::bootstrap::{Bootstrap, Control};
use crate::cpu::{Cores, CpuMachine, CpuPe};
use crate::cuda::{self, Contexts, CudaError, CudaPe};
use crate::machine::{Machine, MachineKind};
use crate::proxy::{Proxy, Sleep};
use crate::rings::{Rings, Shape};
use crate::route::{Routes, TransportKind, patience};
use crate::shared::Shared;
use crate::shared_memory;
use crate::trace::{Recorder, Session};
use crate::tunables::{Key, Source, TextKey, TunableError, Tunables, printer};
use crate::watch::{Hold, Watch};
use crate::{BuildError, FixedKernel, World, select};

/// Describes a world. Made by [`World::builder`].
#[derive(Default)]
pub struct Builder {
    bootstrap: Option<Bootstrap>,
    settings: Vec<(Key, u64)>,
    texts: Vec<(TextKey, String)>,
    pub(crate) algorithms: &'static [FixedKernel],
    pub(crate) contexts: Contexts,
    pub(crate) emulation: Emulation,
}

/// What the CPU machine does for tests that the processor does not have. The same on every PE.
#[derive(Clone, Copy, Default)]
pub(crate) struct Emulation {
    multicast: bool,
    hold: Option<Hold>,
    transport: Option<fn(Local) -> Box<dyn Transport>>,
    faults: Option<Faults>,
    rings: Shape,
}

impl Emulation {
    /// How the network between PEs goes wrong, if it is to.
    pub(crate) fn faults(&self) -> Option<Faults> {
        self.faults
    }

    /// What a test makes of the transport.
    pub(crate) fn transport(&self, local: Local) -> Box<dyn Transport> {
        match self.transport {
            Some(over) => over(local),
            None => Box::new(local),
        }
    }
}

/// The heap is mapped in pages of this size, so that large pages can serve it.
pub(crate) const PAGE: u64 = 2 << 20;

impl Builder {
    /// How to find the other PEs. Without it, the environment tells ([`Bootstrap::from_env`]).
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Self {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Bytes of the symmetric heap of each PE, rounded up to 2 MiB. The same on every PE.
    #[must_use]
    pub fn heap(self, bytes: u64) -> Self {
        self.set(Key::Heap, bytes)
    }

    /// Bytes that the heap of each PE may grow to, rounded up to 2 MiB: an allocation that finds no room makes all heaps larger,
    /// and nothing moves. Without it heaps do not grow. The same on every PE.
    #[must_use]
    pub fn heap_max(self, bytes: u64) -> Self {
        self.set(Key::HeapMax, bytes)
    }

    /// What runs kernels. The same on every PE.
    #[must_use]
    pub fn machine(mut self, kind: MachineKind) -> Self {
        self.texts.push((TextKey::Machine, kind.name().to_owned()));
        self
    }

    /// Runs on the CPU machine, with warps of so many lanes, 1 to 32. The same on every PE.
    #[must_use]
    pub fn width(self, lanes: u32) -> Self {
        self.machine(MachineKind::Cpu).set(Key::CpuWidth, lanes.into())
    }

    /// Runs on these GPUs, of those that this process sees, which PEs take in turn: PE 0 has the first, PE 1 the second, and from the
    /// first again where there are more PEs. A process that has one PE may name its GPU alone.
    ///
    /// On the CPU machine it does nothing.
    #[must_use]
    pub fn devices(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        let listed: Vec<_> = ordinals.into_iter().map(|ordinal| ordinal.to_string()).collect();
        self.texts.push((TextKey::Device, listed.join(",")));
        self
    }

    /// Longest that one wait may take. `Duration::MAX` for no bound.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let milliseconds = if deadline == Duration::MAX { 0 } else { deadline.as_millis().max(1) };
        self.set(Key::DeadlineMs, u64::try_from(milliseconds).unwrap_or(u64::MAX))
    }

    /// Most blocks of one launch. The same on every PE.
    #[must_use]
    pub fn max_blocks(self, blocks: u32) -> Self {
        self.set(Key::MaxBlocks, blocks.into())
    }

    /// Reaches every peer through the proxy instead of by load and store, to test what needs a network otherwise. On every machine,
    /// none of which it chooses. The same on every PE.
    #[must_use]
    pub fn proxied(self, proxied: bool) -> Self {
        self.set(Key::P2pDisable, proxied.into())
    }

    /// Allows the protocol LL128, which needs hardware that stores lines as a whole; a self-test looks whether it does.
    #[must_use]
    pub fn ll128(self, allowed: bool) -> Self {
        self.set(Key::Ll128Enable, allowed.into())
    }

    /// Has the CPU machine, which it chooses as [`watch`](Builder::watch) does, emulate multicast, unless `CONGRUENT_NVLS_ENABLE` is 0 or
    /// peers are reached through the proxy. The same on every PE.
    #[doc(hidden)]
    #[must_use]
    pub fn multicast(mut self, emulated: bool) -> Self {
        self.emulation.multicast = emulated;
        self
    }

    /// Has kernels call this at each note of theirs, so that a test can hold a PE at a point of a protocol.
    #[doc(hidden)]
    #[must_use]
    pub fn hold(mut self, at: fn(Pe, Note)) -> Self {
        self.emulation.hold = Some(at);
        self.watch(true)
    }

    /// Reaches every peer through the proxy, over what this makes of the transport: a late one, in tests.
    #[doc(hidden)]
    #[must_use]
    pub fn proxied_over(mut self, transport: fn(Local) -> Box<dyn Transport>) -> Self {
        self.emulation.transport = Some(transport);
        self.proxied(true)
    }

    /// Reaches every peer through the proxy, over a network that delays, reorders, duplicates, loses and fails by a seed; PEs are
    /// threads of one process. The same on every PE.
    #[doc(hidden)]
    #[must_use]
    pub fn faulty(mut self, faults: Faults) -> Self {
        self.emulation.faults = Some(faults);
        self.proxied(true)
    }

    /// With so many rings of so many requests, both two to this power, between kernels and the proxy: at most 256 of 65,536.
    #[doc(hidden)]
    #[must_use]
    pub fn rings(mut self, log2_rings: u32, log2_slots: u32) -> Self {
        self.emulation.rings = Shape { log2_rings: log2_rings.min(8), log2_slots: log2_slots.min(16) };
        self
    }

    /// Counts the bytes that kernels move from PE to PE, for [`World::traffic`]; kernels get slower. On the CPU machine, which it
    /// chooses where nothing else does, with a warning where there is a GPU. The same on every PE.
    #[must_use]
    pub fn watch(self, watch: bool) -> Self {
        self.set(Key::Watch, watch.into())
    }

    /// Brings algorithms of the program's own, by their kernels: communicators choose among these and the library's, by the same model
    /// and by `CONGRUENT_ALGO`. Their names are none of the library's. The same on every PE. `docs/adding-an-algorithm.md` shows one.
    #[must_use]
    pub fn algorithms(mut self, own: &'static [FixedKernel]) -> Self {
        self.algorithms = own;
        self
    }

    /// Joins the other PEs and maps the heap.
    ///
    /// # Collective
    /// Over the PEs of the job.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(mut self) -> Result<World, BuildError> {
        let tunables = self.tunables()?;
        let bootstrap = match self.bootstrap.take() {
            Some(bootstrap) => bootstrap,
            None => Bootstrap::from_env()?,
        };
        Ok(build(bootstrap.connect()?, tunables, &self.contexts, self.emulation)?.with_algorithms(self.algorithms))
    }

    /// The settings: the environment's, overridden by the program's.
    pub(crate) fn tunables(&self) -> Result<Tunables, TunableError> {
        let mut tunables = Tunables::from_env()?;
        for &(key, value) in &self.settings {
            tunables.set(key, value)?;
        }
        for (key, value) in &self.texts {
            tunables.set_text(*key, value.clone())?;
        }
        tunables.check_algorithms(&select::known(self.algorithms))?;
        printer::start(&tunables);
        Ok(tunables)
    }

    fn set(mut self, key: Key, value: u64) -> Self {
        self.settings.push((key, value));
        self
    }
}

/// Builds a world on a control plane that is up.
pub(crate) fn build(
    control: Control,
    tunables: Tunables,
    contexts: &Contexts,
    emulation: Emulation,
) -> Result<World, BuildError> {
    let windows = if control.same_host() { windows(&tunables, emulation) } else { 0 };
    compare(&control, &tunables, windows)?;
    let routes = Routes::choose(&control, &tunables)?;
    let npes = control.npes();
    let heap_bytes = tunables.get(Key::Heap).next_multiple_of(PAGE);
    let mut allocator = Allocator::new(abi::HEAP_RESERVED, heap_bytes - abi::HEAP_RESERVED);
    let block_slots = tunables.get(Key::MaxBlocks) as u32;
    let sync_words = abi::SyncLayout::new(npes).words(block_slots);
    let world_sync = allocator.alloc(sync_words * size_of::<Signal>() as u64, 128)?;
    let (machine, trace) =
        machine(&control, &tunables, contexts, emulation, heap_bytes).inspect_err(|error| match error {
            // The others told this PE, or miss the same one.
            BuildError::Control(_) | BuildError::Cuda(CudaError::Control(_)) => {}
            // Every PE was told, so this one leaves in order.
            BuildError::Cuda(_) | BuildError::OnlyCpu { .. } => control.depart(),
            // The others are to hear why, and not only that this PE is gone.
            _ => control.abort(error.to_string().as_bytes()),
        })?;
    if matches!(machine, Machine::Cpu(_)) && windows == 0 && tunables.get(Key::NvlsEnable) == 1 {
        // Every PE sees it, as above.
        control.depart();
        return Err(BuildError::NoMulticast);
    }
    let (base, stride) = machine.heaps();
    let (multicast, windows) = machine.windows(windows);
    let context = abi::Context {
        base,
        stride,
        heap_bytes,
        control: machine.control().expose_provenance() as u64,
        routes: 0,
        ring: 0,
        deadline_ns: match tunables.get(Key::DeadlineMs) {
            0 => abi::NO_DEADLINE,
            milliseconds => milliseconds.saturating_mul(1_000_000),
        },
        world_sync,
        pe: control.pe(),
        npes,
        block_slots,
        version: abi::VERSION,
        multicast,
        windows,
        launch: 0,
        rings: 0,
        log2_slots: 0,
    };
    let Some(mut routes) = routes else {
        let shared = Shared::new(control, context, machine);
        cuda::monitor::start(&shared).map_err(BuildError::Monitor)?;
        return Ok(World::new(shared, None, trace, tunables, allocator));
    };
    let memory = machine.rings(Rings::lines(npes, emulation.rings));
    let memory = memory.inspect_err(|error| control.abort(error.to_string().as_bytes()))?;
    // SAFETY: so many lines, asked for once, that go with the machine; and that with `shared`, which the world holds longer than the
    // proxy, and kernels in flight too.
    let rings = unsafe { Rings::new(memory, routes.table(), emulation.rings) };
    let sleep = if matches!(machine, Machine::Cpu(_)) { Sleep::OnWords } else { Sleep::Never };
    let shared = Shared::new(control, rings.context(context), machine);
    cuda::monitor::start(&shared).map_err(BuildError::Monitor)?;
    // What heaps may still grow by is mapped, too, and the transport checks against all of it.
    let context = abi::Context { heap_bytes: stride, ..context };
    let gpu_direct = tunables.get(Key::GdrDisable) == 0;
    let access = shared.machine().heap_access(context, patience(&tunables), gpu_direct).map_err(BuildError::Cuda);
    let transport = access.and_then(|access| {
        // SAFETY: the world holds `shared`, and so the heaps, longer than the proxy.
        unsafe { routes.transport(shared.control(), context, access, &tunables, emulation) }
    });
    let transport = transport.inspect_err(|error| {
        // Where the control plane failed the others know, and why.
        if !matches!(error, BuildError::Control(_)) {
            shared.give_up(&error.to_string());
        }
    })?;
    let weak = Arc::downgrade(&shared);
    let oldest = shared.oldest_peer().clone();
    let proxy = Proxy::start(context, rings, sleep, transport, routes, oldest, move |failure| {
        if let Some(shared) = weak.upgrade() {
            shared.proxy_failed(&failure);
        }
    });
    let proxy = proxy.map_err(BuildError::Proxy)?;
    if let Machine::Cpu(pe) = shared.machine() {
        pe.blocks().have_lanes_serve(proxy.service());
    }
    Ok(World::new(shared, Some(proxy), trace, tunables, allocator))
}

/// What a heap may grow to, in bytes.
pub(crate) fn heap_max(tunables: &Tunables) -> u64 {
    tunables.get(Key::Heap).max(tunables.get(Key::HeapMax)).next_multiple_of(PAGE)
}

/// How many multicast windows the CPU machine has: one, where it emulates multicast.
fn windows(tunables: &Tunables, emulation: Emulation) -> u32 {
    let wanted = tunables.get(Key::NvlsEnable) != 0 && tunables.get(Key::P2pDisable) == 0;
    u32::from(emulation.multicast && wanted)
}

/// What the CPU machine alone has: how the environment asks for it, and how a program does.
const ONLY_CPU: [(&str, &str); 2] =
    [("CONGRUENT_WATCH", "Builder::watch"), ("Builder::multicast", "Builder::multicast")];
/// A PE that asks for none of it says this to the others.
const NOTHING: u8 = u8::MAX;

/// Which of [`ONLY_CPU`] is asked for, and by whom.
fn only_cpu(tunables: &Tunables, emulation: Emulation) -> Option<(usize, Source)> {
    let number = |key| Some(tunables.setting(key)).filter(|setting| setting.value == 1).map(|setting| setting.source);
    let multicast = emulation.multicast.then_some(Source::Program);
    let asked = [number(Key::Watch), multicast];
    asked.into_iter().enumerate().find_map(|(at, source)| Some((at, source?)))
}

/// The name of this entry of [`ONLY_CPU`], for who asked for it.
fn name(at: usize, source: Source) -> &'static str {
    let (variable, call) = ONLY_CPU[at.min(ONLY_CPU.len() - 1)];
    if source == Source::Program { call } else { variable }
}

/// The machine that is asked for, or else the one that every PE has; and the part in a trace, where one is asked for.
fn machine(
    control: &Control,
    tunables: &Tunables,
    contexts: &Contexts,
    emulation: Emulation,
    heap_bytes: u64,
) -> Result<(Machine, Option<Session>), BuildError> {
    let kind = tunables.text(TextKey::Machine).and_then(MachineKind::parse).unwrap_or_default();
    // `auto`, where somebody wrote it, says that either will do.
    let tells_of_cpu = || control.pe() == 0 && tunables.text(TextKey::Machine).is_none();
    let on_gpu = match (kind, only_cpu(tunables, emulation)) {
        (MachineKind::Cuda | MachineKind::Virtual, Some((at, source))) => {
            return Err(BuildError::OnlyCpu { name: name(at, source) });
        }
        (MachineKind::Cuda | MachineKind::Virtual, None) => true,
        (MachineKind::Cpu, _) => false,
        // A program that asks for what the CPU machine alone has asks for that machine, on every PE; its user need not know.
        (MachineKind::Auto, Some((at, source @ Source::Program))) => {
            if tells_of_cpu() && CudaPe::lacks_gpu().is_none() {
                tell_of_cpu(&format!("the program asks for {}, which GPUs do not have so far", name(at, source)));
            }
            false
        }
        // Found out together: what one PE lacks, none can use. A variable of the environment moves no job off its GPUs.
        (MachineKind::Auto, asked) => {
            let asked = asked.map_or(NOTHING, |(at, _)| at as u8);
            let lacks = CudaPe::lacks_gpu();
            let said = control.all_gather(&[u8::from(lacks.is_none()), asked])?;
            let without = said.iter().position(|said| said.first() != Some(&1));
            let asked = said.iter().find_map(|said| said.get(1).copied().filter(|at| *at != NOTHING));
            match (without, asked) {
                (None, Some(at)) => return Err(BuildError::OnlyCpu { name: name(at.into(), Source::Environment) }),
                (None, None) => true,
                (Some(pe), _) => {
                    if tells_of_cpu() {
                        tell_of_cpu(&lacks.unwrap_or_else(|| format!("PE {pe} finds no GPU")));
                    }
                    false
                }
            }
        }
    };
    let trace = session(control, tunables)?;
    let recorder = trace.as_ref().map(Session::recorder);
    if on_gpu {
        let pe = CudaPe::new(control, tunables, contexts, (heap_bytes, heap_max(tunables)), recorder)?;
        return Ok((Machine::Cuda(Box::new(pe)), trace));
    }
    let width = NonZeroU32::new(tunables.get(Key::CpuWidth) as u32).unwrap_or(NonZeroU32::MIN);
    let memory = shared_memory::reserve(control, heap_bytes as usize, heap_max(tunables) as usize)?;
    let watch = watch(control, tunables, emulation, recorder);
    let blocks = CpuMachine::new(width, control.npes(), cores(control)?, watch);
    Ok((Machine::Cpu(CpuPe::new(control.pe(), blocks, memory)), trace))
}

/// Says once in a process that kernels do not run on GPUs, which nobody asked for.
fn tell_of_cpu(why: &str) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        printer::warn(&format!(
            "kernels run on the CPU, because {why}; CONGRUENT_MACHINE=cpu or auto says that this is meant, cuda makes it an error"
        ));
    });
}

/// The cores that all PEs have together, the same on every PE.
fn cores(control: &Control) -> Result<u32, BuildError> {
    let mine = postcard::to_allocvec(&Cores::detect()).unwrap_or_default();
    let all = control.all_gather(&mine)?;
    Ok(Cores::shared(&all.iter().filter_map(|bytes| postcard::from_bytes(bytes).ok()).collect::<Vec<_>>()))
}

/// This PE's part in a trace, where the settings ask for one.
fn session(control: &Control, tunables: &Tunables) -> Result<Option<Session>, BuildError> {
    let first_pe = if control.in_process() { 0 } else { control.pe() };
    Ok(tunables.text(TextKey::Trace).map(|name| Session::join(name, first_pe)).transpose()?)
}

/// Who hears what kernels do, where a trace or a count of bytes is asked for.
fn watch(
    control: &Control,
    tunables: &Tunables,
    emulation: Emulation,
    trace: Option<&Arc<Recorder>>,
) -> Option<Arc<Watch>> {
    let wanted = trace.is_some() || tunables.get(Key::Watch) == 1;
    wanted.then(|| Arc::new(Watch::new(control.pe(), control.npes(), trace.cloned(), emulation.hold)))
}

/// Makes sure that every PE has the settings that shape the heap, the barriers and the choice of algorithms.
fn compare(control: &Control, tunables: &Tunables, windows: u32) -> Result<(), BuildError> {
    let shaping = [
        ("CONGRUENT_HEAP", tunables.get(Key::Heap)),
        ("CONGRUENT_HEAP_MAX", heap_max(tunables)),
        ("CONGRUENT_CPU_WIDTH", tunables.get(Key::CpuWidth)),
        ("CONGRUENT_MAX_BLOCKS", tunables.get(Key::MaxBlocks)),
        ("CONGRUENT_NVLS_ENABLE", tunables.get(Key::NvlsEnable)),
        ("CONGRUENT_P2P_DISABLE", tunables.get(Key::P2pDisable)),
        (
            "CONGRUENT_TRANSPORT (0: unset, 1: local, 2: fabric, 3: verbs)",
            TransportKind::asked(tunables).map_or(0, |kind| kind as u64),
        ),
        ("CONGRUENT_IB_DISABLE", tunables.get(Key::IbDisable)),
        ("the number of multicast windows", windows.into()),
    ];
    let said: Vec<u8> = shaping.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
    for (theirs, pe) in control.all_gather(&said)?.iter().zip(0..) {
        for (&(name, mine), theirs) in shaping.iter().zip(theirs.chunks(8)) {
            let theirs = u64::from_le_bytes(theirs.try_into().unwrap_or_default());
            if theirs != mine {
                // Every PE finds a difference, so this one leaves in order: the others need not hear of it from here.
                control.depart();
                return Err(BuildError::Mismatch { name, pe, mine, theirs });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_is_emulated_where_it_is_asked_for_and_nothing_forbids_it() {
        let windows_with = |multicast, settings: &[(Key, u64)]| {
            let mut tunables = Tunables::default();
            settings.iter().for_each(|&(key, value)| tunables.set(key, value).unwrap());
            windows(&tunables, Emulation { multicast, ..Emulation::default() })
        };
        assert_eq!(windows_with(true, &[]), 1);
        assert_eq!(windows_with(true, &[(Key::NvlsEnable, 1)]), 1);
        assert_eq!(windows_with(true, &[(Key::NvlsEnable, 0)]), 0);
        assert_eq!(windows_with(true, &[(Key::P2pDisable, 1)]), 0);
        assert_eq!(windows_with(false, &[(Key::NvlsEnable, 1)]), 0);
    }
}
