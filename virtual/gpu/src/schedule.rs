//! Who runs next, and for how long: chosen by a seed, so that it can be chosen again.

use std::collections::HashMap;

use crate::watch::Who;

/// How warps take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// All in order, each for a while: the fastest.
    #[default]
    Lockstep,
    /// Any, for a few instructions; any of the places that the lanes of a warp are at.
    Random,
    /// Each warp has a priority by chance, and only the first of those that can run does; now and then it becomes the last.
    /// Burckhardt and others 2010 (PCT), with change points by chance, so that none has to know how long a launch is.
    Priorities,
    /// One device runs only while all others wait.
    Behind(u32),
}

/// A source of choices.
pub(crate) struct Chance {
    schedule: Schedule,
    state: u64,
    priorities: HashMap<(u64, u64, u32), i64>,
    /// The lowest priority that was given.
    lowest: i64,
    /// How often in a row the same warp was first.
    row: u32,
}

/// A warp keeps its priority for so many turns on average, and at most: others may be what it waits for.
const KEPT: usize = 100;
const ROW: u32 = 2000;

impl Chance {
    pub(crate) fn new(schedule: Schedule, seed: u64) -> Self {
        Self { schedule, state: seed, priorities: HashMap::new(), lowest: 0, row: 0 }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Whether any choice that is allowed may be made, instead of the one that is best for speed.
    pub(crate) fn is_adverse(&self) -> bool {
        matches!(self.schedule, Schedule::Random | Schedule::Priorities)
    }

    /// A warp's priority.
    pub(crate) fn priority(&mut self, who: Who) -> i64 {
        let key = (who.launch, who.block, who.warp);
        match self.priorities.get(&key) {
            Some(&priority) => priority,
            None => {
                let priority = self.below(1 << 30) as i64;
                self.priorities.insert(key, priority);
                priority
            }
        }
    }

    /// The first of all warps is about to run: perhaps it is the last one from now on.
    pub(crate) fn may_demote(&mut self, who: Who) {
        self.row += 1;
        if self.below(KEPT) == 0 || self.row > ROW {
            self.row = 0;
            self.lowest -= 1;
            self.priorities.insert((who.launch, who.block, who.warp), self.lowest);
        }
    }

    /// A launch has ended, and its warps need no priorities any more.
    pub(crate) fn forget(&mut self, launch: u64) {
        self.priorities.retain(|(own, ..), _| *own != launch);
    }

    /// Whether groups of a warp are given turns beside the choice that is best for speed.
    pub(crate) fn takes_turns(&self) -> bool {
        !self.is_adverse()
    }

    /// A number below `bound`, which is not 0: Steele, Lea and Flood's SplitMix64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(word ^ word >> 31) * bound as u128) >> 64) as usize
    }
}
