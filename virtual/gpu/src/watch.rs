//! Who waits for which word to change.

use rustc_hash::FxHashMap as HashMap;
use std::sync::Arc;

use crate::memory::Segment;

/// A warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) launch: u64,
    pub(crate) block: u64,
    pub(crate) warp: u32,
}

/// Words are watched in parts of so many bytes.
const GRANULE: u64 = 8;

/// A word: its memory, and where in it.
type Word = (u64, u64);

/// Watched words. A filter in front of the table makes writes of words that nobody watches cheap.
pub(crate) struct Watches {
    filter: Box<[u64; 1024]>,
    watched: HashMap<Word, Vec<Who>>,
    /// Those whose words were written.
    woken: Vec<Who>,
    /// How many writes there were.
    pub(crate) writes: u64,
}

impl Default for Watches {
    fn default() -> Self {
        Self { filter: Box::new([0; 1024]), watched: HashMap::default(), woken: Vec::new(), writes: 0 }
    }
}

fn word(segment: &Arc<Segment>, offset: u64) -> Word {
    (segment.id(), offset / GRANULE)
}

fn bit((segment, granule): Word) -> (usize, u64) {
    let hash = (granule ^ segment << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (hash as usize / 64 % 1024, 1 << (hash % 64))
}

impl Watches {
    /// `who` is to be woken when the word is written.
    pub(crate) fn watch(&mut self, segment: &Arc<Segment>, offset: u64, who: Who) {
        let word = word(segment, offset);
        let (at, bit) = bit(word);
        self.filter[at] |= bit;
        let watchers = self.watched.entry(word).or_default();
        if !watchers.contains(&who) {
            watchers.push(who);
        }
    }

    /// Bytes were written.
    pub(crate) fn written(&mut self, segment: &Arc<Segment>, offset: u64, bytes: u64) {
        self.writes += 1;
        for part in offset / GRANULE..=(offset + bytes.max(1) - 1) / GRANULE {
            let word = word(segment, part * GRANULE);
            let (at, bit) = bit(word);
            if self.filter[at] & bit != 0
                && let Some(watchers) = self.watched.remove(&word)
            {
                self.woken.extend(watchers);
            }
        }
    }

    /// Those whose words were written since this was last asked.
    pub(crate) fn take_woken(&mut self) -> Vec<Who> {
        core::mem::take(&mut self.woken)
    }

    /// Nobody watches any more.
    pub(crate) fn clear(&mut self) {
        self.filter.fill(0);
        self.watched.clear();
        self.woken.clear();
    }
}
