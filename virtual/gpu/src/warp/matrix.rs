//! What a whole warp does with matrices.

use super::{Group, LANES, Next, State, Values, Warp, lanes_of};
use crate::alu::matrix::transposed;
use crate::block::Surroundings;
use crate::fault::Cause;
use crate::instruction::{Access, Matrix, Source};
use crate::memory;
use crate::order::Kind;

impl Warp {
    /// Does it when the last lane comes. Lanes may be here in several calls of one function, each with its own registers.
    pub(super) fn matrix(
        &mut self,
        around: &mut Surroundings<'_>,
        group: usize,
        what: &Matrix,
        name: &str,
    ) -> Result<Next, Cause> {
        if self.alive != u32::MAX {
            let here = self.groups[group].lanes;
            return Err(Cause::Diverged { what: name.to_owned(), here, whole: u32::MAX });
        }
        if !self.is_whole(group)? {
            self.groups[group].state = State::Aligned;
            return Ok(Next::Changed);
        }
        let is_here = |&index: &usize| index == group || self.groups[index].state == State::Aligned;
        let all: Vec<usize> = (0..self.groups.len()).filter(is_here).collect();
        let (to, results) = match what {
            Matrix::Multiply { mma, to, from } => {
                let [a, b, c] = from.each_ref().map(|from| self.of_warp(around, &all, from));
                (&to[..], mma.multiply(&a, &b, &c, around.sums))
            }
            Matrix::Transpose { to, from } => {
                let from = self.of_warp(around, &all, &[*from]);
                (&to[..], from.iter().map(transposed).collect())
            }
            Matrix::Load { tiles, to, rows } => {
                let mut words = [[0; 8]; LANES];
                self.rows(around, &all, rows, 8 * tiles.count(), Kind::Read, |segment, lane, at| {
                    words[lane] = core::array::from_fn(|column| segment.load(at + 2 * column as u64, 2) as u16);
                })?;
                let Ok(results) = tiles.load(|lane| Ok::<_, core::convert::Infallible>(words[lane]));
                (&to[..], results)
            }
            Matrix::Store { tiles, from, rows } => {
                let words = tiles.store(&self.of_warp(around, &all, from));
                self.rows(around, &all, rows, words.len(), Kind::Write, |segment, lane, at| {
                    for (word, place) in words[lane].iter().zip((at..).step_by(2)) {
                        segment.store(place, 2, u64::from(*word));
                    }
                })?;
                (&[][..], Vec::new())
            }
        };
        for &index in &all {
            let Group { lanes, frame, .. } = self.groups[index];
            for (to, values) in to.iter().zip(&results) {
                to.iter().for_each(|&to| self.frame_mut(frame).write(to, lanes, values));
            }
            self.groups[index].at += 1;
            self.groups[index].state = State::Ready;
        }
        self.join();
        Ok(Next::Changed)
    }

    /// The values of all lanes, each from the registers of its group.
    fn of_warp(&self, around: &Surroundings<'_>, groups: &[usize], sources: &[Source]) -> Vec<Values> {
        let gather = |&source: &Source| {
            let mut values = [0; LANES];
            for &group in groups {
                let Group { lanes, frame, .. } = self.groups[group];
                let own = self.values(around, frame, source);
                lanes_of(lanes).for_each(|lane| values[lane] = own[lane]);
            }
            values
        };
        sources.iter().map(gather).collect()
    }

    /// Does something with the rows whose addresses the first `count` lanes hold.
    fn rows(
        &mut self,
        around: &mut Surroundings<'_>,
        groups: &[usize],
        rows: &Access,
        count: usize,
        kind: Kind,
        mut each: impl FnMut(&memory::Segment, usize, u64),
    ) -> Result<(), Cause> {
        let asked = u32::MAX >> (LANES - count);
        let need = if kind == Kind::Read { memory::Access::Read } else { memory::Access::ReadWrite };
        for &group in groups {
            self.groups[group].polls.clear();
            let Group { lanes, frame, .. } = self.groups[group];
            let places = self.places(around, frame, lanes & asked, rows, need)?;
            let mut accesses = self.remember(around, group, rows, kind, &places)?.into_iter();
            for (segment, place) in places.iter() {
                each(segment, place.lane, place.offset);
                for index in (0..rows.count).filter(|_| kind == Kind::Write) {
                    let own = accesses.next();
                    self.wrote(around, segment, place.offset + index * rows.unit, rows.unit, own.as_ref(), false);
                }
            }
        }
        Ok(())
    }
}
