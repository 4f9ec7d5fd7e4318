//! Combine, fill and copy: element by element, the sources from left to right, into every destination and nowhere else.

use std::any::type_name;

use congruent::{Error, Grid, Stream, SymVec, World};
use congruent_test_kernels::By;
use congruent_test_kernels::bulk::{Bulk, Combined};

use super::limit::limited;
use super::pattern::{assert_same, neighbours, value, values};

const SIZES: [usize; 8] = [1, 3, 7, 63, 64, 65, 4095, LARGE];
const LARGE: usize = 20_003;
/// Elements around a range that must stay as they are.
const MARGIN: usize = 4;

// Buffers, as the pattern numbers them and as they stand in the array.
const DST: usize = 0;
const FAR: usize = 1;
const SRC: usize = 2;
const OTHER: usize = 3;

/// Bulk work.
pub fn bulk(world: &mut World) -> Result<(), Error> {
    every_size::<u8>(world)?;
    every_size::<u32>(world)?;
    every_size::<[u32; 2]>(world)?;
    every_size::<[u8; 3]>(world)
}

fn every_size<T: Combined>(world: &mut World) -> Result<(), Error> {
    let mut buffers = Vec::new();
    for _ in 0..4 {
        buffers.push(world.alloc::<T>(LARGE + 2 * MARGIN)?);
    }
    let stream = world.stream()?;
    for what in Bulk::ALL {
        for len in limited(&SIZES) {
            check(world, &stream, &buffers, len, what, By::Block)?;
        }
        check(world, &stream, &buffers, 65, what, By::Warp)?;
        check(world, &stream, &buffers, 65, what, By::Thread)?;
    }
    Ok(())
}

fn check<T: Combined>(
    world: &World,
    stream: &Stream,
    buffers: &[SymVec<T>],
    len: usize,
    what: Bulk,
    by: By,
) -> Result<(), Error> {
    let (me, (next, prev)) = (world.pe().index(), neighbours(world));
    let whole = len + 2 * MARGIN;
    let start = |buffer: usize| (buffer + len) % MARGIN;
    for (buffer, number) in buffers.iter().zip(0..) {
        buffer.write(0, &values(number, me, whole))?;
    }
    let range = |buffer: usize| buffers[buffer].slice(start(buffer)..start(buffer) + len);
    let arguments = (range(DST)?, range(FAR)?, range(SRC)?, range(OTHER)?, what, by);
    // The first warp is not whole, or the last.
    let threads = if matches!(by, By::Warp) { 24 } else { 48 };
    world.run(stream, T::Bulk::default(), Grid::one(threads), arguments)?;

    // What element i of a range was, on some PE.
    let was = |buffer: usize, pe: usize, i: usize| value::<T>(buffer as u64, pe, start(buffer) + i);
    for (number, buffer) in buffers.iter().enumerate() {
        let mut expected = values(number as u64, me, whole);
        for (i, element) in expected[start(number)..start(number) + len].iter_mut().enumerate() {
            *element = match (what, number) {
                (Bulk::One, DST) => was(SRC, next, i),
                (Bulk::Two | Bulk::Both, DST) => was(SRC, me, i).mix(was(SRC, next, i)),
                (Bulk::Three, DST) => was(SRC, prev, i).mix(was(SRC, me, i)).mix(was(OTHER, next, i)),
                // The previous PE wrote this.
                (Bulk::Both, FAR) => was(SRC, prev, i).mix(was(SRC, me, i)),
                (Bulk::InPlace, DST) => was(DST, me, i).mix(was(SRC, next, i)),
                (Bulk::Fill, DST) => was(SRC, me, 0),
                (Bulk::Copy, DST) => was(SRC, me, i),
                _ => *element,
            };
        }
        let mut found = values(0, me, whole);
        buffer.read(0, &mut found)?;
        let case = || format!("{what:?} of {len} {} by {by:?}, buffer {number}", type_name::<T>());
        assert_same(&found, &expected, case);
    }
    Ok(())
}
