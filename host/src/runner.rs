//! One PE's queue of launches, on whichever machine.

use std::sync::Arc;

use congruent_device::{Block, Ctx, Group, Pe, Sym};

use crate::LaunchError;
use crate::buffer::Lent;
use crate::cpu::{CpuStream, Site};
use crate::cuda::{CudaError, CudaRunner};
use crate::graph::{CpuQueue, Work};
use crate::machine::Machine;
use crate::shared::Shared;

/// One PE's queue of launches. It holds its world's memory, so that launches that outlive the world run on mapped memory.
pub(crate) enum Runner {
    Cpu(CpuQueue, Arc<Shared>),
    Cuda(CudaRunner, Arc<Shared>),
}

impl Runner {
    /// A new stream of the world.
    pub(crate) fn new(shared: &Arc<Shared>, name: &str) -> Result<Self, LaunchError> {
        Ok(match shared.machine() {
            Machine::Cpu(pe) => {
                let stream = CpuStream::new(pe.blocks().clone(), name)?;
                Self::Cpu(CpuQueue::new(stream), Arc::clone(shared))
            }
            Machine::Cuda(pe) => Self::Cuda(pe.stream()?, Arc::clone(shared)),
        })
    }

    /// Whether everything launched so far is complete.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Cpu(queue, _) => queue.stream.is_idle(),
            Self::Cuda(runner, _) => runner.state().is_idle(),
        }
    }

    /// Whether what it is given now is kept for a graph.
    pub(crate) fn is_recording(&self) -> Result<bool, CudaError> {
        match self {
            Self::Cpu(queue, _) => Ok(queue.is_recording()),
            Self::Cuda(runner, _) => runner.state().is_recording(),
        }
    }

    /// Puts a store of words of this PE's heap, where the caller knows them to fit, at the end of the stream.
    pub(crate) fn write(&self, shared: &Arc<Shared>, to: Sym<u64>, words: Vec<u64>) -> Result<(), CudaError> {
        let context = shared.context();
        match self {
            Self::Cpu(queue, _) => {
                let body = move |block: &Block<'_>, ctx: &Ctx<'_>| {
                    for i in block.strided(words.len()) {
                        ctx.store(to, i, words[i]);
                    }
                };
                let site = Site::one("list", context, 1);
                queue.put(shared, Work { site, body: Arc::new(body) });
                Ok(())
            }
            Self::Cuda(runner, _) => {
                let at = context.address(Pe::new(context.pe), to.offset());
                runner.store_all(at, &words)
            }
        }
    }

    /// Keeps what a launch was lent until all that was submitted so far is complete.
    pub(crate) fn hold(&self, lent: &Lent) {
        match self {
            // Its body has it.
            Self::Cpu(..) => {}
            Self::Cuda(runner, _) => runner.state().hold(Arc::new(lent.clone())),
        }
    }

    /// Whether what it is given now is kept for a graph of somebody else's.
    pub(crate) fn is_recording_for_others(&self) -> Result<bool, CudaError> {
        match self {
            Self::Cpu(..) => Ok(false),
            Self::Cuda(runner, _) => runner.state().is_recording_for_others(),
        }
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        match self {
            Self::Cpu(queue, _) => queue.stream.submitted(),
            Self::Cuda(runner, _) => runner.state().submitted(),
        }
    }

    /// How many of those are known to be complete.
    pub(crate) fn completed(&self) -> u64 {
        match self {
            Self::Cpu(queue, _) => queue.stream.completed(),
            Self::Cuda(runner, _) => runner.state().completed(),
        }
    }

    /// The world that it is of.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        let (Self::Cpu(_, shared) | Self::Cuda(_, shared)) = self;
        shared
    }

    /// Waits until its first `count` launches are complete, or the world has failed and they do not end; and until their lines are printed.
    pub(crate) fn wait_for(&self, count: u64) {
        match self {
            Self::Cpu(queue, shared) => shared.wait_for_stream(&queue.stream, count),
            Self::Cuda(runner, shared) => shared.wait_for_state(runner.state(), count),
        }
        self.shared().lines().take_all(self.shared());
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.wait_for(self.submitted());
    }
}
