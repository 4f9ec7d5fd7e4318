//! How a kernel tells the host what its threads saw: words of this PE's own, zeroed by the host before each launch.

use congruent_device::{Ctx, Group, Sym};

/// Adds every thread's value to word `i`, so that the host sees whether all of them saw the same.
#[inline(always)]
pub(crate) fn all(ctx: &Ctx<'_>, told: Sym<u64>, i: usize, value: u64) {
    ctx.add(told.elem(i).at(ctx.world().me()), value);
}

/// Stores the leader's value in word `i`.
#[inline(always)]
pub(crate) fn leader(ctx: &Ctx<'_>, group: &impl Group, told: Sym<u64>, i: usize, value: u64) {
    if group.leader() {
        ctx.store(told, i, value);
    }
}
