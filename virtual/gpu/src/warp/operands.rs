//! What instructions read: registers, constants, addresses and special registers.

use super::{LANES, Values, Warp};
use crate::block::Surroundings;
use crate::decode::function_address;
use crate::instruction::{Comparison, Source, Special};

impl Warp {
    pub(super) fn values(&self, around: &Surroundings<'_>, frame: usize, source: Source) -> Values {
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
    pub(super) fn operand<'w>(
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
    pub(super) fn value(&self, around: &Surroundings<'_>, frame: usize, source: Source, lane: usize) -> u64 {
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

    pub(super) fn compared(
        &self,
        around: &Surroundings<'_>,
        frame: usize,
        function: Comparison,
        from: [Source; 2],
    ) -> u32 {
        let (mut one, mut two) = (None, None);
        let a = self.operand(around, frame, from[0], &mut one);
        let b = self.operand(around, frame, from[1], &mut two);
        function.lanes([a, b])
    }
}
