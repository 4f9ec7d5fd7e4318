//! What a PE computes of a transformer: sublayers forward and back, predictions, and steps of Adam.

use core::array::from_fn;

use congruent_collectives::{Sum, ring};
use congruent_device::math::{exp, ln, multiply_add, powi, rsqrt};
use congruent_device::{Block, Ctx, Group, Pack, Sym};

use super::{
    CONTEXT, EPSILON, EXPERT, FOURS, Four, HEAD, HEADS, LAYER, LAYERS, PARAMETERS, PARTIAL, PREDICTIONS, Place, ROWS,
    SCALE, SCORES, SEQUENCES, SLOPES, STREAM, VOCABULARY, WIDEST, WIDTH, extents, kept, parameters,
};

/// How much of the moments a step keeps.
const KEEP: [f32; 2] = [0.9, 0.99];
/// Added to the mean of squares of the gradient, so that what is nearly 0 stays there.
const TINY: f32 = 1e-12;
/// Packs of an expert in a row.
const EXPERT_FOURS: u32 = EXPERT as u32 / 4;

/// Four numbers of four rows: what a thread computes at once of a product.
type Tile = [Four; 4];

#[inline(always)]
fn transposed([a, b, c, d]: Tile) -> Tile {
    [
        Pack([a[0], b[0], c[0], d[0]]),
        Pack([a[1], b[1], c[1], d[1]]),
        Pack([a[2], b[2], c[2], d[2]]),
        Pack([a[3], b[3], c[3], d[3]]),
    ]
}

/// `x` times `factor`, added to `sum`.
#[inline(always)]
fn add_scaled(sum: Four, factor: f32, x: Four) -> Four {
    let [a, b, c, d] = x.0;
    Pack([
        multiply_add(factor, a, sum[0]),
        multiply_add(factor, b, sum[1]),
        multiply_add(factor, c, sum[2]),
        multiply_add(factor, d, sum[3]),
    ])
}

/// A row of `left` times `right`, added to `sum`.
#[inline(always)]
fn add_product(sum: Four, left: Four, [a, b, c, d]: Tile) -> Four {
    add_scaled(add_scaled(add_scaled(add_scaled(sum, left[0], a), left[1], b), left[2], c), left[3], d)
}

#[inline(always)]
fn squared_relu(x: f32) -> f32 {
    x.max(0.0) * x.max(0.0)
}

#[inline(always)]
fn dot(a: Four, b: Four) -> f32 {
    (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3])
}

/// A matrix in a PE's memory, in packs: where it begins, and how far it is from one row to the next. Or one for each head of each sequence: how
/// far it is from one sequence to the next, and from one head to the next.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    first: u32,
    stride: u32,
    sequence: u32,
    head: u32,
    transposed: bool,
}

impl Matrix {
    #[inline(always)]
    fn new(first: u32, columns: u32) -> Self {
        Self { first, stride: columns / 4, sequence: 0, head: 0, transposed: false }
    }

    #[inline(always)]
    pub(super) fn at(self, row: u32, pack: u32) -> u32 {
        self.first + row * self.stride + pack
    }

    #[inline(always)]
    fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// What heads have of it, which stand side by side from a column on, for one sequence below the other.
    #[inline(always)]
    fn of_heads(self, column: u32) -> Self {
        let first = self.first + column / 4;
        Self { first, sequence: CONTEXT as u32 * self.stride, head: HEAD as u32 / 4, ..self }
    }

    /// The same where heads stand one below the other.
    #[inline(always)]
    fn of_heads_below(self, heads: u32) -> Self {
        let head = CONTEXT as u32 * self.stride;
        Self { sequence: heads * head, head, ..self }
    }
}

/// What is kept of a sublayer, or the gradients of that.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// The norm of the stream.
    normed: Matrix,
    /// What each row was multiplied with for it.
    scales: u32,
    /// What the matrix `input` gives.
    pub(super) middle: Matrix,
    /// What the matrix `output` takes.
    result: Matrix,
    /// The weights of attention, a matrix for each head of each sequence.
    weights: Matrix,
}

impl Kept {
    /// Of a sublayer with so many columns of `input` and rows of `output`.
    #[inline(always)]
    pub(super) fn new(first: u32, [columns, rows]: [u32; 2]) -> Self {
        let scales = first + STREAM;
        let middle = scales + ROWS as u32;
        let result = middle + ROWS as u32 * WIDEST / 4;
        Self {
            normed: Matrix::new(first, WIDTH as u32),
            scales,
            middle: Matrix::new(middle, columns),
            result: Matrix::new(result, rows),
            weights: Matrix::new(result + ROWS as u32 * WIDEST / 4, CONTEXT as u32),
        }
    }
}

/// A thread's view of all.
pub(super) struct Worker<'k> {
    pub(super) block: &'k Block<'k>,
    pub(super) ctx: &'k Ctx<'k>,
    pub(super) memory: Sym<Four>,
    pub(super) place: Place,
}

impl Worker<'_> {
    #[inline(always)]
    pub(super) fn load(&self, at: u32) -> Four {
        self.ctx.load(self.memory, at as usize)
    }

    #[inline(always)]
    pub(super) fn store(&self, at: u32, pack: Four) {
        self.ctx.store(self.memory, at as usize, pack);
    }

    /// The scalar product of so many packs.
    #[inline(always)]
    fn dot(&self, a: u32, b: u32, packs: u32) -> f32 {
        let mut sum = 0.0;
        for i in 0..packs {
            sum += dot(self.load(a + i), self.load(b + i));
        }
        sum
    }

    /// This thread's part of `0..len`.
    #[inline(always)]
    pub(super) fn strided(&self, len: u32) -> impl Iterator<Item = u32> {
        self.block.strided(len as usize).map(|i| i as u32)
    }

    /// Tile `i, j` of the matrix of a sequence and a head.
    #[inline(always)]
    fn tile(&self, matrix: Matrix, [sequence, head]: [u32; 2], i: u32, j: u32) -> Tile {
        let (i, j) = if matrix.transposed { (j, i) } else { (i, j) };
        let at = matrix.at(4 * i, j) + sequence * matrix.sequence + head * matrix.head;
        let stride = matrix.stride;
        let tile = [self.load(at), self.load(at + stride), self.load(at + 2 * stride), self.load(at + 3 * stride)];
        if matrix.transposed { transposed(tile) } else { tile }
    }

    /// Products of `m` by `k` and `k` by `n` numbers, tile by tile, for each of so many heads of so many sequences. They are added to what
    /// is in `to`, or replace it.
    #[inline(always)]
    fn products(&self, [sequences, heads]: [u32; 2], [m, k, n]: [u32; 3], [left, right, to]: [Matrix; 3], add: bool) {
        let (down, across) = (m / 4, n / 4);
        for at in self.strided(sequences * heads * down * across) {
            let (of, i, j) = (at / across / down, at / across % down, at % across);
            let of = [of / heads, of % heads];
            let mut sums = if add { self.tile(to, of, i, j) } else { [Pack([0.0; 4]); 4] };
            for step in 0..k / 4 {
                let ([a, b, c, d], right) = (self.tile(left, of, i, step), self.tile(right, of, step, j));
                sums = [
                    add_product(sums[0], a, right),
                    add_product(sums[1], b, right),
                    add_product(sums[2], c, right),
                    add_product(sums[3], d, right),
                ];
            }
            let at = to.at(4 * i, j) + of[0] * to.sequence + of[1] * to.head;
            let [a, b, c, d] = sums;
            self.store(at, a);
            self.store(at + to.stride, b);
            self.store(at + 2 * to.stride, c);
            self.store(at + 3 * to.stride, d);
        }
    }

    /// `y` becomes `x w`, where `w` is so high and so wide.
    #[inline(always)]
    fn linear(&self, [rows, columns]: [u32; 2], x: Matrix, w: Matrix, y: Matrix) {
        self.products([1; 2], [ROWS as u32, rows, columns], [x, w, y], false);
        self.block.sync();
    }

    /// From the gradient of `y = x w` that of `w`, which is added to `of_w`, and that of `x`.
    #[inline(always)]
    fn linear_backward(&self, [rows, columns]: [u32; 2], [x, w]: [Matrix; 2], of_y: Matrix, [of_x, of_w]: [Matrix; 2]) {
        self.products([1; 2], [rows, ROWS as u32, columns], [x.t(), of_y, of_w], true);
        self.products([1; 2], [ROWS as u32, columns, rows], [of_y, w.t(), of_x], false);
        self.block.sync();
    }

    #[inline(always)]
    pub(super) fn sublayers(&self) -> u32 {
        2 * LAYERS as u32 / self.place.stages
    }

    /// Packs of this PE's parameters.
    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        parameters(self.place.tensors as usize, self.place.stage as usize, self.place.stages as usize) as u32 / 4
    }

    #[inline(always)]
    pub(super) fn gradient(&self) -> u32 {
        PARAMETERS as u32 + 3 * self.len()
    }

    #[inline(always)]
    fn extents(&self, sublayer: u32) -> [u32; 2] {
        extents(sublayer, self.place.tensors)
    }

    /// The matrices `input` and `output` of a sublayer, among the parameters or in the gradient.
    #[inline(always)]
    fn matrices(&self, all: u32, sublayer: u32) -> [Matrix; 2] {
        let before = sublayer / 2 * LAYER as u32 + sublayer % 2 * 4 * (WIDTH * WIDTH) as u32;
        let (first, columns) = (all + before / self.place.tensors / 4, self.extents(sublayer)[0]);
        [Matrix::new(first, columns), Matrix::new(first + FOURS * columns, WIDTH as u32)]
    }

    /// Where the tables of characters and of positions begin.
    #[inline(always)]
    pub(super) fn tables(&self, all: u32) -> u32 {
        all + self.sublayers() / 2 * LAYER as u32 / self.place.tensors / 4
    }

    /// The matrix that makes predictions, which is the last.
    #[inline(always)]
    fn predictor(&self, all: u32) -> Matrix {
        Matrix::new(all + self.len() - FOURS * VOCABULARY as u32, VOCABULARY as u32)
    }

    #[inline(always)]
    pub(super) fn kept(&self, index: u32, sublayer: u32) -> Kept {
        kept(self.len(), index, self.extents(sublayer))
    }

    /// Each pack of the stream becomes what `pack` gives.
    #[inline(always)]
    pub(super) fn fill(&self, pack: impl Fn(u32) -> Four) {
        for at in self.strided(STREAM) {
            self.store(at, pack(at));
        }
        self.block.sync();
    }

    /// The sum of the partial products over the tensor team.
    #[inline(always)]
    fn sum_over_tensor_team(&self) {
        let partial = self.memory.slice(PARTIAL as usize..SLOPES as usize).cast::<f32>();
        ring::all_reduce(&mut self.place.tensor.enter(self.block, self.ctx), partial, partial, Sum);
    }

    /// Divides each row of the stream by the root of the mean of its squares (RMSNorm, without weights).
    #[inline(always)]
    fn norm(&self, kept: Kept) {
        for row in self.strided(ROWS as u32) {
            let squares = self.dot(row * FOURS, row * FOURS, FOURS);
            let scale = rsqrt(squares / WIDTH as f32 + EPSILON);
            self.store(kept.scales + row, Pack([scale; 4]));
            for i in 0..FOURS {
                let x = self.load(row * FOURS + i);
                self.store(kept.normed.at(row, i), Pack::from_fn(|j| x[j] * scale));
            }
        }
        self.block.sync();
    }

    /// Adds to the stream, which is `keep` of what it is, the gradient of the norm, from that of what the norm gave.
    #[inline(always)]
    fn norm_backward(&self, kept: Kept, keep: f32) {
        for row in self.strided(ROWS as u32) {
            let (first, slopes) = (kept.normed.at(row, 0), PARTIAL + row * FOURS);
            let mean = self.dot(first, slopes, FOURS) / WIDTH as f32;
            let scale = self.load(kept.scales + row)[0];
            for i in 0..FOURS {
                let (normed, slope, old) = (self.load(first + i), self.load(slopes + i), self.load(row * FOURS + i));
                let new = Pack::from_fn(|j| keep * old[j] + scale * (slope[j] - normed[j] * mean));
                self.store(row * FOURS + i, new);
            }
        }
        self.block.sync();
    }

    /// A row of scores becomes its softmax: of the first `met` of them, times `scale`; the others become 0.
    #[inline(always)]
    fn softmax(&self, row: u32, met: u32, scale: f32) {
        let score = |i| {
            let scores = self.load(row + i);
            Pack::<f32, 4>::from_fn(|j| if 4 * i + (j as u32) < met { scale * scores[j] } else { f32::NEG_INFINITY })
        };
        let most = (0..SCORES).fold(f32::NEG_INFINITY, |most, i| score(i).iter().fold(most, |most, &x| most.max(x)));
        let mut total = 0.0;
        for i in 0..SCORES {
            let score = score(i);
            let powers = Pack::from_fn(|j| exp(score[j] - most));
            total += dot(powers, Pack([1.0; 4]));
            self.store(row + i, powers);
        }
        for i in 0..SCORES {
            let powers = self.load(row + i);
            self.store(row + i, Pack::from_fn(|j| powers[j] / total));
        }
    }

    /// Queries, keys and values of all heads that this PE has, or their gradients.
    #[inline(always)]
    fn parts(&self, kept: Kept) -> [Matrix; 3] {
        let width = WIDTH as u32 / self.place.tensors;
        [0, width, 2 * width].map(|column| kept.middle.of_heads(column))
    }

    /// Attention of each character to itself and those before it.
    #[inline(always)]
    fn attend(&self, kept: Kept) {
        let heads = HEADS as u32 / self.place.tensors;
        let (all, [context, size]) = ([SEQUENCES as u32, heads], [CONTEXT as u32, HEAD as u32]);
        let ([queries, keys, values], weights) = (self.parts(kept), kept.weights.of_heads_below(heads));
        self.products(all, [context, size, context], [queries, keys.t(), weights], false);
        self.block.sync();
        for row in self.strided(all[0] * heads * context) {
            self.softmax(weights.at(row, 0), row % context + 1, SCALE);
        }
        self.block.sync();
        self.products(all, [context, context, size], [weights, values, kept.result.of_heads(0)], false);
        self.block.sync();
    }

    /// From the gradient of the answers, `slopes.result`, that of queries, keys and values.
    #[inline(always)]
    fn attend_backward(&self, kept: Kept, slopes: Kept) {
        let heads = HEADS as u32 / self.place.tensors;
        let (all, [context, size]) = ([SEQUENCES as u32, heads], [CONTEXT as u32, HEAD as u32]);
        let ([queries, keys, values], weights) = (self.parts(kept), kept.weights.of_heads_below(heads));
        let ([of_queries, of_keys, of_values], answers) = (self.parts(slopes), slopes.result.of_heads(0));
        let of_weights = slopes.weights.of_heads_below(heads);
        self.products(all, [context, size, context], [answers, values.t(), of_weights], false);
        self.products(all, [context, context, size], [weights.t(), answers, of_values], false);
        self.block.sync();
        for row in self.strided(all[0] * heads * context) {
            let (first, slopes) = (weights.at(row, 0), of_weights.at(row, 0));
            let mean = self.dot(first, slopes, SCORES);
            for i in 0..SCORES {
                let (weight, slope) = (self.load(first + i), self.load(slopes + i));
                self.store(slopes + i, Pack::from_fn(|j| weight[j] * (slope[j] - mean) * SCALE));
            }
        }
        self.block.sync();
        self.products(all, [context, context, size], [of_weights, keys, of_queries], false);
        self.products(all, [context, context, size], [of_weights.t(), queries, of_keys], false);
        self.block.sync();
    }

    /// What the router gave for one of this PE's experts.
    #[inline(always)]
    fn gate(&self, kept: Kept, row: u32, expert: u32) -> f32 {
        let first = kept.middle.at(row, kept.result.stride);
        self.ctx.load(self.memory.cast::<f32>(), (4 * first + expert) as usize)
    }

    /// What experts give: the square of a ReLU of each number, times the gate. A square has no kink, at which PEs could disagree by a bit and
    /// so by a slope (So et al., 2021).
    #[inline(always)]
    fn mix(&self, kept: Kept) {
        let packs = kept.result.stride;
        for at in self.strided(ROWS as u32 * packs) {
            let (row, i) = (at / packs, at % packs);
            let (x, gate) = (self.load(kept.middle.at(row, i)), self.gate(kept, row, i / EXPERT_FOURS));
            self.store(kept.result.at(row, i), Pack::from_fn(|j| squared_relu(gate) * squared_relu(x[j])));
        }
        self.block.sync();
    }

    /// From the gradient of what experts give, `slopes.result`, that of their numbers and of the router's. A thread has an expert of a row.
    #[inline(always)]
    fn mix_backward(&self, kept: Kept, slopes: Kept) {
        let packs = kept.result.stride;
        let experts = packs / EXPERT_FOURS;
        for at in self.strided(ROWS as u32 * experts) {
            let (row, expert) = (at / experts, at % experts);
            let gate = self.gate(kept, row, expert);
            let mut of_gate = 0.0;
            for i in expert * EXPERT_FOURS..(expert + 1) * EXPERT_FOURS {
                let (x, slope) = (self.load(kept.middle.at(row, i)), self.load(slopes.result.at(row, i)));
                of_gate += dot(slope, Pack::from_fn(|j| squared_relu(x[j])));
                let of_x = Pack::from_fn(|j| squared_relu(gate) * 2.0 * x[j].max(0.0) * slope[j]);
                self.store(slopes.middle.at(row, i), of_x);
            }
            let place = 4 * slopes.middle.at(row, packs) + expert;
            self.ctx.store(self.memory.cast(), place as usize, 2.0 * gate.max(0.0) * of_gate);
        }
        self.block.sync();
    }

    /// One sublayer.
    #[inline(always)]
    pub(super) fn forward(&self, sublayer: u32, kept: Kept) {
        let ([columns, rows], width) = (self.extents(sublayer), WIDTH as u32);
        let [input, output] = self.matrices(PARAMETERS as u32, sublayer);
        self.norm(kept);
        self.linear([width, columns], kept.normed, input, kept.middle);
        if sublayer.is_multiple_of(2) {
            self.attend(kept);
        } else {
            self.mix(kept);
        }
        self.linear([rows, width], kept.result, output, Matrix::new(PARTIAL, width));
        self.sum_over_tensor_team();
        self.fill(|at| {
            let (x, y) = (self.load(at), self.load(PARTIAL + at));
            Pack::from_fn(|j| x[j] + y[j])
        });
    }

    /// One sublayer on the way back: the stream has the gradient of what the sublayer gave, which becomes that of what it took.
    #[inline(always)]
    pub(super) fn backward(&self, sublayer: u32, kept: Kept) {
        let (extents @ [columns, rows], width) = (self.extents(sublayer), WIDTH as u32);
        let [input, output] = self.matrices(PARAMETERS as u32, sublayer);
        let [of_input, of_output] = self.matrices(self.gradient(), sublayer);
        let slopes = Kept::new(SLOPES, extents);
        let stream = Matrix::new(0, width);
        self.linear_backward([rows, width], [kept.result, output], stream, [slopes.result, of_output]);
        if sublayer.is_multiple_of(2) {
            self.attend_backward(kept, slopes);
        } else {
            self.mix_backward(kept, slopes);
        }
        let partial = Matrix::new(PARTIAL, width);
        self.linear_backward([width, columns], [kept.normed, input], slopes.middle, [partial, of_input]);
        self.sum_over_tensor_team();
        self.norm_backward(kept, 1.0);
    }

    /// Predicts each next character, adds `share` of the losses to the loss, and begins the way back.
    #[inline(always)]
    pub(super) fn predict(&self, next: impl Fn(u32) -> u32, share: f32) {
        let size = [WIDTH as u32, VOCABULARY as u32];
        let kept = Kept::new(PREDICTIONS, [size[1]; 2]);
        let (w, of_w) = (self.predictor(PARAMETERS as u32), self.predictor(self.gradient()));
        self.norm(kept);
        self.linear(size, kept.normed, w, kept.middle);
        for row in self.strided(ROWS as u32) {
            let (first, right) = (kept.middle.at(row, 0), next(row));
            self.softmax(first, size[1], 1.0);
            let mut probability = 0.0;
            for i in 0..SCORES {
                let old = self.load(first + i);
                let hit: [f32; 4] = from_fn(|j| if 4 * i + j as u32 == right { 1.0 } else { 0.0 });
                probability += dot(old, Pack(hit));
                self.store(first + i, Pack::from_fn(|j| share * (old[j] - hit[j])));
            }
            self.store(SLOPES + row, Pack([-share * ln(probability); 4]));
        }
        self.block.sync();
        if self.block.leader() {
            let at = self.gradient() + self.len();
            let loss = (0..ROWS as u32).fold(self.load(at)[0], |sum, row| sum + self.load(SLOPES + row)[0]);
            self.store(at, Pack([loss; 4]));
        }
        self.linear_backward(size, [kept.normed, w], kept.middle, [Matrix::new(PARTIAL, size[0]), of_w]);
        self.norm_backward(kept, 0.0);
    }

    /// The gradient of both tables, of which each pack is one thread's.
    #[inline(always)]
    pub(super) fn tables_backward(&self, character: impl Fn(u32) -> u32) {
        for at in self.strided((VOCABULARY + CONTEXT) as u32 * FOURS) {
            let (entry, i, place) = (at / FOURS, at % FOURS, self.tables(self.gradient()) + at);
            let mut sum = self.load(place);
            for row in 0..ROWS as u32 {
                if character(row) == entry || row % CONTEXT as u32 + VOCABULARY as u32 == entry {
                    let slope = self.load(row * FOURS + i);
                    sum = Pack::from_fn(|j| sum[j] + slope[j]);
                }
            }
            self.store(place, sum);
        }
        self.block.sync();
    }

    /// A step of Adam with decay of weights (Kingma and Ba, 2014; Loshchilov and Hutter, 2017).
    #[inline(always)]
    pub(super) fn step(&self, step: u32, rate: f32, decay: f32) {
        // The moments were 0 at first.
        let (len, unbiased) = (self.len(), KEEP.map(|keep| 1.0 / (1.0 - powi(keep, step as i32 + 1))));
        for at in self.strided(len) {
            let place = |array: u32| PARAMETERS as u32 + array * len + at;
            let [old, mean, square, slope] = from_fn(|array| self.load(place(array as u32)));
            let mean = Pack::from_fn(|j| KEEP[0] * mean[j] + (1.0 - KEEP[0]) * slope[j]);
            let square = Pack::from_fn(|j| KEEP[1] * square[j] + (1.0 - KEEP[1]) * slope[j] * slope[j]);
            self.store(place(1), mean);
            self.store(place(2), square);
            let towards = |j| mean[j] * unbiased[0] * rsqrt(square[j] * unbiased[1] + TINY) + decay * old[j];
            self.store(place(0), Pack::from_fn(|j| old[j] - rate * towards(j)));
        }
        self.block.sync();
    }
}
