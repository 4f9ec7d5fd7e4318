//! Dropped symmetric objects on their way back to the heap.
//!
//! Dropping an object on one PE says nothing about the others: they may still write to this PE's copy. So a drop only
//! retires the object's offset. At the next collective every PE shows the others its list, and what *all* of them have
//! retired is freed, in one order, so that the allocators stay the same everywhere. Nothing here communicates.

use std_alloc::collections::BTreeSet;
use std_alloc::vec::Vec;

use thiserror::Error;

/// The offsets that one PE has dropped and that are not free yet.
///
/// ```
/// use congruent_heap::Retired;
///
/// let (mut pe0, mut pe1) = (Retired::new(), Retired::new());
/// pe0.retire(128);
/// pe0.retire(512);
/// pe1.retire(512);
/// let agreed = Retired::agree(&[pe0.clone(), pe1]);
/// assert_eq!(agreed, [512]);
/// pe0.settle(&agreed);
/// assert_eq!(pe0.len(), 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retired {
    offsets: BTreeSet<u64>,
}

/// Why another PE's list was refused: it did not come from [`Retired::encode`], or its heap is not like ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// More offsets than objects live.
    #[error("a PE retired {count} objects, but only {limit} are live: the PEs did not allocate alike")]
    TooMany {
        /// Offsets in the list.
        count: usize,
        /// The most there can be.
        limit: usize,
    },
    /// Not a whole number of offsets.
    #[error("a list of retired objects has {bytes} bytes, which is no multiple of 8: it was cut or damaged")]
    Ragged {
        /// Bytes of the list.
        bytes: usize,
    },
    /// Offsets do not rise.
    #[error("entry {index} of a list of retired objects is not above the one before: it was damaged")]
    Unordered {
        /// The first entry that is not above the one before.
        index: usize,
    },
}

impl Retired {
    /// Nothing retired.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object that this PE has dropped; `false` if it was there already.
    pub fn retire(&mut self, offset: u64) -> bool {
        self.offsets.insert(offset)
    }

    /// How many objects wait here.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// What every PE has retired, rising: free these, in this order. `lists` has one list for each PE, in any order.
    pub fn agree(lists: &[Self]) -> Vec<u64> {
        let Some((first, others)) = lists.split_first() else {
            return Vec::new();
        };
        let everywhere = |offset: &u64| others.iter().all(|list| list.offsets.contains(offset));
        first.offsets.iter().copied().filter(everywhere).collect()
    }

    /// Forgets what has been agreed on and freed.
    pub fn settle(&mut self, agreed: &[u64]) {
        for offset in agreed {
            self.offsets.remove(offset);
        }
    }

    /// The list for other PEs: its offsets, rising, as 8 little-endian bytes each. Whoever carries it keeps its length.
    pub fn encode(&self) -> Vec<u8> {
        self.offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect()
    }

    /// Reads what another PE encoded. `limit` is the number of live objects, the same on every PE and the most that any
    /// of them can have retired.
    pub fn decode(bytes: &[u8], limit: usize) -> Result<Self, DecodeError> {
        let (entries, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(DecodeError::Ragged { bytes: bytes.len() });
        }
        if entries.len() > limit {
            return Err(DecodeError::TooMany { count: entries.len(), limit });
        }
        let rises = |pair: &[[u8; 8]; 2]| u64::from_le_bytes(pair[0]) < u64::from_le_bytes(pair[1]);
        if let Some(at) = entries.array_windows().position(|pair| !rises(pair)) {
            return Err(DecodeError::Unordered { index: at + 1 });
        }
        Ok(Self { offsets: entries.iter().map(|&entry| u64::from_le_bytes(entry)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::Allocator;

    fn retired(offsets: impl IntoIterator<Item = u64>) -> Retired {
        Retired { offsets: offsets.into_iter().collect() }
    }

    #[test]
    fn only_what_all_retired_is_agreed() {
        assert_eq!(Retired::agree(&[]), []);
        assert_eq!(Retired::agree(&[retired([3, 1, 2])]), [1, 2, 3]);
        assert_eq!(Retired::agree(&[retired([1, 2, 4]), retired([4, 2]), retired([2, 3, 4])]), [2, 4]);
        assert_eq!(Retired::agree(&[retired([1]), retired([])]), []);
    }

    #[test]
    fn damaged_lists_are_refused() {
        let good = retired([128, 256, 1024]).encode();
        assert_eq!(Retired::decode(&good, 3), Ok(retired([128, 256, 1024])));
        assert_eq!(Retired::decode(&good, 2), Err(DecodeError::TooMany { count: 3, limit: 2 }));
        assert_eq!(Retired::decode(&good[..23], 3), Err(DecodeError::Ragged { bytes: 23 }));
        let twice = [good.clone(), good].concat();
        assert_eq!(Retired::decode(&twice, 6), Err(DecodeError::Unordered { index: 3 }));
    }

    #[test]
    fn retiring_twice_is_told() {
        let mut list = Retired::new();
        assert!(list.retire(128));
        assert!(!list.retire(128));
        assert_eq!(list.len(), 1);
    }

    proptest! {
        /// PEs drop in orders of their own; after any number of agreements their allocators are still the same, and what
        /// all dropped is reused.
        #[test]
        fn allocators_stay_alike(orders in prop::collection::vec(Just((0..40usize).collect::<Vec<_>>()).prop_shuffle(), 1..5)) {
            let mut heaps = vec![Allocator::new(0, 40 * 128); orders.len()];
            let mut lists = vec![Retired::new(); orders.len()];
            let objects: Vec<u64> = heaps.iter_mut().map(|heap| (0..40).map(|_| heap.alloc(1, 1).unwrap()).collect()).last().unwrap();
            for round in 0..4 {
                for (list, order) in lists.iter_mut().zip(&orders) {
                    for &object in &order[round * 10..round * 10 + 10] {
                        list.retire(objects[object]);
                    }
                }
                let live = heaps[0].stats().live;
                let received: Vec<_> = lists.iter().map(|list| Retired::decode(&list.encode(), live).unwrap()).collect();
                let agreed = Retired::agree(&received);
                for (heap, list) in heaps.iter_mut().zip(&mut lists) {
                    agreed.iter().for_each(|&offset| heap.free(offset).unwrap());
                    list.settle(&agreed);
                }
                let stats: Vec<_> = heaps.iter().map(Allocator::stats).collect();
                prop_assert!(stats.windows(2).all(|pair| pair[0] == pair[1]));
            }
            prop_assert!(lists.iter().all(Retired::is_empty));
            prop_assert_eq!(heaps[0].stats().largest_free, 40 * 128);
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), limit in 0..30usize) {
            if let Ok(list) = Retired::decode(&bytes, limit) {
                prop_assert_eq!(list.encode(), bytes);
            }
        }
    }
}
