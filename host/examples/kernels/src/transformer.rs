//! A small transformer over characters, and its training in one kernel: Adam, with tensor, pipeline and data parallelism.
//!
//! A *sublayer* is attention, or a mixture of experts. It adds to the stream what it makes of the stream's norm:
//! `stream += output(inner(input(norm(stream))))`. Of a tensor team each PE has some columns of `input` and the rows of `output` that belong
//! to them, so what it adds is a part of a sum over the team (Shoeybi et al., 2019): some heads, or some experts.
//!
//! An expert is some columns and rows with the square of a ReLU between them. The last columns of `input` are the router: a number for each
//! expert, whose gate is the square of its ReLU, too. A token has the experts whose gates are not 0. Experts do not compete for it, so each PE
//! knows the gates of its own, and a gate becomes 0 without a jump (ReMoE: Wang et al., 2025). What gates of 0 are multiplied with is computed
//! all the same: all is in a few products of matrices. How tokens travel to experts is shown by the example `moe_experts`.

mod worker;

use congruent_collectives::{PlanView, Sum, ring};
use congruent_device::{Group, Pack, Signal, Slice, Sym, kernel_arg, kernels};

use worker::{Kept, Worker};

/// Different characters.
pub const VOCABULARY: usize = 32;
/// Characters of a sequence, each of which sees those before it.
pub const CONTEXT: usize = 32;
/// Numbers of a character in the stream.
pub const WIDTH: usize = 32;
/// Heads of attention.
pub const HEADS: usize = 2;
/// Experts of a layer.
pub const EXPERTS: usize = 8;
/// Numbers between the matrices of an expert, and of all of a layer.
pub const EXPERT: usize = 16;
/// The same.
pub const INNER: usize = EXPERTS * EXPERT;
/// Layers: attention, and a mixture of experts.
pub const LAYERS: usize = 2;
/// Sequences of a micro-batch.
pub const SEQUENCES: usize = 2;
/// Characters of a micro-batch.
pub const ROWS: usize = SEQUENCES * CONTEXT;
/// Added to the mean of squares.
pub const EPSILON: f32 = 1e-5;

/// Numbers of a head.
pub const HEAD: usize = WIDTH / HEADS;
/// Parameters of a layer.
pub const LAYER: usize = 4 * WIDTH * WIDTH + WIDTH * (2 * INNER + EXPERTS);

/// Four numbers, which one access moves.
pub type Four = Pack<f32, 4>;
/// Packs of a row of the stream, of a row of scores, and of the stream of a micro-batch.
const FOURS: u32 = WIDTH as u32 / 4;
const SCORES: u32 = CONTEXT as u32 / 4;
const STREAM: u32 = ROWS as u32 * FOURS;
// A PE of two has whole packs of gates.
const _: () = assert!(VOCABULARY == CONTEXT && HEAD == 16 && EXPERTS.is_multiple_of(8) && EXPERT.is_multiple_of(4));
/// One divided by the root of [`HEAD`].
const SCALE: f32 = 0.25;

/// Numbers of a row between the matrices of a sublayer, at most.
const WIDEST: u32 = if 3 * WIDTH > INNER + EXPERTS { 3 * WIDTH } else { INNER + EXPERTS } as u32;
/// Packs of what is kept of a sublayer between its passes.
const KEPT: u32 = STREAM + ROWS as u32 + 2 * ROWS as u32 * WIDEST / 4 + (SEQUENCES * HEADS * CONTEXT) as u32 * SCORES;

// A PE's memory, in packs: the stream of a micro-batch or its gradient, this PE's part of a sum over its tensor team, what a pass backward
// computes of a sublayer, and what is kept of the predictions. Behind them are parameters, both moments and the gradient, each as long, and
// the loss; and then what is kept of each sublayer.
const PARTIAL: u32 = STREAM;
const SLOPES: u32 = 2 * STREAM;
const PREDICTIONS: u32 = SLOPES + KEPT;
/// Where in a PE's memory its parameters begin, in packs.
pub const PARAMETERS: usize = (PREDICTIONS + KEPT) as usize;

/// How many packs of memory a PE needs that keeps so many sublayers.
pub const fn memory(parameters: usize, sublayers: usize) -> usize {
    PARAMETERS + parameters + 1 + sublayers * KEPT as usize
}

/// How many parameters a PE has: its part of each of its layers, in the first stage the tables of characters and of positions, and in the
/// last one the matrix that makes predictions.
pub const fn parameters(tensors: usize, stage: usize, stages: usize) -> usize {
    let tables = if stage == 0 { (VOCABULARY + CONTEXT) * WIDTH } else { 0 };
    LAYERS / stages * LAYER / tensors + tables + if stage + 1 == stages { WIDTH * VOCABULARY } else { 0 }
}

/// Where the gates of a row are in the memory of a PE that has all of the model, in packs: what the router gave, of which the square of a ReLU
/// is the gate.
pub fn gates(layer: usize, row: usize) -> usize {
    let sublayer = 2 * layer as u32 + 1;
    let kept = kept(parameters(1, 0, 1) as u32 / 4, sublayer, extents(sublayer, 1));
    kept.middle.at(row as u32, INNER as u32 / 4) as usize
}

/// The columns of `input` that a PE of so many has of a sublayer, and the rows of `output`.
#[inline(always)]
fn extents(sublayer: u32, tensors: u32) -> [u32; 2] {
    let [columns, rows] = if sublayer.is_multiple_of(2) { [3 * WIDTH, WIDTH] } else { [INNER + EXPERTS, INNER] };
    [columns as u32 / tensors, rows as u32 / tensors]
}

/// Sublayer `index` of those that are kept, behind so many packs of parameters.
#[inline(always)]
fn kept(parameters: u32, index: u32, extents: [u32; 2]) -> Kept {
    Kept::new(PARAMETERS as u32 + 4 * parameters + 1 + index * KEPT, extents)
}

kernel_arg! {
    /// Where a PE is among those that train together.
    pub struct Place {
        /// To sum over the PEs that have other parts of the same matrices.
        pub tensor: PlanView,
        /// To sum over the PEs that have the same parameters, for other sequences.
        pub data: PlanView,
        /// How many PEs share a matrix.
        pub tensors: u32,
        /// Which layers this PE has, of so many stages.
        pub stage: u32,
        /// The same.
        pub stages: u32,
        /// Which micro-batches this PE has: every so many-th as there are groups.
        pub group: u32,
        /// The same.
        pub groups: u32,
    }
}

kernel_arg! {
    /// What training needs on every PE.
    pub struct Model {
        /// Parameters, and what is computed with them.
        pub memory: Sym<Four>,
        /// Where the streams of micro-batches arrive from the stage before, and their gradients from the one behind.
        pub inbox: Sym<Four>,
        /// Of each, in which step it arrived last.
        pub arrived: Sym<Signal>,
        /// The loss of each step, in the last stage.
        pub history: Sym<f32>,
    }
}

kernel_arg! {
    /// How to learn.
    pub struct Schedule {
        /// Micro-batches of a step, in all groups together.
        pub batch: u32,
        /// How many steps there were in earlier launches.
        pub before: u32,
        /// How far a step goes at first; it becomes less and less. With 0 nothing is learnt, and the losses are those of a test.
        pub rate: f32,
        /// How much of a parameter a step takes off, for each of `rate`.
        pub decay: f32,
    }
}

kernels! { in crate::PTX;
    /// Trains the transformer, a step for each `batch` micro-batches of `starts`, which says where in `text` each sequence begins.
    ///
    /// A stage sends the stream of a micro-batch to the next one and gets its gradient back. It first goes forward with all micro-batches
    /// and then back (GPipe, Huang et al., 2018); the last stage goes back with each at once. A gradient that comes back tells, too, that the
    /// stream before it was read, so the inboxes may be used again in the next step.
    pub fn train_transformer(
        block, ctx, model: Model, place: Place, text: Slice<u8>, starts: Slice<u32>, schedule: Schedule,
    ) launch_bounds(128, 3) {
        let worker = Worker { block, ctx, memory: model.memory, place };
        let (is_first, is_last) = (place.stage == 0, place.stage + 1 == place.stages);
        let (batch, sequences) = (schedule.batch, SEQUENCES as u32);
        let count = batch.saturating_sub(place.group).div_ceil(place.groups);
        let (steps, share) = (starts.len() as u32 / sequences / batch, 1.0 / (batch * ROWS as u32) as f32);
        for step in 0..steps {
            for at in worker.strided(worker.len() + 1) {
                worker.store(worker.gradient() + at, Pack([0.0; 4]));
            }
            block.sync();
            let now = u64::from(schedule.before + step) + 1;
            for turn in 0..if is_last { count } else { 2 * count } {
                let micro = if turn < count { turn } else { turn - count };
                let first = (step * batch + place.group + micro * place.groups) * sequences;
                let character = |row: u32, later: u32| {
                    let start = starts[(first + row / CONTEXT as u32) as usize];
                    u32::from(text[(start + row % CONTEXT as u32 + later) as usize])
                };
                let kept = |sublayer| worker.kept(if is_last { sublayer } else { micro * worker.sublayers() + sublayer }, sublayer);
                let most = model.arrived.len() / 2;
                let inbox = |way: usize| model.inbox.chunk(way * most + micro as usize, 2 * most);
                let arrived = |way: usize| model.arrived.elem(way * most + micro as usize);
                let stream = model.memory.slice(..STREAM as usize);
                if turn < count {
                    if is_first {
                        let tables = worker.tables(PARAMETERS as u32);
                        worker.fill(|at| {
                            let (row, i) = (at / FOURS, at % FOURS);
                            let x = worker.load(tables + character(row, 0) * FOURS + i);
                            let y = worker.load(tables + (VOCABULARY as u32 + row % CONTEXT as u32) * FOURS + i);
                            Pack::from_fn(|j| x[j] + y[j])
                        });
                    } else {
                        ctx.wait_at_least(block, arrived(0), now);
                        worker.fill(|at| ctx.load(inbox(0), at as usize));
                    }
                    for sublayer in 0..worker.sublayers() {
                        worker.forward(sublayer, kept(sublayer));
                    }
                    if !is_last {
                        let next = ctx.world().rank(ctx.pe().index() + place.tensors as usize);
                        ctx.put_signal(block, inbox(0).at(next), stream, arrived(0).at(next).set(now));
                    }
                }
                if is_last || turn >= count {
                    if is_last {
                        worker.predict(|row| character(row, 1), share);
                    } else {
                        ctx.wait_at_least(block, arrived(1), now);
                        worker.fill(|at| ctx.load(inbox(1), at as usize));
                    }
                    for sublayer in (0..worker.sublayers()).rev() {
                        worker.backward(sublayer, kept(sublayer));
                    }
                    if is_first {
                        worker.tables_backward(|row| character(row, 0));
                    } else {
                        let before = ctx.world().rank(ctx.pe().index() - place.tensors as usize);
                        ctx.put_signal(block, inbox(1).at(before), stream, arrived(1).at(before).set(now));
                    }
                }
            }
            let (gradient, end) = (worker.gradient(), worker.gradient() + worker.len());
            let all = model.memory.slice(gradient as usize..=end as usize).cast::<f32>();
            ring::all_reduce(&mut place.data.enter(block, ctx), all, all, Sum);
            if is_last && block.leader() {
                ctx.store(model.history, step as usize, worker.load(end)[0]);
            }
            worker.step(step, schedule.rate * (1.0 - step as f32 / steps as f32), schedule.decay);
        }
    }
}
