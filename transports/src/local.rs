//! The transport to peers whose heaps this process maps: it does with the CPU what a network card would do.
//!
//! # Why the signal follows the data
//! Data is stored relaxed, then the signal with a release store or read-modify-write by the same thread: whoever acquires the
//! signal sees the data (MM-1, MM-2). One thread does every operation at once, so they take effect in the order in which they
//! were started.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance_mut;

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, Context, HeapHeader, NumberKind};

use crate::{Atomic, Signal, Transport, TransportError};

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
    /// Replaces a word of 4 or 8 bytes, with release, by the second value where it is the first; gives what it was.
    pub compare_exchange: unsafe fn(*mut u8, usize, u64, u64) -> u64,
    /// Wakes who sleeps on a word, given by its low half.
    pub wake: unsafe fn(*const u32),
}

/// Peers by load and store.
#[derive(Debug)]
pub struct Local {
    heaps: Context,
    access: Access,
    done: Vec<(u64, u64)>,
}

impl Local {
    /// The transport of the PE that `heaps` describes; `wake` wakes who sleeps on a word that was signalled, given by its low
    /// half.
    ///
    /// # Safety
    /// Every PE's heap is mapped as `heaps` says, with its provenance exposed, for as long as the transport lives. Others
    /// access it as `access` does, whose functions do what their fields say.
    pub unsafe fn new(heaps: Context, access: Access) -> Self {
        Self { heaps, access, done: Vec::new() }
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
    fn at(&self, pe: Pe, offset: u64, bytes: u64, align: u64) -> Result<*mut u8, TransportError> {
        let inside = bytes <= self.heaps.heap_bytes && offset <= self.heaps.heap_bytes - bytes;
        if !inside || !offset.is_multiple_of(align) || pe.raw() >= self.heaps.npes {
            return Err(TransportError::Malformed { peer: pe, remote: offset, bytes });
        }
        Ok(with_exposed_provenance_mut(self.heaps.address(pe, offset) as usize))
    }

    fn copy(&self, to: (Pe, u64), from: (Pe, u64), bytes: u64) -> Result<(), TransportError> {
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

    /// Replaces a word of 4 or 8 bytes by what becomes of it, and gives the old one.
    fn update(&self, peer: Pe, remote: u64, bytes: u64, new: impl Fn(u64) -> u64) -> Result<u64, TransportError> {
        let word = self.word(peer, remote, bytes, &[4, 8])?;
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
}

impl Transport for Local {
    fn write(
        &mut self,
        ticket: u64,
        peer: Pe,
        remote: u64,
        local: u64,
        bytes: u64,
        then: Option<Signal>,
    ) -> Result<(), TransportError> {
        self.copy((peer, remote), (Pe::new(self.heaps.pe), local), bytes)?;
        if let Some(signal) = then {
            let word = self.word(peer, signal.offset, 8, &[8])?;
            if signal.set {
                // SAFETY: `word` checked that it is on the heap and aligned.
                unsafe { (self.access.store_release)(word, signal.value) };
            } else {
                self.update(peer, signal.offset, 8, |old| old.wrapping_add(signal.value))?;
            }
            self.wake(peer, word)?;
        }
        self.done.push((ticket, 0));
        Ok(())
    }

    fn read(&mut self, ticket: u64, peer: Pe, remote: u64, local: u64, bytes: u64) -> Result<(), TransportError> {
        self.copy((Pe::new(self.heaps.pe), local), (peer, remote), bytes)?;
        self.done.push((ticket, 0));
        Ok(())
    }

    fn store(&mut self, ticket: u64, peer: Pe, remote: u64, bytes: u64, value: u64) -> Result<(), TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // SAFETY: `word` checked that it is on the heap and aligned.
        unsafe { (self.access.store)(word, bytes as usize, value) };
        self.done.push((ticket, 0));
        Ok(())
    }

    fn load(&mut self, ticket: u64, peer: Pe, remote: u64, bytes: u64) -> Result<(), TransportError> {
        let word = self.word(peer, remote, bytes, &[1, 2, 4, 8])?;
        // SAFETY: `word` checked that it is on the heap and aligned.
        let value = unsafe { (self.access.load)(word, bytes as usize) };
        self.done.push((ticket, value));
        Ok(())
    }

    fn atomic(&mut self, ticket: u64, peer: Pe, remote: u64, atomic: Atomic) -> Result<(), TransportError> {
        let old = self.update(peer, remote, atomic.bytes, |bits| compute(atomic, bits))?;
        self.done.push((ticket, old));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(u64, u64)) -> Result<(), TransportError> {
        self.done.drain(..).for_each(|(ticket, reply)| done(ticket, reply));
        Ok(())
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
mod tests {
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

    /// Two heaps of 256 bytes side by side, seen from PE 0.
    fn pair(memory: &mut [u64; 64]) -> Local {
        let context = Context {
            base: memory.as_mut_ptr().expose_provenance() as u64,
            stride: 256,
            heap_bytes: 256,
            control: 0,
            routes: 0,
            ring: 0,
            deadline_ns: abi::NO_DEADLINE,
            world_sync: 0,
            pe: 0,
            npes: 2,
            block_slots: 1,
            version: abi::VERSION,
            multicast: 0,
            windows: 0,
            launch: 0,
        };
        let access = Access { copy, load, store, store_release, compare_exchange, wake: |_| {} };
        // SAFETY: the memory outlives the transport in every test, and nobody else touches it meanwhile.
        unsafe { Local::new(context, access) }
    }

    fn replies(transport: &mut Local) -> Vec<(u64, u64)> {
        let mut replies = Vec::new();
        transport.poll(&mut |ticket, reply| replies.push((ticket, reply))).unwrap();
        replies
    }

    #[test]
    fn a_write_arrives_with_its_signal() {
        let mut memory = [0; 64];
        memory[2] = 42;
        let mut transport = pair(&mut memory);
        let peer = Pe::new(1);
        let then = Signal { offset: 64, value: 3, set: false };
        transport.write(7, peer, 8, 16, 8, Some(then)).unwrap();
        transport.load(8, peer, 8, 8).unwrap();
        transport.load(9, peer, 64, 8).unwrap();
        assert_eq!(replies(&mut transport), [(7, 0), (8, 42), (9, 3)]);
        assert_eq!(replies(&mut transport), []);
    }

    #[test]
    fn atomics_compute_by_kind() {
        let mut memory = [0; 64];
        let mut transport = pair(&mut memory);
        let peer = Pe::new(1);
        let minus_one = u64::from((-1i32) as u32);
        let mut run = |op, kind, bytes, value, expected| {
            transport.atomic(0, peer, 0, Atomic { op, kind, bytes, value, expected }).unwrap();
            replies(&mut transport)[0].1
        };
        assert_eq!(run(AtomicOp::Min, NumberKind::Signed, 4, minus_one, 0), 0);
        assert_eq!(run(AtomicOp::Max, NumberKind::Unsigned, 4, 1, 0), minus_one);
        assert_eq!(run(AtomicOp::Swap, NumberKind::Float, 4, 1.5f32.to_bits().into(), 0), minus_one);
        assert_eq!(run(AtomicOp::Add, NumberKind::Float, 4, 2.0f32.to_bits().into(), 0), u64::from(1.5f32.to_bits()));
        let sum = u64::from(3.5f32.to_bits());
        assert_eq!(run(AtomicOp::CompareExchange, NumberKind::Float, 4, 9, 1), sum);
        assert_eq!(run(AtomicOp::CompareExchange, NumberKind::Float, 4, 9, sum), sum);
        assert_eq!(run(AtomicOp::Add, NumberKind::Unsigned, 4, 0, 0), 9);
    }

    #[test]
    fn what_is_outside_the_heap_is_refused() {
        let mut memory = [0; 64];
        let mut transport = pair(&mut memory);
        for (peer, remote, bytes) in [(2, 0, 8), (1, 256, 8), (1, 252, 8), (1, 4, 8), (1, 0, 3), (1, u64::MAX, 8)] {
            let refused = transport.load(0, Pe::new(peer), remote, bytes);
            assert!(matches!(refused, Err(TransportError::Malformed { .. })), "{peer} {remote} {bytes}: {refused:?}");
        }
        assert!(transport.write(0, Pe::new(1), 0, 200, 100, None).is_err());
        assert_eq!(replies(&mut transport), []);
    }
}
