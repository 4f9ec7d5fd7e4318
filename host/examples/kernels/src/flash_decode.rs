//! Attention of one query in each head over keys that are spread over the PEs: flash-decoding.

use core::array::from_fn;

use congruent_device::math::{self, multiply_add};
use congruent_device::{Block, Group, Max, Pack, RowsMut, Shared, Signal, Slice, Sum, Sym, kernel_arg, kernels};

use crate::attention::{Answer, FOURS, Four, Row, SCALE};

/// Keys that a block scores at a time.
pub(crate) const CHUNK: usize = 256;
/// Threads share the values of a chunk so: each part has every so many-th.
pub(crate) const PARTS: usize = 8;

/// The scores of a chunk, and the sums of values of each part.
pub(crate) type Arrays = ([f32; CHUNK], [Four; PARTS * FOURS]);

/// The answer of a block to a query, so far.
pub(crate) struct Attention {
    /// The largest score.
    most: f32,
    /// The sum of the weights, which are e to the power of scores less the largest.
    pub(crate) total: f32,
}

impl Attention {
    /// Of no key.
    #[inline(always)]
    pub(crate) fn new(block: &Block<'_>, shared: &mut Shared<'_, Arrays>) -> Self {
        let (_, sums) = shared.sync(block);
        sums.part(block).fill_with(|_| Pack([0.0; 4]));
        Self { most: f32::NEG_INFINITY, total: 0.0 }
    }

    /// Adds values by the weights of their keys. What was summed is scaled where a larger score comes.
    #[inline(always)]
    pub(crate) fn meet(
        &mut self,
        block: &Block<'_>,
        shared: &mut Shared<'_, Arrays>,
        query: &Row,
        keys: &[Row],
        values: &[Row],
    ) {
        for (keys, values) in keys.chunks(CHUNK).zip(values.chunks(CHUNK)) {
            let (scores, _) = shared.sync(block);
            let (mut scores, mut most) = (scores.part(block), self.most);
            scores.fill_with(|i| match keys.get(i) {
                Some(key) => {
                    let score = dot(query, key) * SCALE;
                    most = most.max(score);
                    score
                }
                None => f32::NEG_INFINITY,
            });
            let most = block.reduce(most, Max);
            let mut weights = 0.0;
            scores.update(|_, score| {
                let weight = math::exp(score - most);
                weights += weight;
                weight
            });
            let scale = math::exp(self.most - most);
            *self = Self { most, total: multiply_add(self.total, scale, block.reduce(weights, Sum)) };
            let (weights, sums) = shared.sync(block);
            let weights = weights.all();
            sums.part(block).update(|at, old| {
                let mut sum = from_fn(|j| old[j] * scale);
                for i in (at / FOURS..values.len()).step_by(PARTS) {
                    let (weight, v) = (weights.get(i), values[i][at % FOURS]);
                    sum = from_fn(|j| multiply_add(weight, v[j], sum[j]));
                }
                Pack(sum)
            });
        }
    }

    /// The sums of values by weight, four numbers each. The answer is these divided by the sum of the weights.
    #[inline(always)]
    pub(crate) fn sums<'s>(
        &self,
        block: &Block<'_>,
        shared: &'s mut Shared<'_, Arrays>,
    ) -> impl Fn(usize) -> Four + 's {
        let (_, sums) = shared.sync(block);
        let sums = sums.all();
        move |d| {
            let mut sum = [0.0; 4];
            for part in 0..PARTS {
                let more = sums.get(part * FOURS + d);
                sum = from_fn(|j| sum[j] + more[j]);
            }
            Pack(sum)
        }
    }
}

/// The product of two rows.
#[inline(always)]
pub(crate) fn dot(a: &Row, b: &Row) -> f32 {
    let mut sums = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (*a, *b);
        sums = from_fn(|j| multiply_add(a[j], b[j], sums[j]));
    }
    let [a, b, c, d] = sums;
    (a + b) + (c + d)
}

kernel_arg! {
    /// How PEs give each other what they have computed of an answer. Head `h` of `n` PEs is of PE `h % n`.
    pub struct Decode {
        /// What this PE has computed, for each head.
        pub computed: Sym<Answer>,
        /// What all PEs have computed for each head of this PE, in two banks: while one is read, the next answers may come.
        pub gathered: Sym<Answer>,
        /// Of each head of this PE, how far each PE is.
        pub arrived: Sym<Signal>,
        /// Which answer this is, from 1 on.
        pub turn: u64,
    }
}

kernels! { in crate::PTX;
    /// A row of `answers` becomes the answer to the query of a head of this PE. Queries are those of all heads, and keys and values of a head
    /// lie behind those of the one before. A block computes its heads' answers over the keys of this PE and sends each to the PE that
    /// has the head; then it joins what came for heads of its own. A PE has at least one head.
    pub fn flash_decode(
        block, ctx, decode: Decode, queries: Slice<Row>, keys: Slice<Row>, values: Slice<Row>, answers: RowsMut<Four>;
        shared: ([f32; CHUNK], [Four; PARTS * FOURS])
    ) launch_bounds(128, 3) {
        let team = ctx.world();
        let (me, n, heads) = (team.me().index(), team.size(), queries.len());
        let (bank, count) = (decode.gathered.chunk((decode.turn % 2) as usize, 2), keys.len() / heads);
        for head in (block.index()..heads).step_by(block.count()) {
            let part = head * count..(head + 1) * count;
            let mut attention = Attention::new(block, shared);
            attention.meet(block, shared, &queries[head], &keys[part.clone()], &values[part]);
            let computed = decode.computed.elem(head);
            let sums = attention.sums(block, shared);
            let to_send = computed.cast::<Four>();
            for d in block.strided(FOURS) {
                ctx.store(to_send, d, sums(d));
            }
            if block.leader() {
                ctx.store(to_send, FOURS, Pack([attention.most, attention.total, 0.0, 0.0]));
            }
            block.sync();
            let (to, at) = (team.rank(head % n), head / n * n + me);
            ctx.put_signal(block, bank.elem(at).at(to), computed, decode.arrived.elem(at).at(to).set(decode.turn));
        }
        for (head, mut row) in answers.iter_mut(block) {
            ctx.wait_all(block, decode.arrived.slice(head * n..(head + 1) * n), decode.turn);
            // SAFETY: who has put here puts again for the answer after the next, when it has the next one, for which this PE has sent its
            // part in a launch that begins when this one has ended.
            let gathered = unsafe { ctx.settled(bank.slice(head * n..(head + 1) * n)) };
            let most = gathered.iter().fold(f32::NEG_INFINITY, |most, answer| most.max(answer[FOURS][0]));
            for (d, four) in row.iter_mut(block) {
                let (mut sum, mut total) = ([0.0; 4], 0.0);
                for answer in gathered {
                    let (weight, more) = (math::exp(answer[FOURS][0] - most), answer[d]);
                    total = multiply_add(weight, answer[FOURS][1], total);
                    sum = from_fn(|j| multiply_add(weight, more[j], sum[j]));
                }
                *four = Pack::from_fn(|j| sum[j] / total);
            }
        }
    }
}
