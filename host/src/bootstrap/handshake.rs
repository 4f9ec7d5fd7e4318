//! How a connection is opened: each side proves that it knows the job's token before either believes a word.
//!
//! ```text
//! PE p  -> PE 0   Hello      npes, host identity, nonce
//! PE 0  -> PE p   Challenge  nonce, proof over {job, Hello, nonce}
//! PE p  -> PE 0   Proof      proof over {job, Hello, Challenge}
//! PE 0  -> PE p   Welcome    same_host, proof over {job, Hello, Challenge, same_host}; once all PEs are there
//!           or    Refuse     a verdict, proof over {job, Hello, Challenge, verdict}
//! ```
//! Proofs cover whole frames, so version, PE and number of PEs are proved as well; and the address at which the two met, so
//! that nobody who listens at another one can stand between them. A Refuse without verdict and proof may come at any point:
//! try again. It ends nothing, because anyone can send it. Nothing here touches a socket.
//!
//! What follows the handshake is neither authenticated nor encrypted: who can change packets between two hosts can end a
//! job and forge what its PEs tell each other, and who can read them reads it.

use super::error::BootstrapError;
use super::frame::{Frame, Kind, array};
use super::host_identity::HostIdentity;
use super::token::{Token, random};
use super::verdict::Verdict;
use std::net::SocketAddr;

const HUB: &str = "congruent relay";
const PEER: &str = "congruent peer";
const WELCOME: &str = "congruent welcome";
const REFUSE: &str = "congruent refuse";
/// Bytes of a proof.
const PROOF: usize = 32;

/// What both sides of a handshake must hold in common.
#[derive(Clone, Debug)]
pub(super) struct Secret {
    pub(super) token: Token,
    /// The job's name: two jobs that share a token still do not mix.
    pub(super) job: String,
}

impl Secret {
    /// What to prove to someone who was met at `address`, PE 0's end of the connection.
    pub(super) fn at(&self, address: SocketAddr) -> Self {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        Self { token: self.token.clone(), job: format!("{} at {ip} port {port}", self.job) }
    }
}

/// What a PE says of itself, proved once the handshake is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    pub(super) pe: u32,
    pub(super) npes: u32,
    pub(super) host: HostIdentity,
}

/// Why a handshake ended.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the peer does not know this job's token")]
    Token,
    #[error("a malformed or misplaced {0:?} frame")]
    Malformed(Kind),
    #[error("it was sent away")]
    SentAway,
    #[error("{0}")]
    Refused(Verdict),
}

/// PE p, which has said Hello.
pub(super) struct Greeted {
    secret: Secret,
    pe: u32,
    hello: Vec<u8>,
}

/// PE p, which has proved itself.
pub(super) struct Proved {
    greeted: Greeted,
    challenge: Vec<u8>,
}

impl Greeted {
    /// Opens the handshake: the state and the Hello to send.
    pub(super) fn new(secret: &Secret, claim: Claim) -> Result<(Self, Vec<u8>), BootstrapError> {
        let nonce = random::<32>()?;
        let payload = [&claim.npes.to_le_bytes()[..], &claim.host.0, &nonce].concat();
        let hello = Frame { kind: Kind::Hello, from: claim.pe, round: 0, payload }.encode();
        Ok((Self { secret: secret.clone(), pe: claim.pe, hello: hello.clone() }, hello))
    }

    /// Checks that PE 0 knows the token: the state and the Proof to send.
    pub(super) fn answer(self, frame: &Frame) -> Result<(Proved, Vec<u8>), HandshakeError> {
        let payload = expect(frame, Kind::Challenge, 0)?;
        let (Some(nonce), Some(proof)) = (array::<32>(payload, 0), array::<32>(payload, 32)) else {
            return Err(HandshakeError::Malformed(frame.kind));
        };
        let job = self.secret.job.as_bytes();
        if payload.len() != 64 || !self.secret.token.verify(HUB, &[job, &self.hello, &nonce], &proof) {
            return Err(HandshakeError::Token);
        }
        let challenge = frame.encode();
        let payload = self.secret.token.sign(PEER, &[job, &self.hello, &challenge]).to_vec();
        let proof = Frame { kind: Kind::Proof, from: self.pe, round: 0, payload }.encode();
        Ok((Proved { greeted: self, challenge }, proof))
    }
}

impl Proved {
    /// Reads PE 0's last word: whether all PEs are on one host, or why there is no job.
    pub(super) fn welcome(&self, frame: &Frame) -> Result<bool, HandshakeError> {
        if frame.kind == Kind::Refuse && !frame.payload.is_empty() {
            return Err(self.refused(&frame.payload));
        }
        let payload = expect(frame, Kind::Welcome, 0)?;
        let Some((flag @ (0 | 1), proof)) = payload.split_first() else {
            return Err(HandshakeError::Malformed(frame.kind));
        };
        let Greeted { secret, hello, .. } = &self.greeted;
        if !secret.token.verify(WELCOME, &[secret.job.as_bytes(), hello, &self.challenge, &[*flag]], proof) {
            return Err(HandshakeError::Token);
        }
        Ok(*flag == 1)
    }

    fn refused(&self, payload: &[u8]) -> HandshakeError {
        let Greeted { secret, hello, .. } = &self.greeted;
        let (verdict, proof) = payload.split_at(payload.len().saturating_sub(PROOF));
        if !secret.token.verify(REFUSE, &[secret.job.as_bytes(), hello, &self.challenge, verdict], proof) {
            return HandshakeError::Token;
        }
        Verdict::decode(verdict).map_or(HandshakeError::Malformed(Kind::Refuse), HandshakeError::Refused)
    }
}

/// PE 0's side, which has sent a challenge.
#[derive(Debug)]
pub(super) struct Challenged {
    secret: Secret,
    claim: Claim,
    hello: Vec<u8>,
    challenge: Vec<u8>,
}

/// PE 0's side of a PE that has proved itself.
#[derive(Debug)]
pub(super) struct Trusted(Challenged);

impl Challenged {
    /// Answers a Hello: the state and the Challenge to send. Its claim is not judged before it is proved.
    pub(super) fn new(secret: &Secret, frame: &Frame) -> Result<(Self, Vec<u8>), HandshakeError> {
        let payload = expect(frame, Kind::Hello, frame.from)?;
        let (Some(npes), Some(host), 68) = (array(payload, 0), array(payload, 4), payload.len()) else {
            return Err(HandshakeError::Malformed(frame.kind));
        };
        let claim = Claim { pe: frame.from, npes: u32::from_le_bytes(npes), host: HostIdentity(host) };
        let nonce = random::<32>().map_err(|_| HandshakeError::Malformed(frame.kind))?;
        let hello = frame.encode();
        let proof = secret.token.sign(HUB, &[secret.job.as_bytes(), &hello, &nonce]);
        let payload = [nonce, proof].concat();
        let challenge = Frame { kind: Kind::Challenge, from: 0, round: 0, payload }.encode();
        Ok((Self { secret: secret.clone(), claim, hello, challenge: challenge.clone() }, challenge))
    }

    /// Checks the peer's proof.
    pub(super) fn verify(self, frame: &Frame) -> Result<Trusted, HandshakeError> {
        let proof = expect(frame, Kind::Proof, self.claim.pe)?;
        if self.secret.token.verify(PEER, &[self.secret.job.as_bytes(), &self.hello, &self.challenge], proof) {
            Ok(Trusted(self))
        } else {
            Err(HandshakeError::Token)
        }
    }
}

impl Trusted {
    pub(super) fn claim(&self) -> Claim {
        self.0.claim
    }

    /// The Welcome to send once all PEs are there.
    pub(super) fn welcome(&self, same_host: bool) -> Vec<u8> {
        let Challenged { secret, hello, challenge, .. } = &self.0;
        let flag = [u8::from(same_host)];
        let proof = secret.token.sign(WELCOME, &[secret.job.as_bytes(), hello, challenge, &flag]);
        Frame { kind: Kind::Welcome, from: 0, round: 0, payload: [&flag[..], &proof].concat() }.encode()
    }

    /// The Refuse to send where there is no job to be had.
    pub(super) fn refusal(&self, verdict: &Verdict) -> Vec<u8> {
        let Challenged { secret, hello, challenge, .. } = &self.0;
        let verdict = verdict.encode();
        let proof = secret.token.sign(REFUSE, &[secret.job.as_bytes(), hello, challenge, &verdict]);
        Frame { kind: Kind::Refuse, from: 0, round: 0, payload: [&verdict[..], &proof].concat() }.encode()
    }
}

/// What PE 0 says to whom it has no time for. Its header tells a peer of another version the version that is spoken here.
pub(super) fn send_away() -> Vec<u8> {
    Frame { kind: Kind::Refuse, from: 0, round: 0, payload: Vec::new() }.encode()
}

/// The payload of the frame that is due.
fn expect(frame: &Frame, kind: Kind, from: u32) -> Result<&[u8], HandshakeError> {
    if frame.kind == Kind::Refuse {
        return Err(HandshakeError::SentAway);
    }
    if frame.kind != kind || frame.from != from || frame.round != 0 {
        return Err(HandshakeError::Malformed(frame.kind));
    }
    Ok(&frame.payload)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FrameError, Stage};
    use super::*;

    fn secret(token: &[u8]) -> Secret {
        Secret { token: Token::derive(token), job: "job".into() }
    }

    fn claim() -> Claim {
        Claim { pe: 2, npes: 3, host: HostIdentity([5; 32]) }
    }

    /// Reads what comes from the peer: a Hello and a Proof do, the others come from PE 0.
    fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        let mut decoded = Err(FrameError::Magic);
        for stage in [Stage::Stranger, Stage::Found, Stage::Proved] {
            decoded = Frame::decode(bytes, stage);
            if !matches!(decoded, Err(FrameError::Misplaced(_) | FrameError::Length { .. })) {
                break;
            }
        }
        decoded
    }

    fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
        decode(bytes).map(|frame| frame.expect("a whole frame").0)
    }

    /// Runs a handshake in which `tamper` may change the frame of step `n` (0 Hello .. 3 Welcome) on its way.
    /// Says the host flag that PE 2 ended with, and the claim that PE 0 trusted.
    fn run(tamper: impl Fn(usize, Vec<u8>) -> Vec<u8>) -> Result<(bool, Claim), String> {
        let say = |error: &dyn std::fmt::Display| error.to_string();
        let step = |n, bytes| {
            let bytes = tamper(n, bytes);
            match decode(&bytes) {
                Ok(Some((frame, used))) if used == bytes.len() => Ok(frame),
                Ok(_) => Err("half a frame".to_string()),
                Err(error) => Err(error.to_string()),
            }
        };
        let (greeted, hello) = Greeted::new(&secret(b"t"), claim()).unwrap();
        let (challenged, challenge) = Challenged::new(&secret(b"t"), &step(0, hello)?).map_err(|e| say(&e))?;
        let (proved, proof) = greeted.answer(&step(1, challenge)?).map_err(|e| say(&e))?;
        let trusted = challenged.verify(&step(2, proof)?).map_err(|e| say(&e))?;
        let same_host = proved.welcome(&step(3, trusted.welcome(true))?).map_err(|e| say(&e))?;
        Ok((same_host, trusted.claim()))
    }

    #[test]
    fn honest_peers_agree() {
        assert_eq!(run(|_, bytes| bytes), Ok((true, claim())));
    }

    #[test]
    fn no_changed_bit_and_no_missing_byte_goes_unnoticed() {
        for (step, length) in [92, 88, 56, 57].into_iter().enumerate() {
            for byte in 0..length {
                for bit in 0..8 {
                    let flipped = run(|n, mut bytes| {
                        if n == step {
                            assert_eq!(bytes.len(), length);
                            bytes[byte] ^= 1 << bit;
                        }
                        bytes
                    });
                    assert!(flipped.is_err(), "step {step}, byte {byte}, bit {bit}");
                }
                let cut = run(|n, bytes| if n == step { bytes[..byte].to_vec() } else { bytes });
                assert!(cut.is_err(), "step {step} cut at {byte}");
            }
        }
    }

    #[test]
    fn another_token_or_job_is_refused_by_both_sides() {
        for other in [secret(b"other"), Secret { job: "another".into(), ..secret(b"t") }] {
            let (greeted, hello) = Greeted::new(&other, claim()).unwrap();
            let (challenged, challenge) = Challenged::new(&secret(b"t"), &read(&hello).unwrap()).unwrap();
            assert!(matches!(greeted.answer(&read(&challenge).unwrap()), Err(HandshakeError::Token)));
            let forged = Frame { kind: Kind::Proof, from: 2, round: 0, payload: vec![0; 32] };
            assert!(matches!(challenged.verify(&forged), Err(HandshakeError::Token)));
        }
    }

    #[test]
    fn a_replayed_proof_does_not_answer_a_new_challenge() {
        let (greeted, hello) = Greeted::new(&secret(b"t"), claim()).unwrap();
        let hello = read(&hello).unwrap();
        let (_, challenge) = Challenged::new(&secret(b"t"), &hello).unwrap();
        let (_, proof) = greeted.answer(&read(&challenge).unwrap()).unwrap();
        let (again, _) = Challenged::new(&secret(b"t"), &hello).unwrap();
        assert!(matches!(again.verify(&read(&proof).unwrap()), Err(HandshakeError::Token)));
    }

    /// PE 2 and PE 0 when PE 0 is about to decide.
    fn met(at: SocketAddr, listened: SocketAddr) -> Result<(Proved, Trusted), HandshakeError> {
        let secret = secret(b"t");
        let (greeted, hello) = Greeted::new(&secret.at(at), claim()).unwrap();
        let (challenged, challenge) = Challenged::new(&secret.at(listened), &read(&hello).unwrap())?;
        let (proved, proof) = greeted.answer(&read(&challenge).unwrap())?;
        Ok((proved, challenged.verify(&read(&proof).unwrap())?))
    }

    #[test]
    fn a_verdict_counts_only_with_its_proof() {
        let here = "127.0.0.1:1".parse().unwrap();
        let (proved, trusted) = met(here, here).unwrap();
        let verdict = Verdict::DuplicatePe { pe: 2 };
        let refusal = read(&trusted.refusal(&verdict)).unwrap();
        assert_eq!(proved.welcome(&refusal), Err(HandshakeError::Refused(verdict.clone())));
        let of = |payload| Frame { payload, ..refusal.clone() };
        for byte in 0..refusal.payload.len() {
            let mut changed = refusal.payload.clone();
            changed[byte] ^= 1;
            assert_eq!(proved.welcome(&of(changed)), Err(HandshakeError::Token), "byte {byte}");
        }
        for unproved in [verdict.encode(), [verdict.encode(), vec![0; PROOF]].concat(), vec![1]] {
            assert_eq!(proved.welcome(&of(unproved)), Err(HandshakeError::Token));
        }
        let (another, _) = met(here, here).unwrap();
        assert_eq!(another.welcome(&refusal), Err(HandshakeError::Token), "that of an earlier handshake");
    }

    #[test]
    fn being_sent_away_is_heard_at_any_step_and_is_no_verdict() {
        let away = read(&send_away()).unwrap();
        let (greeted, _) = Greeted::new(&secret(b"t"), claim()).unwrap();
        assert_eq!(greeted.answer(&away).err(), Some(HandshakeError::SentAway));
        let here = "127.0.0.1:1".parse().unwrap();
        assert_eq!(met(here, here).unwrap().0.welcome(&away), Err(HandshakeError::SentAway));
    }

    #[test]
    fn who_listens_elsewhere_cannot_stand_between() {
        let met = |at: &str, listened: &str| met(at.parse().unwrap(), listened.parse().unwrap()).err();
        assert_eq!(met("127.0.0.1:29501", "127.0.0.1:29502"), Some(HandshakeError::Token));
        assert_eq!(met("[::1]:29501", "127.0.0.1:29501"), Some(HandshakeError::Token));
        assert_eq!(met("127.0.0.1:29501", "[::ffff:127.0.0.1]:29501"), None);
    }
}
