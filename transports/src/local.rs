//! The transport to peers whose heaps this process maps: it does with the CPU what a network card would do.
//!
//! # Why the signal follows the data
//! Data is stored with relaxed atomic words, then the signal with a release store or read-modify-write by the same thread:
//! whoever acquires the signal sees the data (C++20 memory model, [atomics.order]; MM-2). One thread does every operation
//! at once, so they take effect in the order in which they were started.
#![allow(clippy::disallowed_types, reason = "this is the hardware of the proxied route")]

use std::mem::offset_of;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use congruent_heap::Pe;
use congruent_heap::abi::{AtomicOp, Context, HeapHeader, NumberKind};

use crate::{Atomic, Signal, Transport, TransportError};

/// Peers by load and store.
#[derive(Debug)]
pub struct Local {
    heaps: Context,
    wake: unsafe fn(*const u32),
    done: Vec<(u64, u64)>,
}

impl Local {
    /// The transport of the PE that `heaps` describes; `wake` wakes who sleeps on a word that was signalled, given by its low
    /// half.
    ///
    /// # Safety
    /// Every PE's heap is mapped as `heaps` says, with its provenance exposed, for as long as the transport lives, and all
    /// accesses to it by others are atomic. `wake` may be called with any aligned word of these heaps.
    pub unsafe fn new(heaps: Context, wake: unsafe fn(*const u32)) -> Self {
        Self { heaps, wake, done: Vec::new() }
    }

    /// Wakes who sleeps on a signal of a peer's, if anybody does there.
    fn wake(&self, peer: Pe, signal: &AtomicU64) -> Result<(), TransportError> {
        let Word::Four(sleepers) = self.word(peer, offset_of!(HeapHeader, sleepers) as u64, 4)? else { return Ok(()) };
        if sleepers.load(Ordering::Relaxed) != 0 {
            let low_half = usize::from(cfg!(target_endian = "big"));
            // SAFETY: a word of a mapped heap, as `new` was promised.
            unsafe { (self.wake)(signal.as_ptr().cast::<u32>().wrapping_add(low_half)) };
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
        let mut at = 0;
        let word_wise = (dst as usize | src as usize).is_multiple_of(8);
        while word_wise && at + 8 <= bytes as usize {
            // SAFETY: `at` checked both ranges, and both addresses are multiples of 8.
            let (dst, src) =
                unsafe { (AtomicU64::from_ptr(dst.add(at).cast()), AtomicU64::from_ptr(src.add(at).cast())) };
            dst.store(src.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 8;
        }
        while at < bytes as usize {
            // SAFETY: `at` checked both ranges.
            let (dst, src) = unsafe { (AtomicU8::from_ptr(dst.add(at)), AtomicU8::from_ptr(src.add(at))) };
            dst.store(src.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    fn word(&self, peer: Pe, remote: u64, bytes: u64) -> Result<Word<'_>, TransportError> {
        let at = self.at(peer, remote, bytes, bytes.max(1))?;
        // SAFETY: `at` checked that the word is inside the heap and aligned to its size.
        unsafe {
            Ok(match bytes {
                1 => Word::One(AtomicU8::from_ptr(at)),
                2 => Word::Two(AtomicU16::from_ptr(at.cast())),
                4 => Word::Four(AtomicU32::from_ptr(at.cast())),
                8 => Word::Eight(AtomicU64::from_ptr(at.cast())),
                _ => return Err(TransportError::Malformed { peer, remote, bytes }),
            })
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
            let Word::Eight(word) = self.word(peer, signal.offset, 8)? else { return Ok(()) };
            if signal.set {
                word.store(signal.value, Ordering::Release);
            } else {
                word.fetch_add(signal.value, Ordering::Release);
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
        match self.word(peer, remote, bytes)? {
            Word::One(word) => word.store(value as u8, Ordering::Relaxed),
            Word::Two(word) => word.store(value as u16, Ordering::Relaxed),
            Word::Four(word) => word.store(value as u32, Ordering::Relaxed),
            Word::Eight(word) => word.store(value, Ordering::Relaxed),
        }
        self.done.push((ticket, 0));
        Ok(())
    }

    fn load(&mut self, ticket: u64, peer: Pe, remote: u64, bytes: u64) -> Result<(), TransportError> {
        let value = match self.word(peer, remote, bytes)? {
            Word::One(word) => word.load(Ordering::Relaxed).into(),
            Word::Two(word) => word.load(Ordering::Relaxed).into(),
            Word::Four(word) => word.load(Ordering::Relaxed).into(),
            Word::Eight(word) => word.load(Ordering::Relaxed),
        };
        self.done.push((ticket, value));
        Ok(())
    }

    fn atomic(&mut self, ticket: u64, peer: Pe, remote: u64, atomic: Atomic) -> Result<(), TransportError> {
        let old = match self.word(peer, remote, atomic.bytes)? {
            Word::Four(word) => {
                let update = |bits: u32| Some(compute(atomic, bits.into()) as u32);
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).unwrap_or_else(|bits| bits).into()
            }
            Word::Eight(word) => {
                let update = |bits| Some(compute(atomic, bits));
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).unwrap_or_else(|bits| bits)
            }
            _ => return Err(TransportError::Malformed { peer, remote, bytes: atomic.bytes }),
        };
        self.done.push((ticket, old));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(u64, u64)) -> Result<(), TransportError> {
        self.done.drain(..).for_each(|(ticket, reply)| done(ticket, reply));
        Ok(())
    }
}

/// A word of a heap, at the one width at which it is accessed.
enum Word<'h> {
    One(&'h AtomicU8),
    Two(&'h AtomicU16),
    Four(&'h AtomicU32),
    Eight(&'h AtomicU64),
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
            reserved: 0,
        };
        // SAFETY: the memory outlives the transport in every test, and nobody else touches it meanwhile.
        unsafe { Local::new(context, |_| {}) }
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
