//! What lanes see of each other: each gives a word, and is shown those of all.

use core::panic::Location;

use congruent_heap::Pod;

use super::Lane;
use crate::MultimemReduction;
use crate::arch::Shuffle;
use crate::lanes::{Span, in_warp, tile_of};

/// The most lanes of a warp.
pub(crate) const MOST_LANES: u32 = 32;

/// As many as there are.
#[inline(always)]
pub(crate) fn bound(_most: u32, size: usize) -> usize {
    size
}

impl Lane<'_> {
    /// Shows `see` what each lane of the tile gives; nothing of those that have left.
    #[inline(always)]
    #[track_caller]
    fn tile(&self, most: u32, word: u128, see: &mut dyn FnMut(&[Option<u128>])) {
        if most.min(self.warp) > 1 {
            let Span { first, size } = tile_of(self, most);
            let first = self.thread - in_warp(self) + first;
            self.machine.gather(self.thread, first..first + size, word, Location::caller(), see);
        } else {
            see(&[Some(word)]);
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn tile_sync(&self, most: u32) {
        self.tile(most, 0, &mut |_| {});
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn shuffle<T: Pod>(&self, most: u32, how: Shuffle, by: usize, value: T) -> T {
        let rank = (in_warp(self) - tile_of(self, most).first) as usize;
        let from = match how {
            Shuffle::Index => Some(by),
            Shuffle::Up => rank.checked_sub(by),
            Shuffle::Down => rank.checked_add(by),
            Shuffle::Xor => Some(rank ^ by),
        };
        let mut got = value;
        self.tile(most, word(value), &mut |words| {
            if let Some(&Some(word)) = from.and_then(|from| words.get(from)) {
                got = unword(word);
            }
        });
        got
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn ballot(&self, most: u32, flag: bool) -> u32 {
        let mut bits = 0;
        self.tile(most, flag.into(), &mut |words| bits = mask(words, 1));
        bits
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn match_any<T: Pod>(&self, most: u32, value: T) -> u32 {
        let mut bits = 0;
        self.tile(most, word(value), &mut |words| bits = mask(words, word(value)));
        bits
    }

    /// No instruction does it.
    #[inline(always)]
    pub(crate) fn redux<A: Pod>(&self, _most: u32, _how: MultimemReduction, _value: A) -> Option<A> {
        None
    }

    /// What `see` makes of the values that the last lane of each warp gives.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn of_warps<A: Pod, R>(&self, mine: A, see: impl FnOnce(&OfWarps<'_, A>) -> R) -> R {
        if self.threads == 1 {
            return see(&OfWarps { words: &[Some(word(mine))], warp: 1, mine });
        }
        let (mut see, mut seen) = (Some(see), None);
        self.machine.gather(self.thread, 0..self.threads, word(mine), Location::caller(), &mut |words| {
            seen = see.take().map(|see| see(&OfWarps { words, warp: self.warp as usize, mine }));
        });
        match seen {
            Some(seen) => seen,
            None => unreachable!("the machine shows them once"),
        }
    }
}

/// A value of each warp of the block.
pub(crate) struct OfWarps<'w, A> {
    words: &'w [Option<u128>],
    warp: usize,
    mine: A,
}

impl<A: Pod> OfWarps<'_, A> {
    /// That of a warp of the block; this one's own where that has left.
    #[inline(always)]
    pub(crate) fn get(&self, warp: usize) -> A {
        let last = ((warp + 1) * self.warp).min(self.words.len()) - 1;
        self.words[last].map_or(self.mine, unword)
    }
}

/// Which of them are this word.
fn mask(words: &[Option<u128>], word: u128) -> u32 {
    words.iter().enumerate().map(|(i, other)| u32::from(*other == Some(word)) << i).sum()
}

/// The bits of a value.
#[inline(always)]
fn word<T: Pod>(value: T) -> u128 {
    const { assert!(size_of::<T>() <= 16, "lanes give each other values of at most 16 bytes") };
    let mut bytes = [0; 16];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
    u128::from_ne_bytes(bytes)
}

#[inline(always)]
fn unword<T: Pod>(word: u128) -> T {
    bytemuck::pod_read_unaligned(&word.to_ne_bytes()[..size_of::<T>()])
}
