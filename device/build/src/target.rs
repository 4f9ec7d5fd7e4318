//! The GPU generation and PTX version to compile for.

use core::fmt;
use core::str::FromStr;

use crate::error::BuildError;

/// One GPU generation and the PTX version written for it, as in `sm_90:ptx84`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    arch: String,
    ptx: String,
}

/// What kernels are compiled for unless asked otherwise: `sm_80:ptx80`, `sm_90:ptx82`, `sm_100:ptx88`.
///
/// The PTX version is the lowest with every instruction of its generation that the device crate uses, since a higher one
/// needs a newer driver. Of sm_90 it is `multimem.ld_reduce` with `.acc::f32` that needs 8.2.
pub const DEFAULT_TARGETS: [&str; 3] = ["sm_80:ptx80", "sm_90:ptx82", "sm_100:ptx88"];

impl Target {
    /// The generation, `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// The PTX version as the compiler calls it, `ptx84`.
    pub fn ptx(&self) -> &str {
        &self.ptx
    }

    /// The default targets, parsed.
    pub fn defaults() -> Vec<Self> {
        DEFAULT_TARGETS.iter().filter_map(|target| target.parse().ok()).collect()
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
    fn default_targets_parse() {
        let shown: Vec<_> = Target::defaults().iter().map(Target::to_string).collect();
        assert_eq!(shown, DEFAULT_TARGETS);
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "sm_90", "sm_90:84", "sm_:ptx84", "sm_90 -Clinker=x:ptx84", "90:ptx84"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
