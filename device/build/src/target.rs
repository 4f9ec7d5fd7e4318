//! The GPU generation and PTX version to compile for.

use core::fmt;
use core::str::FromStr;

use serde::Deserialize;

use crate::error::BuildError;

/// One GPU generation and the PTX version written for it, as in `sm_90:ptx84`.
///
/// A PTX version that is higher than the instructions need asks for a newer driver than they need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Target {
    arch: String,
    ptx: String,
}

impl Target {
    /// The generation, `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// The PTX version as the compiler calls it, `ptx84`.
    pub fn ptx(&self) -> &str {
        &self.ptx
    }
}

/// The oldest generation that the device crate is written for: drivers compile its text for all later ones.
impl Default for Target {
    fn default() -> Self {
        Self { arch: "sm_80".to_owned(), ptx: "ptx80".to_owned() }
    }
}

impl TryFrom<String> for Target {
    type Error = BuildError;

    fn try_from(text: String) -> Result<Self, BuildError> {
        text.parse()
    }
}

impl FromStr for Target {
    type Err = BuildError;

    fn from_str(text: &str) -> Result<Self, BuildError> {
        // Both parts end up in compiler flags, so nothing but letters and digits passes.
        let well_formed = |part: &str, prefix: &str| {
            part.strip_prefix(prefix).is_some_and(|rest| {
                rest.starts_with(|c: char| c.is_ascii_digit()) && rest.chars().all(|c| c.is_ascii_alphanumeric())
            })
        };
        match text.split_once(':') {
            Some((arch, ptx)) if well_formed(arch, "sm_") && well_formed(ptx, "ptx") => {
                Ok(Self { arch: arch.to_owned(), ptx: ptx.to_owned() })
            }
            _ => Err(BuildError::BadTarget(text.to_owned())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.arch, self.ptx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_written_as_others_are() {
        let default = Target::default();
        assert_eq!(default.to_string().parse::<Target>().expect("a target"), default);
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "sm_90", "sm_90:84", "sm_:ptx84", "sm_90 -Clinker=x:ptx84", "90:ptx84"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
