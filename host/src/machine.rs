//! What a world runs on: it holds the PEs' memory, runs kernels on streams, and has the words by which kernels and host tell
//! each other that it is over.

use std::io;

use congruent_device::abi;

use crate::WorldFailure;
use crate::cpu::{CpuPe, CpuStream};
use crate::select::Parameters;
use crate::watch::Watch;

/// One PE's machine.
pub(crate) enum Machine {
    /// Kernels run natively, on threads of this process.
    Cpu(CpuPe),
}

/// One PE's queue of launches.
pub(crate) enum Runner {
    Cpu(CpuStream),
}

impl Machine {
    /// What it is, in a few words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Cpu(pe) => format!("cpu, width {}", pe.blocks().width()),
        }
    }

    /// What the selector knows of it.
    pub(crate) fn parameters(&self, proxied: bool) -> Parameters {
        match self {
            Self::Cpu(pe) => Parameters::cpu(pe.blocks().width(), pe.blocks().cores(), proxied),
        }
    }

    /// Who hears what its kernels do, if anybody does.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Cpu(pe) => pe.blocks().watch(),
        }
    }

    /// Where the heap of PE 0 begins, and how far it is from each to the next.
    pub(crate) fn heaps(&self) -> (u64, u64) {
        match self {
            Self::Cpu(pe) => (pe.memory().base().expose_provenance() as u64, pe.memory().stride() as u64),
        }
    }

    /// This PE's control block, as the host reaches it. Kernels reach it at the same address.
    pub(crate) fn control(&self) -> *mut abi::Control {
        match self {
            Self::Cpu(pe) => pe.control(),
        }
    }

    /// A new stream.
    pub(crate) fn stream(&self, name: &str) -> io::Result<Runner> {
        match self {
            Self::Cpu(pe) => Ok(Runner::Cpu(CpuStream::new(pe.blocks().clone(), name)?)),
        }
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), WorldFailure> {
        match self {
            Self::Cpu(pe) => pe.read(offset, out),
        }
        Ok(())
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WorldFailure> {
        match self {
            Self::Cpu(pe) => pe.write(offset, bytes),
        }
        Ok(())
    }

    /// Zeroes bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) -> Result<(), WorldFailure> {
        match self {
            Self::Cpu(pe) => pe.zero(offset, bytes),
        }
        Ok(())
    }
}

impl Runner {
    /// Whether everything launched so far is complete.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Cpu(stream) => stream.is_idle(),
        }
    }

    /// How many launches it was given so far.
    pub(crate) fn submitted(&self) -> u64 {
        match self {
            Self::Cpu(stream) => stream.submitted(),
        }
    }

    /// Waits until its first `count` launches are complete.
    pub(crate) fn wait_for(&self, count: u64) {
        match self {
            Self::Cpu(stream) => stream.wait_for(count),
        }
    }
}
