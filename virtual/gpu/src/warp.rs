//! A warp: its lanes, in groups that are at the same place, and what they execute.
//!
//! Every lane has a place of its own, as on GPUs since Volta. Lanes at one place are a group, which executes an instruction for
//! all of them at once; a branch may split it, and groups that come to the same place become one again.

#![allow(clippy::disallowed_types, reason = "counts what is executed")]

mod matrix;

use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::alu::Function;
use crate::block::Surroundings;
use crate::decode::{FUNCTIONS, base_of, function_address, space_of};
use crate::fault::Cause;
use crate::memory::{self, Segment};
use crate::order::{self, Kind, Meeting, Past, Promises};
use crate::polls::Polls;
use crate::program::{
    Access, Address, BarrierResult, Boolean, Change, Code, Combine, Operation, Program, Scope, Shuffle, Slot, Source,
    Special, Strength, Target, Together, Truth, Where,
};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// One value for each lane.
pub(crate) type Values = [u64; LANES];

/// Bytes of local memory that a lane has at most.
const LOCAL: u64 = 256 << 10;

pub(crate) struct Warp {
    /// Which warp of the block it is.
    pub(crate) index: u32,
    /// The lanes that have not exited.
    pub(crate) alive: u32,
    pub(crate) groups: Vec<Group>,
    frames: Vec<Frame>,
    /// Frames that nobody is in.
    free: Vec<usize>,
    /// The condition code of each lane.
    carry: u32,
    local: Option<Local>,
    /// Copies that are asked for and not done yet, in groups that were committed; the last is open.
    copies: Vec<VecDeque<Vec<Copy>>>,
    /// What its lanes know of what happened, where races are looked for.
    pub(crate) past: Option<Past>,
}

/// Memory of the lanes, of each for itself.
struct Local {
    memory: Arc<Segment>,
    /// Which bytes were written, by words of eight.
    written: Vec<u8>,
}

impl Default for Local {
    fn default() -> Self {
        let bytes = LOCAL * LANES as u64;
        Self { memory: Segment::zeroed(bytes), written: vec![0; bytes as usize / 8] }
    }
}

impl Local {
    /// Remembers an access.
    ///
    /// # Errors
    /// If it reads what nobody wrote. Some of its bytes may be so: compilers copy what lies between the fields of a structure
    fn access(&mut self, kind: Kind, offset: u64, bytes: u64) -> Result<(), Cause> {
        let (word, mask) = (offset as usize / 8, (((1_u16 << bytes) - 1) << (offset % 8)) as u8);
        if kind != Kind::Write && self.written[word] & mask == 0 {
            return Err(Cause::Unwritten { at: offset % LOCAL, bytes });
        }
        if kind != Kind::Read {
            self.written[word] |= mask;
        }
        Ok(())
    }

    /// Lanes call a function, whose variables are there.
    fn forget(&mut self, lanes: u32, at: u64, bytes: u64) {
        for lane in lanes_of(lanes) {
            let start = lane as u64 * LOCAL + at;
            self.written[start as usize / 8..(start + bytes).div_ceil(8) as usize].fill(0);
        }
    }
}

/// Lanes at one place.
pub(crate) struct Group {
    pub(crate) lanes: u32,
    pub(crate) frame: usize,
    pub(crate) at: usize,
    pub(crate) state: State,
    polls: Polls,
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

/// Where the lanes of one instruction access memory.
struct Places {
    lanes: u32,
    /// Their addresses.
    at: Values,
    /// The memory; nearly always one.
    segments: Vec<Arc<Segment>>,
    /// Which of the segments each lane accesses, and where in it.
    segment: [u8; LANES],
    offset: Values,
}

/// Where one lane does.
struct Place {
    lane: usize,
    at: u64,
    offset: u64,
}

impl Places {
    /// The number of a segment among those of the instruction, of which there are no more than lanes.
    fn number(&mut self, segment: &Arc<Segment>) -> u8 {
        let number = self.segments.iter().position(|known| Arc::ptr_eq(known, segment)).unwrap_or_else(|| {
            self.segments.push(segment.clone());
            self.segments.len() - 1
        });
        number as u8
    }

    /// The first lane's address.
    fn first(&self) -> u64 {
        self.at[self.lanes.trailing_zeros() as usize % LANES]
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<Segment>, Place)> {
        lanes_of(self.lanes).map(|lane| {
            let place = Place { lane, at: self.at[lane], offset: self.offset[lane] };
            (&self.segments[usize::from(self.segment[lane])], place)
        })
    }
}

/// One call of a function.
struct Frame {
    code: usize,
    registers: Vec<Values>,
    predicates: Vec<u32>,
    /// Parameter space: for each word of 8 bytes, that of each lane.
    params: Vec<Values>,
    /// Where its local variables begin.
    local: u64,
    /// The frame of the caller, and where it goes on.
    back: Option<(usize, usize)>,
    depth: u32,
}

/// A copy of one lane that is not done yet.
struct Copy {
    lane: usize,
    /// The instruction's number in its program.
    instruction: u32,
    to: (Arc<Segment>, u64),
    from: (Arc<Segment>, u64),
    /// What stands for the source's address.
    alias: u32,
    bytes: u64,
    /// How many of them come from the source; the others are zero.
    filled: u64,
}

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

impl Frame {
    fn new(index: usize, code: &Code, local: u64, back: Option<(usize, usize)>, depth: u32) -> Self {
        Self {
            code: index,
            registers: vec![[0; LANES]; code.registers],
            predicates: vec![0; code.predicates],
            params: vec![[0; LANES]; code.param_bytes as usize / 8],
            local,
            back,
            depth,
        }
    }

    fn write(&mut self, to: Target, lanes: u32, values: &Values) {
        let register = &mut self.registers[to.register];
        if lanes == u32::MAX {
            for (word, value) in register.iter_mut().zip(values) {
                *word = value & to.mask;
            }
        } else {
            lanes_of(lanes).for_each(|lane| register[lane] = values[lane] & to.mask);
        }
    }

    fn set(&mut self, predicate: usize, lanes: u32, truth: u32) {
        let word = &mut self.predicates[predicate];
        *word = *word & !lanes | truth & lanes;
    }

    fn truth(&self, truth: Truth) -> u32 {
        match truth {
            Truth::Constant(true) => u32::MAX,
            Truth::Constant(false) => 0,
            Truth::Predicate(predicate) => {
                let word = self.predicates[predicate.register];
                if predicate.negated { !word } else { word }
            }
        }
    }

    fn combined(&self, first: u32, second: Option<(Boolean, Truth)>) -> u32 {
        match second {
            None => first,
            Some((Boolean::And, truth)) => first & self.truth(truth),
            Some((Boolean::Or, truth)) => first | self.truth(truth),
            Some((Boolean::Xor, truth)) => first ^ self.truth(truth),
        }
    }

    /// Reads up to 8 bytes of parameter space.
    fn param(&self, offset: u64, bytes: u64, lane: usize) -> u64 {
        let word = self.params[offset as usize / 8][lane] >> (offset % 8 * 8);
        if bytes == 8 { word } else { word & ((1 << (8 * bytes)) - 1) }
    }

    fn set_param(&mut self, offset: u64, bytes: u64, lane: usize, value: u64) {
        let mask = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 } << (offset % 8 * 8);
        let word = &mut self.params[offset as usize / 8][lane];
        *word = *word & !mask | value << (offset % 8 * 8) & mask;
    }
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

    fn frame(&self, frame: usize) -> &Frame {
        &self.frames[frame]
    }

    fn frame_mut(&mut self, frame: usize) -> &mut Frame {
        &mut self.frames[frame]
    }

    /// The groups that can go on.
    fn ready(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(|&group| matches!(self.groups[group].state, State::Ready))
    }

    /// The group to go on with: deepest in calls, then first in the text, so that lanes come together again. An adversary
    /// takes any.
    fn choose(&self, around: &mut Surroundings<'_>) -> Option<usize> {
        match self.ready().count() {
            0 | 1 => self.ready().next(),
            count if around.chance.is_adverse() => self.ready().nth(around.chance.below(count)),
            _ => self.ready().min_by_key(|&group| {
                let Group { frame, at, .. } = &self.groups[group];
                (u32::MAX - self.frame(*frame).depth, *at)
            }),
        }
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

    /// Whether another ready group of the same frame is here, or further back.
    fn must_choose_again(&self, group: usize) -> bool {
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
    fn split(&mut self, group: usize, lanes: u32, at: usize) -> usize {
        let own = &mut self.groups[group];
        let others = own.lanes & !lanes;
        own.lanes = lanes;
        let (frame, polls) = (own.frame, own.polls.clone());
        if others != 0 {
            self.groups.push(Group { lanes: others, frame, at, state: State::Ready, polls });
        }
        group
    }

    /// Lanes leave their frame; it is free when nobody is in it or comes back to it.
    fn free_if_unused(&mut self, frame: usize) {
        let is_used = self.groups.iter().any(|group| group.frame == frame)
            || self.frames.iter().any(|other| other.back.is_some_and(|(caller, _)| caller == frame));
        if is_used || self.free.contains(&frame) {
            return;
        }
        let caller = self.frames[frame].back.take();
        self.frames[frame].registers = Vec::new();
        self.free.push(frame);
        if let Some((caller, _)) = caller {
            self.free_if_unused(caller);
        }
    }

    fn add_frame(&mut self, frame: Frame) -> usize {
        match self.free.pop() {
            Some(free) => {
                self.frames[free] = frame;
                free
            }
            None => {
                self.frames.push(frame);
                self.frames.len() - 1
            }
        }
    }

    fn values(&self, around: &Surroundings<'_>, frame: usize, source: Source) -> Values {
        let frame = self.frame(frame);
        match source {
            Source::Register(register) => frame.registers[register],
            Source::Immediate(value) => [value; LANES],
            Source::Special(special) => self.special(around, special),
            Source::Global(global, offset) => [around.globals[global].wrapping_add_signed(offset); LANES],
            Source::Shared(variable, offset) => [around.shared_places[variable].wrapping_add_signed(offset); LANES],
            Source::Local(offset) => [frame.local + offset; LANES],
            Source::Param(offset) => [offset; LANES],
            Source::Function(function) => [function_address(function); LANES],
        }
    }

    /// As `values`, without a copy of those that a register has; others are put into `room`.
    fn operand<'w>(
        &'w self,
        around: &Surroundings<'_>,
        frame: usize,
        source: Source,
        room: &'w mut Option<Values>,
    ) -> &'w Values {
        match source {
            Source::Register(register) => &self.frame(frame).registers[register],
            other => room.insert(self.values(around, frame, other)),
        }
    }

    /// The value of one lane.
    fn value(&self, around: &Surroundings<'_>, frame: usize, source: Source, lane: usize) -> u64 {
        match source {
            Source::Register(register) => self.frame(frame).registers[register][lane],
            Source::Immediate(value) => value,
            other => self.values(around, frame, other)[lane],
        }
    }

    fn special(&self, around: &Surroundings<'_>, special: Special) -> Values {
        let every = |value: u32| [u64::from(value); LANES];
        let each = |value: &dyn Fn(u32) -> u32| core::array::from_fn(|lane| u64::from(value(lane as u32)));
        let [width, height, _] = around.threads;
        match special {
            Special::Thread(part) => each(&|lane| {
                let thread = self.index * LANES as u32 + lane;
                [thread % width, thread / width % height, thread / (width * height)][part]
            }),
            Special::Threads(part) => every(around.threads[part]),
            Special::Block(part) => every(around.block[part]),
            Special::Blocks(part) => every(around.blocks[part]),
            Special::Lane => each(&|lane| lane),
            Special::Warp => every(self.index),
            Special::Warps => every(around.threads.iter().product::<u32>().div_ceil(LANES as u32)),
            Special::Sm => every(around.sm),
            Special::Sms => every(around.sms),
            Special::Grid => [around.grid; LANES],
            Special::Clock | Special::Time => [around.time; LANES],
            Special::ClockHigh | Special::TimeHigh => [around.time >> 32; LANES],
            Special::LanesEqual => each(&|lane| 1 << lane),
            Special::LanesBelow => each(&|lane| (1 << lane) - 1),
            Special::LanesUpTo => each(&|lane| u32::MAX >> (31 - lane)),
            Special::LanesFrom => each(&|lane| u32::MAX << lane),
            Special::LanesAbove => each(&|lane| !(u32::MAX >> (31 - lane))),
            Special::DynamicShared => every(around.dynamic_shared),
            Special::TotalShared => every(around.shared.bytes() as u32),
            Special::Constant(value) => every(value),
        }
    }

    /// The memory that a lane accesses.
    fn reach<'w>(
        &'w self,
        around: &'w Surroundings<'_>,
        space: Where,
        lane: usize,
        at: u64,
        bytes: u64,
        need: memory::Access,
    ) -> Result<(&'w Arc<Segment>, u64), Cause> {
        if !at.is_multiple_of(bytes) {
            return Err(Cause::Misaligned { at, bytes });
        }
        let (space, at) = match space {
            Where::Generic => (space_of(at), at - base_of(space_of(at))),
            Where::Shared => (space, at & u64::from(u32::MAX)),
            other => (other, at),
        };
        let inside = |have: u64| at.checked_add(bytes).is_some_and(|end| end <= have);
        match space {
            Where::Generic | Where::Global => around.map.memory(at, bytes, need),
            Where::Shared => {
                let have = around.shared.bytes();
                if inside(have) { Ok((around.shared, at)) } else { Err(Cause::Shared { at, bytes, have }) }
            }
            Where::Local => match &self.local {
                Some(local) if inside(LOCAL) => Ok((&local.memory, lane as u64 * LOCAL + at)),
                local => {
                    let have = if local.is_some() { LOCAL } else { 0 };
                    Err(Cause::Local { at, bytes, have })
                }
            },
            Where::Param => {
                let have = around.params.bytes();
                let readable = need == memory::Access::Read;
                if inside(have) && readable { Ok((around.params, at)) } else { Err(Cause::Param { at, bytes, have }) }
            }
        }
    }

    fn addresses(&self, around: &Surroundings<'_>, frame: usize, address: Address) -> Values {
        self.values(around, frame, address.base).map(|base| base.wrapping_add_signed(address.offset))
    }

    /// Where the lanes access memory.
    fn places(
        &self,
        around: &Surroundings<'_>,
        frame: usize,
        lanes: u32,
        access: &Access,
        need: memory::Access,
    ) -> Result<Places, Cause> {
        let at = self.addresses(around, frame, access.address);
        let bytes = access.unit * access.count;
        let mut places = Places { lanes, at, segments: Vec::with_capacity(1), segment: [0; LANES], offset: [0; LANES] };
        // The addresses of the window that was last found, and what leads from them to its memory.
        let (mut window, mut number, mut distance) = (0..0, 0, 0);
        for lane in lanes_of(lanes) {
            let at = at[lane];
            let is_known = window.contains(&at) && bytes <= window.end - at && at & (bytes - 1) == 0;
            if !is_known {
                let (segment, offset) = self.reach(around, access.address.space, lane, at, bytes, need)?;
                (number, distance) = (places.number(segment), offset.wrapping_sub(at));
                window = match access.address.space {
                    Where::Global | Where::Generic => around.map.addresses(at),
                    _ => 0..0,
                };
            }
            (places.segment[lane], places.offset[lane]) = (number, at.wrapping_add(distance));
        }
        Ok(places)
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
                let mut rooms = [const { None }; 4];
                let [one, two, three, four] = &mut rooms;
                let result = match *function {
                    Function::One(function) => {
                        let a = self.operand(around, frame, from[0], one);
                        map(lanes, |lane| function(a[lane]))
                    }
                    Function::Two(function) => {
                        let a = self.operand(around, frame, from[0], one);
                        let b = self.operand(around, frame, from[1], two);
                        map(lanes, |lane| function(a[lane], b[lane]))
                    }
                    Function::Three(function) => {
                        let a = self.operand(around, frame, from[0], one);
                        let b = self.operand(around, frame, from[1], two);
                        let c = self.operand(around, frame, from[2], three);
                        map(lanes, |lane| function(a[lane], b[lane], c[lane]))
                    }
                    Function::Four(function) => {
                        let a = self.operand(around, frame, from[0], one);
                        let b = self.operand(around, frame, from[1], two);
                        let c = self.operand(around, frame, from[2], three);
                        let d = self.operand(around, frame, from[3], four);
                        map(lanes, |lane| function(a[lane], b[lane], c[lane], d[lane]))
                    }
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
                let truth = self.compared(around, frame, lanes, *function, *from);
                let frame = self.frame_mut(frame);
                let (own, other) = (frame.combined(truth, *with), frame.combined(!truth, *with));
                to.iter().for_each(|&to| frame.set(to, lanes, own));
                opposite.iter().for_each(|&to| frame.set(to, lanes, other));
            }
            Operation::Set { function, to, from, with, truth } => {
                let holds = self.compared(around, frame, lanes, *function, *from);
                let frame = self.frame_mut(frame);
                let holds = frame.combined(holds, *with);
                frame.write(*to, lanes, &core::array::from_fn(|lane| if holds >> lane & 1 != 0 { *truth } else { 0 }));
            }
            Operation::Test { function, to, from } => {
                let values = self.values(around, frame, *from);
                let truth = lanes_of(lanes).fold(0, |truth, lane| truth | u32::from(function(values[lane])) << lane);
                self.frame_mut(frame).set(*to, lanes, truth);
            }
            Operation::Predicate { to, first, second } => {
                let frame = self.frame_mut(frame);
                let truth = frame.combined(frame.truth(*first), *second);
                frame.set(*to, lanes, truth);
            }
            Operation::Select { to, from, by } => {
                let [yes, no] = from.map(|source| self.values(around, frame, source));
                let frame = self.frame_mut(frame);
                let truth = frame.truth(*by);
                frame.write(
                    *to,
                    lanes,
                    &core::array::from_fn(|lane| if truth >> lane & 1 != 0 { yes[lane] } else { no[lane] }),
                );
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

    /// Tells of an access those who keep the order, if anybody does; gives the accesses of each lane, unit by unit. Memory of a
    /// lane is nobody else's: where some lanes access their own, it gives none.
    fn remember(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        access: &Access,
        kind: Kind,
        places: &Places,
    ) -> Result<Vec<order::Access>, Cause> {
        let instruction = self.number(around.program, group);
        let (Some(order), Some(past)) = (&mut around.order, &mut self.past) else { return Ok(Vec::new()) };
        let mut accesses = Vec::new();
        let mut is_own = false;
        for (segment, Place { lane, offset, at, .. }) in places.iter() {
            if let Some(local) = self.local.as_mut().filter(|local| Arc::ptr_eq(&local.memory, segment)) {
                is_own = true;
                if order.reports {
                    let units = (0..access.count).map(|index| offset + index * access.unit);
                    units.into_iter().try_for_each(|at| local.access(kind, at, access.unit))?;
                }
                continue;
            }
            if Arc::ptr_eq(around.params, segment) {
                is_own = true;
                continue;
            }
            // Addresses of shared memory have 32 bits, and what is computed of them may have wrapped around.
            let is_shared = Arc::ptr_eq(around.shared, segment);
            for index in 0..access.count {
                let access = order::Access {
                    kind,
                    strength: access.strength,
                    lane,
                    offset: offset + index * access.unit,
                    bytes: access.unit,
                    instruction,
                    alias: match access.is_noncoherent {
                        true => order::NONCOHERENT,
                        false if is_shared => 0,
                        false => alias_of(space_of(at), at - base_of(space_of(at)), offset),
                    },
                    clock: past.clock(),
                };
                order.access(past, segment, access)?;
                accesses.push(access);
            }
        }
        Ok(if is_own { Vec::new() } else { accesses })
    }

    /// Whether a store comes before what is there, where memory is weak.
    fn comes_late(&self, around: &mut Surroundings<'_>, segment: &Segment, access: &order::Access, value: u64) -> bool {
        let (Some(order), Some(past)) = (&mut around.order, &self.past) else { return false };
        order.comes_late(past, segment, access, value, around.chance)
    }

    /// A scalar was written, together with the one before or not: tells those who watch it, and those who keep the order.
    fn wrote(
        &self,
        around: &mut Surroundings<'_>,
        segment: &Arc<Segment>,
        offset: u64,
        bytes: u64,
        access: Option<&order::Access>,
        joined: bool,
    ) {
        around.watches.written(segment, offset, bytes);
        if let (Some(order), Some(past), Some(access)) = (&mut around.order, &self.past, access) {
            order.made(past, segment, access, joined);
        }
    }

    fn compared(
        &self,
        around: &Surroundings<'_>,
        frame: usize,
        lanes: u32,
        function: fn(u64, u64) -> bool,
        from: [Source; 2],
    ) -> u32 {
        let (mut one, mut two) = (None, None);
        let a = self.operand(around, frame, from[0], &mut one);
        let b = self.operand(around, frame, from[1], &mut two);
        lanes_of(lanes).fold(0, |truth, lane| truth | u32::from(function(a[lane], b[lane])) << lane)
    }

    fn load(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        lanes: u32,
        access: &Access,
        to: &[Option<Target>],
        is_signed: bool,
    ) -> Result<Next, Cause> {
        let Group { frame, at, .. } = self.groups[group];
        let places = self.places(around, frame, lanes, access, memory::Access::Read)?;
        let accesses = self.remember(around, group, access, Kind::Read, &places)?;
        let to_count = to.len();
        let stale = self.stale(around, access, &places, &accesses);
        let is_private = matches!(access.address.space, Where::Local | Where::Param);
        let may_poll = access.strength.is_strong() || !is_private && self.groups[group].polls.any();
        let mut seen = 0_u64;
        for (index, to) in to.iter().enumerate() {
            let mut values = [0; LANES];
            for (number, (segment, Place { lane, offset, .. })) in places.iter().enumerate() {
                let word = match stale.get(number * to_count + index) {
                    Some(&word) => word,
                    None => segment.load(offset + index as u64 * access.unit, access.unit),
                };
                values[lane] = extended(word, access.unit, is_signed);
                if may_poll {
                    seen = mixed(mixed(seen, offset), word);
                }
            }
            to.iter().for_each(|&to| self.frame_mut(frame).write(to, lanes, &values));
        }
        if !access.strength.is_strong() {
            if may_poll {
                self.groups[group].polls.plain(at, places.first(), seen);
            }
            return Ok(Next::On);
        }
        Ok(self.polled(around, group, at, seen, &places))
    }

    /// What lanes load where loads may be stale, lane by lane and unit by unit; else nothing. Hardware may promise that some
    /// of them are done as one.
    fn stale(
        &mut self,
        around: &mut Surroundings<'_>,
        access: &Access,
        places: &Places,
        accesses: &[order::Access],
    ) -> Vec<u64> {
        let (Some(order), Some(past)) = (&mut around.order, &mut self.past) else { return Vec::new() };
        let Some(promises) = order.weak else { return Vec::new() };
        let bytes = access.unit * access.count;
        let line = |at: &order::Access| at.offset / 128;
        let is_one = |one: &order::Access, other: &order::Access| {
            promises.v4_16b_atomic && bytes == 16 && one.lane == other.lane
                || promises.ll128_128b_ordered && bytes == 16 && line(one) == line(other)
        };
        let mut words = Vec::new();
        for accesses in accesses.chunk_by(is_one) {
            let own = places.iter().find(|(_, place)| place.lane == accesses[0].lane);
            let Some((segment, _)) = own else { continue };
            words.extend(order.seen(past, segment, accesses, around.chance));
        }
        words
    }

    /// A strong load, or an atomic that changed nothing. Lanes that poll wait until something is written there.
    fn polled(&mut self, around: &mut Surroundings<'_>, group: usize, at: usize, seen: u64, places: &Places) -> Next {
        let own = &mut self.groups[group];
        let address = places.first();
        if !own.polls.strong(at, address, seen) {
            return Next::On;
        }
        own.at += 1;
        own.state = State::Parked { at: address };
        for (segment, Place { offset, .. }) in places.iter() {
            around.watches.watch(segment, offset, around.who(self.index));
        }
        Next::Changed
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    fn atomic(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        lanes: u32,
        access: &Access,
        to: &[Option<Target>],
        change: Change,
        from: &[Source],
        second: Option<Source>,
    ) -> Result<Next, Cause> {
        let Group { frame, at, .. } = self.groups[group];
        let places = self.places(around, frame, lanes, access, memory::Access::ReadWrite)?;
        let kind = if to.is_empty() { Kind::Reduce } else { Kind::Change };
        let mut accesses = self.remember(around, group, access, kind, &places)?.into_iter();
        let operands: Vec<Values> = from.iter().map(|&source| self.values(around, frame, source)).collect();
        let new = second.map(|source| self.values(around, frame, source));
        let mut old = vec![[0; LANES]; from.len()];
        let (mut changed, mut seen) = (false, 0);
        for (segment, Place { lane, offset, .. }) in places.iter() {
            for (index, operand) in operands.iter().enumerate() {
                let operand = operand[lane];
                let place = offset + index as u64 * access.unit;
                let own = accesses.next();
                let missed = self.missed(around, segment, own.as_ref());
                let after = |word: u64| match (change, &new) {
                    (Change::Combine(combine), _) => combine(word, operand),
                    (Change::CompareAndSwap, Some(new)) if word == operand => new[lane],
                    (Change::CompareAndSwap, _) => word,
                };
                let there = segment.update(place, access.unit, |word| match missed {
                    Some(missed) => after(missed),
                    None => after(word),
                });
                let before = missed.unwrap_or(there);
                old[index][lane] = before;
                changed |= after(before) != there;
                seen = mixed(mixed(seen, place), before);
                let is_write = matches!(change, Change::Combine(_)) || before == operand;
                if is_write {
                    self.wrote(around, segment, place, access.unit, own.as_ref(), false);
                } else if let (Some(order), Some(past), Some(own)) = (&mut around.order, &self.past, &own) {
                    order.compared(past, segment, own);
                }
            }
        }
        for (to, old) in to.iter().zip(&old) {
            to.iter().for_each(|&to| self.frame_mut(frame).write(to, lanes, old));
        }
        if changed || to.is_empty() {
            self.groups[group].polls.clear();
            return Ok(Next::On);
        }
        Ok(self.polled(around, group, at, seen, &places))
    }

    /// What an atomic sees that misses the last writes, if it does.
    fn missed(&self, around: &mut Surroundings<'_>, segment: &Segment, access: Option<&order::Access>) -> Option<u64> {
        let (Some(order), Some(past)) = (&mut around.order, &self.past) else { return None };
        order.missed(past, segment, access?, around.chance)
    }

    fn multimem(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        lanes: u32,
        operation: &Operation,
    ) -> Result<(), Cause> {
        let (Operation::MultimemReduce { access, .. }
        | Operation::MultimemStore { access, .. }
        | Operation::MultimemAdd { access, .. }) = operation
        else {
            return Ok(());
        };
        let frame = self.groups[group].frame;
        let addresses = self.addresses(around, frame, access.address);
        let bytes = access.unit * access.count;
        let (kind, need) = match operation {
            Operation::MultimemReduce { .. } => (Kind::Read, memory::Access::Read),
            Operation::MultimemStore { .. } => (Kind::Write, memory::Access::ReadWrite),
            _ => (Kind::Reduce, memory::Access::ReadWrite),
        };
        let map = around.map.clone();
        let mut results = vec![[0; LANES]; access.count as usize];
        for lane in lanes_of(lanes) {
            let at = addresses[lane];
            if !at.is_multiple_of(bytes) {
                return Err(Cause::Misaligned { at, bytes });
            }
            let members = map.multicast(at, bytes, need)?;
            let instruction = self.number(around.program, group);
            let (mut accesses, mut stale) = (Vec::new(), Vec::new());
            if let (Some(order), Some(past)) = (&mut around.order, &mut self.past) {
                for (segment, offset) in &members {
                    for index in 0..access.count {
                        let access = order::Access {
                            kind,
                            strength: access.strength,
                            lane,
                            offset: offset + index * access.unit,
                            bytes: access.unit,
                            instruction,
                            alias: order::MULTICAST,
                            clock: past.clock(),
                        };
                        order.access(past, segment, access)?;
                        if kind == Kind::Read && order.weak.is_some() {
                            stale.extend(order.seen(past, segment, &[access], around.chance));
                        }
                        accesses.push(access);
                    }
                }
            }
            for index in 0..access.count {
                let place = |offset: u64| offset + index * access.unit;
                let number = |member: usize| member * access.count as usize + index as usize;
                match operation {
                    Operation::MultimemReduce { combine, .. } => {
                        let word = |(member, (segment, offset)): (usize, &(Arc<Segment>, u64))| {
                            let stale = stale.get(number(member)).copied();
                            stale.unwrap_or_else(|| segment.load(place(*offset), access.unit))
                        };
                        let words = members.iter().enumerate().map(word);
                        results[index as usize][lane] = match combine {
                            Combine::Two(two) => words.reduce(two).unwrap_or(0),
                            Combine::All(all) => all(&words.collect::<Vec<_>>()),
                        };
                    }
                    Operation::MultimemStore { from, .. } => {
                        let value = self.values(around, frame, from[index as usize])[lane];
                        for (member, (segment, offset)) in members.iter().enumerate() {
                            segment.store(place(*offset), access.unit, value);
                            let own = accesses.get(number(member));
                            self.wrote(around, segment, place(*offset), access.unit, own, false);
                        }
                    }
                    Operation::MultimemAdd { combine, from, .. } => {
                        let value = self.values(around, frame, from[index as usize])[lane];
                        for (member, (segment, offset)) in members.iter().enumerate() {
                            segment.update(place(*offset), access.unit, |word| combine(word, value));
                            let own = accesses.get(number(member));
                            self.wrote(around, segment, place(*offset), access.unit, own, false);
                        }
                    }
                    _ => {}
                }
            }
        }
        if let Operation::MultimemReduce { to, .. } = operation {
            for (to, values) in to.iter().zip(&results) {
                self.frame_mut(frame).write(*to, lanes, values);
            }
        }
        Ok(())
    }

    /// The copies of each lane.
    fn copies(&mut self) -> &mut Vec<VecDeque<Vec<Copy>>> {
        if self.copies.is_empty() {
            self.copies.resize_with(LANES, || VecDeque::from([Vec::new()]));
        }
        &mut self.copies
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    fn copy_later(
        &mut self,
        around: &Surroundings<'_>,
        group: usize,
        lanes: u32,
        to: Address,
        from: Address,
        bytes: u64,
        filled: Option<Source>,
    ) -> Result<(), Cause> {
        let Group { frame, .. } = self.groups[group];
        let instruction = self.number(around.program, group);
        let (to_at, from_at) = (self.addresses(around, frame, to), self.addresses(around, frame, from));
        let filled = filled.map_or([bytes; LANES], |filled| self.values(around, frame, filled));
        for lane in lanes_of(lanes) {
            let owned = |(segment, offset): (&Arc<Segment>, u64)| (segment.clone(), offset);
            let to = owned(self.reach(around, to.space, lane, to_at[lane], bytes, memory::Access::ReadWrite)?);
            let filled = filled[lane].min(bytes);
            // Of no bytes there need not be any memory.
            let source = match filled {
                0 => to.clone(),
                _ => owned(self.reach(around, from.space, lane, from_at[lane], bytes, memory::Access::Read)?),
            };
            let alias = alias_of(Where::Global, from_at[lane], source.1);
            if let Some(open) = self.copies()[lane].back_mut() {
                open.push(Copy { lane, instruction, to, from: source, alias, bytes, filled });
            }
        }
        Ok(())
    }

    /// Does the copies of all committed groups but the last `left`, or all that there are.
    fn copy_wait(&mut self, around: &mut Surroundings<'_>, lanes: u32, left: Option<u64>) -> Result<(), Cause> {
        let copies = self.copies();
        let mut due = Vec::new();
        for lane in lanes_of(lanes) {
            let keep = left.map_or(0, |left| left as usize + 1);
            while copies[lane].len() > keep {
                due.extend(copies[lane].pop_front());
            }
            if copies[lane].is_empty() {
                copies[lane].push_back(Vec::new());
            }
        }
        for copy in due.into_iter().flatten() {
            let (from, from_at) = &copy.from;
            let (to, to_at) = &copy.to;
            for start in (0..copy.bytes).step_by(4) {
                let filled = copy.filled.saturating_sub(start).min(4);
                let mut made = None;
                if let (Some(order), Some(past)) = (&mut around.order, &mut self.past) {
                    let clock = past.clock();
                    let access = |kind, offset, bytes, alias| order::Access {
                        kind,
                        clock,
                        strength: Strength::Weak,
                        lane: copy.lane,
                        offset,
                        bytes,
                        instruction: copy.instruction,
                        alias,
                    };
                    if filled > 0 {
                        order.access(past, from, access(Kind::Read, from_at + start, filled, copy.alias))?;
                    }
                    let write = access(Kind::Write, to_at + start, 4, 0);
                    order.access(past, to, write)?;
                    made = Some(write);
                }
                for byte in start..start + 4 {
                    let value = if byte < start + filled { from.load(from_at + byte, 1) } else { 0 };
                    to.store(to_at + byte, 1, value);
                }
                self.wrote(around, to, to_at + start, 4, made.as_ref(), false);
            }
        }
        Ok(())
    }

    /// Whether all lanes of the warp are at the aligned instruction that a group has come to, waiting or past the wait. There
    /// is no other that some of them may be at.
    fn is_whole(&self, group: usize) -> Result<bool, Cause> {
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
    fn together(
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
                    let result = lanes_of(here).map(|lane| values[lane]).reduce(combine).unwrap_or(0);
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

    fn call(
        &mut self,
        around: &Surroundings<'_>,
        group: usize,
        lanes: u32,
        function: Source,
        arguments: &[Slot],
        results: &[Slot],
    ) -> Result<Next, Cause> {
        let Group { frame: caller, at, .. } = self.groups[group];
        let index = match function {
            Source::Function(index) => index,
            _ => {
                let values = self.values(around, caller, function);
                let first = values[lanes.trailing_zeros() as usize];
                let same = lanes_of(lanes).filter(|&lane| values[lane] == first).fold(0, |all, lane| all | 1 << lane);
                // Lanes that call another function come to this same instruction by themselves.
                self.split(group, same, at);
                let index = (first ^ FUNCTIONS) >> 4;
                let known = first.is_multiple_of(16) && index > 0 && index <= around.program.codes.len() as u64;
                if !known {
                    return Err(Cause::NoFunction { at: first });
                }
                index as usize - 1
            }
        };
        let lanes = self.groups[group].lanes;
        let code = &around.program.codes[index];
        let fit =
            |here: &[Slot], there: &[Slot]| here.iter().map(|slot| slot.bytes).eq(there.iter().map(|slot| slot.bytes));
        if !fit(arguments, &code.parameters) || !results.is_empty() && !fit(results, &code.returns) {
            return Err(Cause::NoFunction { at: function_address(index) });
        }
        let own = self.frame(caller);
        let local = own.local + around.program.codes[own.code].local_bytes;
        if local + code.local_bytes > LOCAL || own.depth >= 1 << 14 {
            return Err(Cause::StackOverflow { have: LOCAL });
        }
        // Lanes that call it from here one after the other have one frame, so that they can come together in it.
        let (depth, back) = (own.depth + 1, Some((caller, at + 1)));
        let known = self.frames.iter().position(|frame| frame.code == index && frame.back == back);
        let frame = known.unwrap_or_else(|| self.add_frame(Frame::new(index, code, local, back, depth)));
        if let Ok([own, callee]) = self.frames.get_disjoint_mut([caller, frame]) {
            for (from, slot) in arguments.iter().zip(&code.parameters) {
                copy_params(own, from.offset, callee, slot.offset, slot.bytes, lanes);
            }
        }
        if code.local_bytes > 0 {
            self.need_local();
            self.local.iter_mut().for_each(|own| own.forget(lanes, local, code.local_bytes));
        }
        let own = &mut self.groups[group];
        (own.frame, own.at) = (frame, 0);
        Ok(Next::Changed)
    }

    /// Local memory is made when it is first used.
    pub(crate) fn need_local(&mut self) {
        self.local.get_or_insert_with(Local::default);
    }

    /// Lanes return from a function, or end.
    fn leave(&mut self, around: &Surroundings<'_>, group: usize, lanes: u32) {
        let index = self.groups[group].frame;
        let Some((caller, back)) = self.frame(index).back else { return self.exit(group, lanes) };
        let own = self.frame(caller);
        let (code, callee) = (&around.program.codes[own.code], &around.program.codes[self.frame(index).code]);
        if let Operation::Call { results, .. } = &code.instructions[back - 1].operation
            && let Ok([gone, own]) = self.frames.get_disjoint_mut([index, caller])
        {
            for (to, slot) in results.iter().zip(&callee.returns) {
                copy_params(gone, slot.offset, own, to.offset, slot.bytes, lanes);
            }
        }
        let own = &mut self.groups[group];
        (own.frame, own.at) = (caller, back);
        self.free_if_unused(index);
        self.join();
    }

    fn exit(&mut self, group: usize, lanes: u32) {
        self.alive &= !lanes;
        let gone = self.groups.swap_remove(group);
        self.free_if_unused(gone.frame);
        // Lanes that wait for the warp's others do not wait for those that are gone.
        for group in &mut self.groups {
            if matches!(group.state, State::Sync { .. } | State::Aligned) {
                group.state = State::Ready;
            }
        }
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

/// Stands for the address of a place's memory; shared memory has one, whether it is reached by generic addresses or its own.
fn alias_of(space: Where, at: u64, offset: u64) -> u32 {
    match space {
        Where::Global => (at.wrapping_sub(offset) >> 12) as u32,
        _ => 0,
    }
}

/// A hash that depends on the order.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Copies bytes between the parameter spaces of two frames.
fn copy_params(from: &Frame, from_at: u64, to: &mut Frame, to_at: u64, bytes: u64, lanes: u32) {
    let mut done = 0;
    while done < bytes {
        // The largest part that stays inside a word on both sides.
        let part = [8, 4, 2, 1].into_iter().find(|part| {
            done + part <= bytes && (from_at + done).is_multiple_of(*part) && (to_at + done).is_multiple_of(*part)
        });
        let part = part.unwrap_or(1);
        for lane in lanes_of(lanes) {
            let value = from.param(from_at + done, part, lane);
            to.set_param(to_at + done, part, lane, value);
        }
        done += part;
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
