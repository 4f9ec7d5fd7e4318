//! What loads, stores and atomics may do where they are weak.

use super::{Access, CELL, Event, LATE, LINE, Order, Past, REMEMBERED, STEP, cell_of, word_of};
use crate::memory::Segment;
use crate::schedule::Chance;

impl Order {
    /// A write was made: later loads may see it, or still what was there before. Writes that are `joined` come with the one before.
    pub(crate) fn made(&mut self, past: &Past, segment: &Segment, access: &Access, joined: bool) {
        if self.weak.is_none() {
            return;
        }
        self.time += if joined { 0 } else { STEP };
        let written = self.written.get(&(segment.id(), access.offset)).cloned();
        for cell in access.cells() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { continue };
            own.history.push(Event {
                written: written.clone().filter(|_| cell == access.offset / CELL),
                is_change: access.kind.is_change(),
                ..Event::new(self.time, Some(past.mark(access, cell)), word_of(segment, cell))
            });
            if own.history.len() > REMEMBERED {
                own.history.remove(0);
            }
        }
    }

    /// A compare-and-swap has read what is there, and wrote nothing.
    pub(crate) fn compared(&mut self, past: &Past, segment: &Segment, access: &Access) {
        for cell in access.cells() {
            let last = cell_of(&mut self.pages, segment, cell).and_then(|own| own.history.last_mut());
            last.into_iter().for_each(|last| last.observe(&self.places, past.mark(access, cell)));
        }
    }

    /// Whether a store of whole cells, which is about to be made, comes before a write that is there already, which its lane
    /// does not know. Then memory keeps what it has.
    pub(crate) fn comes_late(
        &mut self,
        past: &Past,
        segment: &Segment,
        access: &Access,
        value: u64,
        chance: &mut Chance,
    ) -> bool {
        if self.weak.is_none() || access.bytes < CELL {
            return false;
        }
        let (mut least, mut most) = (0, u64::MAX);
        let mut times = Vec::new();
        for cell in access.cells() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { return false };
            let Some(last) = own.history.last() else { return false };
            if self.places.is_known(last, past, access) {
                return false;
            }
            let known = own.history.iter().rev().find(|event| self.places.is_known(event, past, access));
            least = known.map_or_else(|| own.history[0].time, |event| event.time).max(least);
            most = last.time.min(most);
            times.extend(own.history.iter().map(|event| (event.time, event.is_change)));
        }
        times.sort_unstable();
        // Between two writes, of which the second is no atomic's.
        let fits = |pair: &[(u64, bool)]| {
            let [(before, _), (after, is_change)] = *pair else { return None };
            (least <= before && before + 1 < after && after <= most && !is_change).then(|| before.midpoint(after))
        };
        let places: Vec<u64> = times.windows(2).filter_map(fits).collect();
        if places.is_empty() || !chance.happens(LATE) {
            return false;
        }
        let time = places[chance.below(places.len())];
        let key = (segment.id(), access.offset);
        let written = self.written.remove(&key);
        for (index, cell) in access.cells().enumerate() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { continue };
            let at = own.history.partition_point(|event| event.time < time);
            let event = Event::new(time, Some(past.mark(access, cell)), (value >> (32 * index)) as u32);
            own.history.insert(at, Event { written: written.clone().filter(|_| index == 0), ..event });
            if index == 0
                && let Some(last) = own.history.last().and_then(|last| last.written.clone())
            {
                self.written.insert(key, last);
            }
        }
        true
    }

    /// What an atomic sees that misses the last writes, if it does: those that are not morally strong with it do not keep it
    /// from coming between (8.10.3).
    pub(crate) fn missed(
        &mut self,
        past: &Past,
        segment: &Segment,
        access: &Access,
        chance: &mut Chance,
    ) -> Option<u64> {
        self.weak?;
        let (mut least, mut times) = (0, Vec::new());
        for cell in access.cells() {
            let own = cell_of(&mut self.pages, segment, cell)?;
            let mark = past.mark(access, cell);
            let is_apart = |event: &&Event| !self.places.is_strong_with(event, &mark);
            let mut seen = own.history.iter().rev().take_while(is_apart);
            let known = seen.find(|event| self.places.is_known(event, past, access));
            // What is apart reaches back to the last known write, or to the first that is.
            let apart = own.history.iter().rev().take_while(is_apart).last()?;
            least = known.unwrap_or(apart).time.max(least);
            times.extend(own.history.iter().map(|event| event.time));
        }
        let last = times.iter().copied().max();
        times.retain(|&time| time >= least && Some(time) != last);
        if times.is_empty() || !chance.happens(2) {
            return None;
        }
        let time = times[chance.below(times.len())];
        let mut word = 0;
        for (index, cell) in access.cells().enumerate() {
            word |= u64::from(cell_of(&mut self.pages, segment, cell)?.at(time)?.word) << (32 * index);
        }
        Some(access.part(word.into()))
    }

    /// A lane has acquired a word that came at a time: it has observed what came with it before it in its line, too.
    fn line_has_come(&mut self, past: &Past, segment: &Segment, access: &Access, time: u64) {
        for cell in (access.offset - access.offset % LINE) / CELL..access.offset / CELL {
            let history = cell_of(&mut self.pages, segment, cell).into_iter().flat_map(|own| &mut own.history);
            let part = Access { offset: cell * CELL, bytes: CELL, ..*access };
            history.filter(|event| event.time == time).for_each(|event| event.keep(past.mark(&part, cell)));
        }
    }

    /// What loads see that are done as one: of each cell any write that the lane does not know to be overwritten.
    pub(crate) fn seen(
        &mut self,
        past: &mut Past,
        segment: &Segment,
        accesses: &[Access],
        chance: &mut Chance,
    ) -> Vec<u64> {
        let (mut times, mut whole) = (Vec::with_capacity(accesses.len()), 0);
        for access in accesses {
            for cell in access.cells() {
                let Some(own) = cell_of(&mut self.pages, segment, cell) else {
                    times.push(0);
                    continue;
                };
                if !own.is_ours(word_of(segment, cell)) {
                    own.history.clear();
                }
                let known = own.history.iter().rposition(|event| self.places.is_known(event, past, access));
                let known = known.unwrap_or(0);
                let event = match own.history.len() - known.min(own.history.len()) {
                    0 => None,
                    count => own.history.get(known + chance.write(count)),
                };
                times.push(event.map_or(0, |event| event.time));
                let mark = past.mark(access, cell);
                // A write that is morally strong with one of the loads is seen by all of them (8.10.3).
                if let Some(event) = event.filter(|event| self.places.is_strong_with(event, &mark)) {
                    whole = event.time.max(whole);
                }
            }
        }
        let mut times = times.into_iter();
        let mut words = Vec::with_capacity(accesses.len());
        let has_lines = self.weak.is_some_and(|promises| promises.ll128_128b_ordered);
        for access in accesses {
            let (mut bytes, mut written, mut came) = (0_u128, None, 0);
            for (index, cell) in access.cells().enumerate() {
                let time = times.next().unwrap_or(0).max(whole);
                let mark = past.mark(access, cell);
                let own = cell_of(&mut self.pages, segment, cell);
                let event = own.and_then(|own| own.history.iter_mut().rev().find(|event| event.time <= time));
                let Some(event) = event else {
                    bytes |= u128::from(word_of(segment, cell)) << (32 * index);
                    continue;
                };
                bytes |= u128::from(event.word) << (32 * index);
                if index == 0 {
                    (written, came) = (event.written.clone(), event.time);
                }
                event.observe(&self.places, mark);
            }
            if has_lines && came > 0 && access.strength.acquires().is_some() {
                self.line_has_come(past, segment, access, came);
            }
            words.push(access.part(bytes));
            self.synchronize(past, segment, access, written.as_deref());
        }
        words
    }
}
