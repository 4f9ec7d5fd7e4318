//! One piece of memory for all PEs of a host, at the same address in each of them.
//!
//! PE `p`'s part is at `base + p * stride` everywhere. Parts of PEs on other hosts are addresses without memory: who touches one is
//! ended by the system. The memory has no name in any file system, so nothing is left
//! behind however a PE ends; it is sealed, so nobody can shrink it under the others; and its pages are set aside
//! before anyone touches them, so an access cannot find that there are none left. After what a part has now come addresses
//! for growth, without pages.

mod available;
pub(crate) mod hand_over;

use crate::bootstrap::{Control, ControlError, neighbours};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// Parts begin and end at huge page boundaries.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// How many addresses the PEs try before they give up.
const ATTEMPTS: u32 = 16;

/// A range that neither program, heap, stacks nor libraries use, nor the tools that check them.
const REGION: usize = 0x3000_0000_0000;
const REGION_BYTES: usize = 0x1000_0000_0000;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that all PEs of the job have at the same address.
pub(crate) struct Reservation {
    memory: Arc<Memory>,
    stride: usize,
    /// The PEs of this host, in order; the first makes the memory.
    members: Vec<u32>,
}

/// What PEs of a process share.
struct Memory {
    mapping: Mapping,
    fd: OwnedFd,
}

impl Reservation {
    /// Where PE 0's part begins.
    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.mapping.base.cast()
    }

    /// From one PE's part to the next, in bytes: what a part can grow to.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Whether a PE's part is here.
    pub(crate) fn has(&self, pe: u32) -> bool {
        self.members.contains(&pe)
    }

    /// Collective: sets pages aside for what is between `from` and `to` bytes of every part, zeroed. Nothing moves. Both are
    /// multiples of [`GRANULARITY`], and `to` is at most the stride.
    ///
    /// All PEs succeed, or all fail and the memory is as it was.
    pub(crate) fn grow(&self, control: &Control, from: usize, to: usize) -> Result<(), ReserveError> {
        let more = to.saturating_sub(from);
        let first = self.members.first() == Some(&control.pe());
        let enough = if first { afford(control, to, more * self.members.len()) } else { Ok(()) };
        agree(control, enough)?;
        let own = control.pe() as usize * self.stride + from;
        let mine = set_aside(control, &self.memory.fd, own, more, to);
        agree(control, mine).inspect_err(|_| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // What stays set aside where this fails is given back with the rest, and zero all the same.
            let _ = rustix::fs::fallocate(&self.memory.fd, hole, own as u64, more as u64);
        })
    }
}

/// Why there is no shared memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The size asked for is zero, or not a multiple of 2 MiB, or more than an address space holds.
    #[error("a heap of {heap_bytes} bytes for each of {npes} PEs: give a multiple of {GRANULARITY} bytes, not zero")]
    Size {
        /// The size of one PE's heap.
        heap_bytes: usize,
        /// The number of PEs.
        npes: u32,
    },
    /// The PEs ask for heaps of different sizes.
    #[error("PE {pe} asks for a heap of {theirs} bytes and PE 0 for {first}: give all PEs the same size")]
    Mismatch {
        /// The first PE that differs from PE 0.
        pe: u32,
        /// The size it asks for.
        theirs: usize,
        /// The size PE 0 asks for.
        first: usize,
    },
    /// The PEs are not all on this host, or not of one user.
    #[error("the PEs are on several hosts, or of several users, and cannot share memory")]
    Apart,
    /// There is not so much memory.
    #[error("{npes} heaps of {heap_bytes} bytes do not fit: {available} bytes of memory are available")]
    OutOfMemory {
        /// The size of one PE's heap.
        heap_bytes: usize,
        /// The number of PEs.
        npes: u32,
        /// What the system and this process's limits leave.
        available: u64,
    },
    /// No address was free in all PEs.
    #[error(
        "no range of {bytes} bytes is free in all PEs ({ATTEMPTS} tried): is there a limit on address space (ulimit -v)?"
    )]
    NoAddress {
        /// The size of the range.
        bytes: usize,
    },
    /// The system refused a step.
    #[error("PE {pe}, {doing}: {reason}")]
    System {
        /// The PE where it happened.
        pe: u32,
        /// What was being done.
        doing: String,
        /// What the system said.
        reason: String,
    },
    /// The PEs lost each other meanwhile.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Collective: sets aside `heap_bytes` for every PE, zeroed, and addresses for growth up to `heap_max`; both are multiples of
/// [`GRANULARITY`].
///
/// All PEs succeed, or all fail: with the same error but for what happened in one of them only.
pub(crate) fn reserve(control: &Control, heap_bytes: usize, heap_max: usize) -> Result<Reservation, ReserveError> {
    common_size(control, heap_bytes)?;
    let stride = heap_max.max(heap_bytes);
    let bytes = common_size(control, stride)?;
    let members = neighbours(control)?;
    let memory = match control.commons() {
        Some(commons) => {
            let made = (control.pe() == 0).then(|| {
                let fd = create(control, heap_bytes, stride, &members)?;
                let mapping = Mapping::anywhere(&fd, bytes).map_err(system(control, "mapping shared memory"))?;
                commons.put(Some(Arc::new(Memory { mapping, fd })));
                Ok(())
            });
            agree(control, made.unwrap_or(Ok(())))?;
            let memory = commons.take();
            agree(control, Ok(()))?;
            if control.pe() == 0 {
                commons.put(None);
            }
            memory.ok_or(ReserveError::Apart)?
        }
        None => {
            let fd = share(control, heap_bytes, stride, &members)?;
            let mapping = map_everywhere(control, &fd, bytes)?;
            let elsewhere = (0..control.npes()).filter(|pe| !members.contains(pe));
            let forbidden = elsewhere.map(|pe| mapping.forbid(pe as usize * stride, stride));
            agree(
                control,
                forbidden.collect::<io::Result<()>>().map_err(system(control, "keeping off other hosts' parts")),
            )?;
            Arc::new(Memory { mapping, fd })
        }
    };
    // Without huge pages everything works as well, only slower.
    let _ = memory.mapping.advise(Advice::LinuxHugepage);
    Ok(Reservation { memory, stride, members })
}

/// The size of all parts together, once all PEs ask for the same.
fn common_size(control: &Control, heap_bytes: usize) -> Result<usize, ReserveError> {
    let sizes = control.all_gather(&(heap_bytes as u64).to_le_bytes())?;
    let sizes = sizes.iter().map(|size| size[..].try_into().map_or(0, u64::from_le_bytes) as usize);
    let sizes: Vec<usize> = sizes.collect();
    let first = sizes.first().copied().unwrap_or(0);
    if let Some((pe, theirs)) = (0..).zip(&sizes).find(|(_, size)| **size != first) {
        return Err(ReserveError::Mismatch { pe, theirs: *theirs, first });
    }
    let npes = control.npes();
    let bytes = heap_bytes.checked_mul(npes as usize).filter(|bytes| *bytes <= REGION_BYTES / 2);
    let fits = heap_bytes != 0 && heap_bytes.is_multiple_of(GRANULARITY);
    bytes.filter(|_| fits).ok_or(ReserveError::Size { heap_bytes, npes })
}

/// Makes the memory: parts of `heap_bytes`, `stride` bytes apart, of the PEs of this host.
fn create(control: &Control, heap_bytes: usize, stride: usize, members: &[u32]) -> Result<OwnedFd, ReserveError> {
    let npes = control.npes() as usize;
    afford(control, heap_bytes, heap_bytes * members.len())?;
    let fd = rustix::fs::memfd_create("congruent-heap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(system(control, "making shared memory"))?;
    rustix::fs::ftruncate(&fd, (stride * npes) as u64).map_err(system(control, "sizing shared memory"))?;
    for &pe in members {
        set_aside(control, &fd, pe as usize * stride, heap_bytes, heap_bytes)?;
    }
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system(control, "sealing shared memory"))?;
    Ok(fd)
}

/// Asks what is available before so many bytes are taken for heaps of `heap_bytes`, because a container that takes more than it
/// may is killed rather than refused.
fn afford(control: &Control, heap_bytes: usize, bytes: usize) -> Result<(), ReserveError> {
    let available = available::bytes().unwrap_or(u64::MAX);
    if bytes as u64 > available {
        return Err(ReserveError::OutOfMemory { heap_bytes, npes: control.npes(), available });
    }
    Ok(())
}

/// Gives a range of the memory its pages, for heaps of `heap_bytes`.
fn set_aside(
    control: &Control,
    fd: &OwnedFd,
    offset: usize,
    bytes: usize,
    heap_bytes: usize,
) -> Result<(), ReserveError> {
    let pages = || rustix::fs::fallocate(fd, FallocateFlags::empty(), offset as u64, bytes as u64);
    match rustix::io::retry_on_intr(pages) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM) => {
            let available = available::bytes().unwrap_or(0);
            Err(ReserveError::OutOfMemory { heap_bytes, npes: control.npes(), available })
        }
        Err(error) => Err(system(control, "setting pages aside")(error)),
    }
}

/// The first PE of each host makes its memory and hands it to the others there.
fn share(control: &Control, heap_bytes: usize, stride: usize, members: &[u32]) -> Result<OwnedFd, ReserveError> {
    let bytes = stride * control.npes() as usize;
    let made = (members.first() == Some(&control.pe())).then(|| create(control, heap_bytes, stride, members));
    let made = agree(control, made.transpose())?;
    let handed = hand_over::exchange(control, made.as_ref().map(AsFd::as_fd), members)?;
    let fd = handed.and_then(|all| match (made, all.into_iter().flatten().next()) {
        (Some(made), _) => Ok(made),
        (None, handed) => sealed(handed, bytes),
    });
    agree(control, fd.map_err(system(control, "handing memory over")))
}

/// Believes a descriptor only if it is memory of the right size, and sealed.
fn sealed(fd: Option<OwnedFd>, bytes: usize) -> io::Result<OwnedFd> {
    let refused = || io::Error::new(io::ErrorKind::InvalidData, "the descriptor is not the memory that was agreed on");
    let fd =
        fd.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "nobody hands it over: see the others' errors"))?;
    let size = rustix::fs::fstat(&fd)?.st_size as u64;
    if size == bytes as u64 && rustix::fs::fcntl_get_seals(&fd)? == SEALS { Ok(fd) } else { Err(refused()) }
}

/// Finds an address that is free in all PEs: PE 0 proposes, all try, all tell.
fn map_everywhere(control: &Control, fd: &OwnedFd, bytes: usize) -> Result<Mapping, ReserveError> {
    for attempt in 0..ATTEMPTS {
        let proposal = if control.pe() == 0 { propose(fd, bytes, attempt) } else { 0 };
        let proposals = control.all_gather(&(proposal as u64).to_le_bytes())?;
        let address = proposals.first().and_then(|base| base[..].try_into().ok()).map_or(0, u64::from_le_bytes);
        let mine = Mapping::at(fd, bytes, address as usize);
        let outcomes = control.all_gather(&[u8::from(mine.is_ok())])?;
        if let (Ok(mapping), true) = (mine, outcomes.iter().all(|outcome| outcome[..] == [1])) {
            return Ok(mapping);
        }
    }
    Err(ReserveError::NoAddress { bytes })
}

/// By turns an address that is likely free everywhere, and one that certainly is free here.
fn propose(fd: &OwnedFd, bytes: usize, attempt: u32) -> usize {
    let mut random = [0; 8];
    if attempt.is_multiple_of(2) && getrandom::fill(&mut random).is_ok() {
        let places = (REGION_BYTES - bytes) / GRANULARITY;
        return REGION + usize::from_le_bytes(random) % places * GRANULARITY;
    }
    Mapping::anywhere(fd, bytes).map_or(0, |free| (free.base.addr()).next_multiple_of(GRANULARITY))
}

/// Every PE tells how its step went. If one failed, all fail: it by its own error, the others by what it told.
fn agree<T>(control: &Control, mine: Result<T, ReserveError>) -> Result<T, ReserveError> {
    let told = mine.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = control.all_gather(told.as_bytes())?;
    let mine = mine?;
    match (0..).zip(all).find(|(_, told)| !told.is_empty()) {
        None => Ok(mine),
        Some((pe, told)) => Err(ReserveError::System {
            pe,
            doing: "reserving shared memory".into(),
            reason: String::from_utf8_lossy(&told).into_owned(),
        }),
    }
}

/// For `map_err`: what was being done here when the system refused.
fn system<E: Into<io::Error>>(control: &Control, doing: &str) -> impl FnOnce(E) -> ReserveError {
    move |error| ReserveError::System { pe: control.pe(), doing: doing.into(), reason: error.into().to_string() }
}

/// A mapping of the whole memory; gone when dropped.
struct Mapping {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: a mapping is an address range and no more: it reads and writes nothing, and is unmapped by its last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above: all that can be done through a shared reference is to ask for the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps where the system likes.
    fn anywhere(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        Self::map(fd, bytes, ptr::null_mut(), MapFlags::SHARED)
    }

    /// Maps at `address`, or not at all if anything is there.
    fn at(fd: &OwnedFd, bytes: usize, address: usize) -> io::Result<Self> {
        let wanted = ptr::without_provenance_mut(address);
        let mapping = Self::map(fd, bytes, wanted, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE)?;
        // Kernels before 4.17 take the address as a wish.
        if mapping.base.addr() == address { Ok(mapping) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    fn map(fd: &OwnedFd, bytes: usize, address: *mut c_void, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the new mapping takes the place of no other, so no memory in use changes.
        let base = unsafe { rustix::mm::mmap(address, bytes, protection, flags, fd, 0) }?;
        Ok(Self { base, bytes })
    }

    /// Ends whoever touches a range.
    fn forbid(&self, offset: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: the range is this mapping's own, and no part of a heap that anyone has.
        unsafe { rustix::mm::mprotect(self.base.wrapping_byte_add(offset), bytes, MprotectFlags::empty()) }
            .map_err(Into::into)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping's own, and the advice used here changes the kind of page, not the content.
        unsafe { rustix::mm::madvise(self.base, self.bytes, advice) }.map_err(Into::into)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own. Whoever uses its address keeps the `Reservation` alive meanwhile.
        let _ = unsafe { rustix::mm::munmap(self.base, self.bytes) };
    }
}

#[cfg(test)]
mod tests;
