//! PE 0's side of the rendezvous: waits until all the others are there, whoever else knocks.

use super::error::BootstrapError;
use super::files;
use super::frame::{Frame, FrameError, Stage};
use super::handshake::{Challenged, HandshakeError, Secret, Trusted, send_away};
use super::host_identity::HostIdentity;
use super::link::{Link, LinkEnd, is_ready, wait};
use super::rendezvous::Meeting;
use super::verdict::Verdict;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a stranger may take to prove itself.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// How many strangers are heard at once; beyond it the one that has been here longest must go.
pub(super) const STRANGERS: usize = 512;
/// How many come in before those inside are heard.
const TURN: usize = 16;
/// How long the door stays shut when the system has no room for one more.
const SHUT: Duration = Duration::from_millis(50);
/// How long PE 0 stays to tell a verdict to those still on their way.
const EPILOGUE: Duration = Duration::from_secs(3);

/// The other PEs, each with its link, and whether all are on this host.
pub(super) struct Assembly {
    pub(super) links: Vec<(u32, Link)>,
    pub(super) same_host: bool,
}

pub(super) fn assemble(meeting: Meeting, npes: u32, deadline: Duration) -> Result<Assembly, BootstrapError> {
    files::provide(npes)?;
    meeting.listener.set_nonblocking(true).map_err(BootstrapError::io("listening for the other PEs"))?;
    let until = Instant::now() + deadline;
    let mut door = Door {
        meeting,
        npes,
        strangers: Vec::new(),
        joined: BTreeMap::new(),
        verdict: None,
        told: 0,
        shut: None,
        full: None,
    };
    while door.joined.len() + 1 < npes as usize {
        if Instant::now() >= until {
            let pes = (1..npes).filter(|pe| !door.joined.contains_key(pe)).collect();
            door.refuse_all(Verdict::Missing { pes, millis: deadline.as_millis().min(u32::MAX.into()) as u32 });
        }
        if let Some(verdict) = &door.verdict {
            let verdict = verdict.clone();
            door.epilogue(&verdict);
            return Err(match (verdict, door.full) {
                (Verdict::Missing { .. }, Some(error)) => {
                    BootstrapError::io("letting the other PEs in (see ulimit -Hn)")(error)
                }
                (verdict, _) => verdict.into(),
            });
        }
        door.step(until)?;
    }
    Ok(door.welcome_all())
}

struct Door {
    meeting: Meeting,
    npes: u32,
    /// In order of arrival.
    strangers: Vec<Stranger>,
    joined: BTreeMap<u32, (Link, Trusted)>,
    verdict: Option<Verdict>,
    /// How many processes have been told the verdict.
    told: usize,
    /// Until when nobody is let in.
    shut: Option<Instant>,
    /// Why someone could not be let in, though nobody was left to send away.
    full: Option<io::Error>,
}

struct Stranger {
    link: Link,
    secret: Secret,
    due: Instant,
    challenged: Option<Challenged>,
}

/// What became of a stranger.
enum Fate {
    Stays,
    Goes(String),
    Joins(Trusted),
}

impl Door {
    /// Waits for something to happen, and deals with it.
    fn step(&mut self, until: Instant) -> Result<(), BootstrapError> {
        self.shut = self.shut.filter(|shut| *shut > Instant::now());
        let times = self.strangers.iter().map(|stranger| stranger.due).chain([until]).chain(self.shut);
        let next = times.min().unwrap_or(until);
        let visitors = if self.shut.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut interests = vec![PollFd::new(&self.meeting.listener, visitors)];
        interests.extend(self.strangers.iter().map(|stranger| stranger.link.interest()));
        interests.extend(self.joined.values().map(|(link, _)| link.interest()));
        wait(&mut interests, Some(next.saturating_duration_since(Instant::now())))
            .map_err(BootstrapError::io("waiting for the other PEs"))?;
        let ready: Vec<bool> = interests.iter().map(is_ready).collect();
        let (strangers, joined) = ready[1..].split_at(self.strangers.len());
        self.hear_joined(joined);
        self.hear_strangers(strangers);
        if ready[0] {
            self.let_in();
        }
        Ok(())
    }

    /// Who has joined has nothing to say until it is welcomed: a word is as bad as silence for ever.
    fn hear_joined(&mut self, ready: &[bool]) {
        let lost = self.joined.keys().zip(ready).find(|(_, ready)| **ready).map(|(pe, _)| *pe);
        if let Some(pe) = lost {
            self.joined.remove(&pe);
            self.refuse_all(Verdict::Lost { pe });
        }
    }

    fn hear_strangers(&mut self, ready: &[bool]) {
        let now = Instant::now();
        for (mut stranger, ready) in std::mem::take(&mut self.strangers).into_iter().zip(ready) {
            let fate = match ready {
                true => stranger.hear(),
                false if now >= stranger.due => {
                    say_last(&mut stranger.link, send_away());
                    Fate::Goes(LinkEnd::Late.to_string())
                }
                false => Fate::Stays,
            };
            match fate {
                Fate::Stays => self.strangers.push(stranger),
                Fate::Goes(reason) => tracing::warn!(%reason, "a connection was dropped"),
                Fate::Joins(trusted) => self.judge(stranger.link, trusted),
            }
        }
    }

    /// Lets in some of those who wait at the door, and sends others away where there are too many.
    fn let_in(&mut self) {
        for _ in 0..TURN {
            match self.meeting.listener.accept() {
                Ok((stream, _)) => self.strangers.extend(Stranger::new(stream, &self.meeting.secret)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Most likely the open files are too many. Whoever waits keeps the listener ready, so try again later.
                Err(error) if self.strangers.is_empty() => {
                    if self.full.is_none() {
                        tracing::warn!(%error, "nobody can be let in for now");
                    }
                    self.full = Some(error);
                    self.shut = Some(Instant::now() + SHUT);
                    return;
                }
                Err(_) => self.make_room(),
            }
            if self.strangers.len() > STRANGERS {
                self.make_room();
            }
        }
    }

    /// Sends away who has been here longest, of those who have not even said hello if there are any.
    fn make_room(&mut self) {
        let silent = self.strangers.iter().position(|stranger| stranger.challenged.is_none());
        say_last(&mut self.strangers.remove(silent.unwrap_or(0)).link, send_away());
    }

    /// A peer that holds the token speaks the truth about itself; the question is whether it fits.
    fn judge(&mut self, mut link: Link, trusted: Trusted) {
        let claim = trusted.claim();
        let misfit = if claim.npes != self.npes {
            Some(Verdict::WorldSize { pe: claim.pe, claims: claim.npes, expected: self.npes })
        } else if claim.pe >= self.npes {
            let verdict = Verdict::PeOutOfRange { pe: claim.pe, npes: self.npes };
            return say_last(&mut link, trusted.refusal(&verdict));
        } else if claim.pe == 0 || self.joined.contains_key(&claim.pe) {
            Some(Verdict::DuplicatePe { pe: claim.pe })
        } else {
            None
        };
        match self.verdict.clone().or(misfit) {
            Some(verdict) => {
                say_last(&mut link, trusted.refusal(&verdict));
                self.told += 1;
                self.refuse_all(verdict);
            }
            None => {
                link.proceed(Stage::Joined);
                self.joined.insert(claim.pe, (link, trusted));
            }
        }
    }

    /// The first verdict stands, and all who are here are told.
    fn refuse_all(&mut self, verdict: Verdict) {
        let verdict = self.verdict.get_or_insert(verdict);
        for (mut link, trusted) in std::mem::take(&mut self.joined).into_values() {
            say_last(&mut link, trusted.refusal(verdict));
            self.told += 1;
        }
    }

    /// Stays a while, for those who come too late to be told with the others.
    fn epilogue(&mut self, verdict: &Verdict) {
        let others = match verdict {
            Verdict::Missing { .. } => 0,
            Verdict::WorldSize { claims, expected, .. } => *claims.max(expected) as usize - 1,
            Verdict::Lost { .. } => (self.npes as usize).saturating_sub(2),
            _ => self.npes as usize - 1,
        };
        let until = Instant::now() + EPILOGUE;
        while self.told < others && Instant::now() < until && self.step(until).is_ok() {}
    }

    fn welcome_all(self) -> Assembly {
        let own = HostIdentity::own();
        let same_host = self.joined.values().all(|(_, trusted)| trusted.claim().host == own);
        let welcome = |(pe, (mut link, trusted)): (u32, (Link, Trusted))| {
            link.send(trusted.welcome(same_host));
            (pe, link)
        };
        Assembly { links: self.joined.into_iter().map(welcome).collect(), same_host }
    }
}

impl Stranger {
    /// Who has hung up already is none.
    fn new(stream: TcpStream, secret: &Secret) -> io::Result<Self> {
        let secret = secret.at(stream.local_addr()?);
        let link = Link::new(stream, Stage::Stranger)?;
        Ok(Self { link, secret, due: Instant::now() + HANDSHAKE, challenged: None })
    }

    fn hear(&mut self) -> Fate {
        let _ = self.link.flush();
        let mut frames = Vec::new();
        let end = self.link.receive(&mut frames);
        // A peer waits for each answer, so more than one frame at a time is one too many.
        if let [frame] = &frames[..] {
            return match self.answer(frame) {
                Ok(Some(trusted)) => Fate::Joins(trusted),
                Ok(None) => self.link.flush().map_or_else(|end| Fate::Goes(end.to_string()), |()| Fate::Stays),
                Err(error) => Fate::Goes(error.to_string()),
            };
        }
        match end {
            Ok(()) if frames.is_empty() => Fate::Stays,
            Ok(()) => Fate::Goes("it spoke out of turn".into()),
            Err(end) => {
                if let LinkEnd::Frame(FrameError::Version(_)) = end {
                    say_last(&mut self.link, send_away());
                }
                Fate::Goes(end.to_string())
            }
        }
    }

    fn answer(&mut self, frame: &Frame) -> Result<Option<Trusted>, HandshakeError> {
        match self.challenged.take() {
            Some(challenged) => challenged.verify(frame).map(Some),
            None => {
                let (challenged, challenge) = Challenged::new(&self.secret, frame)?;
                self.challenged = Some(challenged);
                self.link.send(challenge);
                Ok(None)
            }
        }
    }
}

/// A refusal fits into any socket buffer; who does not read it learns from the closed connection.
fn say_last(link: &mut Link, refusal: Vec<u8>) {
    link.send(refusal);
    let _ = link.flush();
    link.finish_writing();
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Claim, Greeted};
    use super::super::job::{Job, Rendezvous};
    use super::super::rendezvous::Directions;
    use super::*;
    use std::thread;

    /// What PE 0 of a job of two says to a peer that proves `pe`, and then to an honest PE 1.
    fn visit(pe: u32) -> (Option<HandshakeError>, Result<(), BootstrapError>) {
        let rendezvous = Rendezvous::File { name: format!("assemble {pe} {}", std::process::id()) };
        let job = Job { npes: 2, rendezvous, ..Job::single() };
        let meeting = Meeting::open(&job).unwrap();
        let directions = Directions::find(&job).unwrap();
        let claim = |pe| Claim { pe, npes: 2, host: HostIdentity::own() };
        let handshake = |pe| {
            let soon = Instant::now() + Duration::from_secs(10);
            let stream = TcpStream::connect(directions.addresses[0]).unwrap();
            let secret = directions.secret.at(stream.peer_addr().unwrap());
            let mut link = Link::new(stream, Stage::Found).unwrap();
            let (greeted, hello) = Greeted::new(&secret, claim(pe)).unwrap();
            link.send(hello);
            let (proved, proof) = greeted.answer(&link.await_frame(soon).unwrap()).unwrap();
            link.proceed(Stage::Proved);
            link.send(proof);
            link.flush().unwrap();
            (link, proved, soon)
        };
        thread::scope(|scope| {
            let hub = scope.spawn(|| assemble(meeting, 2, Duration::from_secs(10)));
            let (mut link, proved, soon) = handshake(pe);
            let refused = proved.welcome(&link.await_frame(soon).unwrap()).err();
            let _honest = (pe != 0).then(|| handshake(1));
            (refused, hub.join().unwrap().map(drop))
        })
    }

    #[test]
    fn a_pe_out_of_range_is_refused_and_the_job_goes_on() {
        let (refused, job) = visit(7);
        assert_eq!(refused, Some(HandshakeError::Refused(Verdict::PeOutOfRange { pe: 7, npes: 2 })));
        assert!(job.is_ok(), "{job:?}");
    }

    #[test]
    fn another_pe_0_is_one_too_many_for_all() {
        let (refused, job) = visit(0);
        assert_eq!(refused, Some(HandshakeError::Refused(Verdict::DuplicatePe { pe: 0 })));
        assert!(matches!(job, Err(BootstrapError::DuplicatePe { pe: 0 })), "{job:?}");
    }
}
