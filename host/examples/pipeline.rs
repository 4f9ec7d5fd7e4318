//! A pipeline of two stages on two streams: one computes micro-batches, the other sends them to the next PE.
//!
//! While the second stage sends a batch and waits for that of the PE before, the first one computes the next batch. The
//! host gives all batches to the streams and waits once.
//!
//! The lesson: streams are not in order with each other, and events put them in order, in both directions. The second
//! stage of a batch waits for an event behind the first stage: the slot is full. The first stage of a later batch,
//! which uses the same slot, waits for an event behind that second stage: the slot is empty. With two slots both stages
//! work at once.
//!
//! The slots are symmetric memory, since they are put from. A launch that is lent a buffer waits for those on other
//! streams that use it, so buffers need no such events.
//!
//! Run it with `cargo run --release --example pipeline -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/pipeline`.

use std::error::Error;

use clap::Parser;
use congruent::device::Semaphore;
use congruent::{Event, Grid, World};
use congruent_example_kernels::pipeline::{Batch, compute, refine, send_and_sum};

/// Slots between the two stages.
const SLOTS: usize = 2;

/// Sends micro-batches through two stages, on several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Micro-batches of each PE
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    /// Numbers of a micro-batch
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    len: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// Number `i` of a batch of a PE.
fn number(pe: usize, batch: usize, i: usize) -> f32 {
    1.0 + ((pe * 101 + batch * 37 + i * 7) % 1000) as f32
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (pe, npes) = (world.pe().index(), world.npes());
    let (batches, len) = (args.batches as usize, args.len as usize);
    let mut inputs = Vec::new();
    for batch in 0..batches {
        let mut input = world.buffer::<f32>(len)?;
        input.write(0, &(0..len).map(|i| number(pe, batch, i)).collect::<Vec<_>>())?;
        inputs.push(input);
    }
    let (slots, full) = (world.alloc::<f32>(SLOTS * len)?, world.alloc::<Semaphore>(1)?);
    // Every batch has a place of its own at the PE after, so that nobody has to be told that it is empty.
    let inbox = world.alloc::<f32>(batches * len)?;
    let mut sums = world.buffer::<f32>(len)?;
    sums.fill(0.0)?;
    let (computes, sends) = (world.stream()?, world.stream()?);
    world.barrier()?;

    let begun = computes.record_event()?;
    let mut sent: [Option<Event>; SLOTS] = [const { None }; SLOTS];
    for (number, input) in inputs.iter().enumerate() {
        let slot = slots.view().chunk(number % SLOTS, SLOTS);
        let batch = Batch { slot, inbox: inbox.view().chunk(number, batches), full: full.view() };
        if let Some(empty) = &sent[number % SLOTS] {
            computes.wait(empty)?;
        }
        world.launch(&computes, compute, Grid::new(2, 128), (input, slot))?;
        sends.wait(&computes.record_event()?)?;
        world.launch(&sends, send_and_sum, Grid::one(128), (batch, &mut sums))?;
        sent[number % SLOTS] = Some(sends.record_event()?);
    }
    let ended = sends.record_event()?;
    world.synchronize(&sends)?;
    let took = begun.elapsed(&ended)?;

    let before = (pe + npes - 1) % npes;
    for (i, found) in sums.to_vec()?.into_iter().enumerate() {
        let right = (0..batches).fold(0.0, |sum, batch| sum + refine(number(before, batch, i)));
        if found.to_bits() != right.to_bits() {
            return Err(format!("PE {pe}: sum {i} is {found}, not {right}").into());
        }
    }
    world.barrier()?;
    if pe == 0 {
        println!("{batches} batches of {len} numbers on each of {npes} PEs ({}), in {took:?}", world.machine());
        println!("every sum on every PE is that of what the PE before has computed, bit for bit");
    }
    Ok(())
}
