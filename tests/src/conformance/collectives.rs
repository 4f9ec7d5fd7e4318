//! Collectives that the host launches: each way of each of them, parts of any length, and several streams.

use congruent::collectives::Op;
use congruent::{Error, World};

use super::model::{Sample, samples};
use super::pattern::assert_same;
use super::{sweep, vectors};

/// Collectives over the world, by the fixed kernels.
pub fn collectives(world: &mut World) -> Result<(), Error> {
    sweep::ways(world)?;
    vectors::parts(world)?;
    on_two_streams(world)
}

/// Streams are concurrent, so each has slots of its own; what is launched on one runs in order.
fn on_two_streams(world: &mut World) -> Result<(), Error> {
    let (me, n, len) = (world.pe().index(), world.npes(), 2000);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let buf = world.alloc::<u64>(len)?;
        buf.write(0, &samples(0, me, len))?;
        streams.push((comm, stream, buf));
    }
    let sum = |i| (0..n).fold(0, |sum: u64, pe| sum.wrapping_add(u64::sample(0, pe, i)));
    let twice: Vec<u64> = (0..len).map(|i| sum(i).wrapping_mul(n as u64)).collect();
    world.barrier()?;
    // Every PE launches them in another order.
    streams.rotate_left(me % 2);
    for _ in 0..2 {
        for (comm, stream, buf) in &streams {
            comm.all_reduce(stream, buf.view(), buf.view(), Op::Sum)?;
        }
    }
    for (_, stream, buf) in &streams {
        world.synchronize(stream)?;
        assert_same(&buf.to_vec()?, &twice, || "twice on one of two streams".into());
    }
    Ok(world.barrier()?)
}
