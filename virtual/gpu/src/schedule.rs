//! Who runs next, and for how long: chosen by a seed, so that it can be chosen again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// For [`explore`](crate::Machine::explore): a warp goes on until it waits, but at so many places at most. There it makes way
    /// for another one before an access, or a load, a store or an atomic does something else that weak memory may do. All
    /// choices of such places come, one after the other (Emmi, Qadeer and Rakamaric 2011, with memory's choices as delays too).
    Exhaustive(u32),
}

/// What [`explore`](crate::Machine::explore) has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// How many executions there were.
    pub executions: u64,
    /// Whether there are others, which the bound of the schedule or of the number of executions has cut off.
    pub is_cut: bool,
}

/// The choices of an execution, of which each but the first is another than the plain one.
#[derive(Default)]
pub(crate) struct Trail {
    /// What was chosen, and of how many.
    choices: Vec<(usize, usize)>,
    next: usize,
    /// How many of those so far are not the plain one.
    delays: u32,
    pub(crate) is_cut: bool,
}

impl Trail {
    /// A number below `bound`; 0 is the plain choice.
    fn choose(&mut self, bound: usize, most: u32) -> usize {
        if bound < 2 {
            return 0;
        }
        if self.delays == most {
            self.is_cut = true;
            return 0;
        }
        if self.next == self.choices.len() {
            self.choices.push((0, bound));
        }
        let choice = self.choices[self.next].0;
        self.next += 1;
        self.delays += u32::from(choice > 0);
        choice
    }

    /// Goes to the next execution; tells whether there is one.
    pub(crate) fn advance(&mut self) -> bool {
        (self.next, self.delays) = (0, 0);
        while let Some((choice, bound)) = self.choices.pop() {
            if choice + 1 < bound {
                self.choices.push((choice + 1, bound));
                return true;
            }
        }
        false
    }
}

/// A source of choices.
pub(crate) struct Chance {
    schedule: Schedule,
    state: u64,
    trail: Arc<Mutex<Trail>>,
    /// Who ran last, where all choices come.
    current: Option<Who>,
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
    pub(crate) fn new(schedule: Schedule, seed: u64, trail: Arc<Mutex<Trail>>) -> Self {
        Self { schedule, state: seed, trail, current: None, priorities: HashMap::new(), lowest: 0, row: 0 }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Whether any choice that is allowed may be made, instead of the one that is best for speed.
    pub(crate) fn is_adverse(&self) -> bool {
        matches!(self.schedule, Schedule::Random | Schedule::Priorities)
    }

    /// Which of those that can run does, where all choices come: the one that ran last, unless others may go before its access.
    pub(crate) fn next(&mut self, ready: &[Who], is_at_access: impl Fn(usize) -> bool) -> usize {
        let last = self.current.and_then(|current| ready.iter().position(|who| *who == current));
        let chosen = match last {
            Some(last) if !is_at_access(last) => last,
            // The plain choice is the last one, and then those behind it.
            _ => (last.unwrap_or(0) + self.below(ready.len())) % ready.len(),
        };
        self.current = Some(ready[chosen]);
        chosen
    }

    /// Whether something happens that need not, about one time in so many.
    pub(crate) fn happens(&mut self, times: usize) -> bool {
        match self.schedule {
            Schedule::Exhaustive(_) => self.below(2) == 1,
            _ => self.below(times) == 0,
        }
    }

    /// Which of so many writes a load sees, in their order: one time in two the last, so that whoever looks again and again sees
    /// it in the end.
    pub(crate) fn write(&mut self, count: usize) -> usize {
        let last = count - 1;
        if let Schedule::Exhaustive(_) = self.schedule {
            return last - self.below(count);
        }
        if last == 0 || self.happens(2) { last } else { self.below(count) }
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
        if let Schedule::Exhaustive(most) = self.schedule {
            return self.trail.lock().unwrap_or_else(PoisonError::into_inner).choose(bound, most);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(word ^ word >> 31) * bound as u128) >> 64) as usize
    }
}
