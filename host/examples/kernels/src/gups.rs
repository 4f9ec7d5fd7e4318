//! Updates by chance of a table that is spread over the PEs, as in HPCC's RandomAccess.

use congruent_device::{Group, Place, Sym, Team, World, kernels};

/// Random number `i`, by splitmix64: any thread may begin anywhere.
#[inline(always)]
pub const fn random(i: u64) -> u64 {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The PE and the word there that a random number means: of so many PEs, with a power of two of words each, 2^32 at most.
#[inline(always)]
pub const fn target(random: u64, npes: usize, words: usize) -> (usize, usize) {
    ((((random >> 32) * npes as u64) >> 32) as usize, random as u32 as usize & (words - 1))
}

/// Where the word is.
#[inline(always)]
fn place(world: &Team<'_, World>, table: Sym<u64>, random: u64) -> Place<u64, World> {
    let (pe, word) = target(random, world.size(), table.len());
    table.elem(word).at(world.rank(pe))
}

kernels! { in crate::PTX;
    /// `count` updates from number `first` on: the word that a random number means becomes its exclusive or with that number.
    pub fn update(block, ctx, table: Sym<u64>, first: u64, count: u64) {
        let (world, all) = (ctx.world(), block.count() * block.size());
        for i in (block.index() * block.size() + block.rank()..count as usize).step_by(all) {
            let random = random(first + i as u64);
            ctx.xor(place(&world, table, random), random);
        }
        ctx.barrier(block, &world);
    }

    /// The same updates, each of which waits for the old value. So that somebody wants those, `odd` counts the odd ones.
    pub fn fetch_and_update(block, ctx, table: Sym<u64>, first: u64, count: u64, odd: Sym<u64>) {
        let (world, all) = (ctx.world(), block.count() * block.size());
        let mut sum = 0;
        for i in (block.index() * block.size() + block.rank()..count as usize).step_by(all) {
            let random = random(first + i as u64);
            sum += ctx.fetch_xor(place(&world, table, random), random) & 1;
        }
        ctx.add(odd.at(world.me()), sum);
        ctx.barrier(block, &world);
    }
}
