//! PEs of several processes hand each other memory: descriptors, passed over sockets that have a name in no file system, to
//! processes of the same user that know the word which the PEs have given each other.

use crate::bootstrap::{Control, ControlError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// All PEs are there and about to do this one thing, so they need not long.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a counter's name, and of its word.
const WORD: usize = 16;

/// Collective: every PE gives a descriptor or nothing to the others of its host, `members`, and gets theirs, in PE order, with
/// nothing in its own place and in those of PEs elsewhere.
///
/// The inner result is this PE's own; the others learn of a failure here only when they are told.
pub(crate) fn exchange(
    control: &Control,
    goods: Option<BorrowedFd<'_>>,
    members: &[u32],
) -> Result<io::Result<Vec<Option<OwnedFd>>>, ControlError> {
    let counter = goods.map(|_| Counter::open()).transpose();
    let sign = counter.as_ref().ok().and_then(Option::as_ref).map(Counter::sign).unwrap_or_default();
    let signs = control.all_gather(&sign)?;
    Ok(visit(control, counter, goods, &signs, members))
}

/// Nobody waits for anyone's turn: all queue up at every counter before they serve at their own, and what is handed over
/// waits in its socket.
fn visit(
    control: &Control,
    counter: io::Result<Option<Counter>>,
    goods: Option<BorrowedFd<'_>>,
    signs: &[Vec<u8>],
    members: &[u32],
) -> io::Result<Vec<Option<OwnedFd>>> {
    let until = Instant::now() + LIMIT;
    let queue = |(pe, sign): (u32, &Vec<u8>)| {
        let there = pe != control.pe() && members.contains(&pe) && !sign.is_empty();
        there.then(|| connect(sign, until).map_err(|error| about(pe, "asking", error))).transpose()
    };
    let queued: io::Result<Vec<_>> = (0..).zip(signs).map(queue).collect();
    let served = counter.and_then(|counter| match (counter, goods) {
        (Some(counter), Some(goods)) => counter.serve(goods, members.len() as u32 - 1, until),
        _ => Ok(()),
    });
    // A PE that failed so far still takes what it queued for: the others count on it.
    let collected = queued.and_then(|streams| {
        let collect = |(pe, stream): (u32, Option<UnixStream>)| {
            stream.map(|stream| collect(&stream, until).map_err(|error| about(pe, "taking from", error))).transpose()
        };
        (0..).zip(streams).map(collect).collect()
    });
    served.and(collected)
}

fn about(pe: u32, doing: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} PE {pe}: {error}"))
}

/// A socket where descriptors are handed out. Nothing of it is left when its process ends.
struct Counter {
    name: [u8; WORD],
    /// What customers say. Everyone of this host can read the name, and connect.
    word: [u8; WORD],
    listener: UnixListener,
}

impl Counter {
    fn open() -> io::Result<Self> {
        let (mut name, mut word) = ([0; WORD], [0; WORD]);
        getrandom::fill(&mut name)?;
        getrandom::fill(&mut word)?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(Self { name, word, listener })
    }

    /// What the other PEs must know.
    fn sign(&self) -> Vec<u8> {
        [self.name, self.word].concat()
    }

    /// Hands `fd` to that many processes of this user which know the word. Others are sent away.
    fn serve(self, fd: BorrowedFd<'_>, customers: u32, until: Instant) -> io::Result<()> {
        let mut served = 0;
        while served < customers {
            let late = |error: io::Error| {
                io::Error::new(error.kind(), format!("{served} of {customers} PEs came for it: {error}"))
            };
            wait(&self.listener, until).map_err(late)?;
            let (stream, _) = self.listener.accept()?;
            if !self.is_customer(&stream, until) {
                continue;
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut parcel = SendAncillaryBuffer::new(&mut space);
            let fds = [fd];
            if !parcel.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(ErrorKind::OutOfMemory.into());
            }
            rustix::net::sendmsg(&stream, &[IoSlice::new(&[0])], &mut parcel, SendFlags::NOSIGNAL)?;
            served += 1;
        }
        Ok(())
    }

    /// Other users are not even listened to, so only this one's processes can be slow.
    fn is_customer(&self, mut stream: &UnixStream, until: Instant) -> bool {
        let mut word = [0; WORD];
        same_user(stream).and_then(|()| wait(stream, until)).is_ok()
            && stream.set_nonblocking(true).is_ok()
            && stream.read_exact(&mut word).is_ok()
            && word == self.word
    }
}

/// Queues up at another PE's counter, if it is of this user. Where the queue is full, the system waits for a place in it.
fn connect(sign: &[u8], until: Instant) -> io::Result<UnixStream> {
    let (name, word) = sign.split_at_checked(WORD).ok_or(ErrorKind::InvalidData)?;
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let left = until.checked_duration_since(Instant::now()).ok_or(ErrorKind::TimedOut)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let mut stream = UnixStream::from(socket);
    same_user(&stream)?;
    stream.write_all(word)?;
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
            Err(Errno::INTR) => {}
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
        let all: Vec<u32> = (0..npes as u32).collect();
        let get = |control: &Control| {
            let own = gives(control.pe()).then(|| memory(u64::from(control.pe()) + 1));
            let all = exchange(control, own.as_ref().map(AsFd::as_fd), &all).unwrap().unwrap();
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
    fn a_full_queue_is_not_waited_at_beyond_the_limit() {
        let counter = Counter::open().unwrap();
        rustix::net::listen(&counter.listener, 0).unwrap();
        let queued: Vec<_> =
            (0..9).map_while(|_| connect(&counter.sign(), Instant::now() + LIMIT / 100).ok()).collect();
        assert!(queued.len() < 9, "it is never full");
        let begun = Instant::now();
        let refused = connect(&counter.sign(), begun + LIMIT / 100).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        drop(queued);
    }

    /// Strangers that come first, silent or with another word, get nothing and keep nobody waiting.
    #[test]
    fn only_who_knows_the_word_is_served() {
        let counter = Counter::open().unwrap();
        let sign = counter.sign();
        let guess = [&counter.name[..], &[0; WORD]].concat();
        let soon = Instant::now() + LIMIT;
        drop(connect(&sign[..WORD], soon).unwrap());
        let stranger = connect(&guess, soon).unwrap();
        let customer = connect(&sign, soon).unwrap();
        counter.serve(memory(7).as_fd(), 1, soon).unwrap();
        assert_eq!(fstat(collect(&customer, soon).unwrap()).unwrap().st_size, 7);
        assert!(collect(&stranger, soon).is_err());
    }

    #[test]
    fn no_folder_is_needed_and_nothing_is_left() {
        let counter = Counter::open().unwrap();
        let sign = counter.sign();
        drop(counter);
        assert_eq!(connect(&sign, Instant::now() + LIMIT).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(Counter::open().unwrap().listener.local_addr().unwrap().as_pathname().is_none());
    }
}
