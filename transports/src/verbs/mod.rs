//! The network of RDMA devices: InfiniBand and RoCE, by a reliable connection to each peer (`IBV_QPT_RC`) and libibverbs.
//!
//! # What it promises to the shell
//! The completion of a write says that the peer's device has it. A reliable connection delivers in the order of posting, and a receive
//! completes after the data of all writes before it on its connection (InfiniBand Architecture Specification, volume 1, on the ordering of
//! reliable connections). So it [is ordered](Network::is_ordered): the shell posts a signal behind its write, on the same connection, and
//! who acts on it has the data. Heaps are registered without `IBV_ACCESS_RELAXED_ORDERING`, so that the peer's bus keeps that order. A
//! write that is longer than a request may be keeps what is behind it back until its last request is posted. A connection that has failed
//! at one request does none of those behind it.
//!
//! The memory of a GPU is registered as a dma-buf, where its driver and the device's have those; or else as the host's is, where a driver
//! between the two lets it be (`nvidia-peermem`); where none does, the device moves messages alone. GPUDirect RDMA has not been tried on
//! hardware.
//!
//! A message is in one receive buffer, whole. What has failed is told of each request, since each is signaled, and requests behind one that
//! has failed fail, too.
//!
//! # How a connection is made anew
//! A failed connection does nothing more: both of its ends are replaced, and bytes of before have nowhere to land. The PEs agree on it by
//! datagrams (see `link.rs` and `hello.rs`), which need no connection. Where a port's address is taken away and comes back, its GID is at
//! another place of the port's table, and new connections take it from there.

mod device;
mod hello;
mod library;
mod link;
mod requests;

use congruent_heap::Pe;

use self::device::{Device, Ends};
use self::hello::Hellos;
use self::library::{Completion, Span};
use self::link::{Link, LinkState};
use self::requests::{Piece, Request};
use crate::{Event, Failure, Memory, Network, Post, Reach, Reconnect, Shell, TransportError};

/// Receives that are posted, and requests that may be under way from here, to all peers together and to one.
const RECEIVES: usize = 512;
const SENDS: usize = 512;
const REQUESTS: i32 = 128;
/// Reads of a peer that a device serves at once.
const READS: u8 = 16;
/// The most bytes that lie in a request itself, where the device has room for so many.
const INLINE: u32 = 128;
/// How often polls ask whether the device has failed: one of so many.
const ASKS: u32 = 1 << 12;
/// The most bytes that are moved by one request.
const MOST: u64 = 1 << 30;

/// Why no RDMA device can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not there.
    #[error("libibverbs cannot be loaded ({0}): install it (Debian: libibverbs1 and ibverbs-providers)")]
    Library(String),
    /// No port that could be used.
    #[error("no RDMA device: {wanted} was looked for, and there is {offered} (see `rdma link`)")]
    Device {
        /// What was asked for.
        wanted: String,
        /// What there is.
        offered: String,
    },
    /// An address that the port does not have.
    #[error(
        "port {port} of {device} has no GID {index}: set CONGRUENT_IB_GID_INDEX to one of \
         /sys/class/infiniband/{device}/ports/{port}/gids, or give its network device an address"
    )]
    Gid {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// Which address.
        index: u8,
    },
    /// The heap cannot be registered.
    #[error(
        "{bytes} bytes cannot be registered with the RDMA device: {reason} (is the limit of locked memory, `ulimit -l`, lower?)"
    )]
    Registration {
        /// How many.
        bytes: usize,
        /// What the system said.
        reason: String,
    },
    /// A call failed.
    #[error("libibverbs, {doing}: {reason}")]
    Call {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
}

/// Which port is opened, and how long its connections try.
#[derive(Clone, Copy, Debug)]
pub struct VerbsOptions<'a> {
    /// Devices, with a port or without, in a list: `mlx5_0,mlx5_1:2`. `None` for all that are active.
    pub hca: Option<&'a str>,
    /// Which of those is taken: PEs of one host take turns.
    pub turn: usize,
    /// The port's address, of RoCE; `None` for the best.
    pub gid_index: Option<u8>,
    /// How long a request may be without answer before it is sent again: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// How often it is sent again.
    pub retries: u8,
}

/// One PE's port, and its connections.
pub struct Verbs {
    // What stands on the device is closed before it, and its memory is freed after it.
    /// By PE. The one to this PE itself is there once it is used.
    links: Vec<Option<Link>>,
    /// Ends that were replaced, until all that they completed is taken.
    replaced: Vec<Ends>,
    hellos: Hellos,
    device: Device,
    /// Buffers of receives, then those of requests.
    buffers: Box<[[u8; Shell::MESSAGE]]>,
    buffers_key: u32,
    memory: Memory,
    /// How long requests try, and how often again.
    tries: (u8, u8),
    /// What the heap begins at.
    base: u64,
    /// Its keys, for requests from here and for peers', if the device reaches it.
    keys: Option<(u32, u32)>,
    /// Whether it does so as a dma-buf.
    is_dma_buf: bool,
    /// Those that are under way, by buffer.
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    /// What failed without having been given to the device.
    refused: Vec<(u64, Failure)>,
    polls: u32,
    has_failed: bool,
}

// SAFETY: the library's objects may be used by any thread, and are by one at a time.
unsafe impl Send for Verbs {}

impl Verbs {
    /// Whether a port could be used here.
    ///
    /// # Errors
    /// [`VerbsError`] where there is none.
    pub fn find() -> Result<(), VerbsError> {
        let options = VerbsOptions { hca: None, turn: 0, gid_index: None, timeout: 0, retries: 0 };
        device::open(&options).map(drop)
    }

    /// Opens a port, and registers this PE's heap with it.
    ///
    /// # Safety
    /// This PE's heap, of `memory`, stays mapped for as long as the result lives.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub unsafe fn open(memory: Memory, options: &VerbsOptions<'_>) -> Result<Self, VerbsError> {
        let mut device = device::open(options)?;
        device.open_queues(RECEIVES + SENDS + Hellos::COMPLETIONS, RECEIVES as u32)?;
        let heap = memory
            .at(memory.pe(), 0, memory.bytes(), 1)
            .map_err(|error| VerbsError::Call { doing: "registering the heap", reason: error.to_string() })?;
        let (base, bytes) = (heap.expose_provenance() as u64, memory.bytes() as usize);
        let dma_buf = memory.dma_buf().and_then(|file| device.register_dma_buf(&file, base, bytes));
        let is_dma_buf = dma_buf.is_some();
        let keys = match dma_buf {
            None if memory.admits_devices() => {
                // SAFETY: the caller's promise.
                match unsafe { device.register(heap, bytes, device.access) } {
                    Err(_) if !memory.is_host() => None,
                    keys => Some(keys?),
                }
            }
            keys => keys,
        };
        let mut buffers = vec![[0; Shell::MESSAGE]; RECEIVES + SENDS].into_boxed_slice();
        let (at, bytes) = (buffers.as_mut_ptr().cast(), size_of_val(&*buffers));
        // SAFETY: the buffers stay where they are, and are freed after the device is closed, as the fields' order says.
        let (buffers_key, _) = unsafe { device.register(at, bytes, library::ACCESS_LOCAL_WRITE)? };
        let hellos = Hellos::open(&mut device)?;
        let links = (0..memory.npes()).map(|pe| {
            let ends = (pe != memory.pe().raw()).then(|| device.open_pair(library::QPT_RC)).transpose()?;
            Ok::<_, VerbsError>(ends.map(Link::new))
        });
        let mut verbs = Self {
            links: links.collect::<Result<_, _>>()?,
            device,
            memory,
            tries: (options.timeout, options.retries),
            base,
            keys,
            is_dma_buf,
            buffers,
            buffers_key,
            requests: vec![None; SENDS],
            free: (0..SENDS).collect(),
            hellos,
            replaced: Vec::new(),
            refused: Vec::new(),
            polls: 0,
            has_failed: false,
        };
        for index in 0..RECEIVES {
            verbs.receive(index)?;
        }
        Ok(verbs)
    }

    /// The port that it is on, by its name, and how it reaches the heap where that is not by addresses.
    pub fn port(&self) -> String {
        let as_what = if self.is_dma_buf { " (dma-buf)" } else { "" };
        format!("{}:{}{as_what}", self.device.name, self.device.port)
    }

    /// The address of a buffer.
    fn buffer(&self, index: usize) -> u64 {
        self.buffers[index].as_ptr().expose_provenance() as u64
    }

    /// Posts a receive.
    fn receive(&mut self, index: usize) -> Result<(), VerbsError> {
        let mut piece = Span { addr: self.buffer(index), length: Shell::MESSAGE as u32, lkey: self.buffers_key };
        let mut receive = library::Receive::new(index as u64, &mut piece);
        let (context, shared, mut bad) = (self.device.context, self.device.shared, std::ptr::null_mut());
        // SAFETY: the queue is open, and its buffer is registered and nobody's until the receive completes.
        let posted = unsafe { ((*context).ops.post_srq_recv)(shared, &raw mut receive, &raw mut bad) };
        if posted == 0 {
            return Ok(());
        }
        Err(VerbsError::Call { doing: "posting a receive", reason: format!("error {posted}") })
    }
}

impl Network for Verbs {
    fn card(&self) -> Vec<u8> {
        self.own_card()
    }

    fn reach(&self) -> Reach {
        match self.keys {
            None => Reach::Nothing,
            Some(_) if self.device.has_atomics => Reach::Atomics,
            Some(_) => Reach::Data,
        }
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn connect(&mut self, cards: &[Vec<u8>]) -> Result<(), TransportError> {
        let own = self.memory.pe().raw() as usize;
        for (pe, card) in cards.iter().enumerate().filter(|&(pe, _)| pe != own) {
            self.join(pe, card).map_err(|why| TransportError::Unreachable { peer: Pe::new(pe as u32), why })?;
        }
        Ok(())
    }

    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool {
        let to = peer.raw();
        if peer == self.memory.pe() && !self.has_own_link() {
            self.refused.push((id, Failure::LocalOperation));
            return true;
        }
        let Some(link) = self.links.get(peer.index()).and_then(Option::as_ref) else {
            self.refused.push((id, Failure::LocalOperation));
            return true;
        };
        if self.has_failed || link.state != LinkState::Connected {
            self.refused.push((id, if self.has_failed { Failure::Fatal } else { Failure::Flushed }));
            return true;
        }
        if link.under_way.len() >= self.device.most_requests as usize || link.is_in_parts {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        // What lies here of it, so that the device reads and writes nothing but the heap.
        if let Post::Write { local, bytes, .. } | Post::Read { local, bytes, .. } = post
            && self.memory.at(self.memory.pe(), local, bytes, 1).is_err()
        {
            self.refuse(slot, id, to, Failure::LocalLength);
            return true;
        }
        match post {
            Post::Write { remote, data: Some(data), .. } => self.write(slot, id, to, remote, data),
            Post::Write { remote, local, bytes, .. } => {
                self.move_piece(slot, id, to, Piece { opcode: library::WR_RDMA_WRITE, remote, local, bytes });
            }
            Post::Read { remote, local, bytes } => {
                self.move_piece(slot, id, to, Piece { opcode: library::WR_RDMA_READ, remote, local, bytes });
            }
            Post::Atomic { remote, atomic } => self.fetch(slot, id, to, remote, &atomic),
            Post::Send(message) => self.send_message(slot, id, to, message),
        }
        true
    }

    fn submit(&mut self) {
        (0..self.links.len()).for_each(|peer| self.submit_to(peer));
    }

    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>)) {
        self.refused.drain(..).for_each(|(id, failure)| hear(Event::Failed(id, failure)));
        let mut completions = [Completion::default(); 16];
        loop {
            let (context, queue) = (self.device.context, self.device.queue);
            // SAFETY: the queue is open, and there is room for so many.
            let count = unsafe { ((*context).ops.poll_cq)(queue, completions.len() as i32, completions.as_mut_ptr()) };
            let Ok(count @ 1..) = usize::try_from(count) else { break };
            for completion in completions.iter().take(count) {
                self.completed(completion, hear);
            }
        }
        // Nothing of theirs is left in the queue, which closing them would empty of it.
        self.replaced.clear();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(ASKS) && !self.has_failed && self.device.has_failed() {
            self.fail();
        }
    }

    fn reconnect(&mut self, peer: Pe) -> Reconnect {
        self.renewed(peer)
    }
}
