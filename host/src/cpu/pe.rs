//! What the CPU machine is to one PE: the mapped heaps, its control block, and how its blocks run.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use congruent_device::{abi, cpu};

use super::CpuMachine;
use crate::shared_memory::Reservation;

/// One PE's memory and the way its kernels run.
pub(crate) struct CpuPe {
    pe: u32,
    blocks: CpuMachine,
    memory: Reservation,
    control: ControlBlock,
    rings: OnceLock<Lines>,
}

/// The block that kernels write faults to and read the abort word from. Boxed, so that its address stays.
struct ControlBlock(Box<UnsafeCell<abi::Control>>);

// SAFETY: host threads and kernels access the block through atomics, and its record only after its state says it is
// complete (see `Shared::fault`).
unsafe impl Send for ControlBlock {}
// SAFETY: as above.
unsafe impl Sync for ControlBlock {}

/// What kernels and the proxy share. Boxed, so that its address stays.
struct Lines(Box<[UnsafeCell<Line>]>);

#[repr(align(64))]
#[expect(dead_code, reason = "accessed through its address")]
struct Line([u8; 64]);

// SAFETY: it only owns the memory; whoever is given its address argues how it is accessed.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl CpuPe {
    /// PE `pe`, with the heaps of all PEs.
    pub(crate) fn new(pe: u32, blocks: CpuMachine, memory: Reservation) -> Self {
        // SAFETY: integers, for which zero bytes are valid.
        let control = ControlBlock(Box::new(UnsafeCell::new(unsafe { std::mem::zeroed() })));
        Self { pe, blocks, memory, control, rings: OnceLock::new() }
    }

    /// How its blocks run.
    pub(crate) fn blocks(&self) -> &CpuMachine {
        &self.blocks
    }

    pub(crate) fn memory(&self) -> &Reservation {
        &self.memory
    }

    /// Its control block, for host and kernels alike.
    pub(crate) fn control(&self) -> *mut abi::Control {
        self.control.0.get()
    }

    /// Zeroed memory that kernels reach at the same address, until the machine is gone: so many lines of 64 bytes. Given once.
    pub(crate) fn rings(&self, lines: usize) -> *mut u8 {
        let zeroed = || Lines((0..lines).map(|_| UnsafeCell::new(Line([0; 64]))).collect());
        UnsafeCell::raw_get(self.rings.get_or_init(zeroed).0.as_ptr()).cast()
    }

    /// Copies bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let _is_here = self.peek(self.pe, offset, out);
    }

    /// Copies bytes of any PE's heap, which the caller knows to be on it. False where it is on another host.
    pub(crate) fn peek(&self, pe: u32, offset: u64, out: &mut [u8]) -> bool {
        let is_here = self.memory.has(pe);
        if is_here {
            // SAFETY: the range is on the PE's heap, which `memory` keeps mapped, and as long as `out`.
            unsafe { cpu::copy_bytes_for_host(out.as_mut_ptr(), self.at(pe, offset, out.len()), out.len()) };
        }
        is_here
    }

    /// Copies `bytes` to this PE's heap, where the caller knows them to fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the range is on this PE's heap, which `memory` keeps mapped, and as long as `bytes`.
        unsafe { cpu::copy_bytes_for_host(self.at(self.pe, offset, bytes.len()), bytes.as_ptr(), bytes.len()) };
    }

    /// Zeroes bytes of this PE's heap, which the caller knows to be on it.
    pub(crate) fn zero(&self, offset: u64, bytes: usize) {
        // SAFETY: the range is on this PE's heap, which `memory` keeps mapped.
        unsafe { cpu::zero_for_host(self.at(self.pe, offset, bytes), bytes) }
    }

    fn at(&self, pe: u32, offset: u64, bytes: usize) -> *mut u8 {
        debug_assert!(offset as usize + bytes <= self.memory.stride());
        self.memory.base().wrapping_add(pe as usize * self.memory.stride() + offset as usize)
    }
}
