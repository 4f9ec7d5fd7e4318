//! Memory that several devices share, and the addresses at which each reaches it.
#![allow(
    clippy::disallowed_types,
    reason = "the memory of virtual devices is that of the host, which may use it at the same time"
)]

use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::fault::Cause;

/// Bytes of host memory that stand for physical memory. All accesses of the machine are atomic, so that the host and other
/// processes may use them at the same time.
pub struct Segment {
    /// No other segment has it.
    id: u64,
    base: *mut u8,
    bytes: u64,
    /// Of memory that nobody had written at first, what the host has written: ends of ranges, by their starts.
    written: OnceLock<Mutex<BTreeMap<u64, u64>>>,
    /// Keeps the memory alive.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is shared by design; it is only accessed atomically.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// The word at an offset of a segment.
macro_rules! word {
    ($segment:ident, $atomic:ty, $offset:expr) => {{
        let place = $segment.place($offset, size_of::<$atomic>() as u64);
        // SAFETY: in bounds and aligned, or `place` had panicked; good as long as the segment is, and accessed by others only
        // atomically, as `Segment::new` asks.
        unsafe { <$atomic>::from_ptr(place.cast()) }
    }};
}

impl Segment {
    /// Memory of the host.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes and good for `bytes` bytes, for reading and writing, as long as `owner` lives. What
    /// accesses it at the same time does so atomically.
    pub unsafe fn new(base: *mut u8, bytes: u64, owner: impl Any + Send + Sync) -> Arc<Self> {
        static SEGMENTS: AtomicU64 = AtomicU64::new(0);
        let id = SEGMENTS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, base, bytes, written: OnceLock::new(), _owner: Box::new(owner) })
    }

    /// Zeroed memory of its own.
    pub fn zeroed(bytes: u64) -> Arc<Self> {
        let mut words = vec![0_u64; bytes.div_ceil(8) as usize].into_boxed_slice();
        let base = words.as_mut_ptr().cast();
        // The words keep their place when the box is moved.
        // SAFETY: the allocation is owned, aligned to 8 bytes, and used by nobody else.
        unsafe { Self::new(base, bytes, words) }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Says that nobody has written it, so that who reads what nobody writes from here on can be told. Memory of which this is not
    /// said holds what it does.
    pub fn begin_unwritten(&self) {
        self.written.get_or_init(Mutex::default);
    }

    /// Whether nobody had written it at first.
    pub(crate) fn is_fresh(&self) -> bool {
        self.written.get().is_some()
    }

    /// The host has written bytes, which kernels may read.
    pub fn host_wrote(&self, offset: u64, bytes: u64) {
        let Some(written) = self.written.get() else { return };
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (offset, offset.saturating_add(bytes));
        // Ranges that touch it become one with it.
        while let Some((&from, &to)) = written.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            written.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        written.insert(start, end);
    }

    /// Whether the host has written a byte.
    pub(crate) fn is_of_host(&self, offset: u64) -> bool {
        let Some(written) = self.written.get() else { return true };
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        written.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end)
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place of `bytes` bytes.
    ///
    /// # Panics
    /// If they are not there, or not aligned to their number; the machine has checked both
    fn place(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes) && offset.is_multiple_of(bytes),
            "{bytes} bytes at {offset:#x}"
        );
        self.base.wrapping_add(offset as usize)
    }

    /// Reads 1, 2, 4 or 8 bytes.
    pub(crate) fn load(&self, offset: u64, bytes: u64) -> u64 {
        match bytes {
            1 => u64::from(word!(self, AtomicU8, offset).load(Ordering::Acquire)),
            2 => u64::from(word!(self, AtomicU16, offset).load(Ordering::Acquire)),
            4 => u64::from(word!(self, AtomicU32, offset).load(Ordering::Acquire)),
            _ => word!(self, AtomicU64, offset).load(Ordering::Acquire),
        }
    }

    /// Writes the low 1, 2, 4 or 8 bytes of `value`.
    pub(crate) fn store(&self, offset: u64, bytes: u64, value: u64) {
        match bytes {
            1 => word!(self, AtomicU8, offset).store(value as u8, Ordering::Release),
            2 => word!(self, AtomicU16, offset).store(value as u16, Ordering::Release),
            4 => word!(self, AtomicU32, offset).store(value as u32, Ordering::Release),
            _ => word!(self, AtomicU64, offset).store(value, Ordering::Release),
        }
    }

    /// Replaces 2, 4 or 8 bytes by what `change` makes of them, and gives what was there.
    pub(crate) fn update(&self, offset: u64, bytes: u64, mut change: impl FnMut(u64) -> u64) -> u64 {
        macro_rules! update {
            ($atomic:ty, $word:ty) => {{
                let word = word!(self, $atomic, offset);
                let old =
                    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(u64::from(old)) as $word));
                old.map_or_else(u64::from, u64::from)
            }};
        }
        match bytes {
            2 => update!(AtomicU16, u16),
            4 => update!(AtomicU32, u32),
            _ => update!(AtomicU64, u64),
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not there
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for part in parts(offset, out.len()) {
            let (at, bytes) = (offset + part.start as u64, part.len());
            out[part].copy_from_slice(&self.load(at, bytes as u64).to_le_bytes()[..bytes]);
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        for part in parts(offset, bytes.len()) {
            let word = bytes[part.clone()].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            self.store(offset + part.start as u64, part.len() as u64, word);
        }
    }
}

/// Bytes from an offset on in aligned words of 8, and one by one before and behind these.
fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let head = ((offset.next_multiple_of(8) - offset) as usize).min(bytes);
    let tail = bytes - (bytes - head) % 8;
    let one = |at: usize| at..at + 1;
    (0..head).map(one).chain((head..tail).step_by(8).map(|at| at..at + 8)).chain((tail..bytes).map(one))
}

/// What a device may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    None,
    /// Loads.
    Read,
    /// Loads, stores and atomics.
    ReadWrite,
}

/// What lies behind addresses.
#[derive(Clone)]
pub enum Backing {
    /// Memory, from an offset on.
    Memory(Arc<Segment>, u64),
    /// That of several devices, for `multimem` instructions alone.
    Multicast(Arc<Multicast>),
}

/// Offsets at which each of several devices has memory of its own.
pub struct Multicast {
    devices: usize,
    members: RwLock<Vec<Member>>,
    /// Keeps alive what it is known by.
    _owner: Box<dyn Any + Send + Sync>,
}

/// What one device has behind a range of offsets.
#[derive(Clone)]
pub struct Member {
    /// Who bound it: what is theirs goes with them.
    pub process: u64,
    /// The device.
    pub device: u32,
    /// The first offset.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The memory.
    pub memory: Arc<Segment>,
    /// Where in it.
    pub from: u64,
}

impl Multicast {
    /// For so many devices, of which none has any memory yet.
    pub fn new(devices: usize, owner: impl Any + Send + Sync) -> Arc<Self> {
        Arc::new(Self { devices, members: RwLock::default(), _owner: Box::new(owner) })
    }

    /// Another one, with other memory in place of what this one has.
    pub fn with(&self, mut other: impl FnMut(&Arc<Segment>) -> Arc<Segment>) -> Arc<Self> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let members = members.iter().map(|member| Member { memory: other(&member.memory), ..member.clone() }).collect();
        Arc::new(Self { devices: self.devices, members: RwLock::new(members), _owner: Box::new(()) })
    }

    /// Gives a device memory.
    pub fn bind(&self, member: Member) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        // In the order of devices, so that floats are added in the same order each time.
        let place = members.partition_point(|known| known.device <= member.device);
        members.insert(place, member);
    }

    /// Takes away what is chosen.
    pub fn unbind(&self, chosen: impl Fn(&Member) -> bool) {
        self.members.write().unwrap_or_else(PoisonError::into_inner).retain(|member| !chosen(member));
    }

    /// The memory of all devices at an offset.
    fn reach(&self, at: u64, offset: u64, bytes: u64) -> Result<Vec<(Arc<Segment>, u64)>, Cause> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let holds = |member: &&Member| member.at <= offset && offset + bytes <= member.at + member.bytes;
        let place = |member: &Member| (member.memory.clone(), member.from + (offset - member.at));
        let reached: Vec<_> = members.iter().filter(holds).map(place).collect();
        if reached.len() < self.devices {
            return Err(Cause::Unbound { at, bound: reached.len(), devices: self.devices });
        }
        Ok(reached)
    }
}

/// A range of a device's addresses.
#[derive(Clone)]
pub struct Window {
    /// The first address.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
    /// What lies behind.
    pub backing: Backing,
    /// What the device may do.
    pub access: Access,
}

/// The addresses of one device, as one process has them. Windows do not overlap.
#[derive(Clone, Default)]
pub struct AddressMap(Vec<Window>);

impl AddressMap {
    /// Adds a window in place of all that it touches.
    pub fn insert(&mut self, window: Window) {
        self.remove(window.at, window.bytes);
        let place = self.0.partition_point(|known| known.at < window.at);
        self.0.insert(place, window);
    }

    /// Removes all windows that touch a range.
    pub fn remove(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        self.0.retain(|known| known.at + known.bytes <= at || end <= known.at);
    }

    /// The index of the window that an address is in.
    pub(crate) fn find(&self, at: u64) -> Option<usize> {
        let index = self.0.partition_point(|window| window.at <= at).checked_sub(1)?;
        (at - self.0[index].at < self.0[index].bytes).then_some(index)
    }

    pub(crate) fn windows(&self) -> &[Window] {
        &self.0
    }

    pub(crate) fn window(&self, index: usize) -> &Window {
        &self.0[index]
    }

    /// The window of so many bytes at an address, with the offset in it.
    fn reach(&self, at: u64, bytes: u64, access: Access) -> Result<(&Window, u64), Cause> {
        let window = self.find(at).map(|index| self.window(index)).ok_or(Cause::Unmapped { at, bytes })?;
        let offset = at - window.at;
        if offset + bytes > window.bytes {
            return Err(Cause::Unmapped { at, bytes });
        }
        if window.access < access {
            return Err(Cause::NoAccess { at, bytes });
        }
        Ok((window, offset))
    }

    /// The memory at an address, and the addresses of its window.
    pub(crate) fn memory(
        &self,
        at: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(&Arc<Segment>, u64, Range<u64>), Cause> {
        let (window, offset) = self.reach(at, bytes, access)?;
        match &window.backing {
            Backing::Memory(segment, from) => Ok((segment, from + offset, window.at..window.at + window.bytes)),
            Backing::Multicast(_) => Err(Cause::PlainMulticast { at }),
        }
    }

    /// The memory of all devices behind a multicast address.
    pub(crate) fn multicast(&self, at: u64, bytes: u64, access: Access) -> Result<Vec<(Arc<Segment>, u64)>, Cause> {
        let (window, offset) = self.reach(at, bytes, access)?;
        match &window.backing {
            Backing::Multicast(object) => object.reach(at, offset, bytes),
            Backing::Memory(..) => Err(Cause::NoMulticast { at }),
        }
    }
}
