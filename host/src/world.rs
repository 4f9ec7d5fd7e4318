//! The world: all PEs of a job, seen from one of them.

use std::any::type_name;
use std::panic::Location;
use std::sync::Arc;

use congruent_device::{Element, Pe, Sym, TeamView, World as WorldTag, abi};
use congruent_heap::Retired;
use congruent_heap::{Allocator, HeapStats};
use serde::{Deserialize, Serialize};

use crate::builder::{self, Builder};
use crate::proxy::Proxy;
use crate::shared::Shared;
use crate::trace::Session;
use crate::watch::{Traffic, Watch};
use crate::{AllocError, CollectiveError, FixedKernel, SymVec, Tunables, WorldFailure};

/// One PE's hold on its job: allocates symmetric objects, launches kernels, makes teams.
///
/// There is no global state: a process may have several worlds, and one world's PEs may be threads of one process.
/// Collective calls take `&mut self`, so that each PE makes them in one order; PEs compare every one of them.
///
/// Where PEs reach each other by a network, dropping a world is collective too: a PE's proxy serves its peers until all of them drop
/// theirs. Several worlds are dropped in one order on every PE.
///
/// ```
/// congruent::local(4, |world| {
///     let numbers = world.alloc::<f32>(1000)?;
///     numbers.fill(world.pe().index() as f32)?;
///     assert_eq!(numbers.to_vec()?[999], world.pe().index() as f32);
///     Ok::<_, congruent::Error>(())
/// })?;
/// # Ok::<_, congruent::Error>(())
/// ```
pub struct World {
    shared: Arc<Shared>,
    /// Serves requests until the world goes, when no launch is in flight.
    proxy: Option<Proxy>,
    /// Written when the world goes, by whoever drops it: other threads may have its memory a little longer, and would write it behind
    /// the program's end.
    _trace: Option<Session>,
    tunables: Tunables,
    /// Those that the program brings.
    algorithms: &'static [FixedKernel],
    allocator: Allocator,
    /// Objects that all PEs have retired and zeroed by the next collective call, when their memory can be given out.
    freeing: Vec<u64>,
    sequence: u64,
}

/// What a world has of its PE's memory: on a GPU, of the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes of the heap as it is now.
    pub heap_bytes: u64,
    /// Bytes that the heap may grow to.
    pub heap_max_bytes: u64,
    /// Bytes of the GPU that building the world took beyond the heap, this PE's share: what the driver keeps, and what rounding
    /// adds. What other programs do at the same time blurs it. `None` on the CPU machine.
    pub beyond_bytes: Option<u64>,
}

/// What PEs compare at a collective call.
#[derive(Serialize, Deserialize)]
struct CollectiveCall {
    sequence: u64,
    what: String,
    retired: Vec<u8>,
}

/// The most objects that one PE hands over at a collective call; more wait for the next one.
const RETIRE_AT_ONCE: usize = 4096;

impl World {
    /// Starts to describe a world.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        proxy: Option<Proxy>,
        trace: Option<Session>,
        tunables: Tunables,
        allocator: Allocator,
    ) -> Self {
        let (algorithms, freeing) = (&[][..], Vec::new());
        let world = Self { shared, proxy, _trace: trace, tunables, algorithms, allocator, freeing, sequence: 0 };
        let (pe, npes) = (world.pe().raw(), world.npes());
        tracing::info!("PE {pe} of {npes} is ready: {}", world.machine());
        world
    }

    pub(crate) fn with_algorithms(mut self, algorithms: &'static [FixedKernel]) -> Self {
        self.algorithms = algorithms;
        self
    }

    pub(crate) fn algorithms(&self) -> &'static [FixedKernel] {
        self.algorithms
    }

    /// This PE.
    pub fn pe(&self) -> Pe {
        Pe::new(self.shared.pe())
    }

    /// How many PEs.
    pub fn npes(&self) -> usize {
        self.shared.context().npes as usize
    }

    /// The settings of this world, and where each came from.
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// The GPU that this PE computes on, as this process numbers them: cudarc's `CudaContext::new` has the same context, where it finds
    /// the same driver: not with `CONGRUENT_MACHINE=virtual`, whose driver is in this program; and [`Builder::contexts`] gave no other.
    /// `None` on the CPU machine.
    pub fn device(&self) -> Option<u32> {
        self.shared.machine().device()
    }

    /// What runs the kernels, in a line.
    pub fn machine(&self) -> String {
        let routes = self.proxy.as_ref().map_or_else(String::new, |proxy| format!(", {}", proxy.routes().describe()));
        format!("{}{routes}", self.shared.machine().describe())
    }

    /// Whether kernels reach a PE by loads and stores, and not through the proxy.
    pub fn is_direct(&self, pe: Pe) -> bool {
        let table = self.proxy.as_ref().map(|proxy| proxy.routes().table());
        table.is_none_or(|table| table.get(pe.raw() as usize) == Some(&abi::Route::Direct))
    }

    /// The first PE of this host.
    pub(crate) fn host(&self) -> u32 {
        self.proxy.as_ref().map_or(0, |proxy| proxy.routes().host())
    }

    /// Whether kernels reach some other PEs through the proxy, and not by loads and stores.
    pub fn is_proxied(&self) -> bool {
        self.shared.context().routes != 0
    }

    /// Whether the PEs are threads of this process.
    pub fn in_process(&self) -> bool {
        self.shared.control().in_process()
    }

    /// The bytes that kernels of this PE have moved, where they are counted: `CONGRUENT_WATCH=1`, or a trace is written.
    pub fn traffic(&self) -> Option<Traffic> {
        self.shared.machine().watch().map(Watch::traffic)
    }

    /// Whether teams have multicast, in a few words, and why not.
    pub fn multicast(&self) -> String {
        use crate::machine::Machine;
        match (self.shared.context().windows, self.shared.machine()) {
            (0, Machine::Cuda(pe)) => format!("none: {}", pe.lacks_multicast().unwrap_or("unknown")),
            (0, Machine::Cpu(_)) => "none: the CPU machine has none".to_owned(),
            (windows, _) => format!("windows for {windows} teams, the world's included"),
        }
    }

    /// What the heap has of this PE's memory, and what the world took beyond it.
    pub fn memory(&self) -> Memory {
        let heap_bytes = self.shared.context().heap_bytes;
        Memory {
            heap_bytes,
            heap_max_bytes: builder::heap_max(&self.tunables),
            beyond_bytes: self.shared.machine().beyond(),
        }
    }

    /// How full the heap is: as it is now, without what it may still grow by.
    pub fn heap_stats(&self) -> HeapStats {
        self.allocator.stats()
    }

    /// The team of all PEs, as a kernel argument.
    pub fn team(&self) -> TeamView<WorldTag> {
        let context = self.shared.context();
        let words = abi::SyncLayout::new(context.npes).words(context.block_slots);
        let team = TeamView::strided(0, 1, context.npes, context.pe, Sym::from_raw(context.world_sync, words));
        team.with_window(self.window())
    }

    /// The multicast window of a team, 0 without multicast. Members' heaps are what an emulation reaches, one by one, so on the
    /// CPU machine one window serves all teams.
    pub(crate) fn window(&self) -> u32 {
        self.shared.context().windows.min(1)
    }

    /// Allocates `len` zeroed elements at the same offset on every PE.
    ///
    /// # Collective
    /// Every PE asks for the same type and length. A PE that asks for something else gets the same
    /// [`CollectiveError::Mismatch`] as all others, and nothing is allocated.
    ///
    /// # Errors
    /// See [`AllocError`]; the world is as it was before.
    #[track_caller]
    pub fn alloc<T: Element>(&mut self, len: usize) -> Result<SymVec<T>, AllocError> {
        self.agree(format!("{len} elements of {} ({} bytes each)", type_name::<T>(), size_of::<T>()))?;
        // Every PE asked for the same, so every PE takes the same way out from here.
        if len == 0 {
            return Err(AllocError::Zero);
        }
        let too_large = AllocError::TooLarge { len, size: size_of::<T>() };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize).ok_or(too_large)?;
        let align = align_of::<T>() as u64;
        let offset = self.place(bytes as u64, align)?;
        self.shared.objects().made::<T>(offset, len, Location::caller());
        Ok(SymVec::new(Sym::from_raw(offset, len as u64), Arc::clone(&self.shared)))
    }

    /// Finds room: on the heap as it is, or with what is being freed, or on a larger heap. Every PE's allocator is the same, so
    /// every PE takes the same way.
    fn place(&mut self, bytes: u64, align: u64) -> Result<u64, AllocError> {
        if let Ok(offset) = self.allocator.alloc(bytes, align) {
            return Ok(offset);
        }
        if !self.freeing.is_empty() {
            self.agree("room for the last allocation".into())?;
        }
        let full = match self.allocator.alloc(bytes, align) {
            Ok(offset) => return Ok(offset),
            Err(full) => full,
        };
        let (has, most) = (self.shared.context().heap_bytes, builder::heap_max(&self.tunables));
        let needs = self.allocator.shortage(bytes, align).and_then(|short| has.checked_add(short));
        let Some(needs) = needs.filter(|&needs| has < needs && needs <= most) else { return Err(full.into()) };
        // A growth is dear, whatever its size, so it is an eighth at least, or 1 GiB.
        let grown = needs.max(has + (has / 8).min(1 << 30)).next_multiple_of(builder::PAGE).min(most);
        self.shared.grow(grown)?;
        self.allocator.grow(grown - has);
        tracing::info!(pe = self.shared.pe(), bytes = grown, "the heap has grown");
        Ok(self.allocator.alloc(bytes, align)?)
    }

    /// Memory was imported from offset `from` to `to`: gives its offset. What the parts had before that the allocator did not know of,
    /// through rounding, is free.
    pub(crate) fn grown_by_import(&mut self, from: u64, to: u64) -> Option<u64> {
        let had = self.shared.context().heap_bytes;
        let Some(rounding) = from.checked_sub(had) else {
            // A hole of the allocator's that was taken all the time.
            return Some(from);
        };
        self.allocator.grow(rounding);
        self.shared.has_grown(to);
        self.allocator.grow_taken(to - from)
    }

    /// Gives back the memory of objects that every PE has dropped, as every collective call does.
    ///
    /// # Collective
    ///
    /// # Errors
    /// Where the PEs cannot talk to each other, or one of them makes another call.
    pub fn reclaim(&mut self) -> Result<(), CollectiveError> {
        self.agree("reclaim".into())?;
        self.agree("reclaim, second half".into())
    }

    /// Waits until every PE has called it. Host side only: it waits for no launch.
    ///
    /// # Collective
    ///
    /// # Errors
    /// Where the PEs cannot talk to each other, or one of them makes another call.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.agree("barrier".into())
    }

    /// The world's failure, where it has failed. [`Stream::check`](crate::Stream::check) tells whether what a stream did is still right.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<(), WorldFailure> {
        self.shared.check()
    }

    /// Gives the job up, for a reason that the program has: kernels of every PE that wait end, and what every PE asks of its world
    /// from then on fails with [`WorldFailure::Aborted`], which has the reason. Where the world has failed before, that stays why.
    ///
    /// A program need not call it to end with an error: a world that is dropped tells the others that this PE has gone.
    ///
    /// # One-sided
    /// It waits for nobody.
    ///
    /// ```
    /// # use congruent::{Error, local};
    /// let ended = local(2, |world| {
    ///     if world.pe().index() == 1 {
    ///         world.abort("the input ends too early");
    ///     }
    ///     Ok::<_, Error>(world.barrier()?)
    /// });
    /// assert!(ended.is_err_and(|error| error.to_string().contains("the input ends too early")));
    /// ```
    pub fn abort(&self, reason: &str) {
        self.shared.abort(reason);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Gives every PE's `value` to every PE, in the order of PEs.
    ///
    /// # Collective
    /// Over all PEs, which compare `what`, a name of the call, before they give anything.
    ///
    /// # Errors
    /// Where a PE makes another call, or the world has failed.
    ///
    /// ```
    /// # use congruent::{Error, local};
    /// let names = local(2, |world| {
    ///     let mine = format!("PE {}", world.pe().index());
    ///     Ok::<_, Error>(world.exchange("names", &mine)?)
    /// })?;
    /// assert_eq!(names[0], ["PE 0", "PE 1"]);
    /// # Ok::<_, Error>(())
    /// ```
    pub fn exchange(&mut self, what: &str, value: &str) -> Result<Vec<String>, CollectiveError> {
        self.agree(what.to_owned())?;
        let all = self.shared.all_gather(value.as_bytes())?;
        Ok(all.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
    }

    /// Compares this collective call with the other PEs', and moves retired objects one step towards reuse: agreed on at
    /// one call, when each PE zeroes its copy; given out again from the next call on, by when every PE has.
    pub(crate) fn agree(&mut self, what: String) -> Result<(), CollectiveError> {
        self.shared.check()?;
        self.sequence += 1;
        let retired = if self.shared.is_idle() { self.shared.retired().encode() } else { Retired::new().encode() };
        let mine = CollectiveCall { sequence: self.sequence, what, retired };
        let encoded = postcard::to_allocvec(&mine).unwrap_or_default();
        let all = self.shared.all_gather(&encoded)?;
        for offset in self.freeing.drain(..) {
            self.shared.machine().gone(offset);
            self.shared.objects().gone(offset);
            // The offsets are the allocator's own and each was retired once, so this cannot be refused.
            let _freed = self.allocator.free(offset);
        }
        let mut lists = Vec::with_capacity(all.len());
        for (bytes, pe) in all.iter().zip(0..) {
            let call = postcard::from_bytes::<CollectiveCall>(bytes).ok();
            let same = call.as_ref().is_some_and(|call| call.sequence == mine.sequence && call.what == mine.what);
            if !same {
                let theirs = call.map_or("something unreadable".into(), |call| call.what);
                return Err(CollectiveError::Mismatch { sequence: self.sequence, mine: mine.what, pe, theirs });
            }
            let list = call.and_then(|call| Retired::decode(&call.retired, RETIRE_AT_ONCE).ok());
            lists.push(list.unwrap_or_default());
        }
        self.freeing = Retired::agree(&lists);
        self.shared.retired().settle(&self.freeing);
        for &offset in &self.freeing {
            self.shared.zero(offset, self.allocator.size_of(offset).unwrap_or(0) as usize)?;
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shared.wait_idle();
        self.shared.lines().finish(&self.shared);
        if let Some(proxy) = &mut self.proxy {
            // Who panics serves nobody: the others are told so below.
            if !proxy.finish(self.shared.check().is_ok() && !std::thread::panicking()) {
                self.shared.give_up("its proxy panicked");
            }
        }
        if std::thread::panicking() {
            self.shared.give_up("its program panicked");
        } else if self.shared.check().is_ok() {
            self.shared.control().depart();
            // Not when the last one of those drops it that share it: a stream may have been forgotten.
            self.shared.control().close();
        }
    }
}
