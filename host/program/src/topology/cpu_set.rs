//! Sets of hardware threads, in the two ways that the kernel writes them.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

/// The highest number that is believed.
const MOST: u32 = 1 << 16;

/// Hardware threads by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Reads `0-3,8`.
    pub(super) fn from_list(text: &str) -> Option<Self> {
        let mut set = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse().ok()?, last.parse().ok().filter(|&last: &u32| last < MOST)?);
            set.extend(first..=last);
        }
        Some(Self(set))
    }

    /// Reads `00000001,0000010f`: words of 32 bits, the highest first.
    pub(super) fn from_mask(text: &str) -> Option<Self> {
        let mut set = BTreeSet::new();
        for (word, first) in text.trim().rsplit(',').zip((0..MOST).step_by(32)) {
            if word.len() > 8 || !word.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            let bits = u32::from_str_radix(word, 16).ok()?;
            set.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit));
        }
        Some(Self(set))
    }

    /// As [`Self::from_mask`] reads it.
    pub(super) fn mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let word = |word: u32| {
            let bits = self.0.range(word * 32..(word + 1) * 32).fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32));
            format!("{bits:08x}")
        };
        (0..words).rev().map(word).collect::<Vec<_>>().join(",")
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}

/// As [`CpuSet::from_list`] reads it.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => runs.push((cpu, cpu)),
            }
        }
        let run = |&(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&runs.iter().map(run).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_say_the_same() {
        for (list, mask) in [("0-1", "00000003"), ("0-3,8,40", "00000100,0000010f"), ("31-32", "00000001,80000000")] {
            let set = CpuSet::from_list(list).unwrap();
            assert_eq!((set.to_string(), set.mask()), (list.to_owned(), mask.to_owned()));
            assert_eq!(CpuSet::from_mask(mask), Some(set));
        }
        assert_eq!(CpuSet::from_mask("3"), CpuSet::from_list("0-1"));
    }

    #[test]
    fn nonsense_is_not_read() {
        for text in ["", "a", "3-", "0-99999999999", "0-4000000000", "1;2"] {
            assert_eq!(CpuSet::from_list(text), None, "{text}");
        }
        for text in ["", "xyz", "123456789", "+1", "1,,2"] {
            assert_eq!(CpuSet::from_mask(text), None, "{text}");
        }
    }
}
