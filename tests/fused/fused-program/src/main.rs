//! Six PEs in two groups of weights and three groups of experts; one launch of one kernel does a step on all of them.

use congruent::collectives::Layout;
use congruent::collectives::exchange::Parts;
use congruent::device::Sym;
use congruent::{Error, Grid, World};
use fused_kernels::{Experts, Weights, step};

const NPES: usize = 6;
const TOKENS: usize = 5000;
const BIAS: f32 = 0.5;

/// What a PE multiplies its inputs with.
fn weight(pe: usize) -> f32 {
    pe as f32 + 1.0
}

/// Input `i` of a PE.
fn input(pe: usize, i: usize) -> f32 {
    ((pe * 31 + i) % 64) as f32
}

/// The sums of odd or of even PEs, which are small integers and so exact, with the bias.
fn sum(pe: usize, i: usize) -> f32 {
    (0..NPES).filter(|other| other % 2 == pe % 2).map(|other| input(other, i) * weight(other)).sum::<f32>() + BIAS
}

/// How many tokens one PE sends another.
fn count(from: usize, to: usize) -> usize {
    [700, 0, 1, 1999][(from + 3 * to) % 4]
}

/// Counts, and parts one after the other.
fn list(counts: [usize; 2]) -> [u64; 4] {
    [counts[0] as u64, counts[1] as u64, 0, counts[0] as u64]
}

fn main() -> Result<(), Error> {
    congruent::run(NPES, program)?;
    Ok(())
}

fn program(world: &mut World) -> Result<(), Error> {
    let me = world.pe().index();
    // Even and odd PEs, the last one first; and pairs of neighbours.
    let weights = world.split::<Weights>(Some(me as u32 % 2), (NPES - me) as u32)?;
    let experts = world.split::<Experts>(Some(me as u32 / 2), me as u32)?;
    let (Some(weights), Some(experts)) = (weights, experts) else { return Ok(()) };
    let pair = [me / 2 * 2, me / 2 * 2 + 1];

    let (inputs, sums) = (world.alloc::<f32>(TOKENS)?, world.alloc::<f32>(TOKENS)?);
    let (tokens, lists) = (world.alloc::<f32>(TOKENS)?, world.alloc::<u64>(8)?);
    let summing = world.plan(Layout::new(weights.view(), 1))?;
    let exchanging = world.plan(Layout::new(experts.view(), 1))?;
    inputs.write(0, &(0..TOKENS).map(|i| input(me, i)).collect::<Vec<_>>())?;
    tokens.fill(-1.0)?;
    lists.write(0, &list(pair.map(|peer| count(peer, me))))?;
    lists.write(4, &list(pair.map(|peer| count(me, peer))))?;
    let parts = |at: usize| -> Parts {
        let part = |from: usize| -> Sym<u64> { lists.view().slice(from..from + 2) };
        Parts::new(part(at), part(at + 2))
    };

    let stream = world.stream()?;
    let arguments = (
        weights.view(),
        experts.view(),
        inputs.view(),
        sums.view(),
        tokens.view(),
        parts(0),
        parts(4),
        [weight(me), BIAS],
        summing.view(),
        exchanging.view(),
    );
    world.run(&stream, step, Grid::one(128), arguments)?;

    let mut expected = Vec::new();
    for peer in pair {
        let start: usize = pair.iter().take_while(|other| **other < me).map(|other| count(peer, *other)).sum();
        expected.extend((start..start + count(peer, me)).map(|i| sum(peer, i)));
    }
    let received = expected.len();
    expected.resize(TOKENS, -1.0);
    let wrong = tokens.to_vec()?.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
    println!("{} received {received} tokens, {wrong} of them wrong", world.pe());
    Ok(())
}
