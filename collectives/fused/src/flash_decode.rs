//! Attention of one query in each head to keys that are spread over the PEs.
//!
//! A block computes its heads' answers over the keys of this PE and sends each to the PE that has the head; then it joins what came for heads
//! of its own, by the largest scores and the sums of weights, which are the logarithm of a sum of exponentials in two numbers (Dao, Haziza,
//! Massa and Sizov, "Flash-Decoding for long-context inference", 2023). What is sent is small, so there are two banks and no answer waits for
//! room.

use congruent_device::{Block, Ctx, Group, Rows, Shared, Signal, Sym, kernel_arg};

use crate::attention::{Answer, Arrays, Attention, Four, Row, merge};

kernel_arg! {
    /// How PEs give each other what they have computed of an answer. Head `h` of `n` PEs is of PE `h % n`.
    pub struct Decode<const FOURS: usize> {
        /// What this PE has computed, for each head.
        pub computed: Sym<Answer<FOURS>>,
        /// What all PEs have computed for each head of this PE, in two banks: while one is read, the next answers may come.
        pub gathered: Sym<Answer<FOURS>>,
        /// Of each head of this PE, how far each PE is.
        pub arrived: Sym<Signal>,
        /// Which answer this is, from 1 on.
        pub turn: u64,
    }
}

/// The query of each head of all PEs, and the keys that this PE has for it.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a, const FOURS: usize> {
    /// One for each head, the same on all PEs.
    pub queries: &'a [Row<FOURS>],
    /// Those of a head behind those of the one before, as many for each. PEs may have different numbers, or none.
    pub keys: &'a [Row<FOURS>],
    /// As many values, likewise.
    pub values: &'a [Row<FOURS>],
    /// What the product of a query and a key is multiplied by: one over the root of the width of a head, most often.
    pub scale: f32,
}

/// A row of `answers` becomes the answer to the query of a head of this PE, over the keys of all PEs; each has a row of `FOURS`. A PE has at
/// least one head, and each PE as many, of which each has a key somewhere.
///
/// ```
/// use congruent_device::{RowsMut, Slice, kernels};
/// use congruent_fused::attention::{Arrays, Four, Row};
/// use congruent_fused::flash_decode::{Decode, Heads, flash_decode};
///
/// kernels! {
///     /// Heads of 64 numbers.
///     pub fn answer(
///         block, ctx, decode: Decode<16>, queries: Slice<Row<16>>, keys: Slice<Row<16>>, values: Slice<Row<16>>,
///         answers: RowsMut<Four>; shared: Arrays<16>
///     ) launch_bounds(128, 3) {
///         let heads = Heads { queries, keys, values, scale: 0.125 };
///         flash_decode(block, ctx, shared, decode, heads, &mut answers);
///     }
/// }
/// ```
///
/// # Collective
/// Over all PEs, and by all blocks of a launch, of which each PE may have another number. Each PE sends an answer for each head of the others.
///
/// # Ordering
/// An answer comes with its signal (MM-2), which is awaited before it is read (MM-3). On return the rows of this block are there.
///
/// # Panics
/// Where there is no head, or something is shorter than the heads need: an index is out of bounds.
#[inline(always)]
#[track_caller]
pub fn flash_decode<const FOURS: usize>(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    shared: &mut Shared<'_, Arrays<FOURS>>,
    decode: Decode<FOURS>,
    of: Heads<'_, FOURS>,
    answers: &mut Rows<'_, Four>,
) {
    let team = ctx.world();
    let (me, n, heads) = (team.me().index(), team.size(), of.queries.len());
    let (bank, count) = (decode.gathered.chunk((decode.turn % 2) as usize, 2), of.keys.len() / heads);
    for head in (block.index()..heads).step_by(block.count()) {
        let part = head * count..(head + 1) * count;
        let mut attention = Attention::new(block, shared, of.scale);
        attention.meet(block, shared, &of.queries[head], &of.keys[part.clone()], &of.values[part]);
        let computed = decode.computed.elem(head);
        let sums = attention.sums(block, shared);
        let to_send = computed.cast::<Four>();
        for d in block.strided(FOURS) {
            ctx.store(to_send, d, sums(d));
        }
        if block.leader() {
            ctx.store(to_send, FOURS, attention.weight());
        }
        block.sync();
        let (to, at) = (team.rank(head % n), head / n * n + me);
        ctx.put_signal(block, bank.elem(at).at(to), computed, decode.arrived.elem(at).at(to).set(decode.turn));
    }
    for (head, mut row) in answers.iter_mut(block) {
        // Who has put here puts again for the answer after the next, when it has the next one, for which this PE has sent its part in a
        // launch that begins when this one has ended.
        ctx.wait_all(block, decode.arrived.slice(head * n..(head + 1) * n), decode.turn);
        let gathered = bank.slice(head * n..(head + 1) * n).cast::<Four>();
        let four = |i, d| ctx.load(gathered, i * (FOURS + 1) + d);
        for (d, to) in row.iter_mut(block) {
            *to = merge(n, |i| four(i, FOURS), |i| four(i, d));
        }
    }
}
