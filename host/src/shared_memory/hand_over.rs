//! PEs of several processes hand each other memory: descriptors, passed over sockets in folders that only their user can
//! enter, and that are gone once all have them.

use crate::bootstrap::{Control, ControlError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// All PEs are there and about to do this one thing, so they need not long.
const LIMIT: Duration = Duration::from_secs(10);

/// Collective: every PE gives a descriptor or nothing, and gets those of all the others, in PE order, with nothing in its
/// own place.
///
/// The inner result is this PE's own; the others learn of a failure here only when they are told.
pub(crate) fn exchange(
    control: &Control,
    goods: Option<BorrowedFd<'_>>,
) -> Result<io::Result<Vec<Option<OwnedFd>>>, ControlError> {
    let counter = goods.map(|_| Counter::open()).transpose();
    let socket = counter.as_ref().ok().and_then(Option::as_ref).map(Counter::socket);
    let socket = socket.map(|path| path.into_os_string().into_vec()).unwrap_or_default();
    let sockets = control.all_gather(&socket)?;
    Ok(visit(control, counter, goods, &sockets))
}

/// Nobody waits for anyone's turn: all queue up at every counter before they serve at their own, and what is handed over
/// waits in its socket.
fn visit(
    control: &Control,
    counter: io::Result<Option<Counter>>,
    goods: Option<BorrowedFd<'_>>,
    sockets: &[Vec<u8>],
) -> io::Result<Vec<Option<OwnedFd>>> {
    let until = Instant::now() + LIMIT;
    let queue = |(pe, socket): (u32, &Vec<u8>)| {
        let there = pe != control.pe() && !socket.is_empty();
        there.then(|| connect(Path::new(std::ffi::OsStr::from_bytes(socket)))).transpose()
    };
    let queued: io::Result<Vec<_>> = (0..).zip(sockets).map(queue).collect();
    let served = counter.and_then(|counter| match (counter, goods) {
        (Some(counter), Some(goods)) => counter.serve(goods, control.npes() - 1, until),
        _ => Ok(()),
    });
    // A PE that failed so far still takes what it queued for: the others count on it.
    let collected = queued.and_then(|streams| {
        let collect = |stream: Option<UnixStream>| stream.map(|stream| collect(&stream, until)).transpose();
        streams.into_iter().map(collect).collect()
    });
    served.and(collected)
}

/// A socket and the folder it is in.
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
    fn serve(self, fd: BorrowedFd<'_>, customers: u32, until: Instant) -> io::Result<()> {
        for _ in 0..customers {
            wait(&self.listener, until)?;
            let (stream, _) = self.listener.accept()?;
            same_user(&stream)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut parcel = SendAncillaryBuffer::new(&mut space);
            let fds = [fd];
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

/// Queues up at another PE's counter, if it is of this user.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    same_user(&stream)?;
    Ok(stream)
}

/// Takes the descriptor that is handed over.
fn collect(stream: &UnixStream, until: Instant) -> io::Result<OwnedFd> {
    wait(stream, until)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parcel = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received =
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut parcel, RecvFlags::CMSG_CLOEXEC)?;
    let fd = parcel.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd = fd.filter(|_| !received.flags.contains(ReturnFlags::CTRUNC));
    fd.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no descriptor came (too many open files?)"))
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
    use crate::bootstrap::local;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use std::thread;

    /// A descriptor that can be told from others.
    fn memory(bytes: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fd
    }

    /// The sizes of what each PE gets, where `gives` says who gives; a PE's own is its index and one.
    fn sizes(npes: usize, gives: impl Fn(u32) -> bool + Sync) -> Vec<Vec<Option<i64>>> {
        let controls = local(npes).unwrap();
        let get = |control: &Control| {
            let own = gives(control.pe()).then(|| memory(u64::from(control.pe()) + 1));
            let all = exchange(control, own.as_ref().map(AsFd::as_fd)).unwrap().unwrap();
            control.all_gather(&[]).unwrap();
            control.depart();
            all.into_iter().map(|fd| fd.map(|fd| fstat(&fd).unwrap().st_size)).collect()
        };
        thread::scope(|scope| {
            let running: Vec<_> = controls.iter().map(|control| scope.spawn(|| get(control))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn everyone_gets_what_the_others_give() {
        let (a, b, c) = (Some(1), Some(2), Some(3));
        assert_eq!(sizes(3, |_| true), [[None, b, c], [a, None, c], [a, b, None]]);
    }

    #[test]
    fn those_who_give_nothing_still_get() {
        let a = Some(1);
        assert_eq!(sizes(3, |pe| pe == 0), [[None, None, None], [a, None, None], [a, None, None]]);
        assert_eq!(sizes(2, |_| false), [[None, None], [None, None]]);
    }

    #[test]
    fn nobody_is_waited_for_beyond_the_limit() {
        let counter = Counter::open().unwrap();
        let fd = memory(1);
        assert_eq!(counter.serve(fd.as_fd(), 1, Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
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
