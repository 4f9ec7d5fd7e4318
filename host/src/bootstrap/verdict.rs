//! Why a job does not come together, in the form PE 0 tells the others.

use super::error::BootstrapError;
use super::frame::array;
use std::fmt;

/// A reason that every PE of the job is to report alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    WorldSize { pe: u32, claims: u32, expected: u32 },
    DuplicatePe { pe: u32 },
    PeOutOfRange { pe: u32, npes: u32 },
    Missing { pes: Vec<u32>, millis: u32 },
    Lost { pe: u32 },
}

impl Verdict {
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = match self {
            Self::WorldSize { pe, claims, expected } => vec![3, *pe, *claims, *expected],
            Self::DuplicatePe { pe } => vec![4, *pe],
            Self::PeOutOfRange { pe, npes } => vec![5, *pe, *npes],
            Self::Missing { pes, millis } => [&[6, *millis], &pes[..]].concat(),
            Self::Lost { pe } => vec![7, *pe],
        };
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(4) {
            return None;
        }
        let numbers: Vec<u32> =
            (0..bytes.len()).step_by(4).filter_map(|at| array(bytes, at)).map(u32::from_le_bytes).collect();
        Some(match numbers[..] {
            [3, pe, claims, expected] => Self::WorldSize { pe, claims, expected },
            [4, pe] => Self::DuplicatePe { pe },
            [5, pe, npes] => Self::PeOutOfRange { pe, npes },
            [6, millis, ref pes @ ..] => Self::Missing { pes: pes.to_vec(), millis },
            [7, pe] => Self::Lost { pe },
            _ => return None,
        })
    }
}

impl From<Verdict> for BootstrapError {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::WorldSize { pe, claims, expected } => Self::WorldSize { pe, claims, expected },
            Verdict::DuplicatePe { pe } => Self::DuplicatePe { pe },
            Verdict::PeOutOfRange { pe, npes } => Self::PeOutOfRange { pe, npes },
            Verdict::Missing { pes, millis } => {
                Self::Missing { pes, waited: std::time::Duration::from_millis(millis.into()) }
            }
            Verdict::Lost { pe } => Self::Lost { pe },
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BootstrapError::from(self.clone()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_the_wire_and_nothing_else_does() {
        let verdicts = [
            Verdict::WorldSize { pe: 1, claims: 2, expected: 3 },
            Verdict::DuplicatePe { pe: 4 },
            Verdict::PeOutOfRange { pe: 9, npes: 4 },
            Verdict::Missing { pes: vec![1, 5], millis: 60_000 },
            Verdict::Lost { pe: 1 },
        ];
        for verdict in verdicts {
            let bytes = verdict.encode();
            assert_eq!(Verdict::decode(&bytes), Some(verdict));
            assert_eq!(Verdict::decode(&bytes[1..]), None);
        }
        assert_eq!(Verdict::decode(&[]), None);
        assert_eq!(Verdict::decode(&99_u32.to_le_bytes()), None);
    }
}
