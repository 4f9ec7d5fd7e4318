//! Attention over a sequence that is divided among PEs: keys and values go around the ring of PEs while queries stay.

use core::array::{self, from_fn};

use congruent_device::math::{self, multiply_add};
use congruent_device::{Pack, RowsMut, Signal, Slice, Sym, kernel_arg, kernels};

use crate::attention::{Answer, FOURS, Four, Row, SCALE};

kernel_arg! {
    /// What goes around the ring.
    pub struct Ring {
        /// Two banks, each of the keys and then the values of every head; the host fills the first one.
        pub banks: Sym<Row>,
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

kernels! { in crate::PTX;
    /// Every query meets the keys of all PEs. A row of `answers` is a head's, and each answer in it one thread's; queries are in the same
    /// order. In step `s` a PE has the keys and values of the PE `s` before it: a block sends those of its heads on to the next PE, into the
    /// bank that the next PE is done with, and then computes with them.
    pub fn ring_attention(
        block, ctx, ring: Ring, queries: Slice<Four>, answers: RowsMut<Answer>
    ) launch_bounds(128, 3) {
        let team = ctx.world();
        let (me, n, heads) = (team.me().index(), team.size(), ring.arrived.len());
        let before = ring.turn * n as u64;
        for (head, mut row) in answers.iter_mut(block) {
            for (_, answer) in row.iter_mut(block) {
                answer[..FOURS].fill(Pack([0.0; 4]));
                answer[FOURS] = Pack([f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
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
                // SAFETY: nobody writes this bank before this PE says that the step is done.
                let (keys, values) = unsafe { (ctx.settled(here.chunk(0, 2)), ctx.settled(here.chunk(1, 2))) };
                let queries = &queries[head * keys.len() * FOURS..][..keys.len() * FOURS];
                for (i, answer) in row.iter_mut(block) {
                    let met = if ring.causal == 0 || from < me {
                        keys.len()
                    } else if from == me {
                        i + 1
                    } else {
                        0
                    };
                    meet(answer, &queries[i * FOURS..][..FOURS], &keys[..met], &values[..met]);
                    if step + 1 == n {
                        let Pack([_, total, ..]) = answer[FOURS];
                        for sum in &mut answer[..FOURS] {
                            let old = *sum;
                            *sum = Pack::from_fn(|j| old[j] / total);
                        }
                    }
                }
                ctx.notify(block, done.at(team.prev()).set(now + 1));
                if step + 1 < n {
                    ctx.wait_at_least(block, arrived, now + 1);
                }
            }
        }
    }
}

/// Has a query meet keys, four at a time, so that it and the sums of values are read once for four.
#[inline(always)]
fn meet(answer: &mut Answer, query: &[Four], keys: &[Row], values: &[Row]) {
    let (keys, last_keys) = keys.as_chunks::<4>();
    let (values, last_values) = values.as_chunks::<4>();
    for (keys, values) in keys.iter().zip(values) {
        add(answer, query, keys, values);
    }
    for (key, value) in last_keys.iter().zip(last_values) {
        add(answer, query, array::from_ref(key), array::from_ref(value));
    }
}

/// Adds values by the weights of their keys. Weights are kept in proportion to the largest score so far, and what was summed is scaled where
/// a larger one comes (Milakov and Gimelshein, 2018).
#[inline(always)]
fn add<const N: usize>(answer: &mut Answer, query: &[Four], keys: &[Row; N], values: &[Row; N]) {
    let mut dots = [[0.0; 4]; N];
    for (d, q) in query.iter().enumerate() {
        let q = *q;
        dots = from_fn(|n| {
            let k = keys[n][d];
            from_fn(|j| multiply_add(q[j], k[j], dots[n][j]))
        });
    }
    let scores = dots.map(|[a, b, c, d]| ((a + b) + (c + d)) * SCALE);
    let Pack([before, total, ..]) = answer[FOURS];
    let most = scores.into_iter().fold(before, f32::max);
    let scale = math::exp(before - most);
    let weights = scores.map(|score| math::exp(score - most));
    answer[FOURS] = Pack([most, weights.into_iter().fold(total * scale, |total, weight| total + weight), 0.0, 0.0]);
    for (d, sum) in answer[..FOURS].iter_mut().enumerate() {
        let old = *sum;
        let mut new = from_fn(|j| old[j] * scale);
        for n in 0..N {
            let v = values[n][d];
            new = from_fn(|j| multiply_add(weights[n], v[j], new[j]));
        }
        *sum = Pack(new);
    }
}
