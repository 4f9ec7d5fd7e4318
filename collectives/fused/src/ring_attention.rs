//! Attention over a sequence that is divided among PEs: keys and values go around the ring of PEs while queries stay.
//!
//! In step `s` a PE has the keys and values of the PE `s` before it: a block sends those of its heads on to the next PE, into the bank that the
//! next PE is done with, and then computes with them (Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
//! Context", 2023). Heads travel apart, each with its signals.

use congruent_device::{Block, Ctx, Rows, Signal, Sym, kernel_arg, refuse};

use crate::attention::{Answer, Row};

kernel_arg! {
    /// What goes around the ring.
    pub struct Ring<const FOURS: usize> {
        /// Two banks, each of the keys and then the values of every head; the host fills the first one.
        pub banks: Sym<Row<FOURS>>,
        /// Of each head, up to which step its keys and values have arrived here.
        pub arrived: Sym<Signal>,
        /// Of each head, how many steps the next PE has done.
        pub done: Sym<Signal>,
        /// How many times this ring was used before.
        pub turn: u64,
        /// Whether a query meets no key behind it in the sequence.
        pub causal: u32,
    }
}

/// Every query meets the keys of all PEs, and each score is `scale` times the product of both: one over the root of the width of a head,
/// most often. A row of `answers` is a head's, and each answer in it one thread's; queries are in the same order. PEs have as many
/// queries, keys and values of each head, in the order of the sequence.
///
/// ```
/// use congruent_device::{RowsMut, Slice, kernels};
/// use congruent_fused::attention::{Answer, Row};
/// use congruent_fused::ring_attention::{Ring, ring_attention};
///
/// kernels! {
///     /// Heads of 64 numbers.
///     pub fn attend(
///         block, ctx, ring: Ring<16>, queries: Slice<Row<16>>, answers: RowsMut<Answer<16>>,
///     ) launch_bounds(128, 3) {
///         // SAFETY: the program has the ring for launches of this kernel alone, and fills the first bank before each of them.
///         unsafe { ring_attention(block, ctx, ring, queries, &mut answers, 0.125) };
///     }
/// }
/// ```
///
/// # Collective
/// Over all PEs, and by all blocks of a launch: head `h` is of block `h` modulo the blocks, of which each PE may have another number. Each PE
/// sends as many keys and values as it has `n-1` times, to the next PE.
///
/// # Ordering
/// What a PE has stored to the first bank before the launch is met everywhere. Keys and values come with their signal (MM-2), which is
/// awaited before they are read (MM-3). On return the answers of this block's heads are there; when the launch is complete on
/// this PE, its first bank may be filled again.
///
/// # Panics
/// Where there are not as many queries and answers of each head as keys, two banks of all heads, and two signals for each.
///
/// # Safety
/// From the first launch that calls it with this ring on, nobody else writes to the banks and the signals, but that a PE stores its keys and
/// values to its first bank before a launch, when the launch before is complete there. `turn` is one more at each call.
#[inline(always)]
#[track_caller]
pub unsafe fn ring_attention<const FOURS: usize>(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    ring: Ring<FOURS>,
    queries: &[Row<FOURS>],
    answers: &mut Rows<'_, Answer<FOURS>>,
    scale: f32,
) {
    let team = ctx.world();
    let (me, n, heads) = (team.me().index(), team.size(), ring.arrived.len());
    if ring.done.len() != heads || answers.count() != heads || ring.banks.len() != 4 * queries.len() {
        refuse!(
            "a ring has two banks of a key and a value for each query, and of each head two signals and a row of answers"
        );
    }
    let before = ring.turn * n as u64;
    for (head, mut row) in answers.iter_mut(block) {
        for (_, answer) in row.iter_mut(block) {
            answer.clear();
        }
        for step in 0..n {
            let bank = |of| ring.banks.chunk(of % 2, 2).chunk(head, heads);
            let (here, now) = (bank(step), before + step as u64);
            let (arrived, done) = (ring.arrived.elem(head), ring.done.elem(head));
            if step + 1 < n {
                // It has done the steps before this one, so that nobody there reads the other bank.
                ctx.wait_at_least(block, done, now);
                let there = bank(step + 1).at(team.next());
                ctx.put_signal(block, there, here, arrived.at(team.next()).set(now + 1));
            }
            let from = (me + n - step) % n;
            // SAFETY: the PE before writes this bank when it knows that this PE is done with the step, and nobody else does, as the caller
            // vouches.
            let (keys, values) = unsafe { (ctx.settled(here.chunk(0, 2)), ctx.settled(here.chunk(1, 2))) };
            let queries = &queries[head * keys.len()..][..keys.len()];
            for (i, answer) in row.iter_mut(block) {
                let met = if ring.causal == 0 || from < me {
                    keys.len()
                } else if from == me {
                    i + 1
                } else {
                    0
                };
                answer.meet(&queries[i], &keys[..met], &values[..met], scale);
                if step + 1 == n {
                    answer.finish();
                }
            }
            ctx.notify(block, done.at(team.prev()).set(now + 1));
            if step + 1 < n {
                ctx.wait_at_least(block, arrived, now + 1);
            }
        }
    }
}
