//! The other PEs' side of the rendezvous: finds PE 0 and proves itself.

use super::assemble::HANDSHAKE;
use super::error::BootstrapError;
use super::frame::{FrameError, VERSION};
use super::handshake::{Claim, Greeted, HandshakeError, Secret};
use super::host_identity::HostIdentity;
use super::job::{Job, Rendezvous};
use super::link::{Link, LinkEnd};
use super::rendezvous::{Directions, describe};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// PE 0 may have begun to wait later than this PE, and has the first word on who is missing.
const GRACE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The link to PE 0, and whether all PEs are on this host.
pub(super) fn join(job: &Job, deadline: Duration) -> Result<(Link, bool), BootstrapError> {
    let until = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = Failure::Again("nobody was there".into());
    while Instant::now() < until {
        match Directions::find(job) {
            Ok(directions) => {
                for address in directions.addresses {
                    match attempt(job, &directions.secret, address, until) {
                        Ok(joined) => return Ok(joined),
                        Err(Failure::Final(error)) => return Err(error),
                        // A refused connection among several ports says less than what someone answered at another.
                        Err(failure @ Failure::Stranger) => last = failure,
                        Err(failure) if !matches!(last, Failure::Stranger) => last = failure,
                        Err(_) => {}
                    }
                }
            }
            Err(error) => last = Failure::Again(error.to_string()),
        }
        thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(match last {
        Failure::Final(error) => error,
        Failure::Stranger => BootstrapError::WrongToken,
        Failure::Again(last) => {
            BootstrapError::Unreachable { place: describe(&job.rendezvous), waited: deadline, last }
        }
    })
}

/// How an attempt ended.
enum Failure {
    /// Trying again will not help.
    Final(BootstrapError),
    /// Someone with another token is there.
    Stranger,
    /// PE 0 may not be up yet.
    Again(String),
}

fn attempt(job: &Job, secret: &Secret, address: SocketAddr, until: Instant) -> Result<(Link, bool), Failure> {
    let again = |error: &dyn std::fmt::Display| Failure::Again(error.to_string());
    let stream = TcpStream::connect_timeout(&address, HANDSHAKE).map_err(|error| again(&error))?;
    // A port that is free can be given to this very connection, which then talks to itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(Failure::Again("nobody was there".into()));
    }
    let mut link = Link::new(stream).map_err(|error| again(&error))?;
    let due = Instant::now() + HANDSHAKE;
    let claim = Claim { pe: job.pe, npes: job.npes, host: HostIdentity::own() };
    let (greeted, hello) = Greeted::new(secret, claim).map_err(Failure::Final)?;
    link.send(hello);
    let challenge = link.await_frame(due).map_err(|end| match end {
        LinkEnd::Frame(FrameError::Version(hub)) => Failure::Final(version(hub)),
        end => again(&end),
    })?;
    let (proved, proof) = greeted.answer(&challenge).map_err(|error| judge(job, error))?;
    link.send(proof);
    // From here on PE 0 counts on this PE, and a lost connection is final on both sides.
    match link.await_frame(until + GRACE) {
        Ok(frame) => Ok((link, proved.welcome(&frame).map_err(|error| judge(job, error))?)),
        Err(LinkEnd::Late) => Err(Failure::Final(BootstrapError::Missing { pes: vec![0], waited: job.deadline })),
        Err(_) => Err(Failure::Final(BootstrapError::Lost { pe: 0 })),
    }
}

/// A stranger at one of several possible places may have PE 0 beside it; at the only place it is an error.
fn judge(job: &Job, error: HandshakeError) -> Failure {
    match error {
        HandshakeError::Refused(verdict) => Failure::Final(verdict.into()),
        HandshakeError::Token if matches!(job.rendezvous, Rendezvous::Address { ports: 1, .. }) => {
            Failure::Final(BootstrapError::WrongToken)
        }
        HandshakeError::Token => Failure::Stranger,
        error @ (HandshakeError::Malformed(_) | HandshakeError::Late) => Failure::Again(error.to_string()),
    }
}

fn version(hub: u16) -> BootstrapError {
    BootstrapError::Version { hub: hub.into(), peer: VERSION.into() }
}
