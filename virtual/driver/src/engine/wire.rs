//! How requests and answers travel between a process and the engine of its job: each with a head, which files come with.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Opens a connection, so that both sides are of one build.
pub(super) const HELLO: &str = concat!("congruent-virtual-driver ", env!("CARGO_PKG_VERSION"));

/// The number of a request, and how many bytes come behind.
const HEAD: usize = 16;
/// More than any image has.
const MOST: u64 = 1 << 30;
/// Files of a request.
const FILES: usize = 2;

/// Refuses processes of other users.
pub(super) fn same_user(stream: &UnixStream) -> io::Result<()> {
    if socket_peercred(stream)?.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::PermissionDenied, "another user is at the other end"))
    }
}

/// Sends a message with files.
pub(super) fn send(
    mut stream: &UnixStream,
    number: u64,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut parcel = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !parcel.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(stream, &[IoSlice::new(&head)], &mut parcel, SendFlags::NOSIGNAL)
    })?;
    stream.write_all(&head[sent..])?;
    stream.write_all(&body)
}

/// A message with its number and its files; none where the other side has ended.
pub(super) fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<Option<(u64, T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut parcel = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; HEAD];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut head)], &mut parcel, flags) {
            Ok(got) => break got.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if got == 0 {
        return Ok(None);
    }
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    };
    let files = parcel.drain().filter_map(rights).flatten().collect();
    stream.read_exact(&mut head[got..])?;
    let [number, bytes] = [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|byte| head[at + byte])));
    if bytes > MOST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    stream.take(bytes).read_to_end(&mut body)?;
    let message = postcard::from_bytes(&body).map_err(io::Error::other)?;
    Ok(Some((number, message, files)))
}
