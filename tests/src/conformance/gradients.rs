//! Gradients of a layer of experts: what PEs compute together by the routes that the layer kept, beside what one PE computes alone in
//! `f64`, and that beside differences of the loss.

use congruent::collectives::moe::MoeConfig;
use congruent::{Error, Grid, World};
use congruent_test_kernels::moe_layer::{self as kernels, Layer};

/// Numbers of a token, tokens of a PE at most, and experts of a token.
const HIDDEN: usize = 4;
const TOKENS: usize = 5;
const TOP_K: usize = 3;
/// What a number is changed by to see what becomes of the loss.
const STEP: f64 = 1e-5;

/// All of a layer, on one PE.
#[derive(Clone, Debug, PartialEq)]
struct Alone {
    /// Numbers of all PEs' tokens, and the weights of their choices.
    x: Vec<f64>,
    weights: Vec<f64>,
    experts: Vec<i32>,
    matrices: Vec<f64>,
}

/// Some of a layer's numbers.
type Part = fn(&mut Alone) -> &mut Vec<f64>;

/// A number between -1 and 1, which looks like chance and is one of `f32`.
fn number(seed: u64, what: u64, i: usize) -> f64 {
    let bits = (seed ^ (what << 40) ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits >> 44) as f64 / f64::from(1 << 19) - 1.0
}

/// How many tokens a PE has: none, too.
fn count(seed: u64, pe: usize) -> usize {
    (seed as usize + 3 * pe) % (TOKENS + 1)
}

fn floats(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|&number| number as f32).collect()
}

impl Alone {
    fn new(seed: u64, pes: usize, experts: usize) -> Self {
        let tokens: usize = (0..pes).map(|pe| count(seed, pe)).sum();
        let numbers = |what, count| (0..count).map(|i| number(seed, what, i)).collect::<Vec<f64>>();
        let choice = |i: usize| {
            let first = (number(seed, 4, i / TOP_K) + 1.0) * experts as f64;
            // One in four is dropped, and of one token all.
            let dropped = i / TOP_K == 1 || number(seed, 5, i) < -0.5;
            if dropped { -1 } else { ((first as usize + i % TOP_K) % experts) as i32 }
        };
        Self {
            x: numbers(1, tokens * HIDDEN),
            weights: numbers(2, tokens * TOP_K),
            experts: (0..tokens * TOP_K).map(choice).collect(),
            matrices: numbers(3, experts * HIDDEN * HIDDEN),
        }
    }

    /// Row `i` of an expert's matrix.
    fn row(&self, expert: usize, i: usize) -> &[f64] {
        &self.matrices[(expert * HIDDEN + i) * HIDDEN..][..HIDDEN]
    }

    fn z(&self, token: usize, expert: usize, i: usize) -> f64 {
        self.row(expert, i).iter().zip(&self.x[token * HIDDEN..]).map(|(a, x)| a * x).sum()
    }

    /// The choices of a token that are not dropped: where they are, and which experts.
    fn choices(&self, token: usize) -> impl Iterator<Item = (usize, usize)> {
        let all = (token * TOP_K..(token + 1) * TOP_K).map(|at| (at, self.experts[at]));
        all.filter_map(|(at, expert)| usize::try_from(expert).ok().map(|expert| (at, expert)))
    }

    fn y(&self) -> Vec<f64> {
        let at = |i: usize| {
            let (token, i) = (i / HIDDEN, i % HIDDEN);
            let answer = |expert| self.z(token, expert, i) + self.z(token, expert, i).powi(2) / 2.0;
            self.choices(token).map(|(at, expert)| self.weights[at] * answer(expert)).sum()
        };
        (0..self.x.len()).map(at).collect()
    }

    /// Half of the sum of squares of all that comes of the tokens, so that what comes of them is its gradient.
    fn loss(&self) -> f64 {
        self.y().iter().map(|y| y * y / 2.0).sum()
    }

    /// What the loss changes by with each number.
    fn gradients(&self) -> Self {
        let y = self.y();
        let mut of = Self {
            x: vec![0.0; self.x.len()],
            weights: vec![0.0; self.weights.len()],
            experts: self.experts.clone(),
            matrices: vec![0.0; self.matrices.len()],
        };
        for token in 0..self.x.len() / HIDDEN {
            for (at, expert) in self.choices(token) {
                for i in 0..HIDDEN {
                    let (z, dy) = (self.z(token, expert, i), y[token * HIDDEN + i]);
                    of.weights[at] += dy * (z + z * z / 2.0);
                    let dz = self.weights[at] * dy * (1.0 + z);
                    for j in 0..HIDDEN {
                        of.x[token * HIDDEN + j] += dz * self.row(expert, i)[j];
                        of.matrices[(expert * HIDDEN + i) * HIDDEN + j] += dz * self.x[token * HIDDEN + j];
                    }
                }
            }
        }
        of
    }

    /// The gradients are what differences of the loss say, as far as these are exact.
    fn check(&self) {
        let gradients = self.gradients();
        let parts: [(Part, &[f64]); 3] = [
            (|alone| &mut alone.x, &gradients.x),
            (|alone| &mut alone.weights, &gradients.weights),
            (|alone| &mut alone.matrices, &gradients.matrices),
        ];
        for (part, gradients) in parts {
            for (i, &gradient) in gradients.iter().enumerate().step_by(3) {
                let changed = |by| {
                    let mut other = self.clone();
                    part(&mut other)[i] += by;
                    other.loss()
                };
                close(gradient, (changed(STEP) - changed(-STEP)) / (2.0 * STEP), 1e-7);
            }
        }
    }
}

fn close(found: f64, expected: f64, by: f64) {
    assert!((found - expected).abs() <= by * (1.0 + expected.abs()), "{found} is not {expected}");
}

/// A layer forward, and then backward as often as there are grids, each pass with blocks of its own.
pub fn moe_gradients(world: &mut World, seed: u64, experts: usize, forward: Grid, grids: &[Grid]) -> Result<(), Error> {
    let (pes, me) = (world.npes(), world.pe().index());
    let alone = Alone::new(seed, pes, experts);
    alone.check();
    let (first, tokens) = ((0..me).map(|pe| count(seed, pe)).sum::<usize>(), count(seed, me));
    let columns = Layer::columns(HIDDEN as u32, TOP_K as u32) as usize;
    let config = MoeConfig::new(TOKENS as u32, experts as u32, TOP_K as u32)
        .payload(4 * HIDDEN as u32)
        .output(4 * columns as u32)
        .blocks(4);
    let own = config.experts_of(me as u32, pes as u32);
    let (own, most) = (own.start as usize * HIDDEN * HIDDEN..own.end as usize * HIDDEN * HIDDEN, experts.div_ceil(pes));
    let rows = config.most_rows(pes as u32, 1) as usize;
    let moe = world.moe(world.team(), config)?.named("layer");
    let x = world.alloc::<f32>(TOKENS * HIDDEN)?;
    let (chosen, weights) = (world.alloc::<i32>(TOKENS * TOP_K)?, world.alloc::<f32>(TOKENS * TOP_K)?);
    let (matrices, of_matrices) =
        (world.alloc::<f32>(most * HIDDEN * HIDDEN)?, world.alloc::<f32>(most * HIDDEN * HIDDEN)?);
    let (saved, y) = (world.alloc::<f32>(rows * HIDDEN)?, world.alloc::<f32>(TOKENS * HIDDEN)?);
    let of_tokens = world.alloc::<f32>(TOKENS * columns)?;
    let part = |numbers: &[f64], each| floats(&numbers[first * each..(first + tokens) * each]);
    x.write(0, &part(&alone.x, HIDDEN))?;
    weights.write(0, &part(&alone.weights, TOP_K))?;
    chosen.write(0, &alone.experts[first * TOP_K..(first + tokens) * TOP_K])?;
    matrices.write(0, &floats(&alone.matrices[own.clone()]))?;
    let layer = Layer {
        x: x.view(),
        experts: chosen.view(),
        weights: weights.view(),
        matrices: matrices.view(),
        saved: saved.view(),
        hidden: HIDDEN as u32,
        top_k: TOP_K as u32,
        tokens: tokens as u32,
        unused: 0,
    };
    let (stream, gradients) = (world.stream()?, alone.gradients());
    world.launch(&stream, kernels::moe_forward, forward, (moe.view(), layer, y.view()))?;
    for grid in grids {
        // Nothing of these is left from the pass before.
        world.synchronize(&stream)?;
        of_tokens.fill(f32::NAN)?;
        of_matrices.fill(f32::NAN)?;
        let args = (moe.view(), layer, y.view(), of_matrices.view(), of_tokens.view());
        world.run(&stream, kernels::moe_backward, *grid, args)?;
        let same = |found: &[f32], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            found.iter().zip(expected).for_each(|(&found, &expected)| close(found.into(), expected, 1e-4));
        };
        let (found, found_y) = (of_tokens.to_vec()?, y.to_vec()?);
        same(&found_y[..tokens * HIDDEN], &alone.y()[first * HIDDEN..(first + tokens) * HIDDEN]);
        for (token, row) in found.chunks(columns).enumerate().take(tokens) {
            let at = first + token;
            same(&row[..HIDDEN], &gradients.x[at * HIDDEN..(at + 1) * HIDDEN]);
            same(&row[HIDDEN..HIDDEN + TOP_K], &gradients.weights[at * TOP_K..(at + 1) * TOP_K]);
        }
        same(&of_matrices.to_vec()?[..own.len()], &gradients.matrices[own.clone()]);
    }
    Ok(())
}
