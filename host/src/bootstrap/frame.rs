//! Frames: what travels on a control connection.
//!
//! ```text
//! offset  0  magic    4 bytes, "CGRT"
//!         4  version  u16
//!         6  kind     u16
//!         8  from     u32, the PE the frame is about
//!        12  length   u32, of the payload; checked before anything is set aside for it, as is the kind
//!        16  round    u64, zero but for parts of a gather
//!        24  payload
//! ```
//! All numbers are little-endian. Magic and version stay where they are in every future version.

use super::MAX_PAYLOAD;
use super::relay::{Envelope, Message};
use std::sync::Arc;

/// The wire version: both ends of a connection must speak the same, and what proxies say to each other goes with it.
pub(super) const VERSION: u16 = 3;

const MAGIC: [u8; 4] = *b"CGRT";
const HEADER: usize = 24;

/// A frame is encoded in one way only, so a decoded frame stands for its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) from: u32,
    pub(super) round: u64,
    pub(super) payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Welcome = 4,
    Refuse = 5,
    Part = 16,
    Abort = 17,
    Depart = 18,
    Failed = 19,
}

/// How far a connection has come: what may be said on it, and how much of it at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// PE 0 hears someone who may be anyone.
    Stranger,
    /// A PE hears someone who may be anyone.
    Found,
    /// A PE hears PE 0, which has proved that it is.
    Proved,
    /// Both are of the job.
    Joined,
}

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("not a congruent connection")]
    Magic,
    #[error("version {0} of the control protocol, here it is version {VERSION}")]
    Version(u16),
    #[error("unknown frame kind {0}")]
    Kind(u16),
    #[error("a {0:?} frame out of place")]
    Misplaced(Kind),
    #[error("a {kind:?} frame of {length} bytes")]
    Length { kind: Kind, length: u32 },
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Challenge,
        Self::Proof,
        Self::Welcome,
        Self::Refuse,
        Self::Part,
        Self::Abort,
        Self::Depart,
        Self::Failed,
    ];

    /// The most payload bytes at `stage`, or nothing where the kind is out of place. Those who are not yet trusted get little
    /// room, whatever they say that they send.
    fn limit(self, stage: Stage) -> Option<usize> {
        match (stage, self) {
            (Stage::Stranger, Self::Hello | Self::Proof) => Some(128),
            (Stage::Found, Self::Challenge) | (Stage::Proved, Self::Welcome) => Some(128),
            (Stage::Found, Self::Refuse) | (Stage::Joined, Self::Depart) => Some(0),
            (Stage::Proved, Self::Refuse) => Some(MAX_PAYLOAD),
            (Stage::Joined, Self::Part | Self::Abort | Self::Failed) => Some(MAX_PAYLOAD),
            _ => None,
        }
    }
}

impl Frame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.kind as u16).to_le_bytes());
        bytes.extend(self.from.to_le_bytes());
        bytes.extend((self.payload.len() as u32).to_le_bytes());
        bytes.extend(self.round.to_le_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// The frame at the start of `bytes` and its length, or nothing while more bytes are needed.
    pub(super) fn decode(bytes: &[u8], stage: Stage) -> Result<Option<(Self, usize)>, FrameError> {
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            return Err(FrameError::Magic);
        }
        let Some(version) = array(bytes, 4).map(u16::from_le_bytes) else { return Ok(None) };
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
        let (Some(kind), Some(from), Some(length), Some(round)) =
            (array(header, 6), array(header, 8), array(header, 12), array(header, 16))
        else {
            return Ok(None);
        };
        let kind = u16::from_le_bytes(kind);
        let kind = Kind::ALL.into_iter().find(|known| *known as u16 == kind).ok_or(FrameError::Kind(kind))?;
        let length = u32::from_le_bytes(length);
        if length as usize > kind.limit(stage).ok_or(FrameError::Misplaced(kind))? {
            return Err(FrameError::Length { kind, length });
        }
        let end = HEADER + length as usize;
        let frame = |payload: &[u8]| Self {
            kind,
            from: u32::from_le_bytes(from),
            round: u64::from_le_bytes(round),
            payload: payload.to_vec(),
        };
        Ok(bytes.get(HEADER..end).map(|payload| (frame(payload), end)))
    }
}

impl From<&Envelope> for Frame {
    fn from(envelope: &Envelope) -> Self {
        let frame = |kind, round, payload| Self { kind, from: envelope.from, round, payload };
        match &envelope.message {
            Message::Part { round, bytes } => frame(Kind::Part, *round, bytes.to_vec()),
            Message::Abort { reason } => frame(Kind::Abort, 0, reason.clone()),
            Message::Depart => frame(Kind::Depart, 0, Vec::new()),
            Message::Failed { evidence } => frame(Kind::Failed, 0, evidence.clone().into_bytes()),
        }
    }
}

/// Frames of the handshake are no messages: after it they are an error of the peer, handed back.
impl TryFrom<Frame> for Envelope {
    type Error = Frame;

    fn try_from(frame: Frame) -> Result<Self, Frame> {
        let message = match frame.kind {
            Kind::Part => Message::Part { round: frame.round, bytes: Arc::from(frame.payload) },
            Kind::Abort => Message::Abort { reason: frame.payload },
            Kind::Depart => Message::Depart,
            Kind::Failed => Message::Failed { evidence: String::from_utf8_lossy(&frame.payload).into_owned() },
            Kind::Hello | Kind::Challenge | Kind::Proof | Kind::Welcome | Kind::Refuse => return Err(frame),
        };
        Ok(Self { from: frame.from, message })
    }
}

/// The `N` bytes at `offset`, when they are there.
pub(super) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAGES: [Stage; 4] = [Stage::Stranger, Stage::Found, Stage::Proved, Stage::Joined];

    fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        Frame::decode(bytes, Stage::Joined)
    }

    fn part() -> Frame {
        Frame { kind: Kind::Part, from: 3, round: 7, payload: b"payload".to_vec() }
    }

    #[test]
    fn every_truncation_asks_for_more() {
        let bytes = part().encode();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Ok(None), "at {end}");
        }
        assert_eq!(decode(&bytes), Ok(Some((part(), bytes.len()))));
    }

    #[test]
    fn lengths_are_refused_before_their_bytes_come() {
        let mut bytes = part().encode();
        bytes.truncate(HEADER);
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&bytes), Err(FrameError::Length { kind: Kind::Part, length: u32::MAX }));
        bytes[12..16].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert!(matches!(decode(&bytes), Err(FrameError::Length { .. })));
    }

    #[test]
    fn strangers_are_known_by_their_first_byte() {
        assert_eq!(decode(b"G"), Err(FrameError::Magic));
        assert_eq!(decode(b"CGR!"), Err(FrameError::Magic));
        assert_eq!(decode(b"CGRT\x01\0"), Err(FrameError::Version(1)));
    }

    #[test]
    fn who_is_not_trusted_gets_128_bytes_whatever_it_claims_to_send() {
        for stage in [Stage::Stranger, Stage::Found] {
            for kind in Kind::ALL {
                let mut header = Frame { kind, from: 0, round: 0, payload: Vec::new() }.encode();
                header[12..16].copy_from_slice(&129_u32.to_le_bytes());
                assert!(Frame::decode(&header, stage).is_err(), "{kind:?} at {stage:?}");
            }
        }
        let hears = |stage| Kind::ALL.into_iter().filter(|kind| kind.limit(stage).is_some()).collect::<Vec<_>>();
        assert_eq!(hears(Stage::Stranger), [Kind::Hello, Kind::Proof]);
        assert_eq!(hears(Stage::Found), [Kind::Challenge, Kind::Refuse]);
    }

    #[test]
    fn messages_survive_the_wire() {
        let messages = [
            Message::Part { round: 9, bytes: Arc::from(*b"abc") },
            Message::Abort { reason: vec![1, 2] },
            Message::Depart,
            Message::Failed { evidence: "gone".into() },
        ];
        for message in messages {
            let envelope = Envelope { from: 2, message };
            let (frame, _) = decode(&Frame::from(&envelope).encode()).unwrap().unwrap();
            assert_eq!(Envelope::try_from(frame), Ok(envelope));
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), valid: bool, stage in 0..4_usize) {
            if valid && bytes.len() >= HEADER {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
                (bytes[6], bytes[7]) = (bytes[6] % 20, 0);
                bytes[13..16].fill(0);
            }
            if let Ok(Some((frame, length))) = Frame::decode(&bytes, STAGES[stage]) {
                prop_assert!(frame.payload.capacity() <= MAX_PAYLOAD);
                prop_assert_eq!(&frame.encode()[..], &bytes[..length]);
            }
        }
    }
}
