//! Attention of a query to keys and their values, a few or many at a time: by a thread, or by a block.
//!
//! Weights are kept in proportion to the largest score so far, and what was summed is scaled where a larger one comes (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018). So keys are met once, in any number of steps, and answers over different keys are
//! joined: by [`merge`].
//!
//! Heads have `4 * FOURS` numbers, in `f32`.

use core::array::{self, from_fn};

use bytemuck::{Pod, Zeroable};
use congruent_device::math::{self, multiply_add};
use congruent_device::{Block, Group, Max, Pack, Shared, Sum};

/// Four numbers, which one access moves.
pub type Four = Pack<f32, 4>;

/// A query, a key or a value.
pub type Row<const FOURS: usize> = [Four; FOURS];

/// The answer to a query over some keys, from which answers over other keys can be joined to it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Answer<const FOURS: usize> {
    /// The mean of values by weight; until it is whole, the sum of values by weight.
    pub values: Row<FOURS>,
    /// The largest score, and the sum of the weights, which are e to the power of scores less the largest; then twice 0.
    pub weight: Four,
}

// SAFETY: packs, for which zeros are valid.
unsafe impl<const FOURS: usize> Zeroable for Answer<FOURS> {}
// SAFETY: repr(C), and packs of one alignment that follow each other, so that there is no padding.
unsafe impl<const FOURS: usize> Pod for Answer<FOURS> {}

impl<const FOURS: usize> Answer<FOURS> {
    /// Sets it to the answer over no keys. In place, as an answer is more than a thread's registers hold.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.values.fill(Pack([0.0; 4]));
        self.weight = Pack([f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
    }

    /// Has the query meet keys: each score is `scale` times the product of both. Four keys at a time, so that the query and the sums of values
    /// are read once for four.
    #[inline(always)]
    pub fn meet(&mut self, query: &Row<FOURS>, keys: &[Row<FOURS>], values: &[Row<FOURS>], scale: f32) {
        let (keys, last_keys) = keys.as_chunks::<4>();
        let (values, last_values) = values.as_chunks::<4>();
        for (keys, values) in keys.iter().zip(values) {
            self.add(query, keys, values, scale);
        }
        for (key, value) in last_keys.iter().zip(last_values) {
            self.add(query, array::from_ref(key), array::from_ref(value), scale);
        }
    }

    /// Adds values by the weights of their keys.
    #[inline(always)]
    fn add<const N: usize>(
        &mut self,
        query: &Row<FOURS>,
        keys: &[Row<FOURS>; N],
        values: &[Row<FOURS>; N],
        scale: f32,
    ) {
        let mut dots = [[0.0; 4]; N];
        for (d, q) in query.iter().enumerate() {
            let q = *q;
            dots = from_fn(|n| {
                let k = keys[n][d];
                from_fn(|j| multiply_add(q[j], k[j], dots[n][j]))
            });
        }
        let scores = dots.map(|[a, b, c, d]| ((a + b) + (c + d)) * scale);
        let Pack([before, total, ..]) = self.weight;
        let most = scores.into_iter().fold(before, f32::max);
        let less = math::exp(before - most);
        let weights = scores.map(|score| math::exp(score - most));
        self.weight = Pack([most, weights.into_iter().fold(total * less, |total, weight| total + weight), 0.0, 0.0]);
        for (d, sum) in self.values.iter_mut().enumerate() {
            let old = *sum;
            let mut new = from_fn(|j| old[j] * less);
            for n in 0..N {
                let v = values[n][d];
                new = from_fn(|j| multiply_add(weights[n], v[j], new[j]));
            }
            *sum = Pack(new);
        }
    }

    /// Makes the mean of the sum, when the query has met all keys.
    #[inline(always)]
    pub fn finish(&mut self) {
        let Pack([_, total, ..]) = self.weight;
        for sum in &mut self.values {
            let old = *sum;
            *sum = Pack::from_fn(|j| old[j] / total);
        }
    }
}

/// Four numbers of the mean over all keys, from `n` answers over some of them each: `weight` and `sum` give the weight of an answer and four
/// sums of its values.
#[inline(always)]
pub fn merge(n: usize, weight: impl Fn(usize) -> Four, sum: impl Fn(usize) -> Four) -> Four {
    let most = (0..n).fold(f32::NEG_INFINITY, |most, i| most.max(weight(i)[0]));
    let (mut all, mut total) = ([0.0; 4], 0.0);
    for i in 0..n {
        let (Pack([of_this, weights, ..]), more) = (weight(i), sum(i));
        let factor = math::exp(of_this - most);
        total = multiply_add(factor, weights, total);
        all = from_fn(|j| multiply_add(factor, more[j], all[j]));
    }
    Pack::from_fn(|j| all[j] / total)
}

/// Keys that a block scores at a time.
const CHUNK: usize = 256;
/// Threads share the values of a chunk so: each part has every so many-th.
const PARTS: usize = 8;

/// Shared memory of a block that answers: the scores of a chunk, and the sums of values of each part.
pub type Arrays<const FOURS: usize> = ([f32; CHUNK], [Row<FOURS>; PARTS]);

/// The answer of a block to a query, so far: its threads share the keys. The sums of values are in the block's [shared memory](Arrays).
pub struct Attention<const FOURS: usize> {
    scale: f32,
    /// The largest score.
    most: f32,
    /// The sum of the weights.
    total: f32,
}

impl<const FOURS: usize> Attention<FOURS> {
    /// Of no key. Each score will be `scale` times the product of query and key.
    #[inline(always)]
    #[track_caller]
    pub fn new(block: &Block<'_>, shared: &mut Shared<'_, Arrays<FOURS>>, scale: f32) -> Self {
        let (_, sums) = shared.sync(block);
        sums.cast::<Four>().part(block).fill_with(|_| Pack([0.0; 4]));
        Self { scale, most: f32::NEG_INFINITY, total: 0.0 }
    }

    /// Has the query meet keys, as all threads of the block do together.
    #[inline(always)]
    #[track_caller]
    pub fn meet(
        &mut self,
        block: &Block<'_>,
        shared: &mut Shared<'_, Arrays<FOURS>>,
        query: &Row<FOURS>,
        keys: &[Row<FOURS>],
        values: &[Row<FOURS>],
    ) {
        for (keys, values) in keys.chunks(CHUNK).zip(values.chunks(CHUNK)) {
            let (scores, _) = shared.sync(block);
            let (mut scores, mut most) = (scores.part(block), self.most);
            scores.fill_with(|i| match keys.get(i) {
                Some(key) => {
                    let score = dot(query, key) * self.scale;
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
            let less = math::exp(self.most - most);
            self.total = multiply_add(self.total, less, block.reduce(weights, Sum));
            self.most = most;
            let (weights, sums) = shared.sync(block);
            let weights = weights.all();
            sums.cast::<Four>().part(block).update(|at, old| {
                let mut sum = from_fn(|j| old[j] * less);
                for i in (at / FOURS..values.len()).step_by(PARTS) {
                    let (weight, v) = (weights.get(i), values[i][at % FOURS]);
                    sum = from_fn(|j| multiply_add(weight, v[j], sum[j]));
                }
                Pack(sum)
            });
        }
    }

    /// The largest score and the sum of the weights, as an [`Answer`] has them.
    #[inline(always)]
    pub fn weight(&self) -> Four {
        Pack([self.most, self.total, 0.0, 0.0])
    }

    /// The sums of values by weight, four numbers each. The answer is these divided by the sum of the weights.
    #[inline(always)]
    #[track_caller]
    pub fn sums<'s>(
        &self,
        block: &Block<'_>,
        shared: &'s mut Shared<'_, Arrays<FOURS>>,
    ) -> impl Fn(usize) -> Four + 's {
        let (_, sums) = shared.sync(block);
        let sums = sums.cast::<Four>().all();
        move |d| {
            let mut sum = [0.0; 4];
            for part in 0..PARTS {
                let more = sums.get(part * FOURS + d);
                sum = from_fn(|j| sum[j] + more[j]);
            }
            Pack(sum)
        }
    }

    /// The answer, four numbers each.
    #[inline(always)]
    #[track_caller]
    pub fn answer<'s>(
        &self,
        block: &Block<'_>,
        shared: &'s mut Shared<'_, Arrays<FOURS>>,
    ) -> impl Fn(usize) -> Four + 's {
        let (sums, total) = (self.sums(block, shared), self.total);
        move |d| {
            let sum = sums(d);
            Pack::from_fn(|j| sum[j] / total)
        }
    }
}

/// The product of two rows.
#[inline(always)]
pub fn dot<const FOURS: usize>(a: &Row<FOURS>, b: &Row<FOURS>) -> f32 {
    let mut sums = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (*a, *b);
        sums = from_fn(|j| multiply_add(a[j], b[j], sums[j]));
    }
    let [a, b, c, d] = sums;
    (a + b) + (c + d)
}
