//! Relations between the events of an execution, as rows of bits.

/// How many events a test may have: one row is one word.
pub(super) const MOST_EVENTS: usize = 64;

/// Which events precede which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relation(Vec<u64>);

impl Relation {
    pub(super) fn new(events: usize) -> Self {
        Self(vec![0; events])
    }

    /// The pairs for which `holds`.
    pub(super) fn of(events: usize, holds: impl Fn(usize, usize) -> bool) -> Self {
        let row = |from| (0..events).filter(|&to| holds(from, to)).fold(0, |row, to| row | 1 << to);
        Self((0..events).map(row).collect())
    }

    pub(super) fn has(&self, from: usize, to: usize) -> bool {
        self.0[from] & (1 << to) != 0
    }

    pub(super) fn add(&mut self, from: usize, to: usize) {
        self.0[from] |= 1 << to;
    }

    /// The events after `from`.
    pub(super) fn after(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        bits(self.0[from])
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().enumerate().flat_map(|(from, &row)| bits(row).map(move |to| (from, to)))
    }

    /// The pairs of either.
    pub(super) fn or(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, others)| own | others).collect())
    }

    /// The pairs of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, others)| own & others).collect())
    }

    /// One step of this, then one of `next`.
    pub(super) fn then(&self, next: &Self) -> Self {
        Self(self.0.iter().map(|&row| bits(row).fold(0, |reached, middle| reached | next.0[middle])).collect())
    }

    /// One step or more.
    pub(super) fn closure(mut self) -> Self {
        for middle in 0..self.0.len() {
            let row = self.0[middle];
            self.0.iter_mut().filter(|from| **from & (1 << middle) != 0).for_each(|from| *from |= row);
        }
        self
    }

    /// Whether no event precedes itself; asked of a closure, whether there is no cycle.
    pub(super) fn is_irreflexive(&self) -> bool {
        self.0.iter().enumerate().all(|(event, row)| row & (1 << event) == 0)
    }
}

fn bits(mut row: u64) -> impl Iterator<Item = usize> + use<> {
    core::iter::from_fn(move || {
        let next = row.trailing_zeros();
        row &= row.wrapping_sub(1);
        (next < u64::BITS).then_some(next as usize)
    })
}
