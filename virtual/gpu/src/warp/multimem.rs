//! What is done by one instruction with memory of all devices.

use std::sync::Arc;

use super::{LANES, Warp, lanes_of};
use crate::block::Surroundings;
use crate::fault::Cause;
use crate::instruction::{Combine, Operation};
use crate::memory::{self, Segment};
use crate::order::{self, Kind};

impl Warp {
    pub(super) fn multimem(
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
                            Combine::Two(two) => words.reduce(|a, b| two.lane([a, b])).unwrap_or(0),
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
                            segment.update(place(*offset), access.unit, |word| combine.lane([word, value]));
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
}
