//! A transformer with experts learns to predict the characters of a text: with tensor, pipeline and data parallelism, all steps in one kernel.
//!
//! Eight PEs are two groups, of two stages, of two PEs. A group has some sequences of each batch (data parallelism), a stage some of the
//! layers (pipeline parallelism), and a PE some heads and experts in them (tensor parallelism). With another number of PEs
//! the layout has as much of it as there is room for: 4 PEs are two stages of two PEs, 2 PEs share the matrices, 3 PEs are three groups.
//!
//! The lesson: whatever is between two products of matrices is a call in the kernel. Sums of partial products go over one team, those of
//! gradients over another; a stage puts a micro-batch into the next one's memory with its signal, and computes the next micro-batch meanwhile.
//! The host launches once.
//!
//! PE 0 first trains all of the model by itself, by the same kernel. The losses of every step must agree, some gradients must be those
//! that differences of a plain loss in f64 give, and what was learnt must predict text that was held out better than pairs of characters do.
//!
//! Run it with `cargo run --release --example transformer -- --pes 8`, or with
//! `congruent run -n 8 target/release/examples/transformer`.

mod reference;
mod text;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::collectives::Layout;
use congruent::device::{Signal, World as All};
use congruent::{Grid, Plan, Stream, SymVec, Team, World};
use congruent_example_kernels::transformer::{
    CONTEXT, EXPERTS, INNER, LAYER, LAYERS, Model, PARAMETERS, Place, ROWS, SEQUENCES, Schedule, VOCABULARY, WIDTH,
    gates, memory, parameters, train_transformer,
};

/// Trains a transformer on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 8)]
    pes: usize,
    /// Steps
    #[arg(long, default_value_t = STEPS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    /// Micro-batches of a step, on all PEs together, of 2 sequences
    #[arg(long, default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..=16))]
    batch: u32,
    /// Batches of held-out text, at most
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    tests: u32,
    /// Where to write what the last layer's router chose for held-out text: a line for each character, with the digits of the
    /// 4 experts with the largest gates, or as many as it has and dashes
    #[arg(long)]
    routing: Option<PathBuf>,
}

/// After so many steps, of so many micro-batches or more, the model is better than one of pairs.
const STEPS: u32 = 260;
/// The same.
const BATCH: u32 = 4;
/// How far the first step goes, and how much of a parameter it takes off. At twice this rate losses that differ by rounding drift apart.
const RATE: f32 = 0.007;
/// The same.
const DECAY: f32 = 0.5;
/// How far a loss may be from that of one PE.
const TOLERANCE: f32 = 1e-3;
/// How far a gradient may be from what differences give.
const GRADIENT_TOLERANCE: f64 = 1e-5;
/// Of which parameters gradients are checked: every so many-th.
const CHECK_EVERY: usize = 401;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// How PEs divide the work.
#[derive(Clone, Copy)]
struct Division {
    tensors: usize,
    stages: usize,
    groups: usize,
}

impl Division {
    const ALONE: Self = Self { tensors: 1, stages: 1, groups: 1 };

    /// Pairs that share matrices, pairs of stages, and as many groups as there are then.
    fn of(npes: usize) -> Self {
        let half = |n: usize| if n.is_multiple_of(2) { 2 } else { 1 };
        let tensors = half(npes);
        let stages = half(npes / tensors);
        Self { tensors, stages, groups: npes / tensors / stages }
    }

    /// Which part of the matrices a PE has, which stage it is in, and in which group. PEs of a stage are neighbours, and so are stages.
    fn place(self, pe: usize) -> [usize; 3] {
        [pe % self.tensors, pe / self.tensors % self.stages, pe / self.tensors / self.stages]
    }
}

/// This PE's part of a division, with the plans of its teams.
struct Part {
    division: Division,
    place: [usize; 3],
    tensor: Plan,
    data: Plan,
    _teams: [Option<Team<All>>; 2],
}

impl Part {
    fn new(world: &mut World, division: Division) -> Result<Self> {
        let Division { tensors, stages, .. } = division;
        let (pe, alone) = (world.pe().raw(), tensors * stages * division.groups == 1);
        let colours = if alone { [pe; 2] } else { [pe / tensors as u32, pe % (tensors * stages) as u32] };
        let teams: [Option<Team<All>>; 2] = [world.split(Some(colours[0]), 0)?, world.split(Some(colours[1]), 0)?];
        let view = |team: &Option<Team<All>>| team.as_ref().map_or(world.team(), Team::view);
        let layouts = [Layout::new(view(&teams[0]), 1), Layout::new(view(&teams[1]), 1)];
        let [tensor, data] = [world.plan(layouts[0])?, world.plan(layouts[1])?];
        Ok(Self {
            division,
            place: if alone { [0; 3] } else { division.place(pe as usize) },
            tensor,
            data,
            _teams: teams,
        })
    }

    fn view(&self) -> Place {
        let (Division { tensors, stages, groups }, [_, stage, group]) = (self.division, self.place);
        let [tensors, stage, stages, group, groups] = [tensors, stage, stages, group, groups].map(|n| n as u32);
        Place { tensor: self.tensor.view(), data: self.data.view(), tensors, stage, stages, group, groups }
    }

    /// The parameters that this PE has.
    fn share(&self, all: &[f32]) -> Vec<f32> {
        let (Division { tensors, stages, .. }, [rank, stage, _]) = (self.division, self.place);
        let (layers, ends) = all.split_at(LAYERS * LAYER);
        let (tables, predictions) = ends.split_at((VOCABULARY + CONTEXT) * WIDTH);
        let rows = |matrix: &[f32]| matrix[rank * matrix.len() / tensors..(rank + 1) * matrix.len() / tensors].to_vec();
        let columns = |matrix: &[f32], width| matrix.chunks(width).flat_map(rows).collect::<Vec<_>>();
        let experts = |row: &[f32]| [rows(&row[..INNER]), rows(&row[INNER..])].concat();
        let mut own = Vec::new();
        for layer in layers.chunks(LAYER).skip(stage * LAYERS / stages).take(LAYERS / stages) {
            let (attention, mixture) = layer.split_at(4 * WIDTH * WIDTH);
            let (input, output) = attention.split_at(3 * WIDTH * WIDTH);
            own.extend(columns(input, WIDTH).into_iter().chain(rows(output)));
            let (input, output) = mixture.split_at(WIDTH * (INNER + EXPERTS));
            own.extend(input.chunks(INNER + EXPERTS).flat_map(experts).chain(rows(output)));
        }
        own.extend_from_slice(if stage == 0 { tables } else { &[] });
        own.extend_from_slice(if stage + 1 == stages { predictions } else { &[] });
        own
    }
}

/// What training needs on the heap.
struct Trainer {
    memory: SymVec<f32>,
    inbox: SymVec<f32>,
    arrived: SymVec<Signal>,
    history: SymVec<f32>,
    queue: Stream,
}

impl Trainer {
    /// For as much as one of these parts needs.
    fn new(world: &mut World, parts: [&Part; 2], batch: u32, steps: usize) -> Result<Self> {
        let most = parts.map(|part| (batch as usize).div_ceil(part.division.groups));
        // The last stage keeps one micro-batch, and the others all.
        let needs = [0, 1].map(|i| {
            let Division { tensors, stages, .. } = parts[i].division;
            let sublayers = 2 * LAYERS / stages * if stages > 1 { most[i] } else { 1 };
            memory(parameters(tensors, 0, 1), sublayers)
        });
        Ok(Self {
            memory: world.alloc(4 * needs[0].max(needs[1]))?,
            inbox: world.alloc(2 * most[1] * ROWS * WIDTH)?,
            arrived: world.alloc(2 * most[1])?,
            history: world.alloc(steps)?,
            queue: world.stream()?,
        })
    }

    /// Begins anew.
    fn reset(&self, part: &Part, all: &[f32]) -> Result<()> {
        self.memory.fill(0.0)?;
        Ok(self.memory.write(4 * PARAMETERS, &part.share(all))?)
    }

    /// The gradient of all parameters, where this PE has them all.
    fn gradient(&self) -> Result<Vec<f32>> {
        let count = parameters(1, 0, 1);
        let mut gradient = vec![0.0; count];
        self.memory.read(4 * PARAMETERS + 3 * count, &mut gradient)?;
        Ok(gradient)
    }

    /// The experts of the last layer that each character of a micro-batch has, the one with the largest gate first, where this PE has them all.
    fn experts(&self) -> Result<Vec<Vec<usize>>> {
        let chosen = |row| {
            let mut given = [0.0; EXPERTS];
            self.memory.read(4 * gates(LAYERS - 1, row), &mut given)?;
            let mut chosen: Vec<usize> = (0..EXPERTS).filter(|&expert| given[expert] > 0.0).collect();
            chosen.sort_by(|&a, &b| given[b].total_cmp(&given[a]));
            Ok(chosen)
        };
        (0..ROWS).map(chosen).collect()
    }

    /// Launches the kernel, and waits for it.
    fn run(&self, world: &mut World, part: &Part, text: &[u8], starts: &[u32], schedule: Schedule) -> Result<()> {
        let (mut characters, mut places) = (world.buffer(text.len())?, world.buffer(starts.len())?);
        characters.write(0, text)?;
        places.write(0, starts)?;
        let model = Model {
            memory: self.memory.view().cast(),
            inbox: self.inbox.view().cast(),
            arrived: self.arrived.view(),
            history: self.history.view(),
        };
        let lent = (model, part.view(), &characters, &places, schedule);
        Ok(world.run(&self.queue, train_transformer, Grid::one(128), lent)?)
    }

    /// The first losses of a PE, at this one.
    fn losses(&self, world: &World, pe: usize, count: usize) -> Result<Vec<f32>> {
        if world.pe().index() != pe {
            let (mine, theirs) = (self.history.view(), self.history.view().at(world.rank(pe as u32)?));
            world.get(&self.queue, mine, theirs)?;
            world.synchronize(&self.queue)?;
        }
        Ok(self.history.to_vec()?[..count].to_vec())
    }
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes) = (world.pe().index(), world.npes());
    let (training, held_out) = text::load();
    let (sequences, steps) = (args.batch as usize * SEQUENCES, args.steps as usize);
    let starts: Vec<u32> = (0..(steps * sequences) as u64)
        .map(|i| (random(i ^ 1 << 40) * (training.len() - CONTEXT) as f32) as u32)
        .collect();
    // Whole batches, one sequence behind the other.
    let whole = (held_out.len().saturating_sub(1) / CONTEXT / sequences).min(args.tests as usize) * sequences;
    let tests: Vec<u32> = (0..whole).map(|i| (i * CONTEXT) as u32).collect();

    let alone = Part::new(world, Division::ALONE)?;
    let shared = Part::new(world, Division::of(npes))?;
    let trainer = Trainer::new(world, [&alone, &shared], args.batch, steps.max(whole / sequences))?;
    let (all, schedule) = (at_first(), Schedule { batch: args.batch, before: 0, rate: RATE, decay: DECAY });
    let (mut expected, mut took_alone) = (Vec::new(), Duration::ZERO);
    if me == 0 {
        let first = &starts[..SEQUENCES];
        trainer.reset(&alone, &all)?;
        trainer.run(world, &alone, &training, first, Schedule { batch: 1, ..schedule })?;
        check_gradient(&all, &trainer.gradient()?, &training, first)?;
        trainer.reset(&alone, &all)?;
        let started = Instant::now();
        trainer.run(world, &alone, &training, &starts, schedule)?;
        (expected, took_alone) = (trainer.losses(world, me, steps)?, started.elapsed());
        let mut routing = Vec::new();
        for first in tests.chunks_exact(SEQUENCES) {
            trainer.run(world, &alone, &held_out, first, Schedule { batch: 1, rate: 0.0, ..schedule })?;
            routing.extend(trainer.experts()?);
        }
        tell_routing(&routing, args.routing.as_deref())?;
    }
    trainer.reset(&shared, &all)?;
    world.barrier()?;
    let started = Instant::now();
    trainer.run(world, &shared, &training, &starts, schedule)?;
    world.barrier()?;
    let took = started.elapsed();
    // The last stage of the first group.
    let last = (shared.division.stages - 1) * shared.division.tensors;
    let losses = if me == 0 { trainer.losses(world, last, steps)? } else { Vec::new() };
    world.barrier()?;
    trainer.run(world, &shared, &held_out, &tests, Schedule { rate: 0.0, before: args.steps, ..schedule })?;
    world.barrier()?;
    if me == 0 {
        let Division { tensors, stages, groups } = shared.division;
        println!(
            "{} parameters on {npes} PEs ({}): data {groups} x pipeline {stages} x tensor {tensors}",
            all.len(),
            world.machine()
        );
        for step in (0..steps).filter(|step| step % steps.div_ceil(8) == 0 || step + 1 == steps) {
            println!("step {:4}: loss {:.4}, on one PE {:.4}", step + 1, losses[step], expected[step]);
        }
        println!("{steps} steps took {took:.2?}, on one PE {took_alone:.2?}");
        let farthest = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if farthest > TOLERANCE || losses.iter().any(|loss| loss.is_nan()) {
            return Err(format!("a loss is {farthest} from that of one PE").into());
        }
        println!("every loss is within {TOLERANCE:e} of that of one PE, at most {farthest:.1e} off");
        let tested = trainer.losses(world, last, whole / sequences)?;
        let loss = tested.iter().sum::<f32>() / tested.len() as f32;
        let bigram =
            text::bigram_loss(&training, held_out.windows(2).take(whole * CONTEXT).map(|pair| (pair[0], pair[1])));
        println!("{} characters that were held out: loss {loss:.4}, of a bigram model {bigram:.4}", whole * CONTEXT);
        if f64::from(loss) < bigram {
            println!("the transformer is better than the bigram model");
        } else if args.steps >= STEPS && args.batch >= BATCH {
            return Err(format!("after {steps} steps the transformer is no better than the bigram model").into());
        } else {
            println!("less than the {STEPS} steps of {BATCH} micro-batches after which it has to be better");
        }
    }
    world.barrier()?;
    Ok(())
}

/// Says how many characters each expert has, and writes who has which, if somebody wants it.
fn tell_routing(routing: &[Vec<usize>], file: Option<&Path>) -> Result<()> {
    let mut counts = [0; EXPERTS];
    routing.iter().flatten().for_each(|&expert| counts[expert] += 1);
    println!("of {} characters that were held out the experts of the last layer have {counts:?}", routing.len());
    if let Some(file) = file {
        let digits = |chosen: &Vec<usize>| chosen.iter().take(4).map(usize::to_string).collect::<String>();
        let line = |chosen| format!("{:-<4}\n", digits(chosen));
        fs::write(file, routing.iter().map(line).collect::<String>())?;
    }
    Ok(())
}

/// Whether gradients are what differences give.
fn check_gradient(all: &[f32], gradient: &[f32], text: &[u8], starts: &[u32]) -> Result<()> {
    let mut exact: Vec<f64> = all.iter().copied().map(f64::from).collect();
    let (mut farthest, mut count) = (0.0_f64, 0);
    for which in (0..all.len()).step_by(CHECK_EVERY) {
        let (right, found) = (reference::derivative(&mut exact, which, text, starts), f64::from(gradient[which]));
        if (right - found).abs() > GRADIENT_TOLERANCE || found.is_nan() {
            return Err(format!("the gradient of parameter {which} is {found}, not {right}").into());
        }
        (farthest, count) = (farthest.max((right - found).abs()), count + 1);
    }
    println!("{count} gradients are within {GRADIENT_TOLERANCE:e} of differences in f64, at most {farthest:.1e} off");
    Ok(())
}

/// A number from 0 to 1, 1 not included, which looks like chance (SplitMix64: Steele, Lea and Flood, 2014).
fn random(i: u64) -> f32 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}

/// Where all parameters start.
fn at_first() -> Vec<f32> {
    let even = |bound: f32, count| (0..count).map(move |_| bound).collect::<Vec<f32>>();
    let mut bounds = Vec::new();
    let bound = |inputs: usize| (3.0 / inputs as f32).sqrt();
    for _ in 0..LAYERS {
        bounds.extend(even(bound(WIDTH), 3 * WIDTH * WIDTH));
        bounds.extend(even(0.5 * bound(WIDTH), WIDTH * WIDTH));
        bounds.extend(even(bound(WIDTH), WIDTH * (INNER + EXPERTS)));
        bounds.extend(even(0.5 * bound(INNER), WIDTH * INNER));
    }
    bounds.extend(even(1.0, VOCABULARY * WIDTH));
    bounds.extend(even(0.3, CONTEXT * WIDTH));
    bounds.extend(even(0.5 * bound(WIDTH), VOCABULARY * WIDTH));
    bounds.iter().enumerate().map(|(i, bound)| (2.0 * random(i as u64) - 1.0) * bound).collect()
}
