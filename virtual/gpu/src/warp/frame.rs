//! Calls of functions: registers and parameters of each, and how lanes come to one and leave it.

use super::local::{LOCAL, Local};
use super::{Group, LANES, Next, State, Values, Warp, lanes_of};
use crate::block::Surroundings;
use crate::decode::{FUNCTIONS, function_address};
use crate::fault::Cause;
use crate::instruction::{Boolean, Operation, Slot, Source, Target, Truth};
use crate::program::Code;

/// One call of a function.
pub(super) struct Frame {
    pub(super) code: usize,
    pub(super) registers: Vec<Values>,
    pub(super) predicates: Vec<u32>,
    /// Parameter space: for each word of 8 bytes, that of each lane.
    pub(super) params: Vec<Values>,
    /// Where its local variables begin.
    pub(super) local: u64,
    /// The frame of the caller, and where it goes on.
    back: Option<(usize, usize)>,
    pub(super) depth: u32,
}

impl Frame {
    pub(super) fn new(index: usize, code: &Code, local: u64, back: Option<(usize, usize)>, depth: u32) -> Self {
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

    pub(super) fn write(&mut self, to: Target, lanes: u32, values: &Values) {
        let register = &mut self.registers[to.register];
        if lanes == u32::MAX {
            for (word, value) in register.iter_mut().zip(values) {
                *word = value & to.mask;
            }
        } else {
            lanes_of(lanes).for_each(|lane| register[lane] = values[lane] & to.mask);
        }
    }

    pub(super) fn set(&mut self, predicate: usize, lanes: u32, truth: u32) {
        let word = &mut self.predicates[predicate];
        *word = *word & !lanes | truth & lanes;
    }

    pub(super) fn truth(&self, truth: Truth) -> u32 {
        match truth {
            Truth::Constant(true) => u32::MAX,
            Truth::Constant(false) => 0,
            Truth::Predicate(predicate) => {
                let word = self.predicates[predicate.register];
                if predicate.negated { !word } else { word }
            }
        }
    }

    pub(super) fn combined(&self, first: u32, second: Option<(Boolean, Truth)>) -> u32 {
        match second {
            None => first,
            Some((Boolean::And, truth)) => first & self.truth(truth),
            Some((Boolean::Or, truth)) => first | self.truth(truth),
            Some((Boolean::Xor, truth)) => first ^ self.truth(truth),
        }
    }

    /// Reads up to 8 bytes of parameter space.
    pub(super) fn param(&self, offset: u64, bytes: u64, lane: usize) -> u64 {
        let word = self.params[offset as usize / 8][lane] >> (offset % 8 * 8);
        if bytes == 8 { word } else { word & ((1 << (8 * bytes)) - 1) }
    }

    pub(super) fn set_param(&mut self, offset: u64, bytes: u64, lane: usize, value: u64) {
        let mask = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 } << (offset % 8 * 8);
        let word = &mut self.params[offset as usize / 8][lane];
        *word = *word & !mask | value << (offset % 8 * 8) & mask;
    }
}

impl Warp {
    /// Lanes leave their frame; it is free when nobody is in it or comes back to it.
    fn free_if_unused(&mut self, frame: usize) {
        let is_used = self.groups.iter().any(|group| group.frame == frame)
            || self.frames.iter().any(|other| other.back.is_some_and(|(caller, _)| caller == frame));
        if is_used || self.free.contains(&frame) {
            return;
        }
        let caller = self.frames[frame].back.take();
        self.free.push(frame);
        if let Some((caller, _)) = caller {
            self.free_if_unused(caller);
        }
    }

    /// A frame for a call. What its registers hold nobody knows, as of a call on a GPU.
    fn add_frame(&mut self, index: usize, code: &Code, local: u64, back: Option<(usize, usize)>, depth: u32) -> usize {
        // One of the same function needs nothing but its place.
        if let Some(free) = self.free.iter().position(|&free| self.frames[free].code == index) {
            let free = self.free.swap_remove(free);
            let frame = &mut self.frames[free];
            (frame.local, frame.back, frame.depth) = (local, back, depth);
            return free;
        }
        self.frames.push(Frame::new(index, code, local, back, depth));
        self.frames.len() - 1
    }

    pub(super) fn call(
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
        let frame = known.unwrap_or_else(|| self.add_frame(index, code, local, back, depth));
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
    pub(super) fn leave(&mut self, around: &Surroundings<'_>, group: usize, lanes: u32) {
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

    pub(super) fn exit(&mut self, group: usize, lanes: u32) {
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
