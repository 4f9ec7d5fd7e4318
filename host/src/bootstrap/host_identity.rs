//! Who may share memory with whom: the same boot of the same kernel, under the same user.

use sha2::{Digest, Sha256};
use std::fs;

/// Equal for PEs that can hand each other descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostIdentity(pub(super) [u8; 32]);

impl HostIdentity {
    /// This process's own. Where the system does not tell, no two PEs are taken to be alike.
    pub(super) fn own() -> Self {
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| {
            let mut stranger = vec![0; 16];
            let _ = getrandom::fill(&mut stranger);
            stranger
        });
        let uid = rustix::process::getuid().as_raw();
        Self(Sha256::new().chain_update(boot).chain_update(uid.to_le_bytes()).finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_host() {
        assert_eq!(HostIdentity::own(), HostIdentity::own());
    }
}
