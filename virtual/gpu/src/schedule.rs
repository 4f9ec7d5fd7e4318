//! Who runs next, and for how long: chosen by a seed, so that it can be chosen again.

/// How warps take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// All in order, each for a while: the fastest.
    #[default]
    Lockstep,
    /// Any, for a few instructions; any of the places that the lanes of a warp are at.
    Random,
    /// One device runs only while all others wait.
    Behind(u32),
}

/// A source of choices.
pub(crate) struct Chance {
    schedule: Schedule,
    state: u64,
}

impl Chance {
    pub(crate) fn new(schedule: Schedule, seed: u64) -> Self {
        Self { schedule, state: seed }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Whether any choice that is allowed may be made, instead of the one that is best for speed.
    pub(crate) fn is_adverse(&self) -> bool {
        self.schedule == Schedule::Random
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
