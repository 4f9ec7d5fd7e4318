//! The heaps that this process maps, and what is done to them for peers.

use std::fmt;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, Context, HeapHeader, NumberKind};

use crate::{Atomic, Operation, Signal, TransportError};

/// How a proxy accesses heaps: as kernels on its machine do.
///
/// What a method is given is mapped, and words have 1, 2, 4 or 8 bytes and lie at a multiple of that; an atomic's have 2, 4 or 8. An
/// error says why nothing is done any more.
pub trait Access: fmt::Debug + Send + Sync {
    /// Copies bytes, relaxed. One place may be memory of the process that is no heap.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String>;

    /// Loads a word, relaxed.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn load(&self, from: *const u8, bytes: usize) -> Result<u64, String>;

    /// Stores a word. Who acquires it sees what this proxy did before (MM-4).
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn store(&self, to: *mut u8, bytes: usize, value: u64) -> Result<(), String>;

    /// Does an atomic and gives the old bits. Who acquires the word sees what this proxy did before.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn atomic(&self, at: *mut u8, atomic: Atomic) -> Result<u64, String>;

    /// Wakes who sleeps on a word, where `sleepers`, a word of 4 bytes, says that somebody sleeps. Where nobody ever does, nothing.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn wake(&self, sleepers: *const u8, word: *const u8);

    /// Whether the heaps are memory of the host.
    fn is_host(&self) -> bool {
        true
    }

    /// Whether network devices may be given the heap.
    fn admits_devices(&self) -> bool {
        true
    }

    /// Bytes of the heap as a dma-buf, for network devices that take those. `None` where there is none.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn dma_buf(&self, _from: *const u8, _bytes: usize) -> Option<OwnedFd> {
        None
    }

    /// Makes what network devices wrote to this PE's heap visible to who acquires what is written there from now on, and to this proxy.
    ///
    /// # Errors
    /// As for an access.
    fn flush(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Heaps, with the bounds of every access checked.
#[derive(Clone, Debug)]
pub struct Memory {
    heaps: Context,
    access: Arc<dyn Access>,
}

impl Memory {
    /// The heaps that `heaps` describes.
    ///
    /// # Safety
    /// The heaps of the PEs that are accessed are mapped as `heaps` says, with their provenance exposed, for as long as this or a
    /// clone of it is used. Others access them as `access` does, whose methods do what they say.
    pub unsafe fn new(heaps: Context, access: Arc<dyn Access>) -> Self {
        Self { heaps, access }
    }

    /// The PE whose memory it is.
    pub fn pe(&self) -> Pe {
        Pe::new(self.heaps.pe)
    }

    /// How many PEs there are.
    pub fn npes(&self) -> u32 {
        self.heaps.npes
    }

    /// Bytes of each heap.
    pub fn bytes(&self) -> u64 {
        self.heaps.heap_bytes
    }

    /// Whether the heaps are memory of the host, which every network reaches.
    pub(crate) fn is_host(&self) -> bool {
        self.access.is_host()
    }

    /// Whether network devices may be given the heap.
    pub(crate) fn admits_devices(&self) -> bool {
        self.access.admits_devices()
    }

    /// This PE's heap as a dma-buf, where it is one.
    pub(crate) fn dma_buf(&self) -> Option<OwnedFd> {
        let heap = self.at(self.pe(), 0, self.bytes(), 1).ok()?;
        // SAFETY: all of the heap, which is mapped.
        unsafe { self.access.dma_buf(heap, self.bytes() as usize) }
    }

    /// Makes what network devices wrote to this PE's heap visible.
    pub(crate) fn flush(&self) -> Result<(), TransportError> {
        Self::done(self.pe(), self.access.flush())
    }

    /// `bytes` bytes at `offset` of a PE's heap, aligned to `align`.
    pub(crate) fn at(&self, pe: Pe, offset: u64, bytes: u64, align: u64) -> Result<*mut u8, TransportError> {
        let inside = bytes <= self.heaps.heap_bytes && offset <= self.heaps.heap_bytes - bytes;
        if !inside || !offset.is_multiple_of(align) || pe.raw() >= self.heaps.npes {
            return Err(TransportError::Malformed { peer: pe, remote: offset, bytes });
        }
        Ok(with_exposed_provenance_mut(self.heaps.address(pe, offset) as usize))
    }

    /// What an access to a PE's heap came to.
    fn done<T>(pe: Pe, outcome: Result<T, String>) -> Result<T, TransportError> {
        outcome.map_err(|why| TransportError::Memory { peer: pe, why })
    }

    /// Copies bytes from one place to another.
    pub(crate) fn copy(&self, to: (Pe, u64), from: (Pe, u64), bytes: u64) -> Result<(), TransportError> {
        let (dst, src) = (self.at(to.0, to.1, bytes, 1)?, self.at(from.0, from.1, bytes, 1)?);
        // SAFETY: `at` checked both ranges.
        Self::done(to.0, unsafe { self.access.copy(dst, src, bytes as usize) })
    }

    /// A word of one of these sizes.
    fn word(&self, peer: Pe, remote: u64, bytes: u64, sizes: &[u64]) -> Result<*mut u8, TransportError> {
        if !sizes.contains(&bytes) {
            return Err(TransportError::Malformed { peer, remote, bytes });
        }
        self.at(peer, remote, bytes, bytes)
    }

    /// Whether an operation on a peer is one: inside of the heaps, of sizes that exist, aligned.
    pub(crate) fn check(&self, peer: Pe, operation: &Operation) -> Result<(), TransportError> {
        let own = self.pe();
        match *operation {
            Operation::Write { remote, local, bytes, then } => {
                self.at(peer, remote, bytes, 1)?;
                self.at(own, local, bytes, 1)?;
                then.map_or(Ok(()), |signal| self.at(peer, signal.offset, 8, 8).map(drop))
            }
            Operation::Read { remote, local, bytes } => {
                self.at(peer, remote, bytes, 1)?;
                self.at(own, local, bytes, 1).map(drop)
            }
            Operation::Store { remote, bytes, .. } | Operation::Load { remote, bytes } => {
                self.word(peer, remote, bytes, &[1, 2, 4, 8]).map(drop)
            }
            Operation::Atomic { remote, atomic } => self.word(peer, remote, atomic.bytes, &[2, 4, 8]).map(drop),
            Operation::NicAtomic { remote, atomic: Atomic { op, kind, bytes, .. } } => {
                let is_one = kind == NumberKind::Unsigned && matches!(op, AtomicOp::Add | AtomicOp::CompareExchange);
                self.word(peer, remote, bytes, if is_one { &[8] } else { &[] }).map(drop)
            }
        }
    }

    /// Copies this PE's bytes at `local` to `to`.
    pub(crate) fn take(&self, local: u64, to: &mut [u8]) -> Result<(), TransportError> {
        let src = self.at(self.pe(), local, to.len() as u64, 1)?;
        // SAFETY: `at` checked the range on the heap, and `to` is as long.
        Self::done(self.pe(), unsafe { self.access.copy(to.as_mut_ptr(), src, to.len()) })
    }

    /// Copies `bytes` to a PE's heap.
    pub(crate) fn give(&self, pe: Pe, remote: u64, bytes: &[u8]) -> Result<(), TransportError> {
        let dst = self.at(pe, remote, bytes.len() as u64, 1)?;
        // SAFETY: as in `take`.
        Self::done(pe, unsafe { self.access.copy(dst, bytes.as_ptr(), bytes.len()) })
    }

    /// Adds to a PE's word or sets it, with release, and wakes who sleeps on it.
    pub(crate) fn signal(&self, peer: Pe, signal: Signal) -> Result<(), TransportError> {
        let Signal { offset, value, set } = signal;
        if set {
            self.store(peer, offset, 8, value)?;
        } else {
            let (op, kind) = (AtomicOp::Add, NumberKind::Unsigned);
            self.atomic(peer, offset, Atomic { op, kind, bytes: 8, value, expected: 0 })?;
        }
        let sleepers = self.word(peer, offset_of!(HeapHeader, sleepers) as u64, 4, &[4])?;
        let word = self.word(peer, offset, 8, &[8])?;
        // SAFETY: `word` checked both.
        unsafe { self.access.wake(sleepers, word) };
        Ok(())
    }

    /// Stores a word of 1, 2, 4 or 8 bytes, after all that was done before.
    pub(crate) fn store(&self, peer: Pe, remote: u64, bytes: u64, value: u64) -> Result<(), TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // SAFETY: `word` checked that it is on the heap and aligned.
        Self::done(peer, unsafe { self.access.store(word, bytes as usize, value) })
    }

    /// Loads a word of 1, 2, 4 or 8 bytes.
    pub(crate) fn load(&self, peer: Pe, remote: u64, bytes: u64) -> Result<u64, TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // SAFETY: as in `store`.
        Self::done(peer, unsafe { self.access.load(word, bytes as usize) })
    }

    /// Does an atomic, and gives the old bits.
    pub(crate) fn atomic(&self, peer: Pe, remote: u64, atomic: Atomic) -> Result<u64, TransportError> {
        let word = self.word(peer, remote, atomic.bytes, &[2, 4, 8])?;
        // SAFETY: as in `store`.
        Self::done(peer, unsafe { self.access.atomic(word, atomic) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use congruent_heap::abi;

    /// Memory that nobody else touches, which may be accessed in any way.
    #[derive(Debug)]
    struct Unshared;

    impl Access for Unshared {
        unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String> {
            // SAFETY: as `Access` says.
            unsafe { to.copy_from(from, bytes) };
            Ok(())
        }
        unsafe fn load(&self, from: *const u8, bytes: usize) -> Result<u64, String> {
            let mut word = [0; 8];
            // SAFETY: as `Access` says, and a word has at most 8 bytes.
            unsafe { word.as_mut_ptr().copy_from(from, bytes) };
            Ok(u64::from_le_bytes(word))
        }
        unsafe fn store(&self, to: *mut u8, bytes: usize, value: u64) -> Result<(), String> {
            // SAFETY: as in `load`.
            unsafe { to.copy_from(value.to_le_bytes().as_ptr(), bytes) };
            Ok(())
        }
        unsafe fn atomic(&self, at: *mut u8, atomic: Atomic) -> Result<u64, String> {
            let bytes = atomic.bytes as usize;
            // SAFETY: as `Access` says.
            unsafe {
                let old = self.load(at, bytes)?;
                self.store(at, bytes, atomic.apply(old))?;
                Ok(old)
            }
        }
        unsafe fn wake(&self, _sleepers: *const u8, _word: *const u8) {}
    }

    /// So many heaps side by side in `memory`, seen from one of them.
    pub(crate) fn heaps(memory: &mut [u64], npes: u32, pe: u32) -> Memory {
        let bytes = size_of_val(memory) as u64 / u64::from(npes);
        let context = Context {
            base: memory.as_mut_ptr().expose_provenance() as u64,
            stride: bytes,
            heap_bytes: bytes,
            control: 0,
            routes: 0,
            ring: 0,
            deadline_ns: abi::NO_DEADLINE,
            world_sync: 0,
            pe,
            npes,
            block_slots: 1,
            version: abi::VERSION,
            multicast: 0,
            windows: 0,
            launch: 0,
            rings: 0,
            log2_slots: 0,
        };
        // SAFETY: the memory outlives what is made of this in every test, and nobody else touches it meanwhile.
        unsafe { Memory::new(context, Arc::new(Unshared)) }
    }
}
