//! Pages of this process's address space: what stands for a GPU's memory and its page tables.

use core::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use congruent_virtual_gpu::Segment;
use cudarc::driver::sys::CUresult;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};
use serde::{Deserialize, Serialize};

use crate::errors::Outcome;

const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What may be done to pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Access {
    /// Nothing: touching them ends the process with a fault, as it would a kernel.
    None,
    Read,
    ReadWrite,
}

fn pointer(at: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(at as usize)
}

/// The address of a mapping that was made.
fn made(at: *mut c_void) -> u64 {
    at.expose_provenance() as u64
}

/// Pages of our own for reading and writing, given back when dropped.
pub(crate) struct Pages {
    at: u64,
    bytes: u64,
}

impl Pages {
    /// All bytes of a file that stays as long as it is.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a file that may be cut off, `CUDA_ERROR_MAP_FAILED`
    pub(crate) fn whole(file: impl AsFd) -> Outcome<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let bytes = rustix::fs::fstat(&file).map_or(0, |file| file.st_size);
        match u64::try_from(bytes) {
            Ok(bytes @ 1..) if seals.contains(SealFlags::SHRINK) => Self::of(file, bytes),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// The first bytes of a file.
    ///
    /// # Errors
    /// `CUDA_ERROR_MAP_FAILED`
    pub(crate) fn of(file: impl AsFd, bytes: u64) -> Outcome<Self> {
        // SAFETY: as above.
        let mapped = unsafe { mm::mmap(core::ptr::null_mut(), bytes as usize, BOTH, MapFlags::SHARED, file, 0) };
        let at = mapped.map(made).map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)?;
        Ok(Self { at, bytes })
    }

    /// Where they begin.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The same for virtual GPUs, which keep the pages for as long as they may use them.
    pub(crate) fn segment(self) -> Arc<Segment> {
        let (base, bytes) = (pointer(self.at).cast(), self.bytes);
        // SAFETY: the pages are mapped for reading and writing until they are dropped, and begin at a page. They are memory of
        // virtual GPUs, of which copies and fills by the host are bytes that may tear, as those of a driver may.
        unsafe { Segment::new(base, bytes, self) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // The pages are ours and mapped, so this cannot fail; and nobody is left to hear of it.
        let _unmapped = unmap(self.at, self.bytes);
    }
}

/// A file in memory of a size that stays, zeroed.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn file(name: &str, bytes: u64) -> Outcome<File> {
    let make = || {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok::<OwnedFd, Errno>(file)
    };
    make().map(File::from).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Pages are so many bytes or a part of that (Linux, on aarch64 and x86-64).
const LARGEST_PAGE: usize = 64 << 10;

/// Zeroes whole pages of a file in memory by giving them back, so that those that nobody touches again cost no time. Says whether it
/// did: the system refuses it for what does not begin at a page, and for other memory.
pub(crate) fn zero(at: u64, bytes: usize) -> bool {
    // SAFETY: the caller found the range mapped for writing, is to fill it with zeros, and nobody has a reference to what is there.
    let zeroed = || unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxRemove) };
    bytes.is_multiple_of(LARGEST_PAGE) && zeroed().is_ok()
}

/// What no other file of the system has, as long as this one is open or mapped anywhere: its device and inode.
pub(crate) type Identity = (u64, u64);

/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM`
pub(crate) fn identity(file: impl AsFd) -> Outcome<Identity> {
    let found = rustix::fs::fstat(file).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok((found.st_dev, found.st_ino))
}

/// A range without access: at `wish` if that is free, else where the system likes, aligned to `align`.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) fn reserve(bytes: u64, align: u64, wish: u64) -> Outcome<u64> {
    let nothing = |at: u64, bytes: u64, flags: MapFlags| {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | flags;
        // SAFETY: a new mapping that replaces nothing: without `FIXED`, or with `FIXED_NOREPLACE`.
        unsafe { mm::mmap_anonymous(pointer(at), bytes as usize, ProtFlags::empty(), flags) }.map(made)
    };
    if wish != 0 && wish.is_multiple_of(align) {
        match nothing(wish, bytes, MapFlags::FIXED_NOREPLACE) {
            Ok(at) if at == wish => return Ok(at),
            // Kernels older than 4.17 take the address for a hint.
            Ok(elsewhere) => unmap(elsewhere, bytes)?,
            Err(_) => {}
        }
    }
    let more = bytes.checked_add(align).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let all = nothing(0, more, MapFlags::empty()).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let at = all.next_multiple_of(align);
    if at > all {
        unmap(all, at - all)?;
    }
    unmap(at + bytes, all + more - (at + bytes))?;
    Ok(at)
}

/// Puts the first bytes of a file in the place of reserved pages, without access yet.
///
/// # Errors
/// `CUDA_ERROR_MAP_FAILED`
pub(crate) fn map(at: u64, bytes: u64, file: impl AsFd) -> Outcome {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller found the range inside a reservation of ours that has nothing mapped.
    let mapped = unsafe { mm::mmap(pointer(at), bytes as usize, ProtFlags::empty(), flags, file, 0) };
    mapped.map(drop).map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)
}

/// Makes pages reserved again, with nothing mapped.
///
/// # Errors
/// `CUDA_ERROR_UNMAP_FAILED`
pub(crate) fn clear(at: u64, bytes: u64) -> Outcome {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller found the range to be mappings of ours, whose users are done with them, as `cuMemUnmap` asks.
    let mapped = unsafe { mm::mmap_anonymous(pointer(at), bytes as usize, ProtFlags::empty(), flags) };
    mapped.map(drop).map_err(|_| CUresult::CUDA_ERROR_UNMAP_FAILED)
}

/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM`
pub(crate) fn protect(at: u64, bytes: u64, access: Access) -> Outcome {
    let flags = match access {
        Access::None => MprotectFlags::empty(),
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: the caller found the range to be mappings of ours; taking access away faults who still uses them, which is
    // what it is for.
    let done = unsafe { mm::mprotect(pointer(at), bytes as usize, flags) };
    done.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

/// Gives pages back to the system; none is fine.
///
/// # Errors
/// `CUDA_ERROR_UNMAP_FAILED`
pub(crate) fn unmap(at: u64, bytes: u64) -> Outcome {
    // SAFETY: the caller owns the range: an allocation or reservation of ours that has ended, or a part never given out.
    match unsafe { mm::munmap(pointer(at), bytes as usize) } {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) if bytes == 0 => Ok(()),
        Err(_) => Err(CUresult::CUDA_ERROR_UNMAP_FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_pages_are_zero_wherever_the_file_is_mapped() {
        let file = file("zeroed", 2 * LARGEST_PAGE as u64).unwrap();
        let [one, other] = [(), ()].map(|()| Pages::of(&file, 2 * LARGEST_PAGE as u64).unwrap());
        let byte = |pages: &Pages, at: usize| pointer(pages.at()).cast::<u8>().wrapping_add(at);
        for at in [0, LARGEST_PAGE - 1, LARGEST_PAGE] {
            // SAFETY: inside of what is mapped, and nobody else has it.
            unsafe { byte(&one, at).write(7) };
        }
        assert!(!zero(one.at(), 512) && !zero(one.at() + 512, LARGEST_PAGE));
        assert!(zero(one.at(), LARGEST_PAGE));
        // SAFETY: as above.
        let left = [0, LARGEST_PAGE - 1, LARGEST_PAGE].map(|at| unsafe { byte(&other, at).read() });
        assert_eq!(left, [0, 0, 7]);
    }
}
