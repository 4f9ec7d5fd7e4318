//! Put, get, put_value, get_value and their strided forms: exactly the elements named arrive, and no others change.

use std::any::type_name;

use congruent::{Error, Grid, Stream, World};
use congruent_heap::f16;
use congruent_test_kernels::By;
use congruent_test_kernels::rma::{Movable, Particle, Transfer};

use super::limit::limited;
use super::pattern::{assert_same, neighbours, value, values};

/// Around every power of two that an implementation may cut at, and one that is larger than a cache.
const SIZES: [usize; 8] = [1, 3, 7, 63, 64, 65, 4095, LARGE];
const LARGE: usize = 100_003;
/// Elements around a range that must stay as they are.
const MARGIN: usize = 4;

// Buffers, as the pattern numbers them.
const FROM: u64 = 1;
const TO: u64 = 2;
const BACK: u64 = 3;

/// Remote memory access.
pub fn rma(world: &mut World) -> Result<(), Error> {
    every_size::<u8>(world)?;
    every_size::<f16>(world)?;
    every_size::<f32>(world)?;
    every_size::<i64>(world)?;
    every_size::<[u32; 4]>(world)?;
    every_size::<[u8; 3]>(world)?;
    every_size::<Particle>(world)
}

fn every_size<T: Movable>(world: &mut World) -> Result<(), Error> {
    let mut buffers = Buffers::<T>::new(world)?;
    for len in limited(&SIZES) {
        buffers.run(world, len, Transfer::Whole, By::Block)?;
    }
    for len in limited(&[1, 7, 65, 4095]) {
        for what in [Transfer::Whole, Transfer::Values, Transfer::Strided, Transfer::StridedAtOnce] {
            for by in By::ALL {
                buffers.run(world, len, what, by)?;
            }
        }
    }
    Ok(())
}

struct Buffers<T> {
    stream: Stream,
    to: congruent::SymVec<T>,
    back: congruent::SymVec<T>,
    from: congruent::SymVec<T>,
}

impl<T: Movable> Buffers<T> {
    fn new(world: &mut World) -> Result<Self, Error> {
        let len = LARGE + 2 * MARGIN;
        Ok(Self { stream: world.stream()?, to: world.alloc(len)?, back: world.alloc(len)?, from: world.alloc(len)? })
    }

    fn run(&mut self, world: &World, len: usize, what: Transfer, by: By) -> Result<(), Error> {
        let (me, (next, prev)) = (world.pe().index(), neighbours(world));
        let whole = len + 2 * MARGIN;
        // Ranges that start at different distances from a boundary.
        let (at_to, at_back, at_from) = (len % MARGIN, 1, (len / 3) % MARGIN);
        self.from.write(0, &values(FROM, me, whole))?;
        self.to.write(0, &values(TO, me, whole))?;
        self.back.write(0, &values(BACK, me, whole))?;
        let arguments = (
            self.to.slice(at_to..at_to + len)?,
            self.back.slice(at_back..at_back + len)?,
            self.from.slice(at_from..at_from + len)?,
            what,
            by,
        );
        world.run(&self.stream, T::Move::default(), Grid::one(64), arguments)?;

        let (mut to, mut back) = (values(TO, me, whole), values(BACK, me, whole));
        match what {
            Transfer::Whole | Transfer::Values => {
                for i in 0..len {
                    to[at_to + i] = value(FROM, prev, at_from + i);
                    back[at_back + i] = value(FROM, next, at_from + i);
                }
            }
            Transfer::Strided | Transfer::StridedAtOnce => {
                for i in 0..len.div_ceil(3) {
                    to[at_to + 2 * i] = value(FROM, prev, at_from + 3 * i);
                    back[at_back + 3 * i] = value(FROM, next, at_from + 2 * i);
                }
            }
        }
        let mut found = values(FROM, me, whole);
        for (name, buffer, expected) in [("to", &self.to, to), ("back", &self.back, back)] {
            buffer.read(0, &mut found)?;
            let case = || format!("{what:?} of {len} {} by {by:?}, {name}", type_name::<T>());
            assert_same(&found, &expected, case);
        }
        Ok(())
    }
}
