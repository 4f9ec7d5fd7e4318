//! Launching kernels on streams.
#![allow(clippy::disallowed_types, reason = "numbers streams, and what is known of them")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use congruent_device::{Kernel, KernelArgs, abi};

use crate::buffer::{Arguments, Lent, Loan};
use crate::cpu::{self, Site};
use crate::cuda::Entry;
use crate::graph::Work;
use crate::launches::{Launched, Launcher};
use crate::machine::Machine;
use crate::runner::Runner;
use crate::shared::Shared;
use crate::{LaunchError, World, WorldFailure};

/// How many blocks of how many threads. On the CPU machine the threads of a block are what its width makes of them: at most two
/// warps, the last as full as a GPU's would be, but all of those that a [kernel](congruent_device::kernels) counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block, for the array of a kernel whose length the launch says ([`Shared`](congruent_device::Shared)).
    pub shared: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads.
    pub const fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared: 0 }
    }

    /// One block of `threads` threads.
    pub const fn one(threads: u32) -> Self {
        Self::new(1, threads)
    }

    /// A block for each tile of what has `extents` elements in each dimension, in tiles of `tile`: which one a block has, its
    /// [`index_in`](congruent_device::Block::index_in) the numbers of tiles says. More blocks than there can be are as many as can be,
    /// and their launch is refused.
    ///
    /// ```
    /// use congruent::Grid;
    ///
    /// // 1000 columns and 300 rows in tiles of 128 by 64.
    /// assert_eq!(Grid::tiled([1000, 300], [128, 64], 256), Grid::new(8 * 5, 256));
    /// ```
    pub fn tiled<const D: usize>(extents: [usize; D], tile: [usize; D], threads: u32) -> Self {
        let tiles = extents.into_iter().zip(tile).map(|(extent, tile)| extent.div_ceil(tile.max(1)));
        let blocks = tiles.fold(1_usize, usize::saturating_mul);
        Self::new(u32::try_from(blocks).unwrap_or(u32::MAX), threads)
    }

    /// The same with so many bytes of shared memory of dynamic length in each block.
    ///
    /// ```
    /// use congruent::Grid;
    ///
    /// // Room for 1000 numbers.
    /// assert_eq!(Grid::one(256).with_shared(1000 * size_of::<f32>() as u32).shared, 4000);
    /// ```
    pub const fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }
}

/// The most shared memory of a block on any GPU (CUDA C++ Programming Guide, "Compute Capabilities"), without what a kernel's context and
/// the reductions of a block have there. A GPU may have less, and says so.
const MAX_SHARED: u32 = (227 << 10) - (2 << 10);

/// An ordered queue of launches. Streams of one world run concurrently. Dropping one waits for its launches,
/// and for five seconds only where the world has failed: what then still runs goes on, on memory that is kept for it.
///
/// # Ordering
/// Kernels on several streams that wait for other PEs are launched in one order by all of them, or a stream is synchronized before
/// the next one's launch. On a GPU they have to fit together: see [`LaunchError::NotCoresident`].
pub struct Stream {
    runner: Runner,
    world: u64,
    id: u64,
    /// What launches were lent that are captured now.
    captured: Mutex<Lent>,
    /// How many launches were complete when the world was last seen to be well.
    sound: AtomicU64,
}

/// Where a kernel is to run.
pub(crate) struct Target<'t> {
    pub(crate) shared: &'t Arc<Shared>,
    pub(crate) stream: &'t Stream,
    pub(crate) grid: Grid,
    pub(crate) by: Launcher,
}

impl Stream {
    /// Whether everything launched so far is complete.
    pub fn is_idle(&self) -> bool {
        self.runner.is_idle()
    }

    /// Whether what the stream was given may still be right, without waiting for it: the world's failure, unless all of it was known to
    /// be complete before. [`World::synchronize`] and this make it known.
    ///
    /// A failure ends the kernels of every stream, and of all PEs. What a stream had done before is as good as ever: who looks after each
    /// step by itself can tell, once the world has failed, which of its results to keep. [`World::check`] tells of the whole world.
    ///
    /// ```
    /// # congruent::local(1, |world| {
    /// use congruent::device::Signal;
    /// let (flag, me) = (world.alloc::<Signal>(1)?, world.rank(world.pe().raw())?);
    /// let (done, waits) = (world.stream()?, world.stream()?);
    /// world.notify(&done, flag.view().at(me).set(1))?;
    /// world.synchronize(&done)?;
    /// world.wait_at_least(&waits, flag.view(), 2)?;
    /// waits.check()?; // Not complete, and nothing wrong so far.
    /// world.abort("no more of this");
    /// assert!(world.check().is_err() && waits.check().is_err());
    /// done.check()?;
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first failure of the world.
    pub fn check(&self) -> Result<(), WorldFailure> {
        let (shared, completed) = (self.runner.shared(), self.runner.completed());
        // What failed among those left its fault before it was complete.
        shared.look_for_fault();
        match shared.check() {
            Ok(()) => self.sound.fetch_max(completed, Ordering::Relaxed),
            Err(failure) if self.sound.load(Ordering::Relaxed) < self.submitted() => return Err(failure),
            Err(_) => 0,
        };
        Ok(())
    }

    /// Whether it is a stream of this world.
    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        self.world == shared.id()
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.runner.submitted()
    }

    /// Waits until its first `count` launches are complete.
    pub(crate) fn wait_for(&self, count: u64) {
        self.runner.wait_for(count);
    }

    /// Tells streams of a process apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Keeps what a launch was lent until all that it was given so far is complete.
    pub(crate) fn hold(&self, lent: &Lent) {
        self.runner.hold(lent);
    }

    /// What launches were lent that are captured now. Captures begin and end, and launches are lent something, while this is locked.
    pub(crate) fn captured(&self) -> MutexGuard<'_, Lent> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses in a capture what cannot be in one.
    pub(crate) fn not_captured(&self, call: &'static str, why: &'static str) -> Result<(), LaunchError> {
        if self.runner.is_recording()? { Err(LaunchError::InCapture { call, why }) } else { Ok(()) }
    }
}

impl Target<'_> {
    /// Puts a kernel at the end of the stream.
    pub(crate) fn launch<K: Kernel>(&self, kernel: K, args: K::Args) -> Result<(), LaunchError> {
        self.launch_lent(kernel, args, &Lent::default())
    }

    /// The same, of a kernel that is lent buffers with its arguments.
    fn launch_lent<K: Kernel>(&self, kernel: K, args: K::Args, lent: &Lent) -> Result<(), LaunchError> {
        let _only_its_type_matters = kernel;
        let Self { shared, stream, grid, by } = *self;
        shared.check_in_full()?;
        if !stream.is_of(shared) {
            return Err(LaunchError::ForeignStream);
        }
        block_fits::<K>(grid)?;
        let context = shared.context();
        let slots = context.block_slots;
        let planned = args.most_blocks();
        if grid.blocks > planned {
            return Err(LaunchError::PlanBlocks { asked: grid.blocks, fits: planned });
        }
        tracing::trace!(
            pe = context.pe,
            stream = stream.id,
            "{} in {} blocks of {}",
            K::NAME,
            grid.blocks,
            grid.threads
        );
        if !args.fit(context.heap_bytes) {
            return Err(LaunchError::ForeignArgument { kernel: K::NAME });
        }
        let launch = shared.launches().number(Launched { kernel: K::NAME, by });
        let context = abi::Context { launch, ..context };
        match &stream.runner {
            Runner::Cpu(queue, _) => {
                if !K::INDEPENDENT && grid.blocks > slots {
                    return Err(LaunchError::NotCoresident { asked: grid.blocks, fits: slots, running: 0 });
                }
                let body = cpu::body::<K>(args, lent.clone());
                let site = Site {
                    kernel: K::NAME,
                    context,
                    block: 0,
                    blocks: grid.blocks,
                    threads: grid.threads,
                    warps: K::WARPS,
                    independent: K::INDEPENDENT,
                    shared: (K::SHARED.0 as u32, grid.shared),
                };
                queue.put(shared, Work { site, body });
            }
            Runner::Cuda(runner, _) => {
                let mut places = vec![std::ptr::from_ref(&context).cast_mut().cast()];
                args.places(|place| places.push(place.cast_mut()));
                runner.launch(&Entry::of::<K>(), grid, &context, &mut places)?;
                runner.state().launched(launch);
            }
        }
        Ok(())
    }
}

/// Whether blocks of the kernel can be as this grid has them, on any machine.
pub(crate) fn block_fits<K: Kernel>(grid: Grid) -> Result<(), LaunchError> {
    if grid.blocks == 0 || grid.threads == 0 {
        return Err(LaunchError::EmptyGrid { blocks: grid.blocks, threads: grid.threads });
    }
    if grid.threads > K::MAX_THREADS {
        return Err(LaunchError::TooManyThreads { kernel: K::NAME, asked: grid.threads, fits: K::MAX_THREADS });
    }
    if K::WARPS > 0 && grid.threads != K::WARPS * 32 {
        return Err(LaunchError::Warps { kernel: K::NAME, asked: grid.threads, warps: K::WARPS });
    }
    let (known, item) = K::SHARED;
    let fits = if item > 0 { MAX_SHARED - known as u32 } else { 0 };
    if grid.shared > fits {
        return Err(LaunchError::SharedMemory { kernel: K::NAME, asked: grid.shared, fits });
    }
    Ok(())
}

impl World {
    /// A new stream.
    ///
    /// # Errors
    /// Where the machine can make no more.
    pub fn stream(&self) -> Result<Stream, LaunchError> {
        let shared = self.shared();
        self.stream_on(|name| Runner::new(shared, name))
    }

    /// A stream over what `make` gives, which is told the stream's name.
    pub(crate) fn stream_on(
        &self,
        make: impl FnOnce(&str) -> Result<Runner, LaunchError>,
    ) -> Result<Stream, LaunchError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let runner = make(&format!("pe{} stream {id}", self.shared().pe()))?;
        let (captured, sound) = (Mutex::default(), AtomicU64::default());
        Ok(Stream { runner, world: self.shared().id(), id, captured, sound })
    }

    /// Loads a kernel, and with it all that are in the same PTX. The first launch does it too, but then it may be too late: a driver may
    /// load only while none of the GPU's kernels runs, and one that waits for this launch does not end. So a program whose kernels wait
    /// for each other across streams, or across PEs that share a GPU, loads those of each of its crates before it launches any. The
    /// library's own, and those of `CONGRUENT_PTX`, are loaded with the world; with `CONGRUENT_LAZY_LOADING=1` each of the library's is
    /// loaded as those of other crates are, by itself. On the CPU machine there is nothing to load.
    ///
    /// ```
    /// use congruent::Grid;
    /// use congruent::device::{Semaphore, Sym, kernels};
    ///
    /// kernels! {
    ///     /// One PE for the others.
    ///     pub fn work(block, ctx, done: Sym<Semaphore>) {
    ///         for pe in ctx.world().ranks() {
    ///             ctx.notify(block, done.at(pe).post());
    ///         }
    ///     }
    ///     /// Until it has.
    ///     pub fn follow(block, ctx, done: Sym<Semaphore>) {
    ///         ctx.wait(block, done, 1);
    ///     }
    /// }
    ///
    /// congruent::local(2, |world| {
    ///     let (stream, done) = (world.stream()?, world.alloc(1)?);
    ///     world.load(follow)?;
    ///     world.barrier()?;
    ///     if world.pe().raw() == 0 {
    ///         world.launch(&stream, work, Grid::one(32), (done.view(),))?;
    ///     }
    ///     world.run(&stream, follow, Grid::one(32), (done.view(),))?;
    ///     Ok::<_, congruent::Error>(())
    /// })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where there is no PTX of the kernel, or the driver refuses it.
    pub fn load<K: Kernel>(&self, kernel: K) -> Result<(), LaunchError> {
        let _only_its_type_matters = kernel;
        self.check()?;
        match self.shared().machine() {
            Machine::Cpu(_) => Ok(()),
            Machine::Cuda(pe) => Ok(pe.load(&Entry::of::<K>())?),
        }
    }

    /// Puts a kernel at the end of a stream and returns; [`synchronize`](World::synchronize) waits for it.
    ///
    /// It is given what it takes, and lent buffers: `&buffer` to read, `&mut buffer` to write ([`Lend`](crate::Lend)).
    ///
    /// # Ordering
    /// After everything that the stream was given before, and after launches on other streams that use the same buffers, unless all
    /// only read them.
    ///
    /// # Errors
    /// Where nothing can run: see [`LaunchError`]. What fails while it runs, `synchronize` tells.
    #[track_caller]
    pub fn launch<K: Kernel>(
        &self,
        stream: &Stream,
        kernel: K,
        grid: Grid,
        mut args: impl Arguments<K::Args>,
    ) -> Result<(), LaunchError> {
        let target = Target { shared: self.shared(), stream, grid, by: Launcher::kernel() };
        let mut loan = Loan::new(self, K::NAME, stream)?;
        let given = args.lend(&mut loan)?;
        let launched = loan.close().put(stream, |lent| target.launch_lent(kernel, given, lent));
        launched.and_then(|()| args.lent(stream))
    }

    /// Waits until everything launched on the stream is complete. In a capture, that is what was launched before it.
    ///
    /// # Errors
    /// The first failure of the world: a fault of this PE, a panic in a kernel, a peer that died or gave up.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), WorldFailure> {
        stream.wait_for(stream.submitted());
        stream.check()?;
        self.shared().check()
    }

    /// Launches a kernel on the stream and waits for it.
    ///
    /// # Errors
    /// As [`launch`](World::launch) and [`synchronize`](World::synchronize).
    #[track_caller]
    pub fn run<K: Kernel>(
        &self,
        stream: &Stream,
        kernel: K,
        grid: Grid,
        args: impl Arguments<K::Args>,
    ) -> Result<(), LaunchError> {
        stream.not_captured("run", "what it launches runs later, so nothing can wait for it; launch it")?;
        self.launch(stream, kernel, grid, args)?;
        Ok(self.synchronize(stream)?)
    }
}
