//! How PEs agree on a new connection: by datagrams of a pair of queues that needs none (`IBV_QPT_UD`).
//!
//! A hello says which end of a connection its sender has, in which epoch: how often the connection was made anew. A PE whose connection
//! has failed opens new ends, of the next epoch, and says hello until the peer has said the same. A PE that hears of a later epoch gives up its own
//! ends, waits for what was posted to them, and answers with new ones of that epoch; one that is connected and is asked for its ends of that epoch
//! says them again, since its own hello was lost. Datagrams may be lost, come late or twice: epochs only grow, and a hello of
//! an earlier one is passed over.

use std::time::{Duration, Instant};

use super::VerbsError;
use super::device::{self, Device, Ends, Way};
use super::library::{self, Completion, GRH, PairAttributes, Span};

/// The key that datagrams need to be taken (`IBV_QP_QKEY`).
pub(super) const KEY: u32 = 0x636f_6e67;
/// Hellos that are under way in each direction at most: no more than requests of a pair.
const MOST: usize = 64;
/// How often a hello is said again.
const AGAIN: Duration = Duration::from_millis(10);
/// Bytes of a hello.
const BYTES: usize = 20;
/// How a hello begins.
const MARK: u32 = 0x686c_6c6f;
/// The first number of their requests, behind all others.
const FIRST: usize = super::RECEIVES + super::SENDS;

/// What a PE says of its connection to the one that hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: u32,
    pub(super) epoch: u32,
    /// The number of its end.
    pub(super) pair: u32,
    /// Whether it has not heard of the other's.
    pub(super) asks: bool,
}

impl Hello {
    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [MARK, self.from, self.epoch, self.pair, self.asks.into()];
        bytes.chunks_exact_mut(4).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        (words.next()? == MARK).then_some(())?;
        Some(Self { from: words.next()?, epoch: words.next()?, pair: words.next()?, asks: words.next()? != 0 })
    }
}

/// The pair of queues for datagrams, and its buffers: those that are received into, then those that are sent.
pub(super) struct Hellos {
    ends: Ends,
    buffers: Box<[[u8; GRH + BYTES]]>,
    key: u32,
    /// Which of them are the device's.
    posted: Vec<bool>,
    said: Instant,
    /// A datagram has failed, and with it the pair.
    has_failed: bool,
}

impl Hellos {
    /// What they may complete that was not taken.
    pub(super) const COMPLETIONS: usize = 2 * MOST;

    pub(super) fn open(device: &mut Device) -> Result<Self, VerbsError> {
        let mut buffers = vec![[0; GRH + BYTES]; 2 * MOST].into_boxed_slice();
        let (at, bytes) = (buffers.as_mut_ptr().cast(), size_of_val(&*buffers));
        // SAFETY: the buffers stay where they are until the device is closed: `Verbs` has it before these.
        let (key, _) = unsafe { device.register(at, bytes, library::ACCESS_LOCAL_WRITE)? };
        let ends = device.open_pair(library::QPT_UD)?;
        let posted = vec![false; 2 * MOST];
        let mut hellos = Self { ends, buffers, key, posted, said: Instant::now(), has_failed: false };
        hellos.get_ready(device)?;
        Ok(hellos)
    }

    /// Takes the pair from INIT to RTS, and posts all receives.
    fn get_ready(&mut self, device: &Device) -> Result<(), VerbsError> {
        let ready = PairAttributes { qp_state: library::QPS_RTR, ..device::none() };
        device.modify(&self.ends, ready, library::QP_STATE, "the pair for datagrams, to RTR")?;
        let ready = PairAttributes { qp_state: library::QPS_RTS, ..device::none() };
        device.modify(&self.ends, ready, library::QP_STATE | library::QP_SQ_PSN, "the pair for datagrams, to RTS")?;
        (0..MOST).for_each(|index| self.receive(device, index));
        Ok(())
    }

    /// Makes the pair work again where it failed, under its number, which peers know.
    fn recover(&mut self, device: &Device) -> Result<(), VerbsError> {
        let reset = PairAttributes { qp_state: library::QPS_RESET, ..device::none() };
        device.modify(&self.ends, reset, library::QP_STATE, "the pair for datagrams, to RESET")?;
        device.initialize(&self.ends, library::QPT_UD)?;
        // What was posted is gone. A completion that is left is taken for one of a new request, whose buffer then may be used early: a hello
        // that is not whole, or an old one, changes nothing.
        self.posted.fill(false);
        self.get_ready(device)?;
        self.has_failed = false;
        Ok(())
    }

    /// The number of the pair, for peers.
    pub(super) fn number(&self) -> u32 {
        self.ends.number
    }

    /// Whether hellos are under way to peers.
    pub(super) fn is_saying(&self) -> bool {
        self.posted[MOST..].contains(&true)
    }

    /// Whether who was said hello to may not have heard it.
    pub(super) fn is_time(&self) -> bool {
        self.said.elapsed() >= AGAIN
    }

    fn piece(&self, index: usize, bytes: usize) -> Span {
        Span { addr: self.buffers[index].as_ptr().expose_provenance() as u64, length: bytes as u32, lkey: self.key }
    }

    /// Posts a receive. Where it is not taken, one datagram less can be.
    fn receive(&mut self, device: &Device, index: usize) {
        let mut piece = self.piece(index, GRH + BYTES);
        let mut receive = library::Receive::new((FIRST + index) as u64, &mut piece);
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is open, and its buffer is registered and nobody's until the receive completes.
        let outcome = unsafe { ((*device.context).ops.post_recv)(self.ends.pair, &raw mut receive, &raw mut bad) };
        self.posted[index] = outcome == 0;
    }

    /// Says hello to a peer, unless too many are under way, or the pair does not work: it is said again anyway.
    pub(super) fn say(&mut self, device: &Device, way: &Way, pair: u32, hello: Hello) {
        self.said = Instant::now();
        if self.has_failed && self.recover(device).is_err() {
            return;
        }
        let Some(index) = (MOST..2 * MOST).find(|&index| !self.posted[index]) else { return };
        self.buffers[index][..BYTES].copy_from_slice(&hello.encode());
        let mut piece = self.piece(index, BYTES);
        let (opcode, flags) = (library::WR_SEND, library::SEND_SIGNALED);
        let mut send = library::Send::new((FIRST + index) as u64, opcode, flags, &mut piece);
        (send.remote, send.key_or_pair, send.qkey) = (way.handle.expose_provenance() as u64, pair, KEY);
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is open, the way a peer's, and the buffer is this request's until it completes.
        let outcome = unsafe { ((*device.context).ops.post_send)(self.ends.pair, &raw mut send, &raw mut bad) };
        self.posted[index] = outcome == 0;
    }

    /// Takes a completion of a datagram; a hello, where one has come.
    pub(super) fn completed(&mut self, device: &Device, completion: &Completion) -> Option<Hello> {
        let index = (completion.wr_id as usize).checked_sub(FIRST)?;
        let was_posted = std::mem::replace(self.posted.get_mut(index)?, false);
        self.has_failed |= completion.status != 0;
        if index >= MOST || !was_posted || self.has_failed {
            return None;
        }
        let hello = self.buffers[index].get(GRH..completion.byte_len as usize).and_then(Hello::decode);
        self.receive(device, index);
        hello
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is() {
        for asks in [false, true] {
            let hello = Hello { from: 3, epoch: 7, pair: 0x1234, asks };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        let hello = Hello { from: 3, epoch: 7, pair: 0x1234, asks: true };
        assert_eq!(Hello::decode(&hello.encode()[..16]), None);
        assert_eq!(Hello::decode(&[0; BYTES]), None);
    }
}
