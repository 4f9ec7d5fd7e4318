//! Copies that are done later than they are asked for (`cp.async`).

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use super::access::alias_of;
use super::{Group, LANES, Warp, lanes_of};
use crate::block::Surroundings;
use crate::fault::Cause;
use crate::instruction::{Address, Source, Strength, Where};
use crate::memory::{self, Segment};
use crate::order::{self, Kind};

/// A copy of one lane that is not done yet.
pub(super) struct Copy {
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

impl Warp {
    /// The copies of each lane.
    pub(super) fn copies(&mut self) -> &mut Vec<VecDeque<Vec<Copy>>> {
        if self.copies.is_empty() {
            self.copies.resize_with(LANES, || VecDeque::from([Vec::new()]));
        }
        &mut self.copies
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(super) fn copy_later(
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
            let owned = |(segment, offset, _): (&Arc<Segment>, u64, Range<u64>)| (segment.clone(), offset);
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
    pub(super) fn copy_wait(
        &mut self,
        around: &mut Surroundings<'_>,
        lanes: u32,
        left: Option<u64>,
    ) -> Result<(), Cause> {
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
}
