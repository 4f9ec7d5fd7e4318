//! A warp: its lanes, in groups that are at the same place, and what they execute.
//!
//! Every lane has a place of its own, as on GPUs since Volta. Lanes at one place are a group, which executes an instruction for
//! all of them at once; a branch may split it, and groups that come to the same place become one again.

#![allow(clippy::disallowed_types, reason = "counts what is executed")]

mod access;
mod copies;
mod frame;
mod groups;
mod local;
mod matrix;
mod multimem;
mod operands;
mod together;

use core::sync::atomic::Ordering;
use std::collections::VecDeque;

use access::Place;
use copies::Copy;
use frame::Frame;
pub(crate) use groups::{Group, State};
use local::Local;

use crate::alu::{Compute, Function};
pub(crate) use crate::alu::{LANES, Values};
use crate::block::Surroundings;
use crate::decode::space_of;
use crate::fault::Cause;
use crate::instruction::{Operation, Scope, Source};
use crate::machine::Count;
use crate::memory;
use crate::order::{Kind, Past, Promises};
use crate::polls::Polls;
use crate::program::Program;

pub(crate) struct Warp {
    /// Which warp of the block it is.
    pub(crate) index: u32,
    /// The lanes that have not exited.
    pub(crate) alive: u32,
    pub(crate) groups: Vec<Group>,
    frames: Vec<Frame>,
    /// Frames that nobody is in.
    free: Vec<usize>,
    /// How many instructions it has executed.
    pub(crate) issued: u64,
    /// The condition code of each lane.
    carry: u32,
    local: Option<Local>,
    /// Copies that are asked for and not done yet, in groups that were committed; the last is open.
    copies: Vec<VecDeque<Vec<Copy>>>,
    /// What its lanes know of what happened, where races are looked for.
    pub(crate) past: Option<Past>,
}

/// So few lanes compute one by one.
const FEW: u32 = 4;

/// Where and why a warp cannot go on.
pub(crate) struct Stop {
    pub(crate) cause: Cause,
    pub(crate) code: usize,
    pub(crate) at: usize,
    pub(crate) lanes: u32,
}

/// What comes after an instruction.
enum Next {
    /// The instruction behind it.
    On,
    /// Another one, of the same function.
    To(usize),
    /// The group has changed, or waits.
    Changed,
    /// As `On`, but others go first.
    Rest,
}

/// The indexes of the bits of a mask.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    core::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

impl Warp {
    /// A warp at the start of a kernel.
    pub(crate) fn new(index: u32, lanes: u32, program: &Program, entry: usize) -> Self {
        let frame = Frame::new(entry, &program.codes[entry], 0, None, 0);
        let group = Group { lanes, frame: 0, at: 0, state: State::Ready, polls: Polls::default() };
        Self {
            index,
            alive: lanes,
            groups: vec![group],
            frames: vec![frame],
            free: Vec::new(),
            issued: 0,
            carry: 0,
            local: None,
            copies: Vec::new(),
            past: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready().next().is_some()
    }

    /// Lets groups that poll look again; tells whether there are any.
    pub(crate) fn wake(&mut self) -> bool {
        let mut any = false;
        for group in self.groups.iter_mut().filter(|group| matches!(group.state, State::Parked { .. })) {
            group.state = State::Ready;
            any = true;
        }
        any
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.groups.iter().any(|group| matches!(group.state, State::Parked { .. }))
    }

    /// Whether a group that can go on is at an instruction that others may come before.
    pub(crate) fn is_at_access(&self, program: &Program) -> bool {
        let is_access = |group: &Group| {
            let (code, at) = self.place(group);
            matches!(
                program.codes[code].instructions[at].operation,
                Operation::Load { .. }
                    | Operation::Store { .. }
                    | Operation::Atomic { .. }
                    | Operation::MultimemReduce { .. }
                    | Operation::MultimemStore { .. }
                    | Operation::MultimemAdd { .. }
                    | Operation::CopyWait(_)
                    | Operation::Matrix { .. }
            )
        };
        self.groups.iter().any(|group| group.state == State::Ready && is_access(group))
    }

    /// Which function and instruction a group is at.
    pub(crate) fn place(&self, group: &Group) -> (usize, usize) {
        (self.frame(group.frame).code, group.at)
    }

    /// The number in its program of the instruction that a group is at.
    fn number(&self, program: &Program, group: usize) -> u32 {
        let (code, at) = self.place(&self.groups[group]);
        program.codes[code].first + at as u32
    }

    fn frame(&self, frame: usize) -> &Frame {
        &self.frames[frame]
    }

    fn frame_mut(&mut self, frame: usize) -> &mut Frame {
        &mut self.frames[frame]
    }

    /// Runs instructions, as many as the budget allows and as long as a group is ready. Gives how many lanes executed one.
    pub(crate) fn run(&mut self, around: &mut Surroundings<'_>, budget: u32) -> Result<u64, Stop> {
        let mut executed = 0;
        let mut left = budget;
        // A warp that has been here long lets another of its groups go first, lest lanes wait for it in vain.
        let mut turn = around.chance.takes_turns().then_some(around.round as usize);
        while left > 0 {
            let choice = match turn.take() {
                Some(turn) if turn.is_multiple_of(16) => self.ready().nth(turn / 16 % self.ready().count().max(1)),
                _ => self.choose(around),
            };
            let Some(mut group) = choice else { break };
            let alone = self.groups.len() == 1;
            loop {
                let code = &around.program.codes[self.frame(self.groups[group].frame).code];
                let Group { lanes, at, frame, .. } = self.groups[group];
                let instruction = &code.instructions[at];
                let active = match instruction.guard {
                    None => lanes,
                    Some((predicate, truth)) => {
                        let word = self.frame(frame).predicates[predicate];
                        lanes & if truth { word } else { !word }
                    }
                };
                executed += u64::from(lanes.count_ones());
                self.issued += 1;
                if let Some(counts) = &mut around.counts {
                    let count = Count { warps: 1, lanes: active.count_ones().into(), leaders: (active & 1).into() };
                    counts.instructions[code.first as usize + at].add(count);
                }
                if let Some(reached) = &around.program.reached {
                    reached[code.first as usize + at].store(true, Ordering::Relaxed);
                }
                left = left.saturating_sub(1);
                let next = if active == 0 {
                    Next::On
                } else {
                    if active != lanes && !is_plain(&instruction.operation) {
                        group = self.split(group, active, at + 1);
                    }
                    let outcome = self.execute(around, group, active, &instruction.operation);
                    outcome.map_err(|cause| Stop { cause, code: self.frame(frame).code, at, lanes: active })?
                };
                match next {
                    Next::On => self.groups[group].at += 1,
                    Next::To(target) => self.groups[group].at = target,
                    Next::Rest => {
                        self.groups[group].at += 1;
                        left = 0;
                    }
                    Next::Changed => break,
                }
                if left == 0 {
                    break;
                }
                if !(alone && self.groups.len() == 1) && self.must_choose_again(group) {
                    self.join();
                    break;
                }
            }
        }
        Ok(executed)
    }

    /// What a function gives, in the lanes that ask; others hold anything.
    fn computed<const N: usize>(
        &self,
        around: &Surroundings<'_>,
        frame: usize,
        lanes: u32,
        function: &'static dyn Compute<N>,
        from: &[Source],
    ) -> Values {
        let mut rooms = [const { None }; N];
        let mut from = from.iter();
        let operands = rooms.each_mut().map(|room| {
            // As many as there are operands: the decoder counts them.
            let source = from.next().copied().unwrap_or(Source::Immediate(0));
            self.operand(around, frame, source, room)
        });
        if lanes.count_ones() > FEW {
            return function.lanes(operands);
        }
        let mut values = [0; LANES];
        lanes_of(lanes).for_each(|lane| values[lane] = function.lane(operands.map(|operand| operand[lane])));
        values
    }

    fn execute(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        lanes: u32,
        operation: &Operation,
    ) -> Result<Next, Cause> {
        let frame = self.groups[group].frame;
        match operation {
            Operation::Compute { function, to, from } => {
                let Some(to) = *to else { return Ok(Next::On) };
                let result = match *function {
                    Function::One(function) => self.computed(around, frame, lanes, function, from),
                    Function::Two(function) => self.computed(around, frame, lanes, function, from),
                    Function::Three(function) => self.computed(around, frame, lanes, function, from),
                    Function::Four(function) => self.computed(around, frame, lanes, function, from),
                    Function::Test(_) | Function::Compare(_) => return Ok(Next::On),
                };
                self.frame_mut(frame).write(to, lanes, &result);
            }
            Operation::Carry { function, to, from, keeps } => {
                let [a, b, c] = [0, 1, 2].map(|index| self.values(around, frame, from[index]));
                let mut carry = 0;
                let old = self.carry;
                let result = map(lanes, |lane| {
                    let (value, out) = function(a[lane], b[lane], c[lane], old >> lane & 1 != 0);
                    carry |= u32::from(out) << lane;
                    value
                });
                if *keeps {
                    self.carry = old & !lanes | carry;
                }
                self.frame_mut(frame).write(*to, lanes, &result);
            }
            Operation::Compare { function, to, opposite, from, with } => {
                let truth = self.compared(around, frame, *function, *from);
                let frame = self.frame_mut(frame);
                let (own, other) = (frame.combined(truth, *with), frame.combined(!truth, *with));
                to.iter().for_each(|&to| frame.set(to, lanes, own));
                opposite.iter().for_each(|&to| frame.set(to, lanes, other));
            }
            Operation::Set { function, to, from, with, truth } => {
                let holds = self.compared(around, frame, *function, *from);
                let frame = self.frame_mut(frame);
                let holds = frame.combined(holds, *with);
                frame.write(*to, lanes, &core::array::from_fn(|lane| if holds >> lane & 1 != 0 { *truth } else { 0 }));
            }
            Operation::Test { function, to, from } => {
                let values = self.values(around, frame, *from);
                self.frame_mut(frame).set(*to, lanes, function.lanes([&values]));
            }
            Operation::Predicate { to, first, second } => {
                let frame = self.frame_mut(frame);
                let truth = frame.combined(frame.truth(*first), *second);
                frame.set(*to, lanes, truth);
            }
            Operation::Select { to, from, by } => {
                let truth = self.frame(frame).truth(*by);
                let mut rooms = [const { None }; 2];
                let [one, two] = &mut rooms;
                let yes = self.operand(around, frame, from[0], one);
                let no = self.operand(around, frame, from[1], two);
                let chosen = core::array::from_fn(|lane| if truth >> lane & 1 != 0 { yes[lane] } else { no[lane] });
                self.frame_mut(frame).write(*to, lanes, &chosen);
            }
            Operation::Move { to, from } => {
                let values = self.values(around, frame, *from);
                self.frame_mut(frame).write(*to, lanes, &values);
            }
            Operation::MoveWide { to, from } => {
                let values = from.map(|source| self.values(around, frame, source));
                let frame = self.frame_mut(frame);
                for (to, values) in to.iter().zip(&values) {
                    to.iter().for_each(|&to| frame.write(to, lanes, values));
                }
            }
            Operation::Pack { to, from, bits } => {
                let mut packed = [0; LANES];
                for (index, &source) in from.iter().enumerate() {
                    let values = self.values(around, frame, source);
                    lanes_of(lanes).for_each(|lane| packed[lane] |= values[lane] << (index as u32 * bits));
                }
                self.frame_mut(frame).write(*to, lanes, &packed);
            }
            Operation::Unpack { to, from, bits } => {
                let values = self.values(around, frame, *from);
                for (index, to) in to.iter().enumerate() {
                    let part = values
                        .map(|value| value >> (index as u32 * bits) & u64::MAX.checked_shr(64 - bits).unwrap_or(0));
                    to.iter().for_each(|&to| self.frame_mut(frame).write(to, lanes, &part));
                }
            }
            Operation::IsSpace { to, from, space } => {
                let values = self.values(around, frame, *from);
                let truth = lanes_of(lanes)
                    .filter(|&lane| space_of(values[lane]) == *space)
                    .fold(0, |all, lane| all | 1 << lane);
                self.frame_mut(frame).set(*to, lanes, truth);
            }
            Operation::LoadParam { offset, unit, to, is_signed } => {
                let frame = self.frame_mut(frame);
                for (index, to) in to.iter().enumerate() {
                    let Some(to) = *to else { continue };
                    let at = offset + index as u64 * unit;
                    let values = map(lanes, |lane| extended(frame.param(at, *unit, lane), *unit, *is_signed));
                    frame.write(to, lanes, &values);
                }
            }
            Operation::StoreParam { offset, unit, from } => {
                for (index, &source) in from.iter().enumerate() {
                    let values = self.values(around, frame, source);
                    let frame = self.frame_mut(frame);
                    lanes_of(lanes)
                        .for_each(|lane| frame.set_param(offset + index as u64 * unit, *unit, lane, values[lane]));
                }
            }
            Operation::Load { access, to, is_signed } => {
                return self.load(around, group, lanes, access, to, *is_signed);
            }
            Operation::Store { access, from } => {
                self.groups[group].polls.clear();
                // An injected fault, of what the first lane stores.
                let is_far = access.strength.scope() == Some(Scope::System);
                let flip = if is_far { around.flip.take() } else { None };
                let flip = flip.map(|bit| u64::from(bit) % (8 * access.unit * access.count));
                let places = self.places(around, frame, lanes, access, memory::Access::ReadWrite)?;
                let mut accesses = self.remember(around, group, access, Kind::Write, &places)?.into_iter();
                let promises = around.order.as_ref().and_then(|order| order.weak).unwrap_or_default();
                let is_promised = access.unit * access.count == 16 && promises != Promises::default();
                for (number, (segment, Place { lane, offset, .. })) in places.iter().enumerate() {
                    for (index, &source) in from.iter().enumerate() {
                        // Hardware may promise that a vector comes as one, or that those of all lanes do.
                        let is_joined = is_promised && (index > 0 || number > 0 && promises.ll128_128b_ordered);
                        let bit = flip.and_then(|bit| bit.checked_sub(8 * access.unit * index as u64));
                        let bit = bit.filter(|&bit| number == 0 && bit < 8 * access.unit);
                        let value = self.value(around, frame, source, lane) ^ bit.map_or(0, |bit| 1 << bit);
                        let own = accesses.next();
                        if !is_promised && own.is_some_and(|own| self.comes_late(around, segment, &own, value)) {
                            continue;
                        }
                        let at = offset + index as u64 * access.unit;
                        segment.store(at, access.unit, value);
                        self.wrote(around, segment, at, access.unit, own.as_ref(), is_joined);
                    }
                }
            }
            Operation::Atomic { access, to, change, from, second } => {
                return self.atomic(around, group, lanes, access, to, *change, from, *second);
            }
            Operation::MultimemReduce { .. } | Operation::MultimemStore { .. } | Operation::MultimemAdd { .. } => {
                self.groups[group].polls.clear();
                self.multimem(around, group, lanes, operation)?;
            }
            Operation::CopyLater { to, from, bytes, filled } => {
                self.copy_later(around, group, lanes, *to, *from, *bytes, *filled)?;
            }
            Operation::CopyCommit => {
                let copies = self.copies();
                lanes_of(lanes).for_each(|lane| copies[lane].push_back(Vec::new()));
            }
            Operation::CopyWait(left) => self.copy_wait(around, lanes, *left)?,
            Operation::Fence { strength, is_consistent } => {
                core::sync::atomic::fence(Ordering::SeqCst);
                if let (Some(order), Some(past)) = (&mut around.order, &mut self.past) {
                    order.fence(past, lanes, *strength, *is_consistent);
                }
            }
            Operation::FenceAlias => {
                core::sync::atomic::fence(Ordering::SeqCst);
                if let (Some(order), Some(past)) = (&mut around.order, &mut self.past) {
                    order.fence_aliases(past, lanes);
                }
            }
            Operation::Barrier { id, count, is_aligned, result, value } => {
                if *is_aligned && !self.is_whole(group)? {
                    self.groups[group].state = State::Aligned;
                    return Ok(Next::Changed);
                }
                let one = |source: Source| self.values(around, frame, source)[lanes.trailing_zeros() as usize] as u32;
                let (id, count) = (one(*id), count.map(one));
                let value = self.frame(frame).truth(*value) & lanes;
                self.groups[group].state = State::Barrier { id, count, result: *result, value };
                // Those who came before go on to the barrier too.
                for other in self.groups.iter_mut().filter(|other| other.state == State::Aligned) {
                    other.state = State::Ready;
                }
                return Ok(Next::Changed);
            }
            Operation::Arrive { id } => {
                let id = self.values(around, frame, *id)[lanes.trailing_zeros() as usize] as u32;
                around.arrivals.push((id, lanes));
                return Ok(Next::Rest);
            }
            Operation::Together { what, mask, name } => return self.together(around, group, lanes, what, *mask, name),
            Operation::Matrix { what, name } => return self.matrix(around, group, what, name),
            Operation::ActiveLanes { to } => self.frame_mut(frame).write(*to, lanes, &[u64::from(lanes); LANES]),
            Operation::Branch(target) => return Ok(Next::To(*target)),
            Operation::BranchTable { index, targets } => {
                let values = self.values(around, frame, *index);
                let target = |lane: usize| targets.get(values[lane] as usize).copied();
                let first = lanes.trailing_zeros() as usize;
                let Some(to) = target(first) else {
                    return Err(Cause::NoTarget { index: values[first], targets: targets.len() });
                };
                let same =
                    lanes_of(lanes).filter(|&lane| target(lane) == Some(to)).fold(0, |all, lane| all | 1 << lane);
                // The others come to this same instruction by themselves.
                let at = self.groups[group].at;
                self.split(group, same, at);
                self.groups[group].at = to;
                return Ok(Next::Changed);
            }
            Operation::Call { function, arguments, results } => {
                return self.call(around, group, lanes, *function, arguments, results);
            }
            Operation::Return => {
                self.leave(around, group, lanes);
                return Ok(Next::Changed);
            }
            Operation::Exit => {
                self.exit(group, lanes);
                return Ok(Next::Changed);
            }
            Operation::Trap => return Err(Cause::Trap),
            Operation::Rest => return Ok(Next::Rest),
            Operation::Nothing => {}
        }
        Ok(Next::On)
    }
}

/// Whether an instruction can be done for some lanes of a group while the others pass by.
fn is_plain(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::Load { .. }
            | Operation::Atomic { .. }
            | Operation::Barrier { .. }
            | Operation::Together { .. }
            | Operation::Matrix { .. }
            | Operation::Branch(_)
            | Operation::BranchTable { .. }
            | Operation::Call { .. }
            | Operation::Return
            | Operation::Exit
            | Operation::Trap
    ) || matches!(operation, Operation::Load { access, .. } if !access.strength.is_strong())
}

/// One value for each lane of `lanes`.
fn map(lanes: u32, mut value: impl FnMut(usize) -> u64) -> Values {
    if lanes == u32::MAX {
        return core::array::from_fn(value);
    }
    let mut values = [0; LANES];
    lanes_of(lanes).for_each(|lane| values[lane] = value(lane));
    values
}

fn extended(word: u64, bytes: u64, is_signed: bool) -> u64 {
    if !is_signed || bytes == 8 {
        return word;
    }
    let unused = 64 - 8 * bytes as u32;
    ((word << unused) as i64 >> unused) as u64
}
