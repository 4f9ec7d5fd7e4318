//! The heap as a row of blocks, free or taken, and how a free one is found: two-level segregated fit.
//!
//! Free blocks hang in lists by size class, 32 classes to a power of two, and two levels of bitmaps lead to the first
//! useful class in a few instructions, whatever the heap holds. A class spans at most 1/32 of its size, so a block found
//! is rarely more than 3 % larger than the best one. Any block of a *larger* class fits, which keeps the usual case
//! constant-time; only when the larger classes are empty are the lists below searched block by block.

use core::ops::{Index, IndexMut};

use std_alloc::vec;
use std_alloc::vec::Vec;

use super::GRANULE;

/// A range of the heap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Neighbours in address order.
    before: u32,
    after: u32,
    /// Neighbours in the free list; `next` also chains the entries that stand for no block.
    next: u32,
    previous: u32,
    free: bool,
}

/// All blocks of a heap, indexed by a number that stays a block's own while it lives. No two free blocks touch.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    entries: Vec<Block>,
    /// Head of the chain of entries that stand for no block.
    vacant: u32,
    classes: Classes,
}

/// The absent block.
const NONE: u32 = u32::MAX;

impl Blocks {
    /// One free block of `size` bytes at `offset`.
    pub(super) fn new(offset: u64, size: u64) -> Self {
        let mut blocks = Self { entries: Vec::new(), vacant: NONE, classes: Classes::new() };
        if size > 0 {
            let whole = blocks.insert(offset, size, NONE, NONE);
            blocks.link(whole);
        }
        blocks
    }

    /// Takes a block of exactly `size` bytes, a multiple of [`GRANULE`], at a multiple of `align`.
    pub(super) fn take(&mut self, size: u64, align: u64) -> Option<u32> {
        let mut block = self.find(size, align)?;
        self.unlink(block);
        let pad = self[block].padding(align);
        if pad > 0 {
            let front = block;
            block = self.split(front, pad);
            self.link(front);
        }
        if self[block].size > size {
            let rest = self.split(block, size);
            self.link(rest);
        }
        Some(block)
    }

    /// Makes a taken block free, joined with its free neighbours.
    pub(super) fn give_back(&mut self, mut block: u32) {
        let Block { before, after, .. } = self[block];
        if after != NONE && self[after].free {
            self.unlink(after);
            self.merge(block, after);
        }
        if before != NONE && self[before].free {
            self.unlink(before);
            self.merge(before, block);
            block = before;
        }
        self.link(block);
    }

    /// Where the free block at the end starts; `end` where the last block is taken or there is none.
    pub(super) fn free_tail(&self, end: u64) -> u64 {
        self.last().filter(|&last| self[last].free).map_or(end, |last| self[last].offset)
    }

    /// Adds `size` free bytes at `offset`, where the last block ends.
    pub(super) fn extend(&mut self, offset: u64, size: u64) {
        let more = self.extend_taken(offset, size);
        self.give_back(more);
    }

    /// Adds a taken block of `size` bytes at `offset`, where the last one ends.
    pub(super) fn extend_taken(&mut self, offset: u64, size: u64) -> u32 {
        let last = self.last().unwrap_or(NONE);
        let more = self.insert(offset, size, last, NONE);
        if last != NONE {
            self[last].after = more;
        }
        more
    }

    /// The block at the end. Entries without a block have no bytes.
    fn last(&self) -> Option<u32> {
        (0..).zip(&self.entries).find(|(_, block)| block.size > 0 && block.after == NONE).map(|(last, _)| last)
    }

    /// Bytes of the largest free block, 0 if there is none.
    pub(super) fn largest_free(&self) -> u64 {
        let top = self.classes.last().map(|class| self.list(class));
        top.into_iter().flatten().map(|block| self[block].size).max().unwrap_or(0)
    }

    /// Where the taken block around `offset` starts.
    pub(super) fn taken_around(&self, offset: u64) -> Option<u64> {
        let around = |block: &&Block| !block.free && offset.checked_sub(block.offset).is_some_and(|at| at < block.size);
        self.entries.iter().find(around).map(|block| block.offset)
    }

    /// A free block with room for `size` bytes at a multiple of `align`.
    fn find(&self, size: u64, align: u64) -> Option<u32> {
        // Room for the worst padding; blocks of a class above that of one granule less have at least this much.
        let roomy = size.saturating_add(align.max(GRANULE) - GRANULE);
        if let Some(class) = self.classes.first_from(class_of(roomy - GRANULE) + 1) {
            return Some(self.classes.heads[class]);
        }
        let fits = |&block: &u32| {
            let block = &self[block];
            block.size.checked_sub(block.padding(align)).is_some_and(|room| size <= room)
        };
        let mut from = class_of(size);
        while let Some(class) = self.classes.first_from(from) {
            if let Some(block) = self.list(class).find(fits) {
                return Some(block);
            }
            from = class + 1;
        }
        None
    }

    /// The blocks of a class.
    fn list(&self, class: usize) -> impl Iterator<Item = u32> {
        let some = |block: u32| (block != NONE).then_some(block);
        core::iter::successors(some(self.classes.heads[class]), move |&block| some(self[block].next))
    }

    /// Cuts a block that is in no list after `size` bytes and returns the second part, in no list either.
    fn split(&mut self, block: u32, size: u64) -> u32 {
        let Block { offset, size: had, after, .. } = self[block];
        let rest = self.insert(offset + size, had - size, block, after);
        if after != NONE {
            self[after].before = rest;
        }
        let first = &mut self[block];
        (first.size, first.after) = (size, rest);
        rest
    }

    /// Joins `second`, the block just after `first`, to it; both are in no list.
    fn merge(&mut self, first: u32, second: u32) {
        let Block { size, after, .. } = self[second];
        if after != NONE {
            self[after].before = first;
        }
        self[first].size += size;
        self[first].after = after;
        // An entry without a block has no bytes, so no search finds it.
        (self[second].size, self[second].next) = (0, self.vacant);
        self.vacant = second;
    }

    /// Puts a block into the list of its class.
    fn link(&mut self, block: u32) {
        let class = class_of(self[block].size);
        let next = self.classes.set_head(class, block);
        if next != NONE {
            self[next].previous = block;
        }
        let entry = &mut self[block];
        (entry.next, entry.previous, entry.free) = (next, NONE, true);
    }

    /// Takes a block out of its list.
    fn unlink(&mut self, block: u32) {
        let Block { size, next, previous, .. } = self[block];
        self[block].free = false;
        if next != NONE {
            self[next].previous = previous;
        }
        if previous != NONE {
            self[previous].next = next;
        } else {
            self.classes.set_head(class_of(size), next);
        }
    }

    /// A new entry, in no list.
    fn insert(&mut self, offset: u64, size: u64, before: u32, after: u32) -> u32 {
        let block = Block { offset, size, before, after, next: NONE, previous: NONE, free: false };
        let index = self.vacant;
        if index == NONE {
            self.entries.push(block);
            return (self.entries.len() - 1) as u32;
        }
        self.vacant = self[index].next;
        self[index] = block;
        index
    }
}

impl Index<u32> for Blocks {
    type Output = Block;

    fn index(&self, block: u32) -> &Block {
        &self.entries[block as usize]
    }
}

impl IndexMut<u32> for Blocks {
    fn index_mut(&mut self, block: u32) -> &mut Block {
        &mut self.entries[block as usize]
    }
}

impl Block {
    /// Bytes from the block's start to its first multiple of `align`.
    fn padding(&self, align: u64) -> u64 {
        self.offset.wrapping_neg() & (align - 1)
    }
}

/// Classes to a power of two, as a power of two.
const FINE: u32 = 5;
/// Rows of `1 << FINE` classes: a size in granules has at most 57 bits, and those of at most `FINE` bits share row 0.
const ROWS: usize = (u64::BITS - GRANULE.trailing_zeros() - FINE + 1) as usize;

/// The class of blocks of `size` bytes: the size in granules as a tiny floating-point number, its exponent the row and
/// `FINE` bits of mantissa the column.
fn class_of(size: u64) -> usize {
    let granules = size / GRANULE;
    let row = (u64::BITS - FINE).saturating_sub(granules.leading_zeros());
    let column = (granules >> row.saturating_sub(1)) & ((1 << FINE) - 1);
    ((row << FINE) | column as u32) as usize
}

/// The head of each class's list, and the bitmaps that lead to the filled ones.
#[derive(Debug, Clone)]
struct Classes {
    heads: Vec<u32>,
    /// Bit `r`: row `r` has a filled list.
    rows: u64,
    /// Bit `c` of word `r`: the list of class `r << FINE | c` is filled.
    columns: [u32; ROWS],
}

impl Classes {
    fn new() -> Self {
        Self { heads: vec![NONE; ROWS << FINE], rows: 0, columns: [0; ROWS] }
    }

    /// Makes `block` the head of `class` and returns the head before.
    fn set_head(&mut self, class: usize, block: u32) -> u32 {
        let (row, column) = (class >> FINE, class & ((1 << FINE) - 1));
        let filled = block != NONE;
        self.columns[row] = self.columns[row] & !(1 << column) | u32::from(filled) << column;
        self.rows = self.rows & !(1 << row) | u64::from(self.columns[row] != 0) << row;
        core::mem::replace(&mut self.heads[class], block)
    }

    /// The first class from `class` on that has a block.
    fn first_from(&self, class: usize) -> Option<usize> {
        let (row, column) = (class >> FINE, class & ((1 << FINE) - 1));
        let here = self.columns.get(row)? & (u32::MAX << column);
        let above = self.rows & (u64::MAX << row << 1);
        let (row, columns) = match (here, above) {
            (0, 0) => return None,
            (0, _) => (above.trailing_zeros() as usize, self.columns[above.trailing_zeros() as usize]),
            _ => (row, here),
        };
        Some((row << FINE) | columns.trailing_zeros() as usize)
    }

    /// The last class that has a block: the largest blocks are there.
    fn last(&self) -> Option<usize> {
        let row = self.rows.checked_ilog2()? as usize;
        Some((row << FINE) | self.columns[row].ilog2() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_size_and_are_at_most_a_thirty_second_wide() {
        let mut last = class_of(GRANULE);
        let mut first_of_class = GRANULE;
        for granules in 2..200_000u64 {
            let size = granules * GRANULE;
            let class = class_of(size);
            assert!(class == last || class == last + 1);
            if class != last {
                (last, first_of_class) = (class, size);
            }
            assert!(size - first_of_class <= first_of_class / 32);
        }
        assert!(class_of(u64::MAX) < ROWS << FINE);
    }
}
