//! The offset allocator: who gets which bytes of the symmetric heap.
//!
//! Every PE runs its own [`Allocator`] and they never speak to each other. They agree because the allocator is a function
//! of its call sequence alone: the same calls in the same order give the same offsets on every PE, so a collective
//! allocation exchanges no addresses. It hands out offsets and touches no memory.

use hashbrown::HashMap;
use thiserror::Error;

use self::blocks::Blocks;

mod blocks;

/// Every object starts on, and is rounded up to, a multiple of this many bytes.
///
/// 128 bytes is one cache line of NVIDIA GPUs and the pair of lines that x86 prefetches together: two objects never
/// share a line, so a signal that one PE polls is not slowed by data that another writes, and 16-byte vector accesses
/// and 128-byte packets are aligned without asking. Rounding costs at most 127 bytes an object; a symmetric heap holds
/// thousands of objects, not millions.
pub const GRANULE: u64 = 128;

/// The largest alignment that can be asked for: the page in which GPU memory is mapped, which is therefore also what
/// the heap's own base address can promise.
pub const MAX_ALIGN: u64 = 2 << 20;

/// Gives out ranges of the symmetric heap, the same ones on every PE.
///
/// ```
/// use congruent_heap::Allocator;
///
/// let mut here = Allocator::new(0, 1 << 20);
/// let mut there = Allocator::new(0, 1 << 20);
/// assert_eq!(here.alloc(4096, 256)?, there.alloc(4096, 256)?);
/// # Ok::<(), congruent_heap::AllocError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Allocator {
    base: u64,
    capacity: u64,
    used: u64,
    blocks: Blocks,
    /// The block of the live object at each offset. Only looked up: the order in it differs from PE to PE.
    live: HashMap<u64, u32>,
}

/// Why [`Allocator::alloc`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No free block can hold the request.
    #[error(
        "out of symmetric heap: asked for {bytes} bytes aligned to {align}, but of {capacity} bytes {free} are free and \
         the largest free block has {largest_free}; raise CONGRUENT_HEAP or CONGRUENT_HEAP_MAX, or drop symmetric objects \
         and reclaim"
    )]
    OutOfHeap {
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for.
        align: u64,
        /// Bytes of the whole heap.
        capacity: u64,
        /// Bytes free, in however many blocks.
        free: u64,
        /// Bytes of the largest free block.
        largest_free: u64,
    },
    /// The alignment is not a power of two, or more than [`MAX_ALIGN`].
    #[error("alignment {align} is not a power of two between 1 and {MAX_ALIGN}")]
    BadAlign {
        /// Alignment asked for.
        align: u64,
    },
}

/// Why [`Allocator::free`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// The offset lies in free memory: it was freed already, or never handed out.
    #[error("offset {offset} is not allocated: freed twice, or never handed out")]
    NotLive {
        /// The offset given.
        offset: u64,
    },
    /// The offset lies inside a live object but is not its start.
    #[error("offset {offset} is inside the object at {object}; free the object by its own offset")]
    Interior {
        /// The offset given.
        offset: u64,
        /// Where the object around it starts.
        object: u64,
    },
    /// The offset lies outside this heap.
    #[error("offset {offset} is outside this heap ({base}..{end}): it belongs to another one")]
    Foreign {
        /// The offset given.
        offset: u64,
        /// First offset of this heap.
        base: u64,
        /// First offset after this heap.
        end: u64,
    },
}

/// What a heap holds at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapStats {
    /// Live objects.
    pub live: usize,
    /// Bytes held by live objects, rounding included.
    pub used: u64,
    /// Bytes free, in however many blocks.
    pub free: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
}

impl HeapStats {
    /// External fragmentation: the share of the free bytes that lies outside the largest free block, from 0 (free
    /// memory is one block, or there is none) towards 1.
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.free as f64 }
    }
}

impl Allocator {
    /// A heap of `capacity` bytes whose first byte has offset `base`. What the ends have beyond whole granules stays
    /// unused.
    ///
    /// Alignment is of offsets, so the memory behind offset 0 must itself be aligned to [`MAX_ALIGN`].
    pub fn new(base: u64, capacity: u64) -> Self {
        let end = base.saturating_add(capacity) / GRANULE * GRANULE;
        let base = base.checked_next_multiple_of(GRANULE).unwrap_or(end).min(end);
        let capacity = end - base;
        Self { base, capacity, used: 0, blocks: Blocks::new(base, capacity), live: HashMap::new() }
    }

    /// Reserves `bytes` bytes whose offset is a multiple of `align` and of [`GRANULE`], and returns the offset. Zero
    /// bytes take one granule, so every object has an offset of its own.
    ///
    /// Refuses only if no free block can hold the request.
    pub fn alloc(&mut self, bytes: u64, align: u64) -> Result<u64, AllocError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(AllocError::BadAlign { align });
        }
        let size = bytes.max(1).checked_next_multiple_of(GRANULE).filter(|&size| size <= self.capacity - self.used);
        let Some(block) = size.and_then(|size| self.blocks.take(size, align)) else {
            let HeapStats { free, largest_free, .. } = self.stats();
            return Err(AllocError::OutOfHeap { bytes, align, capacity: self.capacity, free, largest_free });
        };
        let offset = self.blocks[block].offset;
        self.used += self.blocks[block].size;
        self.live.insert(offset, block);
        Ok(offset)
    }

    /// Bytes that the heap must grow by for [`alloc`](Self::alloc) to find room for such an object at its end, 0 where there is
    /// room there; `None` where no heap is large enough.
    pub fn shortage(&self, bytes: u64, align: u64) -> Option<u64> {
        let end = self.base + self.capacity;
        let size = bytes.max(1).checked_next_multiple_of(GRANULE)?;
        let start = self.blocks.free_tail(end).checked_next_multiple_of(align.max(1))?;
        Some(start.checked_add(size)?.saturating_sub(end))
    }

    /// Adds `bytes` bytes at the end, rounded down to whole granules. Nothing moves.
    pub fn grow(&mut self, bytes: u64) {
        let end = self.base + self.capacity;
        let bytes = bytes.min(u64::MAX - end) / GRANULE * GRANULE;
        if bytes > 0 {
            self.blocks.extend(end, bytes);
            self.capacity += bytes;
        }
    }

    /// Adds `bytes` bytes at the end, rounded down to whole granules, as one object that is taken already; gives its offset,
    /// or `None` where that is no granule, or more than offsets there are.
    pub fn grow_taken(&mut self, bytes: u64) -> Option<u64> {
        let end = self.base + self.capacity;
        let bytes = bytes / GRANULE * GRANULE;
        if bytes == 0 || end.checked_add(bytes).is_none() {
            return None;
        }
        let block = self.blocks.extend_taken(end, bytes);
        self.capacity += bytes;
        self.used += bytes;
        self.live.insert(end, block);
        Some(end)
    }

    /// Gives back the object that [`alloc`](Self::alloc) placed at `offset`.
    pub fn free(&mut self, offset: u64) -> Result<(), FreeError> {
        let Some(block) = self.live.remove(&offset) else {
            return Err(self.why_not_live(offset));
        };
        self.used -= self.blocks[block].size;
        self.blocks.give_back(block);
        Ok(())
    }

    /// Bytes that the object at `offset` holds, rounding included; `None` if no live object starts there.
    pub fn size_of(&self, offset: u64) -> Option<u64> {
        self.live.get(&offset).map(|&block| self.blocks[block].size)
    }

    /// What the heap holds now.
    pub fn stats(&self) -> HeapStats {
        HeapStats {
            live: self.live.len(),
            used: self.used,
            free: self.capacity - self.used,
            largest_free: self.blocks.largest_free(),
        }
    }

    /// Names what is wrong with an offset at which no live object starts.
    fn why_not_live(&self, offset: u64) -> FreeError {
        let (base, end) = (self.base, self.base + self.capacity);
        if !(base..end).contains(&offset) {
            return FreeError::Foreign { offset, base, end };
        }
        match self.blocks.taken_around(offset) {
            Some(object) => FreeError::Interior { offset, object },
            None => FreeError::NotLive { offset },
        }
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::collections::BTreeMap;
    use std_alloc::string::ToString;
    use std_alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_whole_heap_can_be_one_object() {
        for capacity in [128, 1 << 20, (1 << 30) + 128 * 77, 3 << 40] {
            let mut heap = Allocator::new(256, capacity);
            let offset = heap.alloc(capacity, 1).unwrap();
            assert_eq!((offset, heap.size_of(offset)), (256, Some(capacity)));
            heap.free(offset).unwrap();
            assert_eq!(heap.stats().largest_free, capacity);
        }
    }

    /// What a heap is short of is what it needs: a granule less is not enough.
    #[test]
    fn a_heap_grows_by_what_it_is_short_of() {
        for (taken, bytes, align) in [(0, 5000, 1), (4096, 1, 128), (1000, 3 << 20, 2 << 20), (640, 128, 4096)] {
            let mut heap = Allocator::new(128, 4096);
            let objects: Vec<_> = (0..taken / GRANULE).map(|_| heap.alloc(GRANULE, 1).unwrap()).collect();
            let short = heap.shortage(bytes, align).unwrap();
            let mut almost = heap.clone();
            if short > 0 {
                almost.grow(short - GRANULE);
                almost.alloc(bytes, align).unwrap_err();
            }
            heap.grow(short);
            let free = heap.stats().free;
            let offset = heap.alloc(bytes, align).unwrap();
            assert!(offset.is_multiple_of(align) && !objects.contains(&offset));
            assert_eq!(heap.stats().free, free - bytes.next_multiple_of(GRANULE));
            objects.into_iter().chain([offset]).for_each(|offset| heap.free(offset).unwrap());
            let capacity = 4096 + short;
            assert_eq!(heap.stats(), HeapStats { live: 0, used: 0, free: capacity, largest_free: capacity });
        }
        assert_eq!(Allocator::new(128, 4096).shortage(u64::MAX, 1), None);
    }

    #[test]
    fn what_is_added_as_taken_is_an_object_at_the_end() {
        let mut heap = Allocator::new(128, 4096);
        assert_eq!((heap.grow_taken(GRANULE - 1), heap.grow_taken(u64::MAX)), (None, None));
        let added = heap.grow_taken(1000).unwrap();
        assert_eq!((added, heap.size_of(added)), (128 + 4096, Some(896)));
        assert_eq!(heap.stats(), HeapStats { live: 1, used: 896, free: 4096, largest_free: 4096 });
        heap.alloc(4096, 1).unwrap();
        heap.alloc(1, 1).unwrap_err();
        heap.grow(256);
        assert_eq!(heap.alloc(256, 1), Ok(added + 896));
        heap.free(added).unwrap();
        assert_eq!(heap.alloc(896, 1), Ok(added));
    }

    #[test]
    fn a_block_that_just_fits_its_alignment_is_found() {
        let mut heap = Allocator::new(128, (4 << 20) - 128);
        let big = heap.alloc(2 << 20, 2 << 20).unwrap();
        assert_eq!(big, 2 << 20, "the aligned half, found although no block holds the worst-case padding");
        assert_eq!(heap.alloc((2 << 20) - 128, 128), Ok(128));
    }

    #[test]
    fn refusals_name_what_to_do() {
        let mut heap = Allocator::new(0, 1024);
        let first = heap.alloc(1, 1).unwrap();
        let error = heap.alloc(1000, 64).unwrap_err();
        let expected = AllocError::OutOfHeap {
            bytes: 1000,
            align: 64,
            capacity: 1024,
            free: 1024 - 128,
            largest_free: 1024 - 128,
        };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("raise CONGRUENT_HEAP"));
        for align in [0, 3, MAX_ALIGN * 2] {
            assert_eq!(heap.alloc(8, align), Err(AllocError::BadAlign { align }));
        }
        assert!(heap.alloc(u64::MAX, 1).is_err());

        assert_eq!(heap.free(first + 64), Err(FreeError::Interior { offset: first + 64, object: first }));
        assert_eq!(heap.free(512), Err(FreeError::NotLive { offset: 512 }));
        assert_eq!(heap.free(4096), Err(FreeError::Foreign { offset: 4096, base: 0, end: 1024 }));
        heap.free(first).unwrap();
        assert_eq!(heap.free(first), Err(FreeError::NotLive { offset: first }));
    }

    #[test]
    fn degenerate_heaps_refuse_everything() {
        for (base, capacity) in [(0, 0), (0, 127), (1, 128), (u64::MAX - 5, 100), (u64::MAX, u64::MAX)] {
            let mut heap = Allocator::new(base, capacity);
            assert!(matches!(heap.alloc(1, 1), Err(AllocError::OutOfHeap { largest_free: 0, .. })));
            assert_eq!(heap.stats().fragmentation(), 0.0);
        }
        assert!(Allocator::new(0, u64::MAX).alloc(u64::MAX - MAX_ALIGN, MAX_ALIGN).is_ok());
    }

    /// One step of a random history: allocate, or free the `n`-th of the live objects.
    #[derive(Debug, Clone)]
    enum Step {
        Alloc { bytes: u64, align: u64 },
        Free { nth: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bytes = prop_oneof![4 => 0..4096u64, 2 => 0..262_144u64, 1 => 0..2_097_152u64];
        let align = (0..=21u32).prop_map(|log| 1 << log);
        let step = prop_oneof![
            3 => (bytes, align).prop_map(|(bytes, align)| Step::Alloc { bytes, align }),
            2 => any::<usize>().prop_map(|nth| Step::Free { nth }),
        ];
        prop::collection::vec(step, 1..400)
    }

    /// The gaps between live objects, which are what a fully coalesced heap has for free blocks.
    fn gaps(base: u64, capacity: u64, live: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
        let ends = live.iter().map(|(&offset, &size)| (offset, offset + size));
        let mut at = base;
        let mut gaps = Vec::new();
        for (start, end) in ends.chain([(base + capacity, 0)]) {
            if at < start {
                gaps.push((at, start - at));
            }
            at = end;
        }
        gaps
    }

    proptest! {
        /// Against a model that only remembers what is live: no overlap, alignment kept, every free byte coalesced into
        /// as few blocks as possible, refusal only when nothing fits, and a second PE gives the same answers.
        #[test]
        fn agrees_with_the_model(steps in steps(), base in (0..64u64).prop_map(|n| n * GRANULE)) {
            let capacity = 8 << 20;
            let mut heap = Allocator::new(base, capacity);
            let mut other_pe = heap.clone();
            let mut live = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Alloc { bytes, align } => {
                        let got = heap.alloc(bytes, align);
                        prop_assert_eq!(got, other_pe.alloc(bytes, align));
                        let size = bytes.max(1).next_multiple_of(GRANULE);
                        let gaps = gaps(base, capacity, &live);
                        let fits = |&(at, room): &(u64, u64)| at.next_multiple_of(align) - at + size <= room;
                        prop_assert_eq!(got.is_ok(), gaps.iter().any(fits));
                        if let Ok(offset) = got {
                            prop_assert_eq!(offset % align.max(GRANULE), 0);
                            prop_assert!(gaps.iter().any(|&(at, room)| at <= offset && offset + size <= at + room));
                            live.insert(offset, size);
                        }
                    }
                    Step::Free { nth } if !live.is_empty() => {
                        let offset = *live.keys().nth(nth % live.len()).unwrap();
                        live.remove(&offset);
                        prop_assert_eq!(heap.free(offset), Ok(()));
                        prop_assert_eq!(other_pe.free(offset), Ok(()));
                    }
                    Step::Free { nth } => prop_assert!(heap.free(nth as u64).is_err()),
                }
                let used = live.values().sum::<u64>();
                let largest_free = gaps(base, capacity, &live).iter().map(|gap| gap.1).max().unwrap_or(0);
                let expected = HeapStats { live: live.len(), used, free: capacity - used, largest_free };
                prop_assert_eq!(heap.stats(), expected);
            }
            for &offset in live.keys() {
                heap.free(offset).unwrap();
            }
            prop_assert_eq!(heap.stats().largest_free, capacity);
        }
    }
}
