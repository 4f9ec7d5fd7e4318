//! The transport to peers whose heaps this process maps: it does with the CPU what a network card would do.
//!
//! # Why the signal follows the data
//! Data is stored relaxed, then the signal with a release store or read-modify-write by the same thread: whoever acquires the
//! signal sees the data (MM-1, MM-2). One thread does every operation at once, so they take effect in the order in which they
//! were started.

use congruent_heap::Pe;

use crate::{Memory, Operation, PeerState, Progress, Transport, TransportError};

/// Peers by load and store.
#[derive(Debug)]
pub struct Local {
    memory: Memory,
    done: Vec<(u64, u64)>,
}

impl Local {
    /// The transport of the PE whose memory this is.
    ///
    /// # Safety
    /// The heaps of all PEs are mapped.
    pub unsafe fn new(memory: Memory) -> Self {
        Self { memory, done: Vec::new() }
    }
}

impl Transport for Local {
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError> {
        let own = self.memory.pe();
        let mut reply = 0;
        match operation {
            Operation::Write { remote, local, bytes, then } => {
                self.memory.copy((peer, remote), (own, local), bytes)?;
                then.map_or(Ok(()), |signal| self.memory.signal(peer, signal))?;
            }
            Operation::Read { remote, local, bytes } => self.memory.copy((own, local), (peer, remote), bytes)?,
            Operation::Store { remote, bytes, value } => self.memory.store(peer, remote, bytes, value)?,
            Operation::Load { remote, bytes } => reply = self.memory.load(peer, remote, bytes)?,
            // No card is there, so that all do them by this PE's processor.
            Operation::Atomic { remote, atomic } | Operation::NicAtomic { remote, atomic } => {
                reply = self.memory.atomic(peer, remote, atomic)?;
            }
        }
        self.done.push((ticket, reply));
        Ok(())
    }

    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        self.done.drain(..).for_each(|(ticket, reply)| tell(ticket, Progress::Ended(Ok(reply))));
        false
    }

    fn state(&self, _peer: Pe) -> PeerState {
        PeerState::Up
    }
}

#[cfg(test)]
mod tests {
    use congruent_heap::abi::{AtomicOp, NumberKind};

    use super::*;
    use crate::memory::tests::heaps;
    use crate::{Atomic, Signal};

    /// Two heaps of 256 bytes side by side, seen from PE 0.
    fn pair(memory: &mut [u64; 64]) -> Local {
        // SAFETY: both are there.
        unsafe { Local::new(heaps(memory, 2, 0)) }
    }

    fn replies(transport: &mut Local) -> Vec<(u64, u64)> {
        let mut replies = Vec::new();
        transport.poll(&mut |ticket, progress| {
            let Progress::Ended(reply) = progress else { panic!("it ends when it is started") };
            replies.push((ticket, reply.unwrap()));
        });
        replies
    }

    #[test]
    fn a_write_arrives_with_its_signal() {
        let mut memory = [0; 64];
        memory[2] = 42;
        let mut transport = pair(&mut memory);
        let peer = Pe::new(1);
        let then = Signal { offset: 64, value: 3, set: false };
        transport.start(7, peer, Operation::Write { remote: 8, local: 16, bytes: 8, then: Some(then) }).unwrap();
        transport.start(8, peer, Operation::Load { remote: 8, bytes: 8 }).unwrap();
        transport.start(9, peer, Operation::Load { remote: 64, bytes: 8 }).unwrap();
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
            let atomic = Atomic { op, kind, bytes, value, expected };
            transport.start(0, peer, Operation::Atomic { remote: 0, atomic }).unwrap();
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
            let refused = transport.start(0, Pe::new(peer), Operation::Load { remote, bytes });
            assert!(matches!(refused, Err(TransportError::Malformed { .. })), "{peer} {remote} {bytes}: {refused:?}");
        }
        let write = Operation::Write { remote: 0, local: 200, bytes: 100, then: None };
        assert!(transport.start(0, Pe::new(1), write).is_err());
        assert_eq!(replies(&mut transport), []);
    }
}
