//! Data-parallel training: a small network learns to read handwritten digits, all epochs of it in one kernel.
//!
//! The lesson: what usually is a loop on the host (forward, backward, all-reduce, update) is a loop in the kernel. The
//! gradient is summed over the PEs by the block that just computed it, and the update starts when the sum is there; the host
//! launches once and reads the losses at the end. Parameters are never sent: every PE makes the same step from the same sum.
//!
//! A batch is divided among the PEs, so that any number of them trains the same network; `--compare` trains with 1, 2 and 4
//! PEs and checks that the losses agree to 1e-4. They differ in the last bits, for the order in which a sum is taken
//! depends on who has which part.
//!
//! Run it with `cargo run --release --example digits -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/digits`.

mod data;

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use congruent::collectives::Layout;
use congruent::{Grid, World};
use congruent_example_kernels::digits::{self, CLASSES, HIDDEN, Images, Network, PARAMETERS, PIXELS, Schedule};

use data::Digits;

/// Trains a network on handwritten digits, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// How often every image is shown
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Images of one step, on all PEs together
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Train with 1, 2 and 4 PEs, and check that the losses agree
    #[arg(long)]
    compare: bool,
}

/// How far the losses of different numbers of PEs may be apart.
const TOLERANCE: f32 = 1e-4;

/// What a PE has after training.
struct Outcome {
    history: Vec<f32>,
    parameters: Vec<f32>,
    /// Counted at PE 0.
    right: u32,
    took: Duration,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    let (training, tests) = data::load()?;
    if args.compare {
        return compare(&args, &training, &tests);
    }
    congruent::run(args.pes, |world| {
        let outcome = learn(world, &args, &training, &tests)?;
        if world.pe().index() == 0 {
            for (epoch, loss) in outcome.history.iter().enumerate() {
                println!("epoch {:2}: loss {loss:.4}", epoch + 1);
            }
            report(world, &outcome, tests.labels.len());
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    Ok(())
}

fn compare(args: &Args, training: &Digits, tests: &Digits) -> Result<()> {
    let mut alone: Option<Vec<f32>> = None;
    let mut farthest = 0.0_f32;
    for pes in [1, 2, 4] {
        let outcomes = congruent::local(pes, |world| {
            let outcome = learn(world, args, training, tests)?;
            if world.pe().index() == 0 {
                report(world, &outcome, tests.labels.len());
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(outcome)
        })?;
        let first = &outcomes[0];
        let bits = |outcome: &Outcome| outcome.parameters.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        if outcomes.iter().any(|outcome| bits(outcome) != bits(first)) {
            return Err(format!("{pes} PEs: the PEs do not have the same parameters").into());
        }
        let one = alone.get_or_insert_with(|| first.history.clone());
        for (loss, one) in first.history.iter().zip(one) {
            farthest = farthest.max((loss / *one - 1.0).abs());
        }
    }
    println!("losses of 1, 2 and 4 PEs: at most {farthest:.1e} apart, relative");
    if farthest.is_nan() || farthest > TOLERANCE {
        return Err(format!("more than {TOLERANCE:.0e}").into());
    }
    Ok(())
}

fn report(world: &World, outcome: &Outcome, tests: usize) {
    println!(
        "{} PEs ({}): {} of {tests} test digits read rightly, {:.1} %; {} epochs in {:.2} s, in one kernel",
        world.npes(),
        world.machine(),
        outcome.right,
        100.0 * f64::from(outcome.right) / tests as f64,
        outcome.history.len(),
        outcome.took.as_secs_f64()
    );
}

fn learn(world: &mut World, args: &Args, training: &Digits, tests: &Digits) -> Result<Outcome> {
    // Room for as many images as a PE has at once: of a batch when it trains, of the tests when it is tested.
    let most = (args.batch as usize).max(tests.labels.len()).div_ceil(world.npes());
    let parameters = world.alloc::<f32>(PARAMETERS)?;
    let momentum = world.alloc::<f32>(PARAMETERS)?;
    let gradient = world.alloc::<f32>(PARAMETERS + 1)?;
    let hidden = world.alloc::<f32>(most * HIDDEN)?;
    let classes = world.alloc::<f32>(most * CLASSES)?;
    let losses = world.alloc::<f32>(most)?;
    let history = world.alloc::<f32>(args.epochs as usize)?;
    let right = world.alloc::<u32>(1)?;
    let plan = world.plan(Layout::new(world.team(), 1))?;
    let stream = world.stream()?;
    let network = Network {
        parameters: parameters.view(),
        momentum: momentum.view(),
        gradient: gradient.view(),
        hidden: hidden.view(),
        classes: classes.view(),
        losses: losses.view(),
    };
    let schedule = Schedule { epochs: args.epochs, batch: args.batch, rate: 0.05, keep: 0.9 };
    let mut images = Vec::with_capacity(2);
    for part in [training, tests] {
        let (pixels, labels) = (world.alloc::<f32>(part.pixels.len())?, world.alloc::<u8>(part.labels.len())?);
        pixels.write(0, &part.pixels)?;
        labels.write(0, &part.labels)?;
        images.push((pixels, labels));
    }
    let [train, test] = [0, 1].map(|i| Images { pixels: images[i].0.view(), labels: images[i].1.view() });
    parameters.write(0, &at_first())?;

    let started = Instant::now();
    let arguments = (network, train, plan.view(), history.view(), schedule);
    world.run(&stream, digits::train, Grid::one(256), arguments)?;
    let took = started.elapsed();
    world.run(&stream, digits::test, Grid::one(256), (network, test, right.view()))?;
    Ok(Outcome { history: history.to_vec()?, parameters: parameters.to_vec()?, right: right.to_vec()?[0], took })
}

/// Where the parameters start: weights at random, evenly within the bound of He et al. (2015), biases at 0. The same on
/// every PE, as the generator's seed is.
fn at_first() -> Vec<f32> {
    let mut state = 0_u64;
    // SplitMix64 (Steele, Lea and Flood, 2014).
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
    };
    let mut all = Vec::with_capacity(PARAMETERS);
    for (inputs, outputs) in [(PIXELS, HIDDEN), (HIDDEN, CLASSES)] {
        let bound = (6.0 / inputs as f32).sqrt();
        all.extend((0..inputs * outputs).map(|_| (2.0 * random() - 1.0) * bound));
        all.resize(all.len() + outputs, 0.0);
    }
    all
}
