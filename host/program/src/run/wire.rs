//! What a launcher and the share of a job that it has on another host say to each other, over the two ends of an ssh.
//!
//! ```text
//! launcher: frame(Job)  frame(place)  then a byte for each order: a signal's number, or FAILURE; the end of it ends the share
//! share:    greeting\n  then frames: what its PEs print, and reports
//! ```
//!
//! A frame is a byte for its kind, its length as 4 bytes, and so many bytes. What the share's shell says before the greeting, and what
//! comes by the standard error, is for people.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The order that says that a PE has failed elsewhere. No signal has this number.
pub(super) const FAILURE: u8 = 0;

/// How the share begins: both sides are of one version, or do not understand each other.
pub(super) const GREETING: &str = concat!("congruent run-share ", env!("CARGO_PKG_VERSION"), " wire 1");

/// How the greeting of any version begins.
pub(super) const ANY_GREETING: &str = "congruent run-share ";

/// Longer frames are none of this program's.
const LONGEST: u32 = 16 << 20;

const JSON: u8 = b'j';

/// What a share is told first.
#[derive(Deserialize, Serialize)]
pub(super) struct Job {
    /// The PEs that it starts: the first, and how many.
    pub(super) first: u32,
    pub(super) count: u32,
    /// How many there are on all hosts.
    pub(super) npes: u32,
    /// What the hosts are called, its own first, if the PEs are to meet there.
    pub(super) meets_at: Option<Vec<String>>,
    pub(super) token: String,
    pub(super) label: bool,
    pub(super) folder: OsString,
    pub(super) set: Vec<(OsString, OsString)>,
    pub(super) command: Vec<OsString>,
}

/// What a share tells.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Report {
    /// The PEs meet there.
    Meets { place: String },
    /// Something to say to people.
    Tells { text: String },
    /// A PE has failed, before any was signalled or after, with this status of the system's.
    Failed { pe: u32, status: i32, unsignalled: bool },
    /// It cannot do its part.
    Refuses { why: String },
    /// All PEs have ended, and what they printed has been sent.
    Done,
}

impl Report {
    pub(super) fn failed(pe: u32, status: ExitStatus, unsignalled: bool) -> Self {
        Self::Failed { pe, status: status.into_raw(), unsignalled }
    }
}

/// Where a PE prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What comes from a share.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    Printed(Stream, Vec<u8>),
    Report(Report),
}

impl Stream {
    fn kind(self) -> u8 {
        match self {
            Self::Out => b'o',
            Self::Err => b'e',
        }
    }
}

/// Writes of a share's PEs, as frames.
impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = io::stdout().lock();
        out.write_all(&frame(self.kind(), bytes)?)?;
        out.flush()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells the launcher. It may be gone, which its orders say.
pub(super) fn report(report: &Report) {
    let mut out = io::stdout().lock();
    let _gone = message(report).and_then(|bytes| out.write_all(&bytes)).and_then(|()| out.flush());
}

/// A message as a frame.
pub(super) fn message(of: &impl Serialize) -> io::Result<Vec<u8>> {
    frame(JSON, &serde_json::to_vec(of)?)
}

fn frame(kind: u8, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("more than a frame can hold"))?;
    Ok([&[kind], &length.to_le_bytes()[..], bytes].concat())
}

/// Reads a frame and nothing that follows.
fn read(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok((kind, bytes)) }
}

/// Reads a message of the launcher's.
pub(super) fn read_message<T: for<'a> Deserialize<'a>>(from: &mut impl Read) -> io::Result<T> {
    match read(from)? {
        (JSON, bytes) => Ok(serde_json::from_slice(&bytes)?),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads what comes from a share.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Frame> {
    match read(from)? {
        (b'o', bytes) => Ok(Frame::Printed(Stream::Out, bytes)),
        (b'e', bytes) => Ok(Frame::Printed(Stream::Err, bytes)),
        (JSON, bytes) => Ok(Frame::Report(serde_json::from_slice(&bytes)?)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let failed = || Report::failed(3, ExitStatus::from_raw(9), true);
        let bytes = [frame(Stream::Err.kind(), b"a\xff\n").unwrap(), message(&failed()).unwrap()].concat();
        let mut from = &bytes[..];
        assert_eq!(read_frame(&mut from).unwrap(), Frame::Printed(Stream::Err, b"a\xff\n".to_vec()));
        assert_eq!(read_frame(&mut from).unwrap(), Frame::Report(failed()));
        assert!(from.is_empty());
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let kind = |bytes: &[u8]| read_frame(&mut &bytes[..]).expect_err("refused").kind();
        assert_eq!(kind(b"Welcome to this host!\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"o\x05\0\0\0abc"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"j\x02\0\0\0{]"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"x\0\0\0\0"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"o\0"), io::ErrorKind::UnexpectedEof);
    }
}
