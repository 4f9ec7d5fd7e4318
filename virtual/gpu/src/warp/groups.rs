//! The lanes of a warp that are at one place: which go on, where they part, and where they come together again.

use super::{LANES, Warp};
use crate::block::Surroundings;
use crate::instruction::BarrierResult;
use crate::polls::Polls;

/// Lanes at one place.
pub(crate) struct Group {
    pub(crate) lanes: u32,
    pub(crate) frame: usize,
    pub(crate) at: usize,
    pub(crate) state: State,
    pub(super) polls: Polls,
}

/// What a group does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Ready,
    /// It polls words that have not changed, of which this is the first one's address.
    Parked {
        at: u64,
    },
    /// It is at a barrier of the block.
    Barrier {
        id: u32,
        count: Option<u32>,
        result: BarrierResult,
        value: u32,
    },
    /// It is at an aligned instruction, which all lanes of its warp execute, and some are not there yet.
    Aligned,
    /// It waits for lanes of its warp.
    Sync {
        mask: u32,
    },
}

impl Warp {
    /// Where a group is at a barrier, it goes on with a result.
    pub(crate) fn pass_barrier(&mut self, group: usize, count: u32, and: bool, or: bool) {
        let Self { groups, frames, .. } = self;
        let group = &mut groups[group];
        let State::Barrier { result, .. } = group.state else { return };
        let frame = &mut frames[group.frame];
        match result {
            BarrierResult::None => {}
            BarrierResult::Count(to) => frame.write(to, group.lanes, &[u64::from(count); LANES]),
            BarrierResult::And(to) => frame.set(to, group.lanes, if and { u32::MAX } else { 0 }),
            BarrierResult::Or(to) => frame.set(to, group.lanes, if or { u32::MAX } else { 0 }),
        }
        group.at += 1;
        group.state = State::Ready;
    }

    /// The groups that can go on.
    pub(super) fn ready(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(|&group| matches!(self.groups[group].state, State::Ready))
    }

    /// The group to go on with: deepest in calls, then first in the text, so that lanes come together again. An adversary
    /// takes any.
    pub(super) fn choose(&self, around: &mut Surroundings<'_>) -> Option<usize> {
        match self.ready().count() {
            0 | 1 => self.ready().next(),
            count if around.chance.is_adverse() => self.ready().nth(around.chance.below(count)),
            _ => self.ready().min_by_key(|&group| {
                let Group { frame, at, .. } = &self.groups[group];
                (u32::MAX - self.frame(*frame).depth, *at)
            }),
        }
    }

    /// Whether another ready group of the same frame is here, or further back.
    pub(super) fn must_choose_again(&self, group: usize) -> bool {
        let Group { frame, at, .. } = self.groups[group];
        let others = self.groups.iter().enumerate().filter(|(index, _)| *index != group);
        others.into_iter().any(|(_, other)| other.frame == frame && other.at <= at && other.state == State::Ready)
    }

    /// Makes one group of those at one place.
    pub(crate) fn join(&mut self) {
        let mut first = 0;
        while first < self.groups.len() {
            let mut second = first + 1;
            while second < self.groups.len() {
                let (one, other) = (&self.groups[first], &self.groups[second]);
                let same = (one.frame, one.at) == (other.frame, other.at);
                if same && one.state == State::Ready && other.state == State::Ready {
                    let lanes = self.groups.swap_remove(second).lanes;
                    self.groups[first].lanes |= lanes;
                    self.groups[first].polls.clear();
                } else {
                    second += 1;
                }
            }
            first += 1;
        }
    }

    /// Leaves `lanes` in a group; the others go on at `at` as a group of their own. Gives the group of `lanes`.
    pub(super) fn split(&mut self, group: usize, lanes: u32, at: usize) -> usize {
        let own = &mut self.groups[group];
        let others = own.lanes & !lanes;
        own.lanes = lanes;
        let (frame, polls) = (own.frame, own.polls.clone());
        if others != 0 {
            self.groups.push(Group { lanes: others, frame, at, state: State::Ready, polls });
        }
        group
    }
}
