//! Counts of keys in bins that are spread over the PEs.
//!
//! Bin `b` of `n` PEs is on PE `b % n`, at `b / n` of its counts. A key is counted by an atomic addition where its bin is; nobody needs the old
//! value, so nobody waits for it. Where a block has more keys than there are bins, it counts in shared memory first, and then adds to each bin
//! once.
//!
//! | function | additions at bins, of a block | shared memory |
//! |---|---|---|
//! | [`count_each`] | one for each key | none |
//! | [`count_in_blocks`] | one for each bin that it has a key in | a `u32` for each bin |

use congruent_device::{Block, Ctx, Group, Place, Shared, SharedType, Sym, World, refuse};

/// Where a bin is counted.
///
/// # Panics
/// Where there is no such bin.
#[inline(always)]
#[track_caller]
pub fn place(ctx: &Ctx<'_>, counts: Sym<u64>, bin: usize) -> Place<u64, World> {
    let pes = ctx.npes();
    counts.elem(bin / pes).at(ctx.world().rank(bin % pes))
}

/// The keys of this thread: neighbours have neighbouring ones.
#[inline(always)]
fn own<K: Copy>(block: &Block<'_>, keys: &[K]) -> impl Iterator<Item = K> {
    let (first, all) = (block.index() * block.size() + block.rank(), block.count() * block.size());
    (first..keys.len()).step_by(all).map(move |i| keys[i])
}

/// Counts keys with an atomic addition at the bin's PE for each of them. `bin` gives the bin of a key.
///
/// ```
/// use congruent_device::{Slice, Sym, kernels};
/// use congruent_fused::histogram::count_each;
///
/// kernels! {
///     /// Counts numbers by their sign: those below zero in bin 0, the others in bin 1.
///     pub fn count_signs(block, ctx, numbers: Slice<f32>, counts: Sym<u64>) {
///         count_each(block, ctx, numbers, counts, |number| (number >= 0.0).into());
///         ctx.barrier(block, &ctx.world());
///     }
/// }
/// ```
///
/// # One-sided
/// All blocks of a launch share the work, with the same keys. Any PEs may call it, each with keys of its own, as many as it has.
///
/// # Ordering
/// On return keys may not be counted yet. A barrier of the PEs behind it waits for that, and then all of them see all counts (MM-6).
///
/// # Panics
/// Where there is no such bin.
#[inline(always)]
#[track_caller]
pub fn count_each<K: Copy>(block: &Block<'_>, ctx: &Ctx<'_>, keys: &[K], counts: Sym<u64>, bin: impl Fn(K) -> usize) {
    for key in own(block, keys) {
        ctx.add(place(ctx, counts, bin(key)), 1);
    }
}

/// Counts keys in the shared memory of each block, and then adds a number to each bin, at the bin's PE. `bin` gives the bin of a key.
///
/// The shared memory has a number for each bin, or more: an array, or a slice whose length a launch says.
///
/// ```
/// use congruent_device::{Slice, Sym, kernels};
/// use congruent_fused::histogram::count_in_blocks;
///
/// kernels! {
///     /// Counts words by how many of their bits are set.
///     pub fn count_bits(block, ctx, words: Slice<u32>, counts: Sym<u64>; shared: ([u32; 33],)) {
///         count_in_blocks(block, ctx, shared, words, counts, |word| word.count_ones() as usize);
///         ctx.barrier(block, &ctx.world());
///     }
///
///     /// Counts keys by their remainder: in as many bins as the launch has shared memory for.
///     pub fn count_remainders(block, ctx, keys: Slice<u32>, bins: u32, counts: Sym<u64>; shared: ([u32],)) {
///         count_in_blocks(block, ctx, shared, keys, counts, |key| (key % bins) as usize);
///         ctx.barrier(block, &ctx.world());
///     }
/// }
/// ```
///
/// # One-sided
/// As [`count_each`]. The threads of a block meet.
///
/// # Ordering
/// As [`count_each`].
///
/// # Panics
/// Where there is no such bin, here or in shared memory. Where a block has 2^32 keys, or its number of threads fewer: a count in shared memory
/// must not wrap around.
#[inline(always)]
#[track_caller]
pub fn count_in_blocks<K: Copy, A: SharedType<Item = u32> + ?Sized>(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    shared: &mut Shared<'_, (A,)>,
    keys: &[K],
    counts: Sym<u64>,
    bin: impl Fn(K) -> usize,
) {
    // A block has less than a turn of its threads more than its share.
    if keys.len() > block.count() * (u32::MAX as usize - block.size()) {
        refuse!("a block counts fewer than 2^32 keys; give more blocks, or some of the keys at a time");
    }
    let (bins,) = shared.sync(block);
    bins.part(block).fill_with(|_| 0);
    let (bins,) = shared.sync(block);
    let bins = bins.cells();
    for key in own(block, keys) {
        bins.add(bin(key), 1);
    }
    let (bins,) = shared.sync(block);
    let bins = bins.all();
    for bin in block.strided(bins.len()) {
        let count = bins.get(bin);
        if count > 0 {
            ctx.add(place(ctx, counts, bin), u64::from(count));
        }
    }
}
