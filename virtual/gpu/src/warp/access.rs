//! Loads, stores and atomics: which memory lanes reach, and who is told of it.

use core::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::local::LOCAL;
use super::{Group, LANES, Next, State, Values, Warp, extended, lanes_of};
use crate::block::Surroundings;
use crate::decode::{base_of, space_of};
use crate::fault::Cause;
use crate::instruction::{Access, Address, Change, Source, Target, Where};
use crate::memory::{self, Segment};
use crate::order::{self, Kind};

/// Where the lanes of one instruction access memory.
pub(super) struct Places {
    pub(super) lanes: u32,
    /// Their addresses.
    pub(super) at: Values,
    /// The memory; nearly always one.
    segments: SmallVec<[Arc<Segment>; 1]>,
    /// Which of the segments each lane accesses, and where in it.
    pub(super) segment: [u8; LANES],
    pub(super) offset: Values,
}

/// Where one lane does.
pub(super) struct Place {
    pub(super) lane: usize,
    pub(super) at: u64,
    pub(super) offset: u64,
}

impl Places {
    /// The number of a segment among those of the instruction, of which there are no more than lanes.
    pub(super) fn number(&mut self, segment: &Arc<Segment>) -> u8 {
        let number = self.segments.iter().position(|known| Arc::ptr_eq(known, segment)).unwrap_or_else(|| {
            self.segments.push(segment.clone());
            self.segments.len() - 1
        });
        number as u8
    }

    /// The first lane's address.
    pub(super) fn first(&self) -> u64 {
        self.at[self.lanes.trailing_zeros() as usize % LANES]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Segment>, Place)> {
        lanes_of(self.lanes).map(|lane| {
            let place = Place { lane, at: self.at[lane], offset: self.offset[lane] };
            (&self.segments[usize::from(self.segment[lane])], place)
        })
    }
}

impl Warp {
    /// The memory that a lane accesses, where in it, and the addresses by which all lanes reach the same memory.
    pub(super) fn reach<'w>(
        &'w self,
        around: &'w Surroundings<'_>,
        space: Where,
        lane: usize,
        at: u64,
        bytes: u64,
        need: memory::Access,
    ) -> Result<(&'w Arc<Segment>, u64, Range<u64>), Cause> {
        if !at.is_multiple_of(bytes) {
            return Err(Cause::Misaligned { at, bytes });
        }
        let asked = at;
        let (space, at) = match space {
            Where::Generic => (space_of(at), at - base_of(space_of(at))),
            Where::Shared => (space, at & u64::from(u32::MAX)),
            other => (other, at),
        };
        let inside = |have: u64| at.checked_add(bytes).is_some_and(|end| end <= have);
        let around_it = |have: u64| asked.wrapping_sub(at)..asked.wrapping_sub(at).wrapping_add(have);
        match space {
            Where::Generic | Where::Global => around.map.memory(at, bytes, need),
            Where::Shared => {
                let have = around.shared.bytes();
                if inside(have) {
                    Ok((around.shared, at, around_it(have)))
                } else {
                    Err(Cause::Shared { at, bytes, have })
                }
            }
            Where::Local => match &self.local {
                Some(local) if inside(LOCAL) => Ok((&local.memory, lane as u64 * LOCAL + at, 0..0)),
                local => {
                    let have = if local.is_some() { LOCAL } else { 0 };
                    Err(Cause::Local { at, bytes, have })
                }
            },
            Where::Param => {
                let have = around.params.bytes();
                let readable = need == memory::Access::Read;
                if inside(have) && readable {
                    Ok((around.params, at, around_it(have)))
                } else {
                    Err(Cause::Param { at, bytes, have })
                }
            }
        }
    }

    pub(super) fn addresses(&self, around: &Surroundings<'_>, frame: usize, address: Address) -> Values {
        self.values(around, frame, address.base).map(|base| base.wrapping_add_signed(address.offset))
    }

    /// Where the lanes access memory.
    pub(super) fn places(
        &self,
        around: &Surroundings<'_>,
        frame: usize,
        lanes: u32,
        access: &Access,
        need: memory::Access,
    ) -> Result<Places, Cause> {
        let at = self.addresses(around, frame, access.address);
        let bytes = access.unit * access.count;
        let mut places = Places { lanes, at, segments: SmallVec::new(), segment: [0; LANES], offset: [0; LANES] };
        // The addresses of the window that was last found, and what leads from them to its memory.
        let (mut window, mut number, mut distance) = (0..0, 0, 0);
        for lane in lanes_of(lanes) {
            let at = at[lane];
            let is_known = window.contains(&at) && bytes <= window.end - at && at & (bytes - 1) == 0;
            if !is_known {
                let (segment, offset, known) = self.reach(around, access.address.space, lane, at, bytes, need)?;
                (number, distance, window) = (places.number(segment), offset.wrapping_sub(at), known);
            }
            (places.segment[lane], places.offset[lane]) = (number, at.wrapping_add(distance));
        }
        Ok(places)
    }

    /// Tells of an access those who keep the order, if anybody does; gives the accesses of each lane, unit by unit. Memory of a
    /// lane is nobody else's: where some lanes access their own, it gives none.
    pub(super) fn remember(
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
    pub(super) fn comes_late(
        &self,
        around: &mut Surroundings<'_>,
        segment: &Segment,
        access: &order::Access,
        value: u64,
    ) -> bool {
        let (Some(order), Some(past)) = (&mut around.order, &self.past) else { return false };
        order.comes_late(past, segment, access, value, around.chance)
    }

    /// A scalar was written, together with the one before or not: tells those who watch it, and those who keep the order.
    pub(super) fn wrote(
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

    pub(super) fn load(
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
    pub(super) fn atomic(
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
                    (Change::Combine(combine), _) => combine.lane([word, operand]),
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
}

/// Stands for the address of a place's memory; shared memory has one, whether it is reached by generic addresses or its own.
pub(super) fn alias_of(space: Where, at: u64, offset: u64) -> u32 {
    match space {
        Where::Global => (at.wrapping_sub(offset) >> 12) as u32,
        _ => 0,
    }
}

/// A hash that depends on the order.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
