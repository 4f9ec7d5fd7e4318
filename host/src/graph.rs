//! Graphs: what a stream was given between two points, launched as one thing any number of times.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Lent;
use crate::cpu::{Body, CpuStream, Launch, Site, Task};
use crate::cuda::CudaGraph;
use crate::runner::Runner;
use crate::shared::Shared;
use crate::{LaunchError, Stream, World};

/// Launches and collectives of one stream, to be launched as one thing any number of times: what CUDA calls an executable graph.
/// Made by [`World::capture`].
///
/// It keeps the world's memory mapped, and the buffers that its launches were lent, but not the objects that they use: keep those, and
/// the communicators, for as long as it is launched.
pub struct Graph {
    shared: Arc<Shared>,
    lent: Lent,
    /// The stream that it was captured on.
    stream: u64,
    recorded: Recorded,
}

enum Recorded {
    Cpu(Vec<Work>),
    Cuda(CudaGraph),
}

/// A launch of the CPU machine, to be made as often as it is asked for.
pub(crate) struct Work {
    pub(crate) site: Site,
    pub(crate) body: Arc<Body>,
}

/// A stream of the CPU machine, which runs what it is given or keeps it for a graph.
pub(crate) struct CpuQueue {
    pub(crate) stream: CpuStream,
    recorded: Mutex<Option<Vec<Work>>>,
}

impl World {
    /// Captures what `record` puts on the stream: nothing of it runs now, and all of it at every [`launch`](Graph::launch) of the
    /// graph. What was launched before goes on, and can be waited for meanwhile.
    ///
    /// Counts that kernels, collectives and semaphores keep lie on the heap and only grow, so a graph is launched again without a
    /// reset: signals are posts ([`World::notify`], [`World::put_signal`]), and waits are for posts ([`World::wait`]). Every
    /// member of a collective's team captures it, and launches its graph as often as the others; sends and receives match over launches
    /// as over calls.
    ///
    /// ```
    /// use congruent::collectives::Op;
    /// # congruent::local(2, |world| {
    /// let comm = world.comm(world.team())?;
    /// let (stream, sum) = (world.stream()?, world.alloc::<u64>(100)?);
    /// sum.fill(1)?;
    /// let doubled = world.capture(&stream, |stream| comm.all_reduce(stream, sum.view(), sum.view(), Op::Sum))?;
    /// for _ in 0..10 {
    ///     doubled.launch(&stream)?;
    /// }
    /// world.synchronize(&stream)?;
    /// assert_eq!(sum.to_vec()?, [1 << 10; 100]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `record` gives, and then nothing is captured and the stream is as it was. Besides what cannot be launched at all, some
    /// calls cannot be launched again and are [`LaunchError::InCapture`]: signals that set a value, [`World::wait_at_least`],
    /// [`World::run`], and captures and graphs.
    pub fn capture(
        &self,
        stream: &Stream,
        record: impl FnOnce(&Stream) -> Result<(), LaunchError>,
    ) -> Result<Graph, LaunchError> {
        let shared = self.shared();
        shared.check()?;
        if !stream.is_of(shared) {
            return Err(LaunchError::ForeignStream);
        }
        stream.not_captured("a capture", "end the one under way first")?;
        let (mut begins, mut ends, mut lent) = (stream.captured(), None, Lent::default());
        let record = || {
            *begins = Lent::default();
            drop(begins);
            let result = record(stream);
            lent = std::mem::take(&mut **ends.insert(stream.captured()));
            result
        };
        let recorded = match stream.runner() {
            Runner::Cpu(queue, _) => Recorded::Cpu(queue.capture(record)?),
            Runner::Cuda(runner, _) => Recorded::Cuda(runner.capture(record)?),
        };
        drop(ends);
        Ok(Graph { shared: Arc::clone(shared), lent, stream: stream.id(), recorded })
    }
}

impl Graph {
    /// Puts all that was captured at the end of the stream, which is the one that it was captured on: communicators keep memory for
    /// each stream.
    ///
    /// # Errors
    /// Where nothing can run: see [`LaunchError`]. What fails while it runs, [`World::synchronize`] tells.
    pub fn launch(&self, stream: &Stream) -> Result<(), LaunchError> {
        self.shared.check_in_full()?;
        if stream.id() != self.stream {
            return Err(LaunchError::GraphStream);
        }
        stream.not_captured("a graph", "launch it after the capture, or capture what is in it")?;
        self.lent.begin(stream)?;
        match (&self.recorded, stream.runner()) {
            (Recorded::Cpu(works), Runner::Cpu(queue, _)) => {
                for work in works {
                    work.submit(&self.shared, &queue.stream);
                }
            }
            (Recorded::Cuda(graph), Runner::Cuda(runner, _)) => runner.launch_graph(graph)?,
            (Recorded::Cpu(_), Runner::Cuda(..)) | (Recorded::Cuda(_), Runner::Cpu(..)) => {
                return Err(LaunchError::ForeignStream);
            }
        }
        self.lent.end(stream)
    }
}

impl CpuQueue {
    pub(crate) fn new(stream: CpuStream) -> Self {
        Self { stream, recorded: Mutex::default() }
    }

    /// Runs it in its turn, or keeps it.
    pub(crate) fn put(&self, shared: &Arc<Shared>, work: Work) {
        match &mut *self.recorded() {
            Some(recorded) => recorded.push(work),
            None => work.submit(shared, &self.stream),
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recorded().is_some()
    }

    fn capture(&self, record: impl FnOnce() -> Result<(), LaunchError>) -> Result<Vec<Work>, LaunchError> {
        /// Ends the capture however `record` ends.
        struct Ends<'q>(&'q CpuQueue);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                *self.0.recorded() = None;
            }
        }
        *self.recorded() = Some(Vec::new());
        let ends = Ends(self);
        record()?;
        let works = self.recorded().take().unwrap_or_default();
        drop(ends);
        Ok(works)
    }

    fn recorded(&self) -> MutexGuard<'_, Option<Vec<Work>>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn submit(&self, shared: &Arc<Shared>, stream: &CpuStream) {
        // The launch holds the world's memory, so a stream that outlives its world still runs on mapped memory.
        let (running, kernel) = (shared.running(), self.site.kernel);
        let ended = Arc::new(move |block, end| running.shared().block_ended(kernel, block, end));
        stream.submit(Task::Launch(Launch { site: self.site, body: Arc::clone(&self.body), ended }));
    }
}
