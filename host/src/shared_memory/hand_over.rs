//! PE 0 hands the memory to the other processes: a descriptor, passed over a socket in a folder that only their user can
//! enter, and that is gone once all have it.

use super::{ReserveError, SEALS, agree, system};
use crate::bootstrap::Control;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// All PEs are there and about to do this one thing, so they need not long.
const LIMIT: Duration = Duration::from_secs(10);

/// Collective: what PE 0 makes, in every PE.
pub(super) fn share(
    control: &Control,
    bytes: usize,
    make: impl FnOnce() -> Result<OwnedFd, ReserveError>,
) -> Result<OwnedFd, ReserveError> {
    let mut made = None;
    if control.pe() == 0 {
        let counter = Counter::open().map_err(system(control, "making a place to hand memory over"));
        made = Some(make().and_then(|fd| Ok((fd, counter?))));
    }
    let (own, failed) = match made {
        Some(Ok(made)) => (Some(made), Ok(())),
        Some(Err(error)) => (None, Err(error)),
        None => (None, Ok(())),
    };
    agree(control, failed)?;
    let place = own.as_ref().map(|(_, counter)| counter.socket().into_os_string().into_vec()).unwrap_or_default();
    let place = control.all_gather(&place)?.into_iter().next().unwrap_or_default();
    let outcome = match own {
        Some((fd, counter)) => counter.serve(&fd, control.npes() - 1).map(|()| fd),
        None => collect(Path::new(std::ffi::OsStr::from_bytes(&place)), bytes),
    };
    agree(control, outcome.map_err(system(control, "handing memory over")))
}

/// PE 0's socket and the folder it is in.
struct Counter {
    folder: PathBuf,
    listener: UnixListener,
}

impl Counter {
    fn open() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        let folder =
            runtime.unwrap_or_else(std::env::temp_dir).join(format!("congruent-{:016x}", u64::from_le_bytes(random)));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        match UnixListener::bind(folder.join("memory")) {
            Ok(listener) => Ok(Self { folder, listener }),
            Err(error) => {
                let _ = std::fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("memory")
    }

    /// Hands `fd` to that many processes of this user.
    fn serve(self, fd: &OwnedFd, customers: u32) -> io::Result<()> {
        let until = Instant::now() + LIMIT;
        for _ in 0..customers {
            wait(&self.listener, until)?;
            let (stream, _) = self.listener.accept()?;
            same_user(&stream)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut parcel = SendAncillaryBuffer::new(&mut space);
            let fds = [fd.as_fd()];
            if !parcel.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(ErrorKind::OutOfMemory.into());
            }
            rustix::net::sendmsg(&stream, &[IoSlice::new(&[0])], &mut parcel, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Takes the descriptor at `socket`, and believes it only if it is of this user, of the right size, and sealed.
fn collect(socket: &Path, bytes: usize) -> io::Result<OwnedFd> {
    let stream = UnixStream::connect(socket)?;
    same_user(&stream)?;
    wait(&stream, Instant::now() + LIMIT)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parcel = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received =
        rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut parcel, RecvFlags::CMSG_CLOEXEC)?;
    let fd = parcel.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd = fd.filter(|_| !received.flags.contains(ReturnFlags::CTRUNC));
    let fd = fd.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no descriptor came (too many open files?)"))?;
    let size = rustix::fs::fstat(&fd)?.st_size as u64;
    if size != bytes as u64 || rustix::fs::fcntl_get_seals(&fd)? != SEALS {
        return Err(io::Error::new(ErrorKind::InvalidData, "the descriptor is not the memory that was agreed on"));
    }
    Ok(fd)
}

fn same_user(stream: &UnixStream) -> io::Result<()> {
    if sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::PermissionDenied, "another user is at the other end"))
    }
}

fn wait(socket: &impl AsFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.checked_duration_since(Instant::now()).ok_or(ErrorKind::TimedOut)?;
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::thread;

    fn memory(bytes: u64, seals: rustix::fs::SealFlags) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn pass(fd: OwnedFd, bytes: usize) -> io::Result<OwnedFd> {
        let counter = Counter::open().unwrap();
        let (socket, folder) = (counter.socket(), counter.folder.clone());
        let outcome = thread::scope(|scope| {
            let serving = scope.spawn(|| counter.serve(&fd, 1));
            let outcome = collect(&socket, bytes);
            serving.join().unwrap().unwrap();
            outcome
        });
        assert!(!folder.exists());
        outcome
    }

    #[test]
    fn sealed_memory_of_the_right_size_is_taken() {
        assert!(pass(memory(4096, SEALS), 4096).is_ok());
    }

    #[test]
    fn other_memory_is_refused() {
        for (fd, bytes) in [(memory(4096, SEALS), 8192), (memory(4096, rustix::fs::SealFlags::SHRINK), 4096)] {
            assert_eq!(pass(fd, bytes).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn the_folder_is_its_users_alone_and_goes_with_the_counter() {
        use std::os::unix::fs::PermissionsExt;
        let counter = Counter::open().unwrap();
        let folder = counter.folder.clone();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(counter);
        assert!(!folder.exists());
    }
}
