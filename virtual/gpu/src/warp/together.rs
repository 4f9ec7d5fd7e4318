//! What lanes of a warp do together, each of which waits for the others.

use super::{Group, LANES, Next, State, Values, Warp, lanes_of, map};
use crate::block::Surroundings;
use crate::fault::Cause;
use crate::instruction::{Operation, Shuffle, Source, Together};
use crate::order::Meeting;
use crate::program::Program;

impl Warp {
    /// Whether all lanes of the warp are at the aligned instruction that a group has come to, waiting or past the wait. There
    /// is no other that some of them may be at.
    pub(super) fn is_whole(&self, group: usize) -> Result<bool, Cause> {
        let place = self.place(&self.groups[group]);
        let mut here = self.groups[group].lanes;
        for other in &self.groups {
            match other.state {
                State::Aligned | State::Barrier { .. } if self.place(other) == place => here |= other.lanes,
                State::Aligned => {
                    let (what, whole) = ("an aligned instruction".to_owned(), self.alive);
                    return Err(Cause::Diverged { what, here: self.groups[group].lanes, whole });
                }
                _ => {}
            }
        }
        Ok(here == self.alive)
    }

    /// What lanes do together is done when the last of them comes.
    pub(super) fn together(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        lanes: u32,
        what: &Together,
        mask: Source,
        name: &str,
    ) -> Result<Next, Cause> {
        let Group { frame, at, .. } = self.groups[group];
        let masks = self.values(around, frame, mask);
        let mask = masks[lanes.trailing_zeros() as usize] as u32;
        let same = lanes_of(lanes).filter(|&lane| masks[lane] as u32 == mask).fold(0, |all, lane| all | 1 << lane);
        if same != lanes {
            // Lanes with another mask come to this same instruction by themselves.
            self.split(group, same, at);
            return Ok(Next::Changed);
        }
        if let Some(lane) = lanes_of(lanes & !mask).next() {
            return Err(Cause::OutsideMask { what: name.to_owned(), lane: lane as u32, mask });
        }
        let state = State::Sync { mask };
        let there = |other: &(usize, &Group)| {
            other.0 == group
                || other.1.state == state
                    && self.together_name(around.program, other.1).is_some_and(|other| other == name)
        };
        let all: Vec<usize> = self.groups.iter().enumerate().filter(there).map(|(index, _)| index).collect();
        let here = all.iter().fold(0, |here, &index| here | self.groups[index].lanes);
        if here != mask & self.alive {
            self.groups[group].state = state;
            return Ok(Next::Changed);
        }
        if let [_] = all[..] {
            self.exchange(around, &all, here, &[what]);
            return Ok(Next::On);
        }
        let program = around.program;
        let parts: Vec<&Together> =
            all.iter().filter_map(|&index| self.together_of(program, &self.groups[index])).collect();
        self.exchange(around, &all, here, &parts);
        for index in all {
            let own = &mut self.groups[index];
            own.state = State::Ready;
            own.at += 1;
        }
        self.join();
        Ok(Next::Changed)
    }

    fn together_of<'p>(&self, program: &'p Program, group: &Group) -> Option<&'p Together> {
        let (code, at) = self.place(group);
        match &program.codes[code].instructions[at].operation {
            Operation::Together { what, .. } => Some(what),
            _ => None,
        }
    }

    fn together_name<'p>(&self, program: &'p Program, group: &Group) -> Option<&'p str> {
        let (code, at) = self.place(group);
        match &program.codes[code].instructions[at].operation {
            Operation::Together { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Does it for the lanes of several groups, each with its own registers.
    fn exchange(&mut self, around: &Surroundings<'_>, groups: &[usize], here: u32, parts: &[&Together]) {
        if let (Some(past), Some(Together::Sync)) = (&mut self.past, parts.first()) {
            let mut meeting = Meeting::default();
            meeting.come(past, here);
            past.met(here, &meeting.leave());
        }
        let mut values = [0; LANES];
        let mut sides = [0; LANES];
        let mut clamps = [0; LANES];
        for (&group, what) in groups.iter().zip(parts) {
            let Group { lanes, frame, .. } = self.groups[group];
            let take = |into: &mut Values, source: Source| {
                let own = self.values(around, frame, source);
                lanes_of(lanes).for_each(|lane| into[lane] = own[lane]);
            };
            match what {
                Together::Sync | Together::Elect { .. } => {}
                Together::Shuffle { value, lane, clamp, .. } => {
                    take(&mut values, *value);
                    take(&mut sides, *lane);
                    take(&mut clamps, *clamp);
                }
                Together::MatchAny { value, .. }
                | Together::MatchAll { value, .. }
                | Together::Reduce { value, .. } => {
                    take(&mut values, *value);
                }
                Together::VoteAll { value, .. }
                | Together::VoteAny { value, .. }
                | Together::VoteUniform { value, .. }
                | Together::Ballot { value, .. } => {
                    let truth = self.frame(frame).truth(*value);
                    lanes_of(lanes).for_each(|lane| values[lane] = u64::from(truth >> lane & 1));
                }
            }
        }
        let votes = lanes_of(here).fold(0, |votes, lane| votes | (values[lane] as u32 & 1) << lane);
        let everywhere = |truth: bool| if truth { u32::MAX } else { 0 };
        for (&group, what) in groups.iter().zip(parts) {
            let Group { lanes, frame, .. } = self.groups[group];
            let frame = self.frame_mut(frame);
            match what {
                Together::Sync => {}
                Together::Shuffle { kind, to, valid, .. } => {
                    let mut inside = 0;
                    let result = map(lanes, |lane| {
                        let (from, is_inside) = shuffle_source(*kind, lane, sides[lane], clamps[lane]);
                        inside |= u32::from(is_inside) << lane;
                        values[from]
                    });
                    to.iter().for_each(|&to| frame.write(to, lanes, &result));
                    valid.iter().for_each(|&valid| frame.set(valid, lanes, inside));
                }
                Together::VoteAll { to, .. } => frame.set(*to, lanes, everywhere(votes == here)),
                Together::VoteAny { to, .. } => frame.set(*to, lanes, everywhere(votes != 0)),
                Together::VoteUniform { to, .. } => frame.set(*to, lanes, everywhere(votes == here || votes == 0)),
                Together::Ballot { to, .. } => frame.write(*to, lanes, &[u64::from(votes); LANES]),
                Together::MatchAny { to, .. } => {
                    let result = map(lanes, |lane| {
                        let same = lanes_of(here).filter(|&other| values[other] == values[lane]);
                        same.fold(0, |all, other| all | 1 << other)
                    });
                    frame.write(*to, lanes, &result);
                }
                Together::MatchAll { to, valid, .. } => {
                    let first = values[here.trailing_zeros() as usize];
                    let same = lanes_of(here).all(|lane| values[lane] == first);
                    let result = if same { u64::from(here) } else { 0 };
                    to.iter().for_each(|&to| frame.write(to, lanes, &[result; LANES]));
                    valid.iter().for_each(|&valid| frame.set(valid, lanes, everywhere(same)));
                }
                Together::Reduce { to, combine, .. } => {
                    let result =
                        lanes_of(here).map(|lane| values[lane]).reduce(|a, b| combine.lane([a, b])).unwrap_or(0);
                    frame.write(*to, lanes, &[result; LANES]);
                }
                Together::Elect { to, chosen } => {
                    let leader = here.trailing_zeros();
                    to.iter().for_each(|&to| frame.write(to, lanes, &[u64::from(leader); LANES]));
                    chosen.iter().for_each(|&chosen| frame.set(chosen, lanes, 1 << leader));
                }
            }
        }
    }
}

/// The lane whose value a lane gets from a shuffle, and whether it is inside the bounds.
fn shuffle_source(kind: Shuffle, lane: usize, side: u64, clamp: u64) -> (usize, bool) {
    let (lane, side) = (lane as i64, side as i64 & 31);
    let (bound, segment) = (clamp as i64 & 31, clamp as i64 >> 8 & 31);
    let last = lane & segment | bound & !segment;
    let (from, inside) = match kind {
        Shuffle::Up => (lane - side, lane - side >= last),
        Shuffle::Down => (lane + side, lane + side <= last),
        Shuffle::Butterfly => (lane ^ side, lane ^ side <= last),
        Shuffle::Index => {
            let from = lane & segment | side & !segment;
            (from, from <= last)
        }
    };
    if inside { (from as usize & 31, true) } else { (lane as usize, false) }
}
