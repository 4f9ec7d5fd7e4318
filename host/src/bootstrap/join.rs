//! The other PEs' side of the rendezvous: finds PE 0 and proves itself.
//!
//! Who answers at an address may be anyone until it has proved that it is PE 0. So all addresses are tried at once, none can
//! hold the others up, and nothing that an unproved peer says is final: it is tried again until the deadline, and then told as
//! the likely reason.

use super::assemble::HANDSHAKE;
use super::error::BootstrapError;
use super::frame::{Frame, FrameError, Stage, VERSION};
use super::handshake::{Claim, Greeted, HandshakeError, Proved, Secret};
use super::host_identity::HostIdentity;
use super::job::Job;
use super::link::{Link, LinkEnd, is_ready, wait};
use super::rendezvous::{Directions, describe};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// PE 0 may have begun to wait later than this PE, and has the first word on who is missing.
const GRACE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The link to PE 0, and whether all PEs are on this host.
pub(super) fn join(job: &Job, deadline: Duration) -> Result<(Link, bool), BootstrapError> {
    let begun = Instant::now();
    let until = begun + deadline;
    let claim = Claim { pe: job.pe, npes: job.npes, host: HostIdentity::own() };
    let mut search = Search { claim, attempts: Vec::new(), likely: Unproved::Nobody("nobody was there".into()) };
    let (mut pause, mut again) = (FIRST_PAUSE, begun);
    while Instant::now() < until {
        if Instant::now() >= again {
            // A file may not be there yet, or still be that of a job that died, so it is read again each time.
            match Directions::find(job) {
                Ok(directions) => search.begin(&directions)?,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(BootstrapError::io(format!("meeting at {}", describe(&job.rendezvous)))(error));
                }
                Err(error) => search.note(Unproved::Nobody(error.to_string())),
            }
            again = Instant::now() + pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let Some((mut link, proved)) = search.step(again.min(until))? else { continue };
        // From here on PE 0 counts on this PE, and a lost connection is final on both sides.
        match link.await_frame(until + GRACE).map(|frame| proved.welcome(&frame)) {
            Ok(Ok(same_host)) => {
                link.proceed(Stage::Joined);
                return Ok((link, same_host));
            }
            Ok(Err(HandshakeError::Refused(verdict))) => return Err(verdict.into()),
            Ok(Err(error)) => search.note(Unproved::Nobody(error.to_string())),
            Err(LinkEnd::Late) => return Err(BootstrapError::Missing { pes: vec![0], waited: job.deadline }),
            Err(_) => return Err(BootstrapError::Lost { pe: 0 }),
        }
    }
    Err(match search.likely {
        Unproved::Version(hub) => BootstrapError::Version { hub: hub.into(), peer: VERSION.into() },
        Unproved::Stranger => BootstrapError::WrongToken,
        Unproved::Nobody(last) => {
            BootstrapError::Unreachable { place: describe(&job.rendezvous), waited: deadline, last }
        }
    })
}

/// What is known of who is there, none of it proved; what comes later says more.
enum Unproved {
    /// PE 0 may not be up yet.
    Nobody(String),
    /// Someone with another token is there.
    Stranger,
    /// Someone who speaks another version is there.
    Version(u16),
}

impl Unproved {
    fn weight(&self) -> u32 {
        match self {
            Self::Nobody(_) => 0,
            Self::Stranger => 1,
            Self::Version(_) => 2,
        }
    }
}

struct Search {
    claim: Claim,
    /// At most one for each address.
    attempts: Vec<Attempt>,
    likely: Unproved,
}

/// One address that is being tried.
struct Attempt {
    address: SocketAddr,
    due: Instant,
    state: State,
}

enum State {
    /// Not connected yet.
    Calling(TcpStream, Secret),
    /// Hello has been said.
    Greeted(Link, Greeted),
}

impl Search {
    fn note(&mut self, unproved: Unproved) {
        if unproved.weight() >= self.likely.weight() {
            self.likely = unproved;
        }
    }

    /// Tries the addresses that are not being tried already.
    fn begin(&mut self, directions: &Directions) -> Result<(), BootstrapError> {
        for &address in &directions.addresses {
            if self.attempts.iter().any(|attempt| attempt.address == address) {
                continue;
            }
            let due = Instant::now() + HANDSHAKE;
            match call(address) {
                Ok(stream) => {
                    let state = State::Calling(stream, directions.secret.at(address));
                    self.attempts.push(Attempt { address, due, state });
                }
                Err(error) => self.note(Unproved::Nobody(error.to_string())),
            }
        }
        Ok(())
    }

    /// Waits for something to happen, at most `until`, and deals with it. The link to PE 0, once it has proved itself.
    fn step(&mut self, until: Instant) -> Result<Option<(Link, Proved)>, BootstrapError> {
        let next = self.attempts.iter().map(|attempt| attempt.due).chain([until]).min().unwrap_or(until);
        let mut interests: Vec<_> = self.attempts.iter().map(Attempt::interest).collect();
        wait(&mut interests, Some(next.saturating_duration_since(Instant::now())))
            .map_err(BootstrapError::io("looking for PE 0"))?;
        let ready: Vec<bool> = interests.iter().map(is_ready).collect();
        let now = Instant::now();
        for (attempt, ready) in std::mem::take(&mut self.attempts).into_iter().zip(ready) {
            let Attempt { address, due, state } = attempt;
            let outcome = match state {
                state if !ready && now < due => Ok(Progress::Going(state)),
                _ if !ready => Err(Unproved::Nobody(format!("{address} did not answer in time"))),
                State::Calling(stream, secret) => greet(stream, &secret, self.claim),
                State::Greeted(link, greeted) => hear(link, greeted),
            };
            match outcome {
                Ok(Progress::Going(state)) => self.attempts.push(Attempt { address, due, state }),
                Ok(Progress::Proved(link, proved)) => {
                    // The others are dropped: there is one PE 0.
                    self.attempts.clear();
                    return Ok(Some((link, proved)));
                }
                Err(unproved) => self.note(unproved),
            }
        }
        Ok(None)
    }
}

impl Attempt {
    fn interest(&self) -> PollFd<'_> {
        match &self.state {
            State::Calling(stream, _) => PollFd::new(stream, PollFlags::OUT),
            State::Greeted(link, _) => link.interest(),
        }
    }
}

/// How an attempt goes on.
enum Progress {
    Going(State),
    Proved(Link, Proved),
}

/// Begins a connection, and waits for nothing.
fn call(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Says Hello on a connection that stands, or hears why it does not.
fn greet(stream: TcpStream, secret: &Secret, claim: Claim) -> Result<Progress, Unproved> {
    if let Some(error) = stream.take_error().map_err(nobody)? {
        return Err(nobody(error));
    }
    // A port that is free can be given to this very connection, which then talks to itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(nobody("nobody was there"));
    }
    let mut link = Link::new(stream, Stage::Found).map_err(nobody)?;
    let (greeted, hello) = Greeted::new(secret, claim).map_err(nobody)?;
    link.send(hello);
    link.flush().map_err(nobody)?;
    Ok(Progress::Going(State::Greeted(link, greeted)))
}

/// Hears what the peer says of itself, and answers.
fn hear(mut link: Link, greeted: Greeted) -> Result<Progress, Unproved> {
    let mut frames: Vec<Frame> = Vec::new();
    let end = link.receive(&mut frames);
    let Some(challenge) = frames.first() else {
        return match end {
            Ok(()) => Ok(Progress::Going(State::Greeted(link, greeted))),
            Err(LinkEnd::Frame(FrameError::Version(hub))) => Err(Unproved::Version(hub)),
            Err(end) => Err(nobody(end)),
        };
    };
    let (proved, proof) = greeted.answer(challenge).map_err(|error| match error {
        HandshakeError::Token => Unproved::Stranger,
        error => nobody(error),
    })?;
    link.proceed(Stage::Proved);
    link.send(proof);
    Ok(Progress::Proved(link, proved))
}

fn nobody(why: impl Display) -> Unproved {
    Unproved::Nobody(why.to_string())
}
