//! How device memory gets to other processes: as file descriptors, or as handles of an NVLink fabric.

use std::os::fd::{AsFd, OwnedFd};

use cudarc::driver::sys::CUmemAllocationHandleType as Kind;

use super::device::Properties;
use super::error::CudaError;
use crate::bootstrap::{Control, ControlError};
use crate::shared_memory::hand_over;

/// The kind of handle that all PEs of a job use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum HandleKind {
    /// None: memory stays in its process.
    #[default]
    Unshared,
    /// File descriptors, which sockets pass on within a host.
    Files,
    /// Handles that an NVLink fabric knows.
    Fabric,
}

/// Memory that another process may import.
pub(super) enum ShareableHandle {
    File(OwnedFd),
    Fabric([u8; FABRIC]),
}

/// Bytes of a fabric handle (CUDA Driver API, `CUmemFabricHandle`).
pub(super) const FABRIC: usize = 64;

impl HandleKind {
    /// What one device can, to tell the other PEs.
    pub(super) fn ways(device: &Properties) -> u8 {
        u8::from(device.posix_handles) | u8::from(device.fabric_handles) << 1
    }

    /// What all devices can; descriptors where there is a choice, because they need no service of the fabric's.
    pub(super) fn common(ways: impl IntoIterator<Item = u8>) -> Self {
        match ways.into_iter().fold(u8::MAX, |common, ways| common & ways) {
            common if common & 1 != 0 => Self::Files,
            common if common & 2 != 0 => Self::Fabric,
            _ => Self::Unshared,
        }
    }

    /// As the driver names it.
    pub(super) fn of_driver(self) -> Kind {
        match self {
            Self::Unshared => Kind::CU_MEM_HANDLE_TYPE_NONE,
            Self::Files => Kind::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            Self::Fabric => Kind::CU_MEM_HANDLE_TYPE_FABRIC,
        }
    }

    /// Collective: every PE gives memory or nothing, and gets that of the others of its host, `near`, in PE order, with nothing in its own
    /// place and those of PEs elsewhere.
    ///
    /// The inner result is this PE's own; the others learn of a failure here only when they are told.
    pub(super) fn exchange(
        self,
        control: &Control,
        given: Option<&ShareableHandle>,
        near: &[u32],
        what: &'static str,
    ) -> Result<Result<Vec<Option<ShareableHandle>>, CudaError>, ControlError> {
        if self == Self::Fabric {
            let mine = given.and_then(ShareableHandle::fabric).map_or(&[][..], |handle| handle);
            let is_wanted = |pe| pe != control.pe() && near.contains(&pe);
            let all = (0..).zip(control.all_gather(mine)?);
            let handle = |(pe, bytes): (u32, Vec<u8>)| {
                let bytes = bytes.try_into().ok().filter(|_| is_wanted(pe))?;
                Some(ShareableHandle::Fabric(bytes))
            };
            return Ok(Ok(all.map(handle).collect()));
        }
        let handed = hand_over::exchange(control, given.and_then(ShareableHandle::file).map(AsFd::as_fd), near)?;
        let handed = handed.map(|fds| fds.into_iter().map(|fd| fd.map(ShareableHandle::File)).collect());
        Ok(handed.map_err(|error| CudaError::System { doing: what, reason: error.to_string() }))
    }
}

impl ShareableHandle {
    fn file(&self) -> Option<&OwnedFd> {
        if let Self::File(fd) = self { Some(fd) } else { None }
    }

    fn fabric(&self) -> Option<&[u8; FABRIC]> {
        if let Self::Fabric(handle) = self { Some(handle) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_can_is_chosen_and_descriptors_first() {
        assert_eq!(HandleKind::common([1, 3, 1]), HandleKind::Files);
        assert_eq!(HandleKind::common([3, 3]), HandleKind::Files);
        assert_eq!(HandleKind::common([2, 3]), HandleKind::Fabric);
        assert_eq!(HandleKind::common([1, 2]), HandleKind::Unshared);
        assert_eq!(HandleKind::common([0]), HandleKind::Unshared);
    }
}
