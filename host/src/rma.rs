//! Puts, gets, atomics and signals that the host puts on a stream, without a kernel of the program's.
//!
//! On a GPU puts, gets and signals that are set take no multiprocessor, unless the peer is proxied: its copy engines move the bytes, and
//! the stream itself writes and awaits signals. All else is a kernel of one block.

use std::sync::Arc;

use congruent_device::{
    Atomic, Awaited, Block, Ctx, Kernel, KernelArg, Notify, Pe, Place, Pod, Rank, Semaphore, Signal, Sym, Tag, abi,
};
use congruent_heap::NotifyOp;
use congruent_stream_kernels as kernels;

use crate::cpu::Site;
use crate::cuda::{AwaitedWord, CudaRunner};
use crate::graph::Work;
use crate::launch::Target;
use crate::launches::{Launched, Launcher};
use crate::runner::Runner;
use crate::{Grid, LaunchError, Stream, World};

/// Threads of the one block that does it where the stream cannot.
const THREADS: u32 = 32;

/// Why a signal cannot be captured.
const SAME_AGAIN: &str =
    "launched again it would set or await the same value; post a semaphore, and wait for posts by World::wait";

impl World {
    /// A PE of the world's team, to name its copy of an object by: `object.view().at(world.rank(1)?)`.
    ///
    /// # Errors
    /// [`LaunchError::Peer`] where there is no such PE.
    pub fn rank(&self, pe: u32) -> Result<Rank, LaunchError> {
        let size = self.npes();
        if pe as usize >= size {
            return Err(LaunchError::Peer { peer: pe as usize, size });
        }
        Ok(self.team().rank_with(pe as usize, |_| pe))
    }

    /// Copies this PE's `src` to `place`.
    ///
    /// ```
    /// # congruent::local(4, |world| {
    /// use congruent::device::Signal;
    /// let (mine, theirs) = (world.alloc::<u64>(1000)?, world.alloc::<u64>(1000)?);
    /// let (arrived, stream) = (world.alloc::<Signal>(1)?, world.stream()?);
    /// let (pe, npes) = (world.pe().raw(), world.npes() as u32);
    /// mine.fill(pe.into())?;
    /// let (next, prev) = (world.rank((pe + 1) % npes)?, world.rank((pe + npes - 1) % npes)?);
    /// world.put_signal(&stream, theirs.view().at(next), mine.view(), arrived.view().at(next).set(1))?;
    /// world.wait_at_least(&stream, arrived.view().from_rank(prev), 1)?;
    /// world.synchronize(&stream)?;
    /// assert_eq!(theirs.to_vec()?, [u64::from(prev.pe().raw()); 1000]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # One-sided
    /// Returns at once; the peer takes no part. Whoever synchronizes the stream may overwrite `src`.
    ///
    /// # Ordering
    /// After everything that the stream was given before, and before what it is given later: a kernel launched next on the stream
    /// runs when the data has arrived. A peer sees it by a signal sent after it.
    ///
    /// # Errors
    /// The lengths differ; a place or an object is not of this world; and see [`LaunchError`]. Nothing is copied then.
    #[track_caller]
    pub fn put<T: Pod + Send + Sync, G: Tag + Send + Sync>(
        &self,
        stream: &Stream,
        place: Place<T, G>,
        src: Sym<T>,
    ) -> Result<(), LaunchError> {
        self.admit(stream, "put", &[(place.sym().bytes_at(), Some(place.pe())), (src.bytes_at(), None)])?;
        same_length(place.len(), src.len())?;
        if src.is_empty() {
            return Ok(());
        }
        if let Some(runner) = self.copies_to(stream, place.pe()) {
            let (to, from) = (self.address(place.pe(), place.sym().offset()), self.address(self.pe(), src.offset()));
            return Ok(runner.copy(to, from, src.bytes())?);
        }
        self.put_kernel(stream, kernels::put, (self.bytes_of(place)?, src.cast()))
    }

    /// Copies `place` to this PE's `dst`.
    ///
    /// # One-sided
    /// Returns at once; the peer takes no part.
    ///
    /// # Ordering
    /// After everything that the stream was given before, and before what it is given later: a kernel launched next on the stream
    /// finds the data in `dst`.
    ///
    /// # Errors
    /// As [`put`](World::put).
    #[track_caller]
    pub fn get<T: Pod + Send + Sync, G: Tag + Send + Sync>(
        &self,
        stream: &Stream,
        dst: Sym<T>,
        place: Place<T, G>,
    ) -> Result<(), LaunchError> {
        self.admit(stream, "get", &[(dst.bytes_at(), None), (place.sym().bytes_at(), Some(place.pe()))])?;
        same_length(dst.len(), place.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        if let Some(runner) = self.copies_to(stream, place.pe()) {
            let (to, from) = (self.address(self.pe(), dst.offset()), self.address(place.pe(), place.sym().offset()));
            return Ok(runner.copy(to, from, dst.bytes())?);
        }
        self.put_kernel(stream, kernels::get, (dst.cast(), self.bytes_of(place)?))
    }

    /// Copies this PE's `src` to `place`, then sends the signal: the peer that sees the signal sees the data. In a capture the signal
    /// adds or posts.
    ///
    /// # One-sided
    /// As [`put`](World::put).
    ///
    /// # Ordering
    /// As [`put`](World::put) and [`notify`](World::notify).
    ///
    /// # Errors
    /// As [`put`](World::put) and [`notify`](World::notify); the signal is for another PE than the data.
    #[track_caller]
    pub fn put_signal<T: Pod + Send + Sync, G: Tag + Send + Sync>(
        &self,
        stream: &Stream,
        place: Place<T, G>,
        src: Sym<T>,
        notify: Notify,
    ) -> Result<(), LaunchError> {
        if place.pe() != notify.pe() {
            return Err(LaunchError::SignalElsewhere { data: place.pe().raw(), signal: notify.pe().raw() });
        }
        self.admit_notify(stream, "put_signal", notify)?;
        self.put(stream, place, src)?;
        self.notify(stream, notify)
    }

    /// Sends a prepared signal, when the stream comes to it: one that sets or adds ([`Signal`]), or posts ([`Semaphore`]). In a
    /// capture it adds or posts.
    ///
    /// On a GPU a signal that is set is written by the stream; one that adds or posts takes one block.
    ///
    /// # One-sided
    /// Returns at once; the peer sees it in time.
    ///
    /// # Ordering
    /// Release (MM-2): a PE that sees this signal also sees everything that the stream did before, its kernels, puts and gets.
    ///
    /// # Errors
    /// The word is not of this world; a signal that sets, in a capture; and see [`LaunchError`].
    #[track_caller]
    pub fn notify(&self, stream: &Stream, notify: Notify) -> Result<(), LaunchError> {
        self.admit_notify(stream, "notify", notify)?;
        let word = Sym::from_raw(notify.offset(), 1).at(self.rank(notify.pe().raw())?);
        match (notify.op(), self.copies_to(stream, notify.pe())) {
            (NotifyOp::Add, _) => self.put_kernel(stream, kernels::notify, (word, notify.value())),
            (NotifyOp::Set, Some(runner)) => {
                Ok(runner.store(self.address(notify.pe(), notify.offset()), notify.value())?)
            }
            (NotifyOp::Set, None) => self.put_kernel(stream, kernels::set, (word, notify.value())),
        }
    }

    /// Adds to the first element of a place, when the stream comes to it: atomic among PEs, kernels and streams that add. Integers wrap
    /// around.
    ///
    /// ```
    /// # congruent::local(4, |world| {
    /// let (count, stream) = (world.alloc::<u32>(1)?, world.stream()?);
    /// world.add(&stream, count.view().at(world.rank(0)?), 1)?;
    /// world.synchronize(&stream)?;
    /// world.barrier()?;
    /// assert_eq!(count.to_vec()?[0], if world.pe().raw() == 0 { 4 } else { 0 });
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # One-sided
    /// Returns at once; the peer takes no part.
    ///
    /// # Ordering
    /// After everything that the stream was given before, and before what it is given later. By itself it tells a peer nothing of what
    /// came before (MM-7): that is what a [`notify`](World::notify) is for.
    ///
    /// # Errors
    /// The place is empty or not of this world; and see [`LaunchError`].
    #[track_caller]
    pub fn add<T: Atomic, G: Tag>(&self, stream: &Stream, place: Place<T, G>, number: T) -> Result<(), LaunchError> {
        let word = place.sym().get(..1).ok_or(LaunchError::ForeignArgument { kernel: "add" })?;
        self.admit(stream, "add", &[(word.bytes_at(), Some(place.pe()))])?;
        let mut bits = [0; 8];
        bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&number));
        let of = self.rank(place.pe().raw())?;
        self.put_kernel(stream, kernels::add, (word.cast(), of, T::KIND as u32, u64::from_ne_bytes(bits)))
    }

    /// Makes the stream wait for `n` posts of a semaphore, and takes them: what it is given later runs after that. The host does not
    /// wait. One stream or kernel at a time waits on a semaphore.
    ///
    /// How many were taken lies on the heap, so that a graph waits for the next posts each time:
    ///
    /// ```
    /// use congruent::device::Semaphore;
    /// # congruent::local(4, |world| {
    /// let (mine, theirs) = (world.alloc::<u64>(1000)?, world.alloc::<u64>(1000)?);
    /// let (arrived, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    /// let (pe, npes) = (world.pe().raw(), world.npes() as u32);
    /// let (next, prev) = (world.rank((pe + 1) % npes)?, world.rank((pe + npes - 1) % npes)?);
    /// let step = world.capture(&stream, |stream| {
    ///     world.put_signal(stream, theirs.view().at(next), mine.view(), arrived.view().at(next).post())?;
    ///     world.wait(stream, arrived.view().from_rank(prev), 1)
    /// })?;
    /// for round in 0..3 {
    ///     mine.fill(round)?;
    ///     step.launch(&stream)?;
    ///     world.synchronize(&stream)?;
    ///     assert_eq!(theirs.to_vec()?, [round; 1000]);
    ///     world.barrier()?;
    /// }
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Acquire (MM-3): kernels launched later on the stream see what the posting PEs did before they posted.
    ///
    /// # Errors
    /// The object has no semaphore or is not of this world; and see [`LaunchError`]. A wait that passes its deadline is a fault, as in a
    /// kernel: [`synchronize`](World::synchronize) tells it, with the PE that `from_rank` named.
    #[track_caller]
    pub fn wait(&self, stream: &Stream, semaphore: impl Into<Awaited<Semaphore>>, n: u64) -> Result<(), LaunchError> {
        let awaited = semaphore.into();
        let word = awaited.word().get(..1).ok_or(LaunchError::ForeignArgument { kernel: "wait" })?;
        self.admit(stream, "wait", &[(word.bytes_at(), awaited.from())])?;
        let from = awaited.from().map_or(abi::NO_PE, Pe::raw);
        self.put_kernel(stream, kernels::wait, (word, from, n))
    }

    /// Makes the stream wait until a signal is at least `value`: what it is given later runs after that. The host does not wait.
    ///
    /// # Ordering
    /// Acquire (MM-3): kernels launched later on the stream see what the notifying PE did before it sent the signal.
    ///
    /// # Errors
    /// The signal is empty or not of this world; in a capture, which has [`wait`](World::wait); and see [`LaunchError`]. A wait that passes its deadline is a fault, as
    /// in a kernel: [`synchronize`](World::synchronize) tells it, with the PE that `from_rank` named.
    #[track_caller]
    pub fn wait_at_least(
        &self,
        stream: &Stream,
        signal: impl Into<Awaited<Signal>>,
        value: u64,
    ) -> Result<(), LaunchError> {
        let awaited = signal.into();
        let word = awaited.word().get(..1).ok_or(LaunchError::ForeignArgument { kernel: "wait_at_least" })?;
        self.admit(stream, "wait_at_least", &[(word.bytes_at(), None)])?;
        stream.not_captured("wait_at_least", SAME_AGAIN)?;
        match stream.runner() {
            Runner::Cpu(..) => self.put_block(stream, "wait_at_least", move |block, ctx| {
                ctx.wait_at_least(block, awaited, value);
            }),
            Runner::Cuda(runner, _) => {
                let (pe, offset) = (self.pe(), word.offset());
                let (address, peer) = (self.address(pe, offset), awaited.from().map(Pe::raw));
                Ok(runner.wait_at_least(AwaitedWord { address, offset, peer, value })?)
            }
        }
    }

    /// The stream itself, where it copies to and from a PE and writes there without a kernel: one of a GPU's, to a PE that is not proxied.
    fn copies_to<'s>(&self, stream: &'s Stream, pe: Pe) -> Option<&'s CudaRunner> {
        match stream.runner() {
            Runner::Cuda(runner, _) if self.is_direct(pe) => Some(runner),
            _ => None,
        }
    }

    /// A place as bytes of a member of the world's team.
    fn bytes_of<T: Pod, G: Tag>(&self, place: Place<T, G>) -> Result<Place<u8>, LaunchError> {
        Ok(place.sym().cast::<u8>().at(self.rank(place.pe().raw())?))
    }

    /// A kernel of one block.
    #[track_caller]
    fn put_kernel<K: Kernel>(&self, stream: &Stream, kernel: K, args: K::Args) -> Result<(), LaunchError> {
        let target = Target { shared: self.shared(), stream, grid: Grid::one(THREADS), by: Launcher::call() };
        target.launch(kernel, args)
    }

    /// One block of the CPU machine.
    #[track_caller]
    fn put_block(
        &self,
        stream: &Stream,
        name: &'static str,
        body: impl Fn(&Block<'_>, &Ctx<'_>) + Send + Sync + 'static,
    ) -> Result<(), LaunchError> {
        let Runner::Cpu(queue, _) = stream.runner() else { return Err(LaunchError::ForeignStream) };
        let launch = self.shared().launches().number(Launched { kernel: name, by: Launcher::call() });
        let context = abi::Context { launch, ..self.shared().context() };
        let site = Site::one(name, context, THREADS);
        queue.put(self.shared(), Work { site, body: Arc::new(body) });
        Ok(())
    }

    fn admit_notify(&self, stream: &Stream, call: &'static str, notify: Notify) -> Result<(), LaunchError> {
        self.admit(stream, call, &[((notify.offset(), 8), Some(notify.pe()))])?;
        if notify.op() == NotifyOp::Add { Ok(()) } else { stream.not_captured(call, SAME_AGAIN) }
    }

    /// Refuses streams and memory that are not of this world: ranges of bytes, each on a PE, or else on this one.
    pub(crate) fn admit(
        &self,
        stream: &Stream,
        call: &'static str,
        ranges: &[((u64, u64), Option<Pe>)],
    ) -> Result<(), LaunchError> {
        let shared = self.shared();
        shared.check_in_full()?;
        if !stream.is_of(shared) {
            return Err(LaunchError::ForeignStream);
        }
        let abi::Context { heap_bytes, npes, .. } = shared.context();
        let fits = |&((offset, bytes), pe): &((u64, u64), Option<Pe>)| {
            Sym::<u8>::from_raw(offset, bytes).fits(heap_bytes) && pe.is_none_or(|pe| pe.raw() < npes)
        };
        if ranges.iter().all(fits) { Ok(()) } else { Err(LaunchError::ForeignArgument { kernel: call }) }
    }

    pub(crate) fn address(&self, pe: Pe, offset: u64) -> u64 {
        self.shared().context().address(pe, offset)
    }
}

pub(crate) fn same_length(dst: usize, src: usize) -> Result<(), LaunchError> {
    if dst == src { Ok(()) } else { Err(LaunchError::Lengths { dst, src }) }
}

/// Where an object lies, in bytes: offset and length.
trait BytesAt {
    fn bytes_at(self) -> (u64, u64);
}

impl<T: congruent_device::Element> BytesAt for Sym<T> {
    fn bytes_at(self) -> (u64, u64) {
        (self.offset(), self.bytes() as u64)
    }
}
