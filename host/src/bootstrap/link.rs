//! One control connection: frames in and out of a socket, never blocking unless asked to.

use super::frame::{Frame, FrameError, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much one peer is heard before the others get their turn.
const TURN: usize = 4;
const CHUNK: usize = 16 * 1024;
/// How many frames are sent at once.
const BATCH: usize = 256;

/// A host that falls silent, cable and all, is given up after about ten seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    stage: Stage,
    inbox: Vec<u8>,
    outbox: VecDeque<Arc<[u8]>>,
    /// How much of the first frame in the outbox is already sent.
    sent: usize,
    /// Whether the socket took no more when it was last tried.
    full: bool,
}

/// Why a link can no longer be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkEnd {
    #[error("its connection was closed")]
    Closed,
    #[error("its connection was lost: {0}")]
    Lost(#[from] io::Error),
    #[error("it sent nonsense: {0}")]
    Frame(#[from] FrameError),
    #[error("it did not answer in time")]
    Late,
}

impl Link {
    pub(super) fn new(stream: TcpStream, stage: Stage) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED.as_millis() as u32)?;
        Ok(Self { stream, stage, inbox: Vec::new(), outbox: VecDeque::new(), sent: 0, full: false })
    }

    /// The peer is trusted further: from the next frame on it may say what belongs to `stage`.
    pub(super) fn proceed(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// What a poll loop should wait for. Room to write only where there was none: frames may wait in the outbox for
    /// others to go with them.
    pub(super) fn interest(&self) -> PollFd<'_> {
        let writing = if self.full { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(&self.stream, PollFlags::IN | writing)
    }

    /// Puts a whole frame in the outbox.
    pub(super) fn send(&mut self, frame: impl Into<Arc<[u8]>>) {
        self.outbox.push_back(frame.into());
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Sends what the socket takes, as many frames at once as it can.
    pub(super) fn flush(&mut self) -> Result<(), LinkEnd> {
        self.full = false;
        while !self.outbox.is_empty() {
            let frames = self.outbox.iter().take(BATCH).enumerate();
            let batch: Vec<_> =
                frames.map(|(at, frame)| IoSlice::new(&frame[if at == 0 { self.sent } else { 0 }..])).collect();
            match self.stream.write_vectored(&batch) {
                Ok(0) => return Err(LinkEnd::Closed),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.full = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = self.outbox.pop_front_if(|frame| frame.len() <= self.sent) {
                self.sent -= frame.len();
            }
        }
        Ok(())
    }

    /// Appends the frames that have come to `frames`, and says if they were the last.
    pub(super) fn receive(&mut self, frames: &mut Vec<Frame>) -> Result<(), LinkEnd> {
        let end = self.read();
        let mut used = 0;
        while let Some((frame, length)) = Frame::decode(&self.inbox[used..], self.stage)? {
            frames.push(frame);
            used += length;
        }
        self.inbox.drain(..used);
        end
    }

    /// Waits for the one frame that is due, and sends what is still to send meanwhile.
    pub(super) fn await_frame(&mut self, until: Instant) -> Result<Frame, LinkEnd> {
        loop {
            self.flush()?;
            let left = until.checked_duration_since(Instant::now()).ok_or(LinkEnd::Late)?;
            wait(&mut [self.interest()], Some(left))?;
            let end = self.read();
            // What follows that frame stays in the inbox, for whoever takes the link over.
            if let Some((frame, length)) = Frame::decode(&self.inbox, self.stage)? {
                self.inbox.drain(..length);
                return Ok(frame);
            }
            end?;
        }
    }

    /// Takes what the socket has into the inbox.
    fn read(&mut self) -> Result<(), LinkEnd> {
        for _ in 0..TURN {
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(LinkEnd::Closed),
                Ok(read) => self.inbox.extend(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Nothing more will be said; the peer may still speak.
    pub(super) fn finish_writing(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Waits until one of `interests` has something, or for `limit`.
pub(super) fn wait(interests: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ });
    match poll(interests, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a poll saw anything at all: data, an end or an error, all of which reading tells apart.
pub(super) fn is_ready(interest: &PollFd<'_>) -> bool {
    !interest.revents().is_empty()
}
