//! The heaps that this process maps, and what is done to them for peers.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{Ordering, fence};

use congruent_heap::abi::{AtomicOp, Context, HeapHeader, NumberKind};
use congruent_heap::{Pe, bf16, f16};

use crate::{Atomic, Operation, Signal, TransportError};

/// How words and bytes of heaps are accessed: by the instructions that kernels use, which the host knows.
///
/// Each function takes mapped memory, and words of 1, 2, 4 or 8 bytes at a multiple of their size.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Copies bytes to the first place from the second, relaxed.
    pub copy: unsafe fn(*mut u8, *const u8, usize),
    /// Loads a word of so many bytes, relaxed.
    pub load: unsafe fn(*const u8, usize) -> u64,
    /// Stores a word of so many bytes, relaxed.
    pub store: unsafe fn(*mut u8, usize, u64),
    /// Stores a word of 8 bytes, with release.
    pub store_release: unsafe fn(*mut u8, u64),
    /// Replaces a word of 2, 4 or 8 bytes, with release, by the second value where it is the first; gives what it was.
    pub compare_exchange: unsafe fn(*mut u8, usize, u64, u64) -> u64,
    /// Wakes who sleeps on a word, given by its low half.
    pub wake: unsafe fn(*const u32),
}

/// Heaps, with the bounds of every access checked.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    heaps: Context,
    access: Access,
}

impl Memory {
    /// The heaps that `heaps` describes.
    ///
    /// # Safety
    /// The heaps of the PEs that are accessed are mapped as `heaps` says, with their provenance exposed, for as long as this or a
    /// copy of it is used. Others access them as `access` does, whose functions do what their fields say.
    pub unsafe fn new(heaps: Context, access: Access) -> Self {
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

    /// Wakes who sleeps on a signal of a peer's, if anybody does there.
    fn wake(&self, peer: Pe, signal: *mut u8) -> Result<(), TransportError> {
        let sleepers = self.word(peer, offset_of!(HeapHeader, sleepers) as u64, 4, &[4])?;
        // SAFETY: both are aligned words of mapped heaps; the low half of a word comes first.
        unsafe {
            if (self.access.load)(sleepers, 4) != 0 {
                (self.access.wake)(signal.cast());
            }
        }
        Ok(())
    }

    /// `bytes` bytes at `offset` of a PE's heap, aligned to `align`.
    pub(crate) fn at(&self, pe: Pe, offset: u64, bytes: u64, align: u64) -> Result<*mut u8, TransportError> {
        let inside = bytes <= self.heaps.heap_bytes && offset <= self.heaps.heap_bytes - bytes;
        if !inside || !offset.is_multiple_of(align) || pe.raw() >= self.heaps.npes {
            return Err(TransportError::Malformed { peer: pe, remote: offset, bytes });
        }
        Ok(with_exposed_provenance_mut(self.heaps.address(pe, offset) as usize))
    }

    /// Copies bytes from one place to another.
    pub(crate) fn copy(&self, to: (Pe, u64), from: (Pe, u64), bytes: u64) -> Result<(), TransportError> {
        let (dst, src) = (self.at(to.0, to.1, bytes, 1)?, self.at(from.0, from.1, bytes, 1)?);
        // SAFETY: `at` checked both ranges.
        unsafe { (self.access.copy)(dst, src, bytes as usize) };
        Ok(())
    }

    /// A word of one of these sizes.
    fn word(&self, peer: Pe, remote: u64, bytes: u64, sizes: &[u64]) -> Result<*mut u8, TransportError> {
        if !sizes.contains(&bytes) {
            return Err(TransportError::Malformed { peer, remote, bytes });
        }
        self.at(peer, remote, bytes, bytes)
    }

    /// Replaces a word of 2, 4 or 8 bytes by what becomes of it, and gives the old one.
    fn update(&self, peer: Pe, remote: u64, bytes: u64, new: impl Fn(u64) -> u64) -> Result<u64, TransportError> {
        let word = self.word(peer, remote, bytes, &[2, 4, 8])?;
        // SAFETY: `word` checked that it is on the heap and aligned, here and below.
        let mut seen = unsafe { (self.access.load)(word, bytes as usize) };
        loop {
            // SAFETY: as above.
            let old = unsafe { (self.access.compare_exchange)(word, bytes as usize, seen, new(seen)) };
            if old == seen {
                return Ok(old);
            }
            seen = old;
        }
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
        }
    }

    /// Copies this PE's bytes at `local` to `to`.
    pub(crate) fn take(&self, local: u64, to: &mut [u8]) -> Result<(), TransportError> {
        let src = self.at(self.pe(), local, to.len() as u64, 1)?;
        // SAFETY: `at` checked the range on the heap, and `to` is as long.
        unsafe { (self.access.copy)(to.as_mut_ptr(), src, to.len()) };
        Ok(())
    }

    /// Copies `bytes` to this PE's heap.
    pub(crate) fn give(&self, remote: u64, bytes: &[u8]) -> Result<(), TransportError> {
        let dst = self.at(self.pe(), remote, bytes.len() as u64, 1)?;
        // SAFETY: as in `take`.
        unsafe { (self.access.copy)(dst, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Adds to a PE's word or sets it, with release, and wakes who sleeps on it.
    pub(crate) fn signal(&self, peer: Pe, signal: Signal) -> Result<(), TransportError> {
        let word = self.word(peer, signal.offset, 8, &[8])?;
        if signal.set {
            // SAFETY: `word` checked that it is on the heap and aligned.
            unsafe { (self.access.store_release)(word, signal.value) };
        } else {
            self.update(peer, signal.offset, 8, |old| old.wrapping_add(signal.value))?;
        }
        self.wake(peer, word)
    }

    /// Stores a word of 1, 2, 4 or 8 bytes, after all that was done before.
    pub(crate) fn store(&self, peer: Pe, remote: u64, bytes: u64, value: u64) -> Result<(), TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // Who acquires the word sees what was written there before (MM-4).
        fence(Ordering::Release);
        // SAFETY: `word` checked that it is on the heap and aligned.
        unsafe { (self.access.store)(word, bytes as usize, value) };
        Ok(())
    }

    /// Loads a word of 1, 2, 4 or 8 bytes.
    pub(crate) fn load(&self, peer: Pe, remote: u64, bytes: u64) -> Result<u64, TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // SAFETY: `word` checked that it is on the heap and aligned.
        Ok(unsafe { (self.access.load)(word, bytes as usize) })
    }

    /// Does an atomic, and gives the old bits.
    pub(crate) fn atomic(&self, peer: Pe, remote: u64, atomic: Atomic) -> Result<u64, TransportError> {
        self.update(peer, remote, atomic.bytes, |bits| compute(atomic, bits))
    }
}

/// The new bits of a word after an atomic.
fn compute(atomic: Atomic, old: u64) -> u64 {
    let Atomic { op, kind, bytes, value, expected } = atomic;
    match (op, kind) {
        (AtomicOp::Swap, _) => value,
        (AtomicOp::CompareExchange, _) => {
            if old == expected {
                value
            } else {
                old
            }
        }
        (AtomicOp::And, _) => old & value,
        (AtomicOp::Or, _) => old | value,
        (AtomicOp::Xor, _) => old ^ value,
        // A sum in f32, rounded once more, is the sum rounded once: 24 bits are at least 2 * 11 + 2.
        (AtomicOp::Add, NumberKind::Bfloat) => {
            (bf16::from_bits(old as u16) + bf16::from_bits(value as u16)).to_bits().into()
        }
        (AtomicOp::Add, NumberKind::Float) if bytes == 2 => {
            (f16::from_bits(old as u16) + f16::from_bits(value as u16)).to_bits().into()
        }
        (AtomicOp::Add, NumberKind::Float) if bytes == 4 => {
            (f32::from_bits(old as u32) + f32::from_bits(value as u32)).to_bits().into()
        }
        (AtomicOp::Add, NumberKind::Float) => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        (AtomicOp::Add, _) => old.wrapping_add(value),
        (AtomicOp::Min | AtomicOp::Max, _) => {
            let smaller =
                if kind == NumberKind::Signed { signed(old, bytes) <= signed(value, bytes) } else { old <= value };
            if smaller == (op == AtomicOp::Min) { old } else { value }
        }
    }
}

fn signed(bits: u64, bytes: u64) -> i64 {
    if bytes == 4 { i64::from(bits as u32 as i32) } else { bits as i64 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use congruent_heap::abi;

    // Memory that nobody else touches may be accessed in any way.
    unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: as `Access` says.
        unsafe { dst.copy_from(src, bytes) }
    }
    unsafe fn load(from: *const u8, bytes: usize) -> u64 {
        let mut word = [0; 8];
        // SAFETY: as `Access` says, and a word has at most 8 bytes.
        unsafe { copy(word.as_mut_ptr(), from, bytes) };
        u64::from_le_bytes(word)
    }
    unsafe fn store(to: *mut u8, bytes: usize, value: u64) {
        // SAFETY: as in `load`.
        unsafe { copy(to, value.to_le_bytes().as_ptr(), bytes) }
    }
    unsafe fn store_release(to: *mut u8, value: u64) {
        // SAFETY: as `Access` says.
        unsafe { store(to, 8, value) }
    }
    unsafe fn compare_exchange(at: *mut u8, bytes: usize, expected: u64, new: u64) -> u64 {
        // SAFETY: as `Access` says.
        unsafe {
            let old = load(at, bytes);
            if old == expected {
                store(at, bytes, new);
            }
            old
        }
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
        let access = Access { copy, load, store, store_release, compare_exchange, wake: |_| {} };
        // SAFETY: the memory outlives what is made of this in every test, and nobody else touches it meanwhile.
        unsafe { Memory::new(context, access) }
    }
}
