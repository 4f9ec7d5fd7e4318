//! What a world runs on: it holds the PEs' memory, makes streams, and has the words by which kernels and host tell each other
//! that it is over.

use std::sync::Arc;
use std::time::Duration;

use congruent_device::abi;
use congruent_transports::Access;

use crate::GrowError;
use crate::bootstrap::Control;
use crate::cpu::{CpuPe, HeapAccess};
use crate::cuda::{CudaError, CudaPe, Trace};
use crate::select::Parameters;
use crate::watch::Watch;

/// Which machine a world is to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MachineKind {
    /// GPUs where every PE has one that can be used, else the CPU.
    #[default]
    Auto,
    /// Kernels run natively, on threads of this process.
    Cpu,
    /// Kernels run on GPUs, from PTX.
    Cuda,
    /// Kernels run on virtual GPUs, from PTX, without any GPU. Needs the feature `virtual`.
    Virtual,
}

impl MachineKind {
    const NAMES: [(&str, Self); 4] =
        [("auto", Self::Auto), ("cpu", Self::Cpu), ("cuda", Self::Cuda), ("virtual", Self::Virtual)];

    /// Reads what `CONGRUENT_MACHINE` may say.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind)
    }

    /// As `CONGRUENT_MACHINE` says it.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// One PE's machine.
pub(crate) enum Machine {
    /// Kernels run natively, on threads of this process.
    Cpu(CpuPe),
    /// Kernels run on a GPU, from PTX.
    Cuda(Box<CudaPe>),
}

impl Machine {
    /// What it is, in a few words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Cpu(pe) => format!("cpu, width {}", pe.blocks().width()),
            Self::Cuda(pe) => pe.describe(),
        }
    }

    /// What the selector knows of it.
    pub(crate) fn parameters(&self, proxied: bool) -> Parameters {
        match self {
            Self::Cpu(pe) => Parameters::cpu(pe.blocks().width(), pe.blocks().cores(), proxied),
            Self::Cuda(_) if proxied => Parameters::cuda_proxied(),
            Self::Cuda(pe) => pe.shared_by_all().map_or_else(Parameters::cuda_nvlink, Parameters::cuda_one_gpu),
        }
    }

    /// A GPU's multiprocessors, those of this PE where several share it. `None` on the CPU machine.
    pub(crate) fn multiprocessors(&self) -> Option<u32> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(pe) => Some(pe.multiprocessors()),
        }
    }

    /// The GPU of this PE, as the process numbers them. `None` on the CPU machine.
    pub(crate) fn device(&self) -> Option<u32> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(pe) => Some(pe.ordinal()),
        }
    }

    /// Who hears what its kernels do, if anybody does.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Cpu(pe) => pe.blocks().watch(),
            Self::Cuda(_) => None,
        }
    }

    /// Where the heap of PE 0 begins, and how far it is from each to the next.
    pub(crate) fn heaps(&self) -> (u64, u64) {
        match self {
            Self::Cpu(pe) => (pe.memory().base().expose_provenance() as u64, pe.memory().stride() as u64),
            Self::Cuda(pe) => (pe.heap().base(), pe.heap().stride()),
        }
    }

    /// Collective: every part has `to` bytes, where it had `from`. All PEs succeed, or all fail and nothing has changed.
    pub(crate) fn grow(&self, control: &Control, from: u64, to: u64) -> Result<(), GrowError> {
        match self {
            Self::Cpu(pe) => pe.memory().grow(control, from as usize, to as usize)?,
            Self::Cuda(pe) => pe.grow(control, to)?,
        }
        Ok(())
    }

    /// Bytes of this PE's device that were taken beyond its heap, where there is a device.
    pub(crate) fn beyond(&self) -> Option<u64> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(pe) => Some(pe.heap().bytes_used()),
        }
    }

    /// Where multicast windows begin, and how many there are; 0 without multicast. The CPU machine emulates as many as it is told.
    pub(crate) fn windows(&self, emulated: u32) -> (u64, u32) {
        match self {
            Self::Cpu(_) => (0, emulated),
            Self::Cuda(pe) => pe.windows(),
        }
    }

    /// The object that begins at `offset` of the heap is gone on all PEs: so is the multicast window of a team whose words it was.
    pub(crate) fn gone(&self, offset: u64) {
        if let Self::Cuda(pe) = self {
            pe.close_window(offset);
        }
    }

    /// This PE's control block. Host and kernels reach it at the same address.
    pub(crate) fn control(&self) -> *mut abi::Control {
        match self {
            Self::Cpu(pe) => pe.control(),
            Self::Cuda(pe) => pe.control(),
        }
    }

    /// Where kernels of a GPU tell of their parts, if a trace is written.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(pe) => pe.trace(),
        }
    }

    /// Zeroed memory that host and kernels reach at the same address, and that goes with the machine: so many lines of 64 bytes. Asked
    /// for once.
    pub(crate) fn rings(&self, lines: usize) -> Result<*mut u8, CudaError> {
        match self {
            Self::Cpu(pe) => Ok(pe.rings(lines)),
            Self::Cuda(pe) => pe.rings(lines),
        }
    }

    /// How the proxy of the PE that `context` describes accesses heaps. On a GPU nothing that it does takes longer than `patience`, and
    /// network devices may be given the heap if `gpu_direct`.
    pub(crate) fn heap_access(
        &self,
        context: abi::Context,
        patience: Duration,
        gpu_direct: bool,
    ) -> Result<Arc<dyn Access>, CudaError> {
        Ok(match self {
            Self::Cpu(_) => Arc::new(HeapAccess),
            Self::Cuda(pe) => Arc::new(pe.heap_access(context, patience, gpu_direct)?),
        })
    }

    /// Whether the machine itself has no launch in flight; those of the CPU machine the world counts.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Cpu(_) => true,
            Self::Cuda(pe) => pe.is_idle(),
        }
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), CudaError> {
        match self {
            Self::Cpu(pe) => pe.read(offset, out),
            Self::Cuda(pe) => pe.read(offset, out)?,
        }
        Ok(())
    }

    /// Copies bytes of some PE's heap, which the caller knows to be on it, while kernels run. False where that cannot be done.
    pub(crate) fn peek(&self, pe: u32, offset: u64, out: &mut [u8]) -> bool {
        match self {
            Self::Cpu(own) => own.peek(pe, offset, out),
            // A copy would wait for kernels that wait for this PE.
            Self::Cuda(_) => false,
        }
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        match self {
            Self::Cpu(pe) => pe.write(offset, bytes),
            Self::Cuda(pe) => pe.write(offset, bytes)?,
        }
        Ok(())
    }

    /// Zeroes bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) -> Result<(), CudaError> {
        match self {
            Self::Cpu(pe) => pe.zero(offset, bytes),
            Self::Cuda(pe) => pe.zero(offset, bytes)?,
        }
        Ok(())
    }
}
