//! The network of libfabric: plain Ethernet, by its provider `tcp;ofi_rxm`, and what its other providers reach.
//!
//! # What it promises to the shell
//! A write is posted with `FI_DELIVERY_COMPLETE`, so that its completion says that the data is in the peer's memory, where the
//! peer's processor sees it ([`Event::Done`]). No provider promises that a message is after the data of a write before it, and none
//! needs to. A write that is to tell of its arrival has remote completion data (`FI_REMOTE_CQ_DATA`), which the peer reads from its completion
//! queue once the write has completed there (fi_cq(3)), so that it finds the data in its memory ([`Event::Arrived`]). Every
//! provider that carries 4 bytes so does that. That entry is in the queue before the peer says that the write is complete, and so before
//! that of a message which is posted after that.
//! A message is in one receive buffer, whole. The target makes progress only while it polls, so proxies always do
//! ([`Transport::serves`](crate::Transport::serves)).
//!
//! What was under way when a connection failed may still lie in the peer's socket, and be taken out later than what a new connection
//! brings. So a peer whose connection has failed is not connected to again: it is dead.
//!
//! The provider's copies are the processor's, so that it does not reach a heap in a GPU's memory.

mod library;
mod objects;

use std::ffi::c_void;
use std::ptr;

use congruent_heap::Pe;

use self::library::QueueEntry;
use self::objects::Objects;
use crate::{Event, Failure, Memory, Network, Post, Reach, Reconnect, Shell, TransportError};

/// The provider that is used unless another one is asked for.
const PROVIDER: &str = "tcp;ofi_rxm";
/// Receives that are posted, and things that may be under way from here.
const RECEIVES: usize = 256;
const SENDS: usize = 1024;
/// The longest name of an endpoint.
const NAME: usize = 128;

/// Why there is no libfabric to use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The library is not there.
    #[error("libfabric cannot be loaded ({0}): install it (Debian: libfabric1)")]
    Library(String),
    /// The provider offers no endpoint.
    #[error("libfabric has no provider {provider} here ({reason}): `fi_info -l` lists those that it has")]
    Provider {
        /// Which.
        provider: String,
        /// What the library said.
        reason: String,
    },
    /// No interface that could be used.
    #[error(
        "libfabric offers no {provider} on interface {wanted}; it does on {offered} (is the link up, with an address?)"
    )]
    Interface {
        /// Whose.
        provider: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        offered: String,
    },
    /// A call failed.
    #[error("libfabric, {doing}: {reason}")]
    Call {
        /// What was being done.
        doing: &'static str,
        /// What the library said.
        reason: String,
    },
}

/// One PE's endpoint.
pub struct Fabric {
    objects: Objects,
    provider: String,
    memory: Memory,
    /// What is added to offsets in this PE's heap for peers.
    base: u64,
    /// What the library knows the messages' buffers by.
    buffers_key: *mut c_void,
    /// Buffers of receives, then those of what is sent.
    buffers: Box<[[u8; Shell::MESSAGE]]>,
    /// Each peer's address, the key of its heap, and what is added to offsets in it.
    peers: Vec<(u64, u64, u64)>,
    /// Contexts of what is under way, which stay where they are since the library has their addresses.
    contexts: Box<[Context]>,
    free: Vec<usize>,
    /// What failed when it was posted.
    refused: Vec<(u64, Failure)>,
    /// Receives that the library did not take, and is given again.
    unposted: Vec<usize>,
}

// SAFETY: the objects are used by who has the `Fabric`, one thread at a time, which is what FI_THREAD_DOMAIN asks for, and none of
// them is bound to a thread.
unsafe impl Send for Fabric {}

/// What an operation has while it is under way. The library's room comes first (FI_CONTEXT2).
#[repr(C)]
struct Context {
    room: [u64; 8],
    index: usize,
    id: u64,
}

impl Fabric {
    /// Whether the library can be loaded here.
    ///
    /// # Errors
    /// [`FabricError::Library`] where it cannot.
    pub fn find() -> Result<(), FabricError> {
        objects::load().map(drop)
    }

    /// Opens an endpoint of a provider, of `tcp;ofi_rxm` unless it says otherwise, on an interface, or on the first that the library offers:
    /// one that leads to other hosts, or if there is none and all PEs are on this host, the one that does not. Registers this PE's heap
    /// with it, if that is the host's memory.
    ///
    /// # Safety
    /// This PE's heap, of `memory`, stays mapped for as long as the result lives.
    ///
    /// # Errors
    /// See [`FabricError`].
    pub unsafe fn open(
        memory: Memory,
        provider: Option<&str>,
        interface: Option<&str>,
        same_host: bool,
    ) -> Result<Self, FabricError> {
        let provider = provider.unwrap_or(PROVIDER);
        let mut objects = Objects::open(provider, interface, same_host, memory.npes())?;
        let heap = memory
            .at(memory.pe(), 0, memory.bytes(), 1)
            .map_err(|error| FabricError::Call { doing: "registering the heap", reason: error.to_string() })?;
        let mut buffers = vec![[0; Shell::MESSAGE]; RECEIVES + SENDS].into_boxed_slice();
        let (at, bytes) = (buffers.as_mut_ptr().cast(), size_of_val(&*buffers) as u64);
        // SAFETY: the heap is mapped, as the caller promises; the buffers stay where they are, and are freed after the objects are
        // closed, as the fields' order says. A region that was registered is open.
        let buffers_key = unsafe {
            objects.buffers_region = objects.register(at, bytes, library::TRANSMIT | library::RECV, 1)?;
            if memory.is_host() {
                let access = library::READ | library::WRITE | library::REMOTE_READ | library::REMOTE_WRITE;
                objects.region = objects.register(heap, memory.bytes(), access, 0)?;
            }
            (*objects.buffers_region).mem_desc
        };
        let by_address = memory.is_host() && objects.is_by_address();
        let base = if by_address { heap.expose_provenance() as u64 } else { 0 };
        let mut fabric = Self {
            objects,
            provider: provider.to_owned(),
            memory,
            base,
            buffers_key,
            buffers,
            peers: Vec::new(),
            contexts: (0..RECEIVES + SENDS).map(|index| Context { room: [0; 8], index, id: 0 }).collect(),
            free: Vec::new(),
            refused: Vec::new(),
            unposted: Vec::new(),
        };
        fabric.free.extend(RECEIVES..RECEIVES + SENDS);
        for index in 0..RECEIVES {
            let outcome = fabric.receive(index) as i32;
            fabric.objects.check("posting a receive", outcome)?;
        }
        Ok(fabric)
    }

    /// The provider, less what it is layered by, and the interface that it is on.
    pub fn port(&self) -> String {
        let provider = self.provider.split(';').next().unwrap_or_default();
        format!("{provider} on {}", self.objects.interface())
    }

    fn receive(&mut self, index: usize) -> isize {
        let context = ptr::from_mut(&mut self.contexts[index]);
        let buffer = &mut self.buffers[index];
        let (endpoint, key) = (self.objects.endpoint, self.buffers_key);
        // SAFETY: the endpoint is open; buffer and context are the library's until the receive completes, since they are in slices that
        // live until the endpoint is closed.
        unsafe {
            let recv = (*(*endpoint).msg).recv;
            recv(endpoint, buffer.as_mut_ptr().cast(), buffer.len(), key, library::ADDR_UNSPEC, context.cast())
        }
    }

    /// Gives the library a receive again, now or later.
    fn receive_again(&mut self, index: usize) {
        if self.receive(index) != 0 {
            self.unposted.push(index);
        }
    }

    /// Hears of one completion.
    fn completed(&mut self, entry: &QueueEntry, hear: &mut dyn FnMut(Event<'_>)) {
        // A peer's write, of which some providers say that it is one, and for which some lend a context.
        if entry.flags & library::REMOTE_CQ_DATA != 0 && entry.flags & library::WRITE == 0 {
            return hear(Event::Arrived(entry.data as u32));
        }
        let Some(index) = index_of(entry.context) else { return };
        if index < RECEIVES {
            hear(Event::Messages(self.buffers[index].get(..entry.len).unwrap_or_default()));
            self.receive_again(index);
        } else {
            self.free.push(index);
            hear(Event::Done(self.contexts[index].id));
        }
    }

    /// Reads an error from the completion queue. False where there is none.
    fn complained(&mut self, hear: &mut dyn FnMut(Event<'_>)) -> bool {
        // SAFETY: integers and pointers, for which zero bytes are valid.
        let mut error: library::QueueError = unsafe { std::mem::zeroed() };
        let queue = self.objects.queue;
        // SAFETY: the queue is open, and the entry has room for any version's.
        let read = unsafe { ((*(*queue).ops).readerr)(queue, &raw mut error, 0) };
        if read != 1 {
            return false;
        }
        let Some(index) = index_of(error.context) else { return true };
        if index < RECEIVES {
            self.receive_again(index);
        } else {
            self.free.push(index);
            hear(Event::Failed(self.contexts[index].id, failure(error.err)));
        }
        true
    }
}

/// The place of a context of ours.
fn index_of(context: *mut c_void) -> Option<usize> {
    // SAFETY: the library gives back contexts that it was given, which live until the endpoint is closed.
    (!context.is_null()).then(|| unsafe { (*context.cast::<Context>()).index })
}

/// What an error of the library's is.
fn failure(error: i32) -> Failure {
    match error {
        // ECONNRESET, ECONNABORTED, ECONNREFUSED, ENOTCONN, EPIPE, ESHUTDOWN, EHOSTUNREACH, ENETUNREACH.
        104 | 103 | 111 | 107 | 32 | 108 | 113 | 101 => Failure::Reset,
        // ETIMEDOUT.
        110 => Failure::TimedOut,
        // ECANCELED.
        125 => Failure::Flushed,
        // EACCES, and FI_EKEYREJECTED.
        13 | 129 => Failure::RemoteAccess,
        // EMSGSIZE, and FI_ETRUNC.
        90 | 265 => Failure::LocalLength,
        other => Failure::Other(other),
    }
}

impl Network for Fabric {
    fn card(&self) -> Vec<u8> {
        let (mut name, mut len) = ([0u8; NAME], NAME);
        let endpoint = self.objects.endpoint;
        let region = self.objects.region;
        // SAFETY: the endpoint is open, and the name has as much room as `len` says. A region that is there is open.
        let (outcome, key) = unsafe {
            let outcome = ((*(*endpoint).cm).getname)(endpoint.cast(), name.as_mut_ptr().cast(), &raw mut len);
            (outcome, if region.is_null() { 0 } else { (*region).key })
        };
        let name = if outcome == 0 { name.get(..len).unwrap_or_default() } else { &[] };
        let provider = [self.provider.as_bytes(), &[0]].concat();
        [&key.to_le_bytes()[..], &self.base.to_le_bytes(), &provider, name].concat()
    }

    fn reach(&self) -> Reach {
        if self.objects.region.is_null() { Reach::Nothing } else { Reach::Data }
    }

    fn tells_arrivals(&self) -> bool {
        self.objects.carried() >= size_of::<u32>()
    }

    fn connect(&mut self, cards: &[Vec<u8>]) -> Result<(), TransportError> {
        for (card, pe) in cards.iter().zip(0..) {
            let unreachable = |why: &str| TransportError::Unreachable { peer: Pe::new(pe), why: why.to_owned() };
            let none = || unreachable("it has no address in its fabric");
            let (words, names) = card.split_at_checked(16).ok_or_else(none)?;
            let end = names.iter().position(|byte| *byte == 0).ok_or_else(none)?;
            let (provider, name) = (&names[..end], &names[end + 1..]);
            if provider != self.provider.as_bytes() {
                let (theirs, own) = (String::from_utf8_lossy(provider), &self.provider);
                return Err(unreachable(&format!(
                    "its provider of libfabric is {theirs}, and this PE's {own}: give every PE the same \
                     CONGRUENT_LIBFABRIC_PROVIDER"
                )));
            }
            if name.is_empty() {
                return Err(none());
            }
            // The library reads as much as an address of its format has.
            let mut padded = [0u8; NAME];
            padded[..name.len().min(NAME)].copy_from_slice(&name[..name.len().min(NAME)]);
            let mut word = words.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            let (key, base) = (word.next().unwrap_or(0), word.next().unwrap_or(0));
            let (table, mut address) = (self.objects.addresses, 0);
            // SAFETY: the table is open; one address is read, which is shorter than `padded`.
            let inserted = unsafe {
                let insert = (*(*table).ops).insert;
                insert(table, padded.as_ptr().cast(), 1, &raw mut address, 0, ptr::null_mut())
            };
            if inserted != 1 {
                return Err(unreachable("libfabric does not take its address"));
            }
            self.peers.push((address, key, base));
        }
        Ok(())
    }

    fn post(&mut self, id: u64, peer: Pe, post: Post<'_>) -> bool {
        let Some(&(address, key, base)) = self.peers.get(peer.raw() as usize) else {
            self.refused.push((id, Failure::LocalOperation));
            return true;
        };
        // What lies here of it, so that the library reads and writes nothing but the heap.
        let here = match post {
            Post::Write { local, bytes, .. } | Post::Read { local, bytes, .. } if self.reach() == Reach::Data => {
                self.memory.at(self.memory.pe(), local, bytes, 1).ok()
            }
            Post::Write { .. } | Post::Read { .. } => None,
            Post::Atomic { .. } => Some(ptr::null_mut()),
            Post::Send(message) => (message.len() <= Shell::MESSAGE).then_some(ptr::null_mut()),
        };
        let Some(here) = here else {
            self.refused.push((id, Failure::LocalLength));
            return true;
        };
        let Some(index) = self.free.pop() else { return false };
        let endpoint = self.objects.endpoint;
        let context = &mut self.contexts[index];
        let buffer = &mut self.buffers[index];
        context.id = id;
        // SAFETY: the endpoint is open. The range is one of the heap, which stays mapped (`open`); the copy of a
        // message and the context live until the operation completes. A write's vectors are read by the call alone.
        let outcome = unsafe {
            match post {
                Post::Write { remote, bytes, arrival, data, .. } => {
                    let (at, mut descriptor) = match data.filter(|data| data.len() as u64 == bytes) {
                        Some(data) => {
                            buffer[..data.len()].copy_from_slice(data);
                            (buffer.as_mut_ptr(), self.buffers_key)
                        }
                        None => (here, (*self.objects.region).mem_desc),
                    };
                    let from = library::Span { base: at.cast(), len: bytes as usize };
                    let to = library::RemoteSpan { addr: base.wrapping_add(remote), len: bytes as usize, key };
                    let message = library::RemoteMessage {
                        msg_iov: &raw const from,
                        desc: &raw mut descriptor,
                        iov_count: 1,
                        addr: address,
                        rma_iov: &raw const to,
                        rma_iov_count: 1,
                        context: ptr::from_mut(context).cast(),
                        data: arrival.unwrap_or(0).into(),
                    };
                    let tells = if arrival.is_some() { library::REMOTE_CQ_DATA } else { 0 };
                    let flags = library::DELIVERY_COMPLETE | library::COMPLETION | tells;
                    ((*(*endpoint).rma).writemsg)(endpoint, &raw const message, flags)
                }
                Post::Read { remote, bytes, .. } => ((*(*endpoint).rma).read)(
                    endpoint,
                    here.cast(),
                    bytes as usize,
                    (*self.objects.region).mem_desc,
                    address,
                    base.wrapping_add(remote),
                    key,
                    ptr::from_mut(context).cast(),
                ),
                // It says that it has none.
                Post::Atomic { .. } => -library::EOPNOTSUPP,
                Post::Send(message) => {
                    buffer[..message.len()].copy_from_slice(message);
                    ((*(*endpoint).msg).send)(
                        endpoint,
                        buffer.as_ptr().cast(),
                        message.len(),
                        self.buffers_key,
                        address,
                        ptr::from_mut(context).cast(),
                    )
                }
            }
        };
        if outcome == 0 {
            return true;
        }
        self.free.push(index);
        if outcome == -library::EAGAIN {
            return false;
        }
        self.refused.push((id, failure(-outcome as i32)));
        true
    }

    fn poll(&mut self, hear: &mut dyn FnMut(Event<'_>)) {
        std::mem::take(&mut self.unposted).into_iter().for_each(|index| self.receive_again(index));
        self.refused.drain(..).for_each(|(id, failure)| hear(Event::Failed(id, failure)));
        let none = QueueEntry { context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };
        let mut entries = [none; 16];
        loop {
            let queue = self.objects.queue;
            // SAFETY: the queue is open, of this format, and there is room for so many entries.
            let read = unsafe { ((*(*queue).ops).read)(queue, entries.as_mut_ptr().cast(), entries.len()) };
            if read == -library::EAVAIL {
                if !self.complained(hear) {
                    return;
                }
                continue;
            }
            let Ok(read @ 1..) = usize::try_from(read) else { return };
            for entry in entries.iter().take(read) {
                self.completed(entry, hear);
            }
            // These were all. To be told so would take the system calls of another look.
            if read < entries.len() {
                return;
            }
        }
    }

    /// Bytes of before may still land, so that nothing is connected anew.
    fn reconnect(&mut self, _peer: Pe) -> Reconnect {
        Reconnect::Impossible
    }
}
