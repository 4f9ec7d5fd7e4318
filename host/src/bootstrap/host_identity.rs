//! Who may share memory with whom: the same boot of the same kernel, under the same user, in reach of each other's sockets, and with
//! the same `CONGRUENT_HOST_ID`, which tells apart what would be one host.

use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{env, fs};

/// Equal for PEs that can hand each other descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostIdentity(pub(super) [u8; 32]);

impl HostIdentity {
    /// This process's own.
    pub(super) fn own() -> Self {
        Self::of(Path::new("/proc"), &env::var_os("CONGRUENT_HOST_ID").unwrap_or_default())
    }

    /// Where `proc` does not tell, the host's name has to do: sharing memory says by itself if it is not possible.
    fn of(proc: &Path, id: &OsStr) -> Self {
        let boot = fs::read(proc.join("sys/kernel/random/boot_id"));
        let boot = boot.unwrap_or_else(|_| rustix::system::uname().nodename().to_bytes().to_vec());
        // Descriptors travel over sockets of a network namespace, and containers of one host may each have their own.
        let network = fs::read_link(proc.join("self/ns/net")).unwrap_or_default();
        let uid = rustix::process::getuid().as_raw();
        let hash = Sha256::new().chain_update(boot).chain_update([0]).chain_update(network.as_os_str().as_bytes());
        let hash = hash.chain_update([0]).chain_update(id.as_bytes()).chain_update([0]);
        Self(hash.chain_update(uid.to_le_bytes()).finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_host() {
        assert_eq!(HostIdentity::own(), HostIdentity::own());
        let without_proc = |id: &str| HostIdentity::of(Path::new("/none"), id.as_ref());
        assert_eq!(without_proc(""), without_proc(""));
        assert_ne!(without_proc(""), without_proc("b"), "one host is taken for two");
    }
}
