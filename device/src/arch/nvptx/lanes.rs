//! What lanes see of each other: shuffles, votes and matches, by LLVM intrinsics, which are convergent.

use core::arch::{asm, global_asm};
use core::marker::PhantomData;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::{Lane, bar_warp_sync};
use crate::arch::Shuffle;
use crate::lanes::{Span, in_warp, tile_of};
use crate::{MultimemOp, MultimemReduction, MultimemType};

#[allow(improper_ctypes, reason = "the unadjusted ABI of LLVM intrinsics takes i1 as bool")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: i32, value: i32, lane: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: i32, value: i32, delta: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: i32, value: i32, delta: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: i32, value: i32, bits: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: i32, flag: bool) -> i32;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    fn match_any32(mask: i32, value: i32) -> i32;
    #[link_name = "llvm.nvvm.match.any.sync.i64"]
    fn match_any64(mask: i32, value: i64) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_add(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    fn redux_min(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    fn redux_umin(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    fn redux_max(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_umax(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    fn redux_and(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    fn redux_or(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    fn redux_xor(value: i32, mask: i32) -> i32;
}

/// The most lanes of a warp.
pub(crate) const MOST_LANES: u32 = 32;

/// As many as there can be: known when the kernel is compiled, so that loops are unrolled.
#[inline(always)]
pub(crate) fn bound(most: u32, _size: usize) -> usize {
    most as usize
}

/// The lanes of a tile, as a mask of the warp's.
#[inline(always)]
fn mask(tile: Span) -> i32 {
    (u32::MAX >> (32 - tile.size) << tile.first) as i32
}

impl Lane<'_> {
    #[inline(always)]
    pub(crate) fn tile_sync(&self, most: u32) {
        // SAFETY: every lane of the tile calls it, by the contract of a group.
        unsafe { bar_warp_sync(mask(tile_of(self, most))) }
    }

    #[inline(always)]
    pub(crate) fn shuffle<T: Pod>(&self, most: u32, how: Shuffle, by: usize, value: T) -> T {
        let tile = tile_of(self, most);
        // The last lane of the tile that may be asked, of those from a multiple of `most` on (PTX ISA, shfl.sync): a lane that asks
        // for one beyond it gets its own value. An index counts modulo `most` there and a mask reaches tiles below, so who asks
        // further than a tile can reach asks itself.
        let (mask, segment) = (mask(tile), (32 - most) << 8);
        let last = (segment | (tile.size - 1)) as i32;
        let by = match how {
            _ if by < most as usize => by as i32,
            Shuffle::Index => (in_warp(self) - tile.first) as i32,
            _ => 0,
        };
        let word = |word: u32| {
            // SAFETY: every lane of the tile calls it, by the contract of a group.
            let word = unsafe {
                match how {
                    Shuffle::Index => shfl_idx(mask, word as i32, by, last),
                    Shuffle::Up => shfl_up(mask, word as i32, by, segment as i32),
                    Shuffle::Down => shfl_down(mask, word as i32, by, last),
                    Shuffle::Xor => shfl_bfly(mask, word as i32, by, last),
                }
            };
            word as u32
        };
        let [a, b, c, d] = words(value);
        let word = |i: usize, value: u32| if i < const { words_of::<T>() } { word(value) } else { 0 };
        from_words([word(0, a), word(1, b), word(2, c), word(3, d)])
    }

    #[inline(always)]
    pub(crate) fn ballot(&self, most: u32, flag: bool) -> u32 {
        let tile = tile_of(self, most);
        // SAFETY: every lane of the tile calls it, by the contract of a group.
        unsafe { vote_ballot(mask(tile), flag) as u32 >> tile.first }
    }

    #[inline(always)]
    pub(crate) fn match_any<T: Pod>(&self, most: u32, value: T) -> u32 {
        let tile = tile_of(self, most);
        let (mask, words) = (mask(tile), words(value));
        let pair = |i: usize| (u64::from(words[i]) | u64::from(words[i + 1]) << 32) as i64;
        // SAFETY: every lane of the tile calls it, by the contract of a group.
        let same = unsafe {
            match size_of::<T>() {
                0..=4 => match_any32(mask, words[0] as i32),
                5..=8 => match_any64(mask, pair(0)),
                _ => match_any64(mask, pair(0)) & match_any64(mask, pair(2)),
            }
        };
        same as u32 >> tile.first
    }

    /// The reduction as one instruction, where there is one.
    #[inline(always)]
    pub(crate) fn redux<A: Pod>(&self, most: u32, how: MultimemReduction, value: A) -> Option<A> {
        let signed = match how.number() {
            MultimemType::I32 => true,
            MultimemType::U32 => false,
            _ => return None,
        };
        let mask = mask(tile_of(self, most));
        let value = words(value)[0] as i32;
        // SAFETY: every lane of the tile calls it, by the contract of a group; sm_80 and later have it.
        let result = unsafe {
            match (how.op(), signed) {
                (MultimemOp::Sum, _) => redux_add(value, mask),
                (MultimemOp::Min, true) => redux_min(value, mask),
                (MultimemOp::Min, false) => redux_umin(value, mask),
                (MultimemOp::Max, true) => redux_max(value, mask),
                (MultimemOp::Max, false) => redux_umax(value, mask),
                (MultimemOp::And, _) => redux_and(value, mask),
                (MultimemOp::Or, _) => redux_or(value, mask),
                (MultimemOp::Xor, _) => redux_xor(value, mask),
            }
        };
        Some(from_words([result as u32, 0, 0, 0]))
    }

    /// What `see` makes of the values that the last lane of each warp gives.
    #[inline(always)]
    pub(crate) fn of_warps<A: Pod, R>(&self, mine: A, see: impl FnOnce(&OfWarps<A>) -> R) -> R {
        let warps = OfWarps(PhantomData);
        // Threads may still read what warps gave before.
        self.block_sync();
        if self.thread() % MOST_LANES == MOST_LANES - 1 || self.thread() + 1 == self.threads() {
            warps.set((self.thread() / MOST_LANES) as usize, mine);
        }
        self.block_sync();
        see(&warps)
    }
}

// One place for all kernels of a module: 16 bytes of each warp of a block.
global_asm!(".shared .align 16 .b8 congruent_of_warps[512];");

/// A value of each warp of the block, in its shared memory.
pub(crate) struct OfWarps<A>(PhantomData<A>);

impl<A: Pod> OfWarps<A> {
    /// That of a warp of the block.
    #[inline(always)]
    pub(crate) fn get(&self, warp: usize) -> A {
        let word = |i: usize| {
            if i >= words_of::<A>() {
                return 0;
            }
            let word: u32;
            // SAFETY: inside the block's shared memory of this name: a block has at most 32 warps.
            unsafe {
                asm!(
                    "{{ .reg .b32 a; mov.u32 a, congruent_of_warps; add.u32 a, a, {o}; ld.shared.b32 {v}, [a]; }}",
                    o = in(reg32) (16 * warp + 4 * i) as u32, v = out(reg32) word, options(nostack)
                );
            }
            word
        };
        from_words([word(0), word(1), word(2), word(3)])
    }

    #[inline(always)]
    fn set(&self, warp: usize, value: A) {
        let [a, b, c, d] = words(value);
        let set = |i: usize, word: u32| {
            if i < words_of::<A>() {
                // SAFETY: as in `get`; barriers are around it.
                unsafe {
                    asm!(
                        "{{ .reg .b32 a; mov.u32 a, congruent_of_warps; add.u32 a, a, {o}; st.shared.b32 [a], {v}; }}",
                        o = in(reg32) (16 * warp + 4 * i) as u32, v = in(reg32) word, options(nostack)
                    );
                }
            }
        };
        (set(0, a), set(1, b), set(2, c), set(3, d));
    }
}

/// How many words a value has.
const fn words_of<T>() -> usize {
    assert!(size_of::<T>() <= 16, "lanes give each other values of at most 16 bytes");
    size_of::<T>().div_ceil(4)
}

/// The words of a value; zeros behind them.
#[inline(always)]
fn words<T: Pod>(value: T) -> [u32; 4] {
    // SAFETY: each is of the size that is asked for, and any bytes are an integer.
    unsafe {
        match size_of::<T>() {
            0 => [0; 4],
            1 => [transmute_copy::<T, u8>(&value).into(), 0, 0, 0],
            2 => [transmute_copy::<T, u16>(&value).into(), 0, 0, 0],
            4 => [transmute_copy(&value), 0, 0, 0],
            8 => {
                let [a, b] = transmute_copy::<T, [u32; 2]>(&value);
                [a, b, 0, 0]
            }
            size => {
                let mut words = [0; 4];
                core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), words.as_mut_ptr().cast(), size);
                words
            }
        }
    }
}

/// The value of these words.
#[inline(always)]
fn from_words<T: Pod>(words: [u32; 4]) -> T {
    // SAFETY: as in `words`; any bytes are a value of plain data, and it reads no more than there are.
    unsafe {
        match size_of::<T>() {
            1 => transmute_copy(&(words[0] as u8)),
            2 => transmute_copy(&(words[0] as u16)),
            4 => transmute_copy(&words[0]),
            8 => transmute_copy(&[words[0], words[1]]),
            _ => {
                let mut value = T::zeroed();
                core::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), (&raw mut value).cast(), size_of::<T>());
                value
            }
        }
    }
}
