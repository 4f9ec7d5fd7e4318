//! A program that has streams, memory and events by cudarc, and a world beside: each works on what the other has. Where there is no
//! GPU, the same step on buffers of the world.

use beside_kernels::axpy;
use congruent::collectives::Op;
use congruent::device::{Slice, SliceMut};
use congruent::{Comm, Error, Grid, Lend, Stream, SymVec, World};
use cudarc::driver::{CudaContext, DevicePtrMut};

const LEN: usize = 1000;
const NPES: usize = 2;

/// One step: `y` becomes `2 x + y`, whoever has them, and `sums` the sum of all PEs' `y`.
fn step(
    world: &World,
    comm: &Comm,
    stream: &Stream,
    (x, y): (impl Lend<Slice<f32>>, impl Lend<SliceMut<f32>>),
    sums: &SymVec<f32>,
) -> Result<(), Error> {
    world.launch(stream, axpy, Grid::new(2, 128), (2.0, x, y, sums.view()))?;
    comm.all_reduce(stream, sums.view(), sums.view(), Op::Sum)?;
    Ok(())
}

/// With cudarc: gives `y`, and the sums as cudarc has them at last.
fn beside(world: &mut World, device: u32, x: &[f32], sums: &SymVec<f32>) -> Result<[Vec<f32>; 2], Error> {
    let context = CudaContext::new(device as usize)?;
    let (theirs, ours, comm) = (context.new_stream()?, world.stream()?, world.comm(world.team())?);
    let (x, mut y, mut last) =
        (theirs.clone_htod(x)?, theirs.alloc_zeros::<f32>(LEN)?, theirs.alloc_zeros::<f32>(LEN)?);
    // Ours goes on behind what cudarc's was given, and that one behind what ours was given.
    ours.wait(&world.import_event(theirs.record_event(None)?)?)?;
    step(world, &comm, &ours, (&x, &mut y), sums)?;
    // Memory of cudarc's by its address, on cudarc's own stream.
    let borrowed = world.borrow_stream(&theirs)?;
    borrowed.wait(&ours.record_event()?)?;
    let address = last.device_ptr_mut(&theirs).0;
    // SAFETY: so many numbers, which cudarc uses on the same stream alone.
    let mut lent = unsafe { world.borrow_raw_buffer::<f32>(address, LEN) }?;
    world.copy(&borrowed, &mut lent, sums.view())?;
    world.synchronize(&borrowed)?;
    Ok([theirs.clone_dtoh(&y)?, theirs.clone_dtoh(&last)?])
}

/// Without.
fn alone(world: &mut World, numbers: &[f32], sums: &SymVec<f32>) -> Result<[Vec<f32>; 2], Error> {
    let (ours, comm) = (world.stream()?, world.comm(world.team())?);
    let (mut x, mut y, mut last) = (world.buffer(LEN)?, world.buffer(LEN)?, world.host_buffer(LEN)?);
    x.write(0, numbers)?;
    step(world, &comm, &ours, (&x, &mut y), sums)?;
    world.copy(&ours, &mut last, sums.view())?;
    Ok([y.to_vec()?, last.to_vec()?])
}

fn main() -> Result<(), Error> {
    congruent::run(NPES, |world| {
        let pe = world.pe().index();
        let numbers: Vec<f32> = (0..LEN).map(|i| (i + pe) as f32).collect();
        let sums = world.alloc::<f32>(LEN)?;
        let (machine, [y, sums]) = match world.device() {
            Some(device) => ("a GPU", beside(world, device, &numbers, &sums)?),
            None => ("the CPU", alone(world, &numbers, &sums)?),
        };
        println!("PE {pe} on {machine}: {} and {}", y[LEN - 1], sums[LEN - 1]);
        Ok::<_, Error>(())
    })?;
    Ok(())
}
