//! The network and its kernels: 64 pixels, 32 hidden units with ReLU, 10 classes with softmax and cross-entropy.
//!
//! Every value that is computed has one thread that computes it, in an order that depends on nothing but the PEs' number.
//! So a run gives the same bits for every number of threads, and with the ring all PEs keep the same bits too.

use congruent_collectives::{PlanView, Sum, ring};
use congruent_device::math::{exp, ln};
use congruent_device::{Block, Ctx, Group, Sym, kernel_arg, kernels};

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Units of the hidden layer.
pub const HIDDEN: usize = 32;
/// Digits there are.
pub const CLASSES: usize = 10;
/// Weights and biases of both layers.
pub const PARAMETERS: usize = (PIXELS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES;

kernel_arg! {
    /// What a kernel needs of the network, on every PE.
    pub struct Network {
        /// The parameters, the same on every PE.
        pub parameters: Sym<f32>,
        /// How fast each parameter moves.
        pub momentum: Sym<f32>,
        /// The gradient, and behind it the loss: one all-reduce sums both.
        pub gradient: Sym<f32>,
        /// For each image: what its hidden units give, and the gradient of that.
        pub hidden: Sym<f32>,
        /// For each image: what the network says about each class, and the gradient of that.
        pub classes: Sym<f32>,
        /// For each image: its part of the loss.
        pub losses: Sym<f32>,
    }
}

kernel_arg! {
    /// Images on every PE; each PE has all of them and works on its share.
    pub struct Images {
        /// [`PIXELS`] numbers for each image.
        pub pixels: Sym<f32>,
        /// The digit on each image.
        pub labels: Sym<u8>,
    }
}

kernel_arg! {
    /// How to learn.
    pub struct Schedule {
        /// How often every image is shown.
        pub epochs: u32,
        /// Images of one step, on all PEs together.
        pub batch: u32,
        /// How far a step goes against the gradient.
        pub rate: f32,
        /// How much of the last step the next one keeps.
        pub keep: f32,
    }
}

/// One fully connected layer: where its weights lie, row after row of one output each, and its biases.
struct Layer {
    weights: Sym<f32>,
    biases: Sym<f32>,
    inputs: usize,
    outputs: usize,
}

/// Both layers in an array of [`PARAMETERS`], be it the parameters or their gradient.
fn layers(all: Sym<f32>) -> (Layer, Layer) {
    let (first, second) = (all.slice(..(PIXELS + 1) * HIDDEN), all.slice((PIXELS + 1) * HIDDEN..PARAMETERS));
    let layer = |part: Sym<f32>, inputs, outputs| Layer {
        weights: part.slice(..inputs * outputs),
        biases: part.slice(inputs * outputs..),
        inputs,
        outputs,
    };
    (layer(first, PIXELS, HIDDEN), layer(second, HIDDEN, CLASSES))
}

impl Layer {
    /// What output `unit` gives for the inputs that lie from `at` on in `values`.
    fn output(&self, ctx: &Ctx<'_>, unit: usize, values: Sym<f32>, at: usize) -> f32 {
        let weights = self.weights.slice(unit * self.inputs..(unit + 1) * self.inputs);
        let mut sum = ctx.load(self.biases, unit);
        for i in 0..self.inputs {
            sum += ctx.load(weights, i) * ctx.load(values, at + i);
        }
        sum
    }

    /// The gradient of every weight and bias, of `count` images: the sum over them of an output's gradient times an input.
    /// `input` says where in `values` an image's inputs begin.
    fn learn(
        &self,
        block: &Block<'_>,
        ctx: &Ctx<'_>,
        count: usize,
        slopes: Sym<f32>,
        values: Sym<f32>,
        input: impl Fn(usize) -> usize,
    ) {
        for at in block.strided(self.weights.len()) {
            let (unit, i) = (at / self.inputs, at % self.inputs);
            let mut sum = 0.0;
            for image in 0..count {
                sum += ctx.load(slopes, image * self.outputs + unit) * ctx.load(values, input(image) + i);
            }
            ctx.store(self.weights, at, sum);
        }
        for unit in block.strided(self.outputs) {
            let mut sum = 0.0;
            for image in 0..count {
                sum += ctx.load(slopes, image * self.outputs + unit);
            }
            ctx.store(self.biases, unit, sum);
        }
    }
}

impl Network {
    /// Shows the network `count` images, of which `pick` gives the numbers; its answers are in `hidden` and `classes`.
    fn answer(&self, block: &Block<'_>, ctx: &Ctx<'_>, images: Images, count: usize, pick: impl Fn(usize) -> usize) {
        let (first, second) = layers(self.parameters);
        for at in block.strided(count * HIDDEN) {
            let (image, unit) = (at / HIDDEN, at % HIDDEN);
            let sum = first.output(ctx, unit, images.pixels, pick(image) * PIXELS);
            ctx.store(self.hidden, at, sum.max(0.0));
        }
        block.sync();
        for at in block.strided(count * CLASSES) {
            let (image, class) = (at / CLASSES, at % CLASSES);
            ctx.store(self.classes, at, second.output(ctx, class, self.hidden, image * HIDDEN));
        }
        block.sync();
    }

    /// Turns the answers into their gradients and the images' losses, then into the gradient of every parameter.
    fn differentiate(
        &self,
        block: &Block<'_>,
        ctx: &Ctx<'_>,
        images: Images,
        count: usize,
        pick: impl Fn(usize) -> usize,
    ) {
        for image in block.strided(count) {
            let answers = self.classes.slice(image * CLASSES..(image + 1) * CLASSES);
            let label = usize::from(ctx.load(images.labels, pick(image)));
            ctx.store(self.losses, image, softmax(ctx, answers, label));
        }
        block.sync();
        let second = layers(self.parameters).1;
        let (first_gradient, second_gradient) = layers(self.gradient);
        second_gradient.learn(block, ctx, count, self.classes, self.hidden, |image| image * HIDDEN);
        // The hidden units' values are read above and overwritten below.
        block.sync();
        for at in block.strided(count * HIDDEN) {
            let (image, unit) = (at / HIDDEN, at % HIDDEN);
            let mut slope = 0.0;
            if ctx.load(self.hidden, at) > 0.0 {
                for class in 0..CLASSES {
                    let weight = ctx.load(second.weights, class * HIDDEN + unit);
                    slope += ctx.load(self.classes, image * CLASSES + class) * weight;
                }
            }
            ctx.store(self.hidden, at, slope);
        }
        block.sync();
        first_gradient.learn(block, ctx, count, self.hidden, images.pixels, |image| pick(image) * PIXELS);
        if block.leader() {
            let loss = (0..count).map(|image| ctx.load(self.losses, image)).sum();
            ctx.store(self.gradient, PARAMETERS, loss);
        }
        block.sync();
    }

    /// Moves every parameter against the gradient of `size` images.
    fn step(&self, block: &Block<'_>, ctx: &Ctx<'_>, size: usize, schedule: &Schedule) {
        for at in block.strided(PARAMETERS) {
            let slope = ctx.load(self.gradient, at) / size as f32;
            let momentum = schedule.keep * ctx.load(self.momentum, at) - schedule.rate * slope;
            ctx.store(self.momentum, at, momentum);
            ctx.store(self.parameters, at, ctx.load(self.parameters, at) + momentum);
        }
        block.sync();
    }
}

/// Replaces the answers about one image by the gradient of its loss, which it returns.
fn softmax(ctx: &Ctx<'_>, answers: Sym<f32>, label: usize) -> f32 {
    let largest = (0..CLASSES).map(|class| ctx.load(answers, class)).fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = (0..CLASSES).map(|class| exp(ctx.load(answers, class) - largest)).sum();
    let loss = ln(sum) - (ctx.load(answers, label) - largest);
    for class in 0..CLASSES {
        let probability = exp(ctx.load(answers, class) - largest) / sum;
        ctx.store(answers, class, if class == label { probability - 1.0 } else { probability });
    }
    loss
}

kernels! { in crate::PTX;
    /// Trains the network, all epochs of it. Each batch is divided among the PEs image by image; each PE computes the
    /// gradient of its share, the ring sums it, and each makes the same step. The mean loss of each epoch goes to `history`.
    pub fn train(block, ctx, network: Network, images: Images, plan: PlanView, history: Sym<f32>, schedule: Schedule) {
        let team = ctx.world();
        let (me, npes) = (team.me().index(), team.size());
        let (all, batch) = (images.labels.len(), schedule.batch as usize);
        for epoch in 0..schedule.epochs as usize {
            let mut loss = 0.0;
            for start in (0..all).step_by(batch) {
                let size = batch.min(all - start);
                let count = size.saturating_sub(me).div_ceil(npes);
                // Every epoch forms its batches anew, by beginning elsewhere.
                let pick = |image: usize| (start + me + image * npes + epoch * 37) % all;
                network.answer(block, ctx, images, count, pick);
                network.differentiate(block, ctx, images, count, pick);
                ring::all_reduce(&mut plan.enter(block, ctx), network.gradient, network.gradient, Sum);
                loss += ctx.load(network.gradient, PARAMETERS);
                network.step(block, ctx, size, &schedule);
            }
            if block.leader() {
                ctx.store(history, epoch, loss / all as f32);
            }
        }
    }

    /// Counts, at PE 0, how many images the network names rightly; each PE looks at its share.
    pub fn test(block, ctx, network: Network, images: Images, right: Sym<u32>) {
        let team = ctx.world();
        let (me, npes) = (team.me().index(), team.size());
        let count = images.labels.len().saturating_sub(me).div_ceil(npes);
        let pick = |image: usize| me + image * npes;
        network.answer(block, ctx, images, count, pick);
        let mut hits = 0;
        for image in block.strided(count) {
            let answers = network.classes.slice(image * CLASSES..(image + 1) * CLASSES);
            let mut best = 0;
            for class in 1..CLASSES {
                if ctx.load(answers, class) > ctx.load(answers, best) {
                    best = class;
                }
            }
            hits += u32::from(best == usize::from(ctx.load(images.labels, pick(image))));
        }
        // The additions of all threads of all PEs meet in one word; the barrier is what makes them visible.
        ctx.add(right.at(team.rank(0)), hits);
        ctx.barrier(block, &team);
    }
}
