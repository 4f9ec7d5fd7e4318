//! Memory that a program has by cudarc, in kernels beside symmetric memory: nothing is copied, and nobody waits on the host.
//!
//! The lesson: what other PEs see is symmetric, what is this PE's own need not be. A kernel is lent a slice of cudarc's by `&` or
//! `&mut`, as a function would be, and launches are in order with cudarc's own calls on whatever stream those are. Where there is no GPU,
//! a buffer of the world's stands in.
//!
//! Run it with `cargo run --release --example with_cudarc`, or with `congruent run -n 4 target/release/examples/with_cudarc`.

use congruent::collectives::Op;
use congruent::cudarc::driver::CudaContext;
use congruent::device::SliceMut;
use congruent::{Error, Grid, Lend, Stream, World};
use congruent_example_kernels::descend::descend;

const LEN: usize = 100_000;
const STEPS: usize = 3;

/// Some steps, with gradients that the PEs sum in between.
fn train<W>(world: &mut World, stream: &Stream, weights: &mut W) -> Result<(), Error>
where
    for<'w> &'w mut W: Lend<SliceMut<f32>>,
{
    let (gradients, comm) = (world.alloc::<f32>(LEN)?, world.comm(world.team())?);
    for step in 0..STEPS {
        gradients.fill((world.pe().index() + step) as f32)?;
        comm.all_reduce(stream, gradients.view(), gradients.view(), Op::Sum)?;
        world.launch(stream, descend, Grid::new(2, 128), (&mut *weights, gradients.view(), 0.5))?;
        world.synchronize(stream)?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    congruent::run(2, |world| {
        let start = vec![1000.0_f32; LEN];
        let (trained, how) = match world.device() {
            Some(device) => {
                let theirs = CudaContext::new(device as usize)?.new_stream()?;
                let mut weights = theirs.clone_htod(&start)?;
                // Launches of the world on the program's own stream.
                let stream = world.borrow_stream(&theirs)?;
                train(world, &stream, &mut weights)?;
                (theirs.clone_dtoh(&weights)?, "a slice of cudarc's")
            }
            None => {
                let (stream, mut weights) = (world.stream()?, world.buffer::<f32>(LEN)?);
                weights.write(0, &start)?;
                train(world, &stream, &mut weights)?;
                (weights.to_vec()?, "a buffer")
            }
        };
        let n = world.npes();
        let sums = (0..STEPS).map(|step| (n * (n - 1) / 2 + n * step) as f32);
        let expected = 1000.0 - 0.5 * sums.sum::<f32>();
        assert!(trained.iter().all(|&weight| weight == expected), "{} is not {expected}", trained[0]);
        if world.pe().index() == 0 {
            println!("every weight of {how} is {expected} after {STEPS} steps on {n} PEs");
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
